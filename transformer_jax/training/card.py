"""Write the model card of a run: what it is, what it has read, and how well it does.

Everything but the words of `config.card` is taken from the files of the run, so that a
card says nothing that was not measured.
"""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from transformer_jax import cli

NO_WORDS = "Not described: the option `card` of its config holds such words."
SOURCES = ("source", "tfds_name", "train_files", "train_source", "train_target")


def write(
    config: ConfigDict,
    result: Mapping[str, Any],
    step: int,
    ledger: Mapping[str, Any],
    versions: Mapping[str, Any],
) -> str:
    """Return the card of a run that has ended, as Markdown.

    `step` is that of the parameters that answer, which may be earlier than the last.
    """
    model = config.model
    sizes = [
        f"{model[name]} {word}"
        for name, word in (
            ("encoder_layers", "encoder layers"),
            ("decoder_layers", "decoder layers"),
            ("d_model", "wide"),
        )
        if model.get(name)
    ]
    weights = f"{result['weights']} parameters of step {step:,}"
    about = {
        "task": config.task,
        "model": ", ".join([model.name, *sizes]),
        "parameters": f"{result['parameters']:,}",
        "weights": weights,
        "trained": cli.duration(result["seconds"]),
        "begun with": config.train.initial,
        "hardware": f"{versions.get('devices', '')}, {versions.get('host', '')}",
        "software": ", ".join(
            f"{name} {versions[name]}"
            for name in ("transformer_jax", "commit", "jax", "flax")
            if name in versions
        ),
    }
    read = {name: str(config.data.get(name, "")) for name in SOURCES}
    lines = ["# Model card", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in about.items() if value]
    lines += ["", "## What it is for, its data and their licence, its limits", ""]
    lines += [config.card or NO_WORDS, "", "## Data", ""]
    lines += [f"- `data.{name}`: {value}" for name, value in read.items() if value]
    for split, found in ledger.items():
        count = f"{found['examples']:,} of {found['records']:,} examples"
        dropped = ", ".join(f"{reason}" for reason in found.get("left_out", {}))
        lines.append(f"- {split}: {count}" + (f"; left out: {dropped}" * bool(dropped)))
    lines += ["", "## Scores", ""]
    for split, found in result["scores"].items():
        of = f"{found['answered']:,} of {found['examples']:,} examples"
        words = found["summary"] or f"loss {found['loss']:.4f}"
        lines.append(f"- {split}: {words} ({of}, {found['weights']} parameters)")
    if not result["scores"]:
        lines.append("Not scored: `eval.splits` of its config names no split.")
    return "\n".join([*lines, ""])
