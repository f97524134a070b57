"""Follow one attention computation, number by number.

    scores = q · kᵀ    scaled = scores / √d_k (+ bias)    masked → softmax → weights · v

The numbers are the package's own: queries, keys and values are captured from a model's
`MultiHeadAttention` while it reads, and weights and sums are computed by
`models.attention.attend_by_head`.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from transformer_jax.base import files
from transformer_jax.base.errors import UserError, nearest
from transformer_jax.models.attention import attend_by_head, look_ahead_mask
from transformer_jax.visualize.examples import EXAMPLES

KEYS = (
    "title",
    "queries",
    "keys",
    "values",
    "scores",
    "d_k",
    "mask",
    "query_labels",
    "key_labels",
)


@dataclasses.dataclass(frozen=True)
class Computation:
    """One head's attention in one sentence: T queries, S keys."""

    title: str
    query_labels: Sequence[str]  # T
    key_labels: Sequence[str]  # S
    queries: np.ndarray | None  # [T, K]; None if only scores are given
    keys: np.ndarray | None  # [S, K]
    values: np.ndarray | None  # [S, H]
    d_k: int
    scores: np.ndarray  # [T, S]: q · k
    scaled: np.ndarray  # [T, S]: scores / √d_k, plus any position bias
    allowed: np.ndarray  # [T, S]: what the mask shows
    weights: np.ndarray  # [T, S]
    attended: np.ndarray | None  # [T, H]: weights · values


def compute(
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray | None = None,
    allowed: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    title: str = "",
    query_labels: Sequence[str] = (),
    key_labels: Sequence[str] = (),
) -> Computation:
    """Compute one head's attention from queries [T, K], keys [S, K], values [S, H]."""
    scores = queries @ keys.T
    scaled = scores / math.sqrt(queries.shape[1])
    scaled = scaled if bias is None else scaled + bias
    allowed = np.ones(scores.shape, bool) if allowed is None else allowed
    weights, attended = _attend(queries, keys, values, allowed, bias)
    return Computation(
        title,
        query_labels or [f"q{i}" for i in range(len(queries))],
        key_labels or [f"k{i}" for i in range(len(keys))],
        *(queries, keys, values, queries.shape[1], scores, scaled, allowed, weights),
        attended if values is not None else None,
    )


def from_scores(
    scores: np.ndarray,
    d_k: int = 1,
    values: np.ndarray | None = None,
    allowed: np.ndarray | None = None,
    title: str = "",
    query_labels: Sequence[str] = (),
    key_labels: Sequence[str] = (),
) -> Computation:
    """Compute attention from scores [T, S] between vectors of size `d_k`."""
    length, source = scores.shape
    scaled = scores / math.sqrt(d_k)
    allowed = np.ones(scores.shape, bool) if allowed is None else allowed
    nothing = np.zeros((length, 1)), np.zeros((source, 1))
    weights, attended = _attend(*nothing, values, allowed, scaled)
    query_labels = query_labels or [f"q{i}" for i in range(length)]
    if not key_labels:
        same = len(query_labels) == source
        key_labels = query_labels if same else [f"k{i}" for i in range(source)]
    return Computation(
        title,
        query_labels,
        key_labels,
        None,
        None,
        values,
        d_k,
        scores,
        scaled,
        allowed,
        weights,
        attended if values is not None else None,
    )


def _attend(queries, keys, values, allowed, bias):
    """Call the package's attention for one head of one sentence."""
    values = np.zeros((len(keys), 1)) if values is None else values
    given = queries, keys, values
    query, key, value = (jnp.asarray(x, jnp.float32)[None, None] for x in given)
    mask = jnp.asarray(allowed)[None, None]
    bias = None if bias is None else jnp.asarray(bias, jnp.float32)[None, None]
    attended, weights = attend_by_head(query, key, value, mask, bias)
    return np.asarray(weights[0, 0]), np.asarray(attended[0, 0])


def read_numbers(name: str) -> Computation:
    """Compute the attention that a JSON file or an embedded example describes."""
    if name in EXAMPLES:
        return from_numbers(EXAMPLES[name], name)
    path = pathlib.Path(name)
    if not path.is_file():
        raise UserError(
            f"--numbers={name}: neither a file nor an example; the examples are "
            f"{', '.join(EXAMPLES)}.{nearest(name, list(EXAMPLES))}"
        )
    try:
        content = files.parse_json(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{path}: {error}") from None
    return from_numbers(content, name)


def from_numbers(content: Any, name: str) -> Computation:
    """Compute the attention that a mapping describes, as those in `examples.py`."""
    if not isinstance(content, Mapping):
        raise UserError(f"{name}: expected an object with keys, such as 'scores'")
    for key in content:
        if key not in KEYS:
            raise UserError(f"{name}: unknown key {key!r}.{nearest(key, KEYS)}")
    named = ("queries", "keys", "values", "scores")
    tables: dict[str, Any] = {key: _table(content, key, name) for key in named}
    scores, queries, keys = (tables[k] for k in ("scores", "queries", "keys"))
    given = [key for key in ("scores", "queries", "keys") if key in content]
    if given not in (["scores"], ["queries", "keys"]):
        raise UserError(f"{name}: give either 'scores', or 'queries' and 'keys'")
    if "queries" in given and queries.shape[1] != keys.shape[1]:
        raise UserError(
            f"{name}: queries of {queries.shape[1]} numbers and keys of "
            f"{keys.shape[1]} have no product: make them equally long"
        )
    shape = scores.shape if "scores" in given else (len(queries), len(keys))
    _check_length(name, "values", tables["values"], shape[1])
    labels = {
        key: list(map(str, content.get(key, ())))
        for key in ("query_labels", "key_labels")
    }
    for (key, found), size in zip(labels.items(), shape, strict=True):
        _check_length(name, key, found or None, size)
    rest: dict[str, Any] = dict(
        values=tables["values"],
        allowed=_mask(content.get("mask"), shape, name),
        title=str(content.get("title", name)),
        **labels,
    )
    if "queries" in given:
        return compute(queries, keys, **rest)
    d_k = content.get("d_k", 1)
    if not isinstance(d_k, int) or d_k < 1:
        raise UserError(
            f"{name}: d_k = {d_k!r} is not the size of a vector: use 1 or more"
        )
    return from_scores(scores, d_k, **rest)


def _table(content: Mapping[str, Any], key: str, name: str) -> Any:
    if key not in content:
        return None
    try:
        found = np.array(content[key], np.float32)
    except (ValueError, TypeError):
        found = np.zeros(0)
    if found.ndim != 2 or not found.size or not np.isfinite(found).all():
        raise UserError(f"{name}: {key!r} must be rows of numbers, equally long")
    return found


def _check_length(name: str, key: str, found: Any, expected: int) -> None:
    if found is not None and len(found) != expected:
        raise UserError(f"{name}: {len(found)} {key} for {expected}: give one for each")


def _mask(asked: Any, shape: tuple[int, ...], name: str) -> np.ndarray | None:
    """Return the mask [queries, keys], True where a key is visible; None for no mask.

    `asked` is "look-ahead" or rows of 0 (hidden) and 1; `name` begins the error.
    """
    if asked is None:
        return None
    if asked == "look-ahead" and shape[0] == shape[1]:
        return np.asarray(look_ahead_mask(jnp.arange(shape[0])[None]).dense()[0, 0])
    found = np.array(asked, dtype=object)
    if found.shape != tuple(shape) or not np.isin(found, (0, 1)).all():
        raise UserError(
            f"{name}: 'mask' must be \"look-ahead\" (with as many keys as queries), or "
            f"{shape[0]} rows of {shape[1]} numbers 0 (hidden) or 1"
        )
    return found.astype(bool)


def lines(found: Computation, columns: int = 8) -> list[str]:
    """Write a computation as text, step by step, with `columns` numbers per vector."""
    shown = [found.title, ""]
    if found.queries is not None and found.keys is not None:
        shown += table("queries q", found.query_labels, found.queries, columns)
        shown += table("keys k", found.key_labels, found.keys, columns)
    keys, most = found.key_labels, len(found.key_labels)
    root = f"√{found.d_k} = {math.sqrt(found.d_k):.4g}"
    shown += table("scores q · k", found.query_labels, found.scores, most, keys)
    added = (
        ""
        if np.allclose(found.scaled, found.scores / math.sqrt(found.d_k), atol=1e-4)
        else ", plus the position bias"
    )
    step = f"scaled: scores / {root}{added}"
    if not (found.d_k == 1 and np.array_equal(found.scores, found.scaled)):
        shown += table(step, found.query_labels, found.scaled, most, keys)
    if not found.allowed.all():
        masked = np.where(found.allowed, found.scaled, -np.inf)
        shown += table("masked", found.query_labels, masked, most, keys)
    shown += table(
        "weights: softmax of each row", found.query_labels, found.weights, most, keys
    )
    if found.values is not None and found.attended is not None:
        shown += table("values v", found.key_labels, found.values, columns)
        shown += table(
            "weighted values: weights · v", found.query_labels, found.attended, columns
        )
    return shown


def table(
    title: str,
    rows: Sequence[str],
    values: np.ndarray,
    columns: int,
    names: Sequence[str] = (),
) -> list[str]:
    """Write a matrix with its labels, limited to `columns` columns."""
    cut = values[:, :columns]
    more = f"   (the first {columns} of {values.shape[1]})" * (
        values.shape[1] > cut.shape[1]
    )
    wide = max(map(len, rows))
    cells = [[_number(x) for x in row] for row in cut]
    header = [list(names[: cut.shape[1]])] if names else []
    width = max(len(c) for row in [*cells, *header] for c in row)
    text = [f"{title}  {list(values.shape)}{more}"]
    if names:
        text.append(" " * (wide + 2) + "  ".join(f"{n:>{width}}" for n in header[0]))
    for label, row in zip(rows, cells, strict=True):
        text.append(f"  {label:<{wide}}" + "".join(f"  {c:>{width}}" for c in row)[0:])
    return [*text, ""]


def _number(x: float) -> str:
    if x == -np.inf:
        return "-inf"
    if x and abs(x) < 0.0005:
        return f"{x:.0e}"
    return f"{x:.3f}" if abs(x) < 100 else f"{x:.1f}"
