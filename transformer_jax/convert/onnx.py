"""Export a translator, a language model or a classifier to ONNX.

    python -m transformer_jax.convert.onnx --workdir RUN --output FOLDER
    echo "Ein Hund." | python FOLDER/run.py

    start.onnx      source [b, s], room [t] → the state of a search for t tokens
    extend.onnx     token [b], its position, state → logits [b, V], what changes of it
    classify.onnx   tokens [b, s] → logits [b, labels], of a classifier

Sizes in brackets are free. `model.json` has the pieces in the order of the logits, and
`run.py` shows a greedy search; it needs onnxruntime, numpy and sentencepiece. All is
computed in float32. Before the command ends, ONNX Runtime and JAX compute the same
logits, and answer the same lines.
"""

import dataclasses
import importlib
import itertools
import json
import logging
import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from transformer_jax import cli
from transformer_jax.base import files
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import PAD
from transformer_jax.convert import define_flags, onnx_runner, open_run, traced
from transformer_jax.data.text.tokenizer import SPECIAL, Tokenizer
from transformer_jax.decoding import Options
from transformer_jax.decoding.requests import one_line
from transformer_jax.runs.run import Run
from transformer_jax.tasks.parts.text import segments

logger = logging.getLogger(__name__)

TASKS = ("translation", "language", "classification")
OPSET = 21
LARGEST = 2 * 10**9  # bytes of a file, which is one message of protobuf
SAMPLE = 50  # lines that are answered twice, to compare the answers
LEAST = 0.9  # the share of equal answers; a wrong export has hardly any
SHAPES = ((2, 7, 5), (3, 5, 11))  # rows, source and target whose logits are compared
TOLERANCE = 1e-4  # of a logit, relative and absolute
LIMITS = ("max_length", "extra_length")  # of an answer
# Calls of other programs, which are replaced with what they call.
BARRIER = "optimization_barrier"  # for XLA, which must not exchange what is beside it
CALLS = ("jit", "pjit", "closed_call", "checkpoint", "remat2")
CALLS += ("custom_jvp_call", "custom_vjp_call")


def export(run: Run, folder: pathlib.Path) -> str:
    """Write a run for ONNX Runtime; return what the comparison with JAX has found."""
    sides = check_exportable(run)
    check_libraries()
    run = traced.prepare(run, dtype="float32", scan_layers=False)
    made = convert(run)
    folder.mkdir(parents=True)
    try:
        for name, program in made.items():
            files.write_bytes(folder / f"{name}.onnx", program.SerializeToString())
        for side, tokenizer in sides.items():
            files.write_bytes(folder / f"{side}.model", tokenizer)
        about = json.dumps(_describe(run), ensure_ascii=False)
        files.write(folder / "model.json", about)
        shutil.copy(onnx_runner.__file__, folder / "run.py")
        return f"{compare_logits(run, folder)}, {compare_answers(run, folder)}"
    except BaseException:
        shutil.rmtree(folder)  # an export that was not compared is none
        raise


def check_exportable(run: Run) -> dict[str, bytes]:
    """Return the models of the tokenizers that read a line and write an answer."""
    config = run.config
    if config.task not in TASKS or config.model.name != "transformer":
        raise UserError(
            f"only Transformers of the tasks {', '.join(TASKS)} are exported to ONNX, "
            f"not a {config.model.name} {config.task} run"
        )
    size = 4 * sum(x.size for x in jax.tree.leaves(run.params))
    if size > LARGEST:
        raise UserError(
            f"the parameters have {size / 1e9:.1f} GB in float32, and an ONNX file "
            f"holds at most {LARGEST / 1e9:.1f}: use convert.bundle"
        )
    reads, writes = tokenizers_of(run)
    if not all(type(tokenizer) is Tokenizer for tokenizer in (reads, writes)):
        raise UserError(
            "only runs with SentencePiece models of their own are exported to ONNX, "
            f"not those with a {type(reads).__name__} tokenizer"
        )
    language = config.task == "language"  # no space is put before a beginning
    source = reads.model_inside if language else reads.model
    return {"source": source, "target": writes.model}


def tokenizers_of(run: Run) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of lines and of answers."""
    data: Any = run.task.data
    if run.config.task == "translation":
        return data.source_tokenizer, data.target_tokenizer
    return data.tokenizer, data.tokenizer


def check_libraries() -> None:
    """Refuse to export without the optional packages."""
    try:
        for name in ("jax2onnx", "onnxruntime"):
            importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"{error.name} is missing: pip install jax2onnx onnxruntime"
        ) from None


def convert(run: Run) -> dict[str, Any]:
    """Convert the programs of a prepared run; return each as ONNX's message."""
    # As arrays of JAX, because a trace keeps one of NumPy once for each use.
    params = jax.tree.map(jnp.asarray, traced.params_of(run))
    # Attention compares the sizes of queries and keys, if heads share keys.
    model = run.config.model
    least = 4 * (model.num_heads // (model.kv_heads or model.num_heads))
    if run.config.task == "classification":
        b, s = traced.free_sizes("b, s", least)

        def classify(tokens):
            return [traced.apply(run, params, tokens, segments(tokens)).logits]

        takes = [traced.ints(b, s)]
        return {"classify": to_onnx(classify, takes, ["tokens"], ["logits"])}
    found = traced.search_of(run, least)
    token, position, state = found.extend.takes
    fixed = [f"fixed_{i}" for i in range(found.fixed)]
    numbers = range(len(state) - found.fixed)
    names = [*fixed, *(f"state_{i}" for i in numbers)]
    after = [f"next_{i}" for i in numbers]

    def start(source, room):
        return found.start.function(params, source, room)

    def extend(token, position, *leaves):
        logits, changed = found.extend.function(params, token, position, leaves)
        return [logits, *changed]

    takes = [token, position, *state]
    reads = ["token", "position", *names]
    return {
        "start": to_onnx(start, found.start.takes, ["source", "room"], names),
        "extend": to_onnx(extend, takes, reads, ["logits", *after]),
    }


def to_onnx(
    function: Callable[..., Sequence[Any]],
    takes: Sequence[Any],
    reads: Sequence[str],
    writes: Sequence[str],
) -> Any:
    """Convert a function whose inputs and outputs get these names.

    JAX traces it, and jax2onnx reads the primitives without the calls around them: it
    cannot convert `jit` with jax 0.12, nor `jnp.arange` of a free size. An output that
    is an input is left out, and one that is another output becomes a sum with 0,
    because each output needs its own name.
    """
    jax2onnx = importlib.import_module("jax2onnx")
    # It warns of the shape of each input, which it writes nevertheless.
    logging.getLogger("onnx_ir.serde").setLevel(logging.ERROR)
    closed = jax.make_jaxpr(function)(*takes)
    jaxpr: Any = getattr(closed, "jaxpr", closed)
    outputs = jaxpr.outvars
    kept = [i for i, one in enumerate(outputs) if one not in jaxpr.invars]

    def run_flat(*arguments):
        made = evaluate(jaxpr, closed.consts, arguments)
        twice = {i for i in kept if outputs[i] in outputs[:i]}
        zeros = {i: jnp.zeros((), made[i].dtype) for i in twice}
        return tuple(
            jnp.add(made[i], zeros[i]) if i in twice else made[i] for i in kept
        )

    names = [writes[i] for i in kept]
    options = {"opset": OPSET, "input_names": reads, "output_names": names}
    try:
        return jax2onnx.to_onnx(run_flat, takes, **options)
    except NotImplementedError as error:
        reason = str(error).split("\n")[0]
        raise UserError(
            f"jax2onnx cannot convert this model: {reason}; use convert.bundle"
        ) from None


def evaluate(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """Run a traced program, and the programs that it calls, primitive by primitive."""
    values = dict(zip(jaxpr.constvars, consts, strict=True))
    values |= zip(jaxpr.invars, arguments, strict=True)

    def read(variable):
        literal = isinstance(variable, Literal)
        return variable.val if literal else values[variable]

    for equation in jaxpr.eqns:
        given = [read(variable) for variable in equation.invars]
        if equation.primitive.name in CALLS:
            params = equation.params
            inner = params.get("jaxpr", params.get("call_jaxpr"))
            inside = getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())
            made = evaluate(*inside, given)
        elif equation.primitive.name == BARRIER:
            made = given
        else:
            made = equation.primitive.bind(*given, **equation.params)
            if not equation.primitive.multiple_results:
                made = [made]
        values |= zip(equation.outvars, made, strict=True)
    return [read(variable) for variable in jaxpr.outvars]


def _describe(run: Run) -> dict[str, Any]:
    """Return what `run.py` must know."""
    reads, writes = tokenizers_of(run)
    about: dict[str, Any] = {
        "task": run.config.task,
        "source_pieces": reads.tokens(),
        "target_pieces": writes.tokens(),
    }
    if run.config.task == "classification":
        data: Any = run.task.data
        return about | dataclasses.asdict(data.scale)
    options = Options()
    about |= {key: run.config.decode.get(key, getattr(options, key)) for key in LIMITS}
    return about | {"window": run.config.data.get("window", 0)}


def compare_logits(run: Run, folder: pathlib.Path) -> str:
    """Compute logits of drawn tokens with both; refuse a difference."""
    sizes = [tokenizer.vocab_size for tokenizer in tokenizers_of(run)]
    draw, params, largest = np.random.default_rng(0), traced.params_of(run), 0.0
    opened = onnx_runner.open_programs(folder)
    for rows, *lengths in SHAPES:
        source, target = (
            draw.integers(SPECIAL, size, (rows, length)).astype(np.int32)
            for size, length in zip(sizes, lengths, strict=True)
        )
        source[0, -2:] = PAD
        if run.config.task == "classification":
            found = onnx_runner.call(opened["classify"], {"tokens": source})["logits"]
            arguments = source, source != PAD
        elif run.config.task == "language":
            found, arguments = _extend_by(opened, source, target), (target,)
        else:
            found = _extend_by(opened, source, target)
            arguments = source, target, source != PAD, np.ones_like(target)
        arguments = (jnp.asarray(one, jnp.int32) for one in arguments)
        wanted = np.asarray(traced.apply(run, params, *arguments).logits)
        difference = np.abs(found - wanted) / np.maximum(np.abs(wanted), 1)
        largest = max(largest, float(difference.max()))
        if not largest <= TOLERANCE:
            raise UserError(
                f"the logits of ONNX Runtime and JAX differ by {largest:.1e}, and "
                f"{TOLERANCE:.0e} is allowed: this model cannot be exported to ONNX; "
                "use convert.bundle"
            )
    return f"logits differ by {largest:.1e} at most"


def _extend_by(
    opened: dict[str, Any], source: np.ndarray, target: np.ndarray
) -> np.ndarray:
    """Return the logits [b, t, V] after each token of the target."""
    room, found = np.zeros(target.shape[1], np.int32), []
    state = onnx_runner.call(opened["start"], {"source": source, "room": room})
    for place, token in enumerate(target.T):
        logits, state = onnx_runner.extend_by(opened["extend"], token, place, state)
        found.append(logits)
    return np.stack(found, 1)


def compare_answers(run: Run, folder: pathlib.Path) -> str:
    """Answer a sample of lines with both; refuse many differences."""
    options = {
        "beams": 1,
        "sample": False,
        "n_best": 1,
        "mbr": 0,
        "groups": 1,
        "contrast": 0.0,
        "min_length": 0,
        "no_repeat": 0,
    }
    if run.config.task == "classification":
        options = {}
    replies = [r for r in run.replies(sample_lines(run), **options) if not r.error]
    theirs = onnx_runner.answers(folder, (reply.line for reply in replies))
    pairs = [(r.text, one_line(text)) for r, text in zip(replies, theirs, strict=True)]
    equal = sum(ours == theirs for ours, theirs in pairs)
    if equal < LEAST * len(pairs):
        ours, theirs = next((a, b) for a, b in pairs if a != b)
        raise UserError(
            f"only {equal} of {len(pairs)} lines have the same answer by ONNX Runtime "
            f"as by JAX, such as {theirs!r} and {ours!r}: this model cannot be "
            "exported to ONNX; use convert.bundle"
        )
    return f"{equal} of {len(pairs)} lines have the same answer"


def sample_lines(run: Run) -> list[str]:
    """Return lines of the validation split or, if it cannot be read, drawn ones."""
    try:
        records = itertools.islice(run.records("validation"), SAMPLE)
        return [run.task.inference.question(record) for record in records]
    except (OSError, UserError) as error:
        logger.debug("the validation split cannot be read: %s", error)
    [reads, _], draw = tokenizers_of(run), np.random.default_rng(1)
    drawn = (
        draw.integers(SPECIAL, reads.vocab_size, draw.integers(3, 9)).tolist()
        for _ in range(SAMPLE)
    )
    return [" ".join(reads.decode(ids).split()) for ids in drawn]


def main(overrides: dict[str, str]) -> None:
    """Export a run, compare it, and print the folder."""
    run, folder = open_run(overrides)
    found = export(run, folder)
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    print(
        f"exported   {run.weights} parameters of step {run.step} to {folder} "
        f"({size:.1f} MB; {found})"
    )


if __name__ == "__main__":
    define_flags()
    cli.run(main)
