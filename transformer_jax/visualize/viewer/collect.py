"""Collect what a run does with a line, as plain values for JSON.

    {input, output, score, kinds, tokens, search, tree, picture, answers}

Missing parts are None or empty: a classifier has no search, a recurrent model may have
no kinds of attention.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from transformer_jax.base.errors import Refused, UserError
from transformer_jax.decoding import DecodeRequest, Options, Reply
from transformer_jax.decoding.memory import count_attentions
from transformer_jax.runs.run import Run, decode_options
from transformer_jax.tasks.protocols import ShowsAttention, Writes, WritesTrees
from transformer_jax.visualize.viewer import numbers, search
from transformer_jax.visualize.viewer.trace import trace

MOST = 1 << 26  # weights of a line, each of which takes a byte
SHOWN = 60  # characters of a line in an error
LABELS = 20  # most labels listed of a classifier


def describe(run: Run, name: str) -> dict[str, Any]:
    """Return the description of a run for the page."""
    return {
        "name": name,
        "task": run.config.task,
        "step": run.step,
        "weights": run.weights,
    }


def collect(run: Run, line: Any, candidates: int = 8, **changes: Any) -> dict[str, Any]:
    """Answer a line, and return its record; `changes` override `decode` options."""
    options = decode_options(run.config, **changes)
    shown = line if len(str(line)) <= SHOWN else f"{str(line)[:SHOWN]}…"
    try:
        request = run.task.inference.parse(line, options=options)
        refuse_large(run, request)
    except Refused as error:
        raise UserError(f"{shown}: {error}") from None
    reply = run.replies([line], **changes)[0]
    if reply.error:
        raise UserError(f"{shown}: {reply.error}")
    kinds, tokens, note = _attention(run, line, reply)
    inference = run.task.inference
    reading = [k["queries"] for k in kinds if k["name"] in ("decoder", "cross")]
    read = tokens[reading[0]] if reading else ()
    return {
        "input": line if isinstance(line, str) else "",
        "output": reply.text,
        "score": _rounded(reply.score),
        "kinds": kinds,
        "tokens": tokens,
        "note": note,
        "search": _search(run, request, options, candidates, read),
        "tree": inference.nest(reply.text)
        if isinstance(inference, WritesTrees)
        else None,
        "picture": _picture(run, request),
        "answers": list(_answers(reply)),
    }


def refuse_large(run: Run, request: DecodeRequest) -> None:
    """Refuse a line with more weights of attention than a page can show."""
    model = run.config.model
    layers = count_attentions(model)
    pieces = max(len(request.source), len(request.prefix))
    weights = layers * model.get("num_heads", 1) * pieces**2
    if np.ndim(request.source) < 2 and weights > MOST:
        raise Refused(
            f"{pieces:,} pieces have {weights:,} weights of attention, more than the "
            f"{MOST:,} that a page can show: shorten it"
        )


def describe_picture(pixels: Float[np.ndarray, "H W C"], patch: int) -> dict[str, Any]:
    """Return the pixels of an image, scaled from black to white, and its patch size."""
    pixels = np.asarray(pixels, np.float64)
    low, high = pixels.min(), pixels.max()
    levels = np.rint((pixels - low) * (255 / max(high - low, 1e-9)))
    height, width, channels = pixels.shape
    return {
        "height": height,
        "width": width,
        "channels": channels,
        "patch": patch,
        "pixels": numbers.pack(levels.astype(np.uint8)),
    }


def _attention(
    run: Run, line: Any, reply: Reply
) -> tuple[list[dict[str, Any]], list[list[str]], str]:
    """Return kinds of attention, the tokens on their axes, and a note if none."""
    inspector = run.task.inspector
    if not isinstance(inspector, ShowsAttention):
        return [], [], f"The task {run.config.task} does not show its attention."
    source, target = inspector.texts_of(line, reply)
    try:
        found = inspector.attention(run.params, source, target)
    except UserError as error:
        return [], [], str(error)
    kinds, tokens = [], []
    for name, weights in found.items():
        axes = _axes(inspector, found, name, source, target)
        queries, keys = map(_place, axes, weights.shape[2:], [tokens, tokens])
        levels = numbers.quantize(weights)
        kinds.append(
            {
                "name": name,
                "shape": list(weights.shape),
                "queries": queries,
                "keys": keys,
                "weights": numbers.pack(levels),
            }
        )
    return kinds, tokens, ""


def _axes(
    inspector: Any, found: Any, name: str, source: Any, target: str
) -> Sequence[Sequence[str]]:
    """Return the tokens of queries and keys, if the inspector names them."""
    if hasattr(found, "tokens"):
        return found.tokens.get(name, ((), ()))
    if not hasattr(inspector, "pieces"):
        return (), ()
    read, seen = inspector.pieces(source, target)
    sides = {"encoder": (read, read), "decoder": (seen, seen), "cross": (seen, read)}
    return sides.get(name, ((), ()))


def _place(axis: Sequence[str], count: int, tokens: list[list[str]]) -> int:
    """Return the index of an axis among the tokens; unnamed axes get numbers."""
    named = list(axis) if len(axis) == count else [str(i + 1) for i in range(count)]
    if named not in tokens:
        tokens.append(named)
    return tokens.index(named)


def _search(
    run: Run,
    request: DecodeRequest,
    options: Options,
    candidates: int,
    read: Sequence[str],
) -> dict[str, Any] | None:
    """Return the steps of the search, if the run generates text."""
    inference = run.task.inference
    asked = len(request.source) or len(request.prefix)
    if not isinstance(inference, Writes) or not asked:
        return None
    writer = inference.writer
    engine = writer.engine(run.mesh)
    steps = trace(engine, run.params, request, options, candidates)
    return search.describe(steps, options, writer.tokenizer, request.prefix, read)


def _picture(run: Run, request: DecodeRequest) -> dict[str, Any] | None:
    """Return the picture that an image model reads."""
    if np.ndim(request.source) != 3:
        return None
    return describe_picture(request.source, run.task.objective.module.vision.patch)


def _answers(reply: Reply) -> Iterator[dict[str, Any]]:
    """Yield the choices of a model without search: labels, or guesses for masks."""
    if chances := reply.details.get("chances"):
        ranked = sorted(chances.items(), key=lambda pair: -pair[1])
        choices = [[text, _rounded(chance)] for text, chance in ranked[:LABELS]]
        yield {"title": "Answer", "choices": choices}
    for number, guesses in enumerate(reply.details.get("masks", ()), start=1):
        choices = [[g["text"], _rounded(g["chance"])] for g in guesses]
        yield {"title": f"Mask {number}", "choices": choices}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 5)
