"""Take over tables of another size: rows by piece, and more positions than before.

    E'[piece] = E[piece]               if the other vocabulary has the piece
    E'[piece] = mean of E[its parts]   if it can be put together from other pieces

The outputs of a head are taken by their labels. All other rows stay as they were drawn.
Positions beyond the other table begin as those at its beginning, again and again, so
that near positions still differ as they did.
"""

import collections
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.data.text.tokenizer import SPECIAL, Tokenizer

OUTPUTS = ("projection", "output_bias")  # have a column or a number for each piece
HEAD = "head"  # of a model with labels
POSITIONS = ("positions", "source_positions", "target_positions")
SIDES = {"encoder": "source", "decoder": "target"}  # of a model with both stacks
# What belongs to a stack: in a model that has only this one, and in one with both.
NAMES = {
    "embedding": "{}_embedding",
    "positions": "{}_positions",
    "embedding_norm": "{}_norm",
}
SYMBOL = re.compile(r"<.+>")  # a byte or a tag, which has no parts

Change = Callable[[Any, Any], Any]  # (drawn parameter, the other run's) → parameter


def by_own_names(own: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the other run's parameters, also by the names that they have in this one.

    A model with one stack and a model with two call what belongs to it differently.
    """
    named = dict(theirs)
    stacks = [
        {path.partition("/")[0] for path in run} & {*SIDES} for run in (own, theirs)
    ]
    if sorted(map(len, stacks)) != [1, 2]:
        return named
    [stack] = min(stacks, key=len)
    for single, double in NAMES.items():
        names = single, double.format(SIDES[stack])
        mine, other = names if len(stacks[0]) == 1 else reversed(names)
        for path in own:
            top, _, rest = path.partition("/")
            if top == mine and path not in theirs and f"{other}/{rest}" in theirs:
                named[path] = theirs[f"{other}/{rest}"]
    return named


def find_parts(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """Return, for each id of `new`, the ids of `old` whose pieces make up its piece.

    Longest pieces come first, from left to right. A piece with a character that no
    piece of `old` begins with has no parts.
    """
    pieces = old.pieces(range(old.vocab_size))
    known = {piece: i for i, piece in enumerate(pieces) if i >= SPECIAL}
    longest = max(map(len, known), default=0)

    def split(piece: str) -> list[int]:
        if piece in known:
            return [known[piece]]
        text = piece.lower() if old.lowercase else piece
        found, start = [], 0
        while start < len(text) and not SYMBOL.fullmatch(piece):
            ends = range(min(len(text), start + longest), start, -1)
            end = next((e for e in ends if text[start:e] in known), 0)
            if not end:
                return []
            found.append(known[text[start:end]])
            start = end
        return found

    new_pieces = new.pieces(range(new.vocab_size))
    return [[i] for i in range(SPECIAL)] + [split(p) for p in new_pieces[SPECIAL:]]


def describe_parts(parts: list[list[int]]) -> str:
    """Count the pieces that are kept, put together, and new."""
    sizes = collections.Counter(min(len(found), 2) for found in parts)
    return (
        f"of {len(parts):,} pieces, {sizes[1]:,} keep their row, {sizes[2]:,} begin as "
        f"the mean of their parts, {sizes[0]:,} are new"
    )


def take_rows(parts: list[list[int]], axis: int) -> Change:
    """Return a change that gives each piece the mean of its parts along an axis."""
    most = max(map(len, parts))
    ids = np.zeros((most, len(parts)), np.int32)
    counts = np.array([len(found) for found in parts])
    for row, found in enumerate(parts):
        ids[: len(found), row] = found

    def change(drawn: Any, other: Any) -> Any:
        other, rows = jnp.moveaxis(other, axis, 0), jnp.moveaxis(drawn, axis, 0)
        shape = (-1, *[1] * (other.ndim - 1))
        total = jnp.zeros((len(parts), *other.shape[1:]), other.dtype)
        for place in range(most):  # one after the other, to need one more table at most
            used = (counts > place).reshape(shape)
            total += jnp.where(used, other[ids[place]], 0)
        mean = total / np.maximum(counts, 1).reshape(shape)
        found = jnp.where((counts > 0).reshape(shape), mean, rows[: len(parts)])
        return jnp.moveaxis(rows.at[: len(parts)].set(found), 0, axis)

    return change


def repeat_positions(drawn: Any, other: Any) -> Any:
    """Fill a table of positions with the other one's rows, again and again."""
    return other[np.arange(drawn.shape[0]) % other.shape[0]]


def find_changes(
    config: ConfigDict,
    own: Mapping[str, Any],
    theirs: Mapping[str, Any],
    vocabularies: Mapping[str, list[list[int]]],
    labels: list[list[int]],
) -> dict[str, tuple[str, Change]]:
    """Return, for each parameter to change, the other run's one and the change.

    `own` and `theirs` are parameters by path, `vocabularies` the parts of each piece by
    table, `labels` the other run's output for each of the head, if they differ. A table
    that the other run shares between the sides serves both of this one.
    """
    changes: dict[str, tuple[str, Change]] = {}
    for name in own:
        top, _, rest = name.partition("/")
        if top in POSITIONS and rest == "table":
            sizes = [own[name].shape, theirs[name].shape] if name in theirs else []
            resized = sizes and sizes[0] != sizes[1] and sizes[0][1:] == sizes[1][1:]
            if resized and sizes[0][0] == config.model.get("max_positions", 0):
                changes[name] = name, repeat_positions
        elif top in vocabularies and vocabularies[top]:
            shared = name if name in theirs else f"embedding/{rest}"
            if shared in theirs:
                changes[name] = shared, take_rows(vocabularies[top], 0)
        elif top == HEAD and labels and name in theirs:
            changes[name] = name, take_rows(labels, -1)
        elif top in OUTPUTS and name in theirs:
            parts = vocabularies.get("target_embedding", vocabularies.get("embedding"))
            if parts:
                changes[name] = name, take_rows(parts, -1)
    return changes


def apply(change: Change, drawn: Any, other: Any) -> jax.Array:
    """Apply a change where the drawn parameter lies."""
    return jax.jit(change, out_shardings=drawn.sharding)(drawn, other)
