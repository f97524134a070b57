"""Propose a config for examples whose form has been guessed.

Sizes grow with the number of examples: what few examples cannot teach only takes time.
The number of steps is left to a measurement.
"""

import dataclasses
import os
import pathlib
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from transformer_jax import tasks
from transformer_jax.base import files
from transformer_jax.config import base
from transformer_jax.data.reading import given
from transformer_jax.data.reading.guessing import Guess

# (most examples, options): the first row that is large enough
SIZES: dict[str, list[tuple[float, dict[str, Any]]]] = {
    "classification": [
        (20_000, {"encoder_layers": 1, "d_model": 128, "d_ff": 256, "num_heads": 4}),
        (500_000, {"encoder_layers": 2, "d_model": 192, "d_ff": 768, "num_heads": 4}),
        (np.inf, {"encoder_layers": 4, "d_model": 256, "d_ff": 1024, "num_heads": 4}),
    ],
    "translation": [
        (20_000, {"layers": 2, "d_model": 128, "d_ff": 512, "num_heads": 4}),
        (500_000, {"layers": 3, "d_model": 256, "d_ff": 1024, "num_heads": 4}),
        (np.inf, {"layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8}),
    ],
    "language": [
        (50_000, {"decoder_layers": 4, "d_model": 128, "d_ff": 512, "num_heads": 4}),
        (np.inf, {"decoder_layers": 6, "d_model": 256, "d_ff": 1024, "num_heads": 8}),
    ],
}
EPOCHS = {"classification": 30, "translation": 40, "language": 20}  # at most
DROPOUT = {"classification": 0.3, "translation": 0.1, "language": 0.1}
SPARE = 0.8  # the share of the time that is left for steps, beside evaluations


@dataclasses.dataclass(frozen=True)
class Proposal:
    """A config in words, and what it was made from."""

    guess: Guess
    options: dict[str, Any]  # that differ from the task's base config

    @property
    def config(self) -> ConfigDict:
        """The config with these options."""
        config = base(task=self.guess.task)
        config.update_from_flattened_dict(self.options)
        return config

    def with_steps(self, steps: int) -> "Proposal":
        """Return the proposal for a number of steps."""
        often = max(steps // 20, 1)
        found = {
            "train.steps": steps,
            "optim.warmup_steps": max(steps // 10, 1),
            "eval.every": 4 * often,
            "checkpoint.every": often,
        }
        return dataclasses.replace(self, options={**self.options, **found})

    def write(self, path: pathlib.Path, files_given: list[str]) -> None:
        """Write the config as a file that a person can go on with."""
        lines = [
            f'"""{self.guess.task.capitalize()}, from {" and ".join(files_given)}.',
            "",
            f"    python -m transformer_jax.train --config {path} \\\\",
            f"        --workdir runs/{path.stem}",
            "",
            f"Proposed by inspect_data, because {self.guess.why}. Not yet measured.",
            '"""',
            "",
            "from transformer_jax.config import base",
            "",
            "",
            "def get_config():",
            f'    config = base(task="{self.guess.task}", model="transformer")',
            *(f"    config.{k} = {_literal(v)}" for k, v in self.options.items()),
            "    return config",
            "",
        ]
        files.write(path, "\n".join(lines))


def _literal(value: Any) -> str:
    text = repr(value)
    return text if '"' in text else text.replace("'", '"')


def propose(guess: Guess, place: pathlib.Path) -> Proposal:
    """Propose a config; held-out examples that are missing are put beside `place`."""
    options = _data_options(guess)
    config = base(task=guess.task)
    config.update_from_flattened_dict(options)
    records = tasks.find(guess.task).source(config)
    if "validation" not in guess.splits:
        options |= _hold_out(guess, config, place.parent / f"{place.stem}_data")
        config.update_from_flattened_dict(options)
        records = tasks.find(guess.task).source(config)
    count = len(records.read("train"))
    if guess.task == "language":  # windows
        count = sum(len(row["text"]) for row in guess.sample) * count
        count //= max(len(guess.sample), 1) * options["data.window"]
    sizes = next(dict(size) for most, size in SIZES[guess.task] if count <= most)
    if (layers := sizes.pop("layers", None)) is not None:
        sizes |= {"encoder_layers": layers, "decoder_layers": layers}
    if guess.task != "language":
        options |= {"tokenizer.vocab_size": min(max(count // 2, 500), 8000)}
    options |= {f"model.{name}": value for name, value in sizes.items()}
    options |= {
        "model.norm": "pre",
        "model.dropout_embedding": DROPOUT[guess.task],
        "model.dropout_residual": DROPOUT[guess.task],
        "optim.schedule": "linear",
        "optim.constant": 0.001,
        "eval.answers": 200 if guess.task == "translation" else 0,
        "eval.splits": ("test",) if "test" in guess.splits else ("validation",),
    }
    if guess.task == "classification":
        options |= {"model.pooling": "mean", "model.dropout_words": 0.1}
        options |= {"eval.weights": "best", "checkpoint.best": "accuracy"}
    return Proposal(guess, options)


def _data_options(guess: Guess) -> dict[str, Any]:
    options: dict[str, Any] = {"data.source": guess.form}
    for split, named in guess.splits.items():
        options |= {
            f"data.{split}_{name}": os.path.abspath(p) for name, p in named.items()
        }
    options |= {f"data.{field}_column": c for field, c in guess.columns.items()}
    texts = [t for row in guess.sample for f, t in row.items() if f != "label"]
    characters = sum(map(len, texts)) or 1
    # Pieces of a learned vocabulary have about 4 characters.
    longest = int(np.percentile([len(text) for text in texts], 99)) // 3
    longest = min(max(-(-longest // 16) * 16, 32), 512)
    if guess.task == "language":
        options |= {"data.window": 256, "data.batch_tokens": 4096}
        options |= {"tokenizer.kind": "char" if characters < 10**6 else "bpe"}
        options |= {"decode.max_length": 150}
    else:
        options |= {"data.max_length": longest, "data.shapes": 4}
        options |= {"data.batch_tokens": max(2048, 8 * longest)}
    return options


def _hold_out(guess: Guess, config: ConfigDict, folder: pathlib.Path) -> dict[str, Any]:
    """Write the training split without every twentieth example, and those.

    Of running text the end is held out, so that what is trained on stays connected.
    """
    source: Any = tasks.find(guess.task).source(config)
    if guess.task == "language":
        lines = list(source.lines("train"))
        count = max(1, min(given.MOST_HELD_OUT, len(lines) // 20))
        kept, held = lines[:-count], lines[-count:]
    else:
        kept, held = given.hold_out(list(source.read("train")))
    options: dict[str, Any] = {"data.source": "jsonl"}
    for name, records in (("train", kept), ("validation", held)):
        given.write(folder / f"{name}.jsonl", records)
        options[f"data.{name}_files"] = str((folder / f"{name}.jsonl").absolute())
    options |= {f"data.{field}_column": field for field in kept[0]}
    if guess.form == "text":
        options |= {f"data.train_{field}": "" for field in kept[0]}
    return options
