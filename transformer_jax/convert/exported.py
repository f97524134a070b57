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

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from transformer_jax import cli, tasks
from transformer_jax.base import files
from transformer_jax.base.errors import UserError
from transformer_jax.convert import define_flags, open_run, runner
from transformer_jax.data.text.tokenizer import Tokenizer
from transformer_jax.runs.run import Run
from transformer_jax.tasks.parts.text import segments

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
    config = run.config.copy_and_resolve_references()
    with config.unlocked():  # kernels may choose by sizes, which are free here
        config.model.attention = "einsum"
    module = tasks.find(config.task).open(config, run.folder.tokenizer).objective.module
    flat = flax.traverse_util.flatten_dict(run.params, sep="/")
    params = {name: np.asarray(x) for name, x in flat.items()}
    shapes: list[Any] = []  # of the state, as a tree

    def apply(params, *arguments, method):
        tree = flax.traverse_util.unflatten_dict(params, sep="/")
        return module.apply({"params": tree}, *arguments, method=method)

    def start(params, source, room):
        batch = {"source": source, "source_segments": segments(source)}
        state = apply(params, batch, room.shape[0], method="start")
        shapes.append(jax.tree.structure(state))
        return jax.tree.leaves(state)

    def extend(params, token, position, leaves):
        tokens = token[:, None, None]
        state = jax.tree.unflatten(shapes[0], leaves)
        places = jnp.broadcast_to(position, tokens.shape)
        logits, after = apply(params, tokens, places, *state, method="extend")
        return logits[:, 0, 0], jax.tree.leaves((state[0], after))

    limits = ["b >= 1", "s >= 2", "t >= 2"]
    b, s, t = jax_export.symbolic_shape("b, s, t", constraints=limits)
    of_params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)

    def ints(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    first = of_params, ints(b, s), ints(t)
    state = jax.eval_shape(start, *first)
    later = of_params, ints(b), ints(), state
    begins, goes_on = (
        jax_export.export(jax.jit(function), platforms=PLATFORMS)(*arguments)
        for function, arguments in ((start, first), (extend, later))
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
