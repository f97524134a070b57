"""Export a translator as programs of StableHLO, which run without this package.

    python -m transformer_jax.convert.exported --workdir RUN --output FOLDER
    echo "Ein Hund." | python FOLDER/run.py

    start.bin    parameters, source [b, s], room [t] → state of a search for t tokens
    extend.bin   parameters, token [b], its position, state → logits [b, V], state

Sizes in brackets are free. The state is a list of arrays, of which `extend` returns as
many as it takes. `run.py` shows a greedy search; it needs jax with flatbuffers, numpy
and sentencepiece.
"""

import json
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from transformer_jax import cli
from transformer_jax.base import files
from transformer_jax.base.errors import UserError
from transformer_jax.convert import define_flags, open_run, runner, traced
from transformer_jax.data.text.tokenizer import Tokenizer
from transformer_jax.runs.run import Run

PLATFORMS = ("cpu", "cuda", "tpu")


def export(run: Run, folder: pathlib.Path) -> None:
    """Write a translator's programs, parameters, pieces and an example of their use."""
    tokenizers = _check_exportable(run)
    start, extend, params = trace(run)
    try:
        written = {"start": start.serialize(), "extend": extend.serialize()}
    except ImportError:
        raise UserError("flatbuffers is missing: pip install flatbuffers") from None
    folder.mkdir(parents=True)
    np.savez(folder / "params.npz", **params)
    for name, program in written.items():
        files.write_bytes(folder / f"{name}.bin", bytes(program))
    for side, tokenizer in tokenizers.items():
        files.write_bytes(folder / f"{side}.model", tokenizer.model)
    pieces = {side: tokenizer.tokens() for side, tokenizer in tokenizers.items()}
    files.write(folder / "pieces.json", json.dumps(pieces, ensure_ascii=False))
    shutil.copy(runner.__file__, folder / "run.py")


def trace(run: Run) -> tuple[jax_export.Exported, jax_export.Exported, dict]:
    """Export both programs; return them and the parameters by path."""
    search, params = traced.search_of(traced.prepare(run)), traced.params_of(run)

    def extend(params, token, position, state):
        logits, after = search.extend.function(params, token, position, state)
        return logits, [*state[: search.fixed], *after]

    of_params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    begins, goes_on = (
        jax_export.export(jax.jit(function), platforms=PLATFORMS)(of_params, *takes)
        for function, takes in (
            (search.start.function, search.start.takes),
            (extend, search.extend.takes),
        )
    )
    return begins, goes_on, params


def _check_exportable(run: Run) -> dict[str, Tokenizer]:
    """Return the tokenizers of a translator of this package's own pieces."""
    config = run.config
    if config.task != "translation" or config.model.name != "transformer":
        raise UserError(
            f"only Transformer translators are exported as programs, not a "
            f"{config.model.name} {config.task} run"
        )
    data: Any = run.task.data
    found = {"source": data.source_tokenizer, "target": data.target_tokenizer}
    if not all(type(tokenizer) is Tokenizer for tokenizer in found.values()):
        raise UserError(
            "only runs with SentencePiece models of their own are exported as "
            f"programs, not those with a {type(found['source']).__name__} tokenizer"
        )
    return found


def main(overrides: dict[str, str]) -> None:
    """Export a run and print the folder."""
    run, folder = open_run(overrides)
    export(run, folder)
    print(f"exported   {run.weights} parameters of step {run.step} to {folder}")


if __name__ == "__main__":
    define_flags()
    cli.run(main)
