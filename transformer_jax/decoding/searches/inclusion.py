"""Include given phrases in an answer (lexically constrained decoding).

Each hypothesis knows how many pieces it still owes. At every step it may be extended by
its likeliest pieces and by each piece that begins or goes on with a missing phrase. The
beam takes the best extension of each number of owed pieces, the fewest first, then the
second best of each, and so on (Post and Vilar 2018; Hu et al. 2019), so a hypothesis
that has just written an unlikely phrase does not compete with one that has not. No
hypothesis ends, or writes a piece for which its limit leaves no space, before it has
written all phrases. Space is kept as if phrases did not overlap.

A row's constraint has two arrays of its phrases, one after the other: `include`, their
pieces, and `phrase`, the number of the phrase that a piece belongs to, from 1.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.base.errors import Refused, UserError
from transformer_jax.base.ids import EOS
from transformer_jax.decoding.options import Options
from transformer_jax.decoding.requests import DecodeRequest
from transformer_jax.decoding.searches.constraints import Constraint
from transformer_jax.decoding.searches.rules import (
    Choice,
    by_hypothesis,
    top_next_tokens,
)
from transformer_jax.decoding.searching import NEG_INF, DecodeInputs, gather

PIECES, NUMBERS = "include", "phrase"  # of phrases, in a request's constraint


class Progress(flax.struct.PyTreeNode):
    """How far hypotheses have come with the pieces of their row's phrases."""

    reached: Any  # Bool [B, K, W]: the text ends with its phrase up to this piece
    written: Any  # Bool [B, K, W]: the text contains its whole phrase


def add_phrases(
    request: DecodeRequest,
    phrases: Sequence[str],
    tokenizer: Any,
    options: Options,
    most: int,
) -> DecodeRequest:
    """Return a request whose answer, of `most` pieces, must include the phrases."""
    if options.beams < 2 or options.sample or options.groups > 1 or options.contrast:
        raise UserError(
            "answers that must include words are searched by a beam: set beams to 2 "
            f"or more (now {options.beams}), and leave out sample, groups and contrast"
        )
    encoded: list[list[int]] = []
    for phrase in phrases:
        text = tokenizer.compose(phrase.strip())
        unknown = tokenizer.find_unknown(text)
        pieces = tokenizer.encode_inside(f" {text}")  # as the beginning of a word
        if unknown or not pieces:
            raise Refused(
                f"{phrase!r} cannot be included in the answer: the model does not know "
                f"{' '.join(map(repr, unknown)) or 'it'}"
            )
        encoded.append(pieces)
    encoded = _drop_contained(encoded)
    count = sum(map(len, encoded))
    if not count:
        return request
    if count >= most:
        raise Refused(
            f"the words to include are {count} pieces, and the answer may "
            f"have {most - 1} besides its end: raise max_length or extra_length"
        )
    numbers = [np.full(len(one), i) for i, one in enumerate(encoded, start=1)]
    arrays = {
        PIECES: np.concatenate(encoded).astype(np.int32),
        NUMBERS: np.concatenate(numbers).astype(np.int32),
    }
    given = dict(request.constraint or {})
    if given.keys() & {PIECES, "outline"}:
        raise UserError("answers of this task have given words: include none")
    return dataclasses.replace(request, constraint={**given, **arrays})


def _drop_contained(phrases: list[list[int]]) -> list[list[int]]:
    """Leave out phrases that are a part of another one, or given twice."""
    texts = [" ".join(["", *map(str, one), ""]) for one in phrases]
    return [
        phrase
        for i, phrase in enumerate(phrases)
        if not any(
            texts[i] in other and (texts[i] != other or j < i)
            for j, other in enumerate(texts)
            if j != i
        )
    ]


def begin(inputs: DecodeInputs, beams: int) -> Progress | None:
    """Return the progress of empty texts; None if no row has phrases."""
    if PIECES not in (inputs.constraint or {}):
        return None
    pieces = inputs.constraint[PIECES]
    nothing = jnp.zeros((pieces.shape[0], beams, pieces.shape[1]), bool)
    return Progress(nothing, nothing)


def choose(
    progress: Progress,
    log_probs: Float[Array, "B K"],
    logits: Float[Array, "B KV"],
    tokens: Int[Array, "B K L"],
    step: Int[Array, "B"],
    inputs: DecodeInputs,
    options: Options,
    constraint: Constraint | None,
) -> Choice:
    """Choose the K best extensions of each row.

    They come in the order in which the numbers of owed pieces take turns.
    """
    rows, beams = log_probs.shape
    flat = by_hypothesis(logits, tokens)
    owed = _owed(progress, inputs)

    def keep_open(logits, tokens, step, limits, arrays):
        """Forbid the end of texts that owe pieces, besides what is forbidden anyway."""
        if constraint is not None:
            logits = constraint(logits, tokens, step, limits, arrays)
        is_end = jnp.arange(logits.shape[-1]) == EOS
        return jnp.where((owed > 0).reshape(-1, 1) & is_end, NEG_INF, logits)

    few = min(beams, flat.shape[-1])
    gains, likely = top_next_tokens(
        logits, tokens, step, inputs, options, keep_open, few
    )
    # The pieces that begin a missing phrase, or go on with one, even if they repeat.
    asked = jnp.broadcast_to(
        inputs.constraint[PIECES][:, None], (rows, beams, progress.written.shape[-1])
    )
    wanted = _may_follow(progress, inputs) & ~progress.written
    place = jnp.arange(asked.shape[-1])
    twice = (asked[..., None] == asked[..., None, :]) & wanted[..., None, :]
    wanted &= ~(twice & (place[:, None] > place)).any(axis=-1)
    known = (likely[..., None] == asked[..., None, :]) & wanted[..., None, :]
    gains = jnp.where(known.any(axis=-1), NEG_INF, gains)
    total = jax.nn.logsumexp(flat, axis=-1).reshape(rows, beams, 1)
    by_piece = logits.reshape(rows, beams, -1)
    extra = jnp.take_along_axis(by_piece, asked, axis=-1) - total
    gains = jnp.concatenate([gains, jnp.where(wanted, extra, NEG_INF)], axis=-1)
    found = jnp.concatenate([likely, asked], axis=-1)
    # What would be owed, and whether there would be space for it and the end.
    before = jax.tree.map(lambda a: a[:, :, None], progress)
    after = _read(before, inputs, found)
    owed = _owed(after, inputs)
    left = (inputs.limits - step - 1)[:, None, None]
    fits = (found == EOS) | (owed < left)
    totals = jnp.where(fits, log_probs[..., None] + gains, NEG_INF)
    totals, owed, found = (a.reshape(rows, -1) for a in (totals, owed, found))
    best = _take_turns(totals, owed, beams)
    parents = best // (few + asked.shape[-1])
    totals, found = (jnp.take_along_axis(a, best, axis=1) for a in (totals, found))
    after = jax.tree.map(
        lambda a: gather(a.reshape(rows, -1, a.shape[-1]), best), after
    )
    return Choice(totals, parents, found, progress=after)


def _take_turns(
    totals: Float[Array, "B N"], owed: Int[Array, "B N"], count: int
) -> Int[Array, "B K"]:
    """Return the places of the best of each number of owed pieces, in turns."""
    better = totals[:, None] > totals[..., None]
    place = jnp.arange(totals.shape[1])
    earlier = (totals[:, None] == totals[..., None]) & (place < place[:, None])
    rivals = (better | earlier) & (owed[:, None] == owed[..., None])
    rank = jnp.where(totals > NEG_INF, rivals.sum(axis=-1), totals.shape[1])
    return jnp.lexsort((owed, rank), axis=-1)[:, :count]


def _may_follow(progress: Progress, inputs: DecodeInputs) -> Bool[Array, "*batch W"]:
    """Return which pieces begin their phrase, or follow one that has been reached."""
    first, _, there = _ends(inputs, progress.reached.ndim)
    before = jnp.roll(progress.reached, 1, axis=-1)
    return (first | before) & there


def _read(
    progress: Progress, inputs: DecodeInputs, tokens: Int[Array, "B K C"]
) -> Progress:
    """Return the progress [B, K, C, W] of hypotheses [B, K, 1, W] after a token."""
    rank = progress.reached.ndim
    _, last, _ = _ends(inputs, rank)
    pieces, numbers = (
        _expand(inputs.constraint[name], rank) for name in (PIECES, NUMBERS)
    )
    reached = _may_follow(progress, inputs) & (tokens[..., None] == pieces)
    same = numbers[..., None] == numbers[..., None, :]
    whole = (same & (reached & last)[..., None, :]).any(axis=-1)
    return Progress(reached, progress.written | whole)


def _owed(progress: Progress, inputs: DecodeInputs) -> Int[Array, "*batch"]:
    """Count the pieces of missing phrases, less those of the one that has begun."""
    rank = progress.reached.ndim
    numbers = _expand(inputs.constraint[NUMBERS], rank)
    place = jnp.arange(numbers.shape[-1])
    same = numbers[..., None] == numbers[..., None, :]
    nth = (same & (place <= place[:, None])).sum(axis=-1)  # of its phrase, from 1
    missing = ~progress.written & (numbers > 0)
    begun = jnp.where(progress.reached & missing, nth, 0).max(axis=-1)
    return missing.sum(axis=-1) - begun


def _ends(inputs: DecodeInputs, rank: int) -> tuple[Array, Array, Array]:
    """Return which pieces are the first, the last, or any of a phrase."""
    numbers = inputs.constraint[NUMBERS]
    there = numbers > 0
    first = there & (numbers != jnp.roll(numbers, 1, axis=-1))
    # A row full of one phrase is its own neighbour.
    first = first.at[:, 0].set(there[:, 0])
    last = there & jnp.roll(first | ~there, -1, axis=-1)
    last = last.at[:, -1].set(there[:, -1])
    return _expand(first, rank), _expand(last, rank), _expand(there, rank)


def _expand(array: Array, rank: int) -> Array:
    """Give an array [B, W] further axes before its last."""
    return array.reshape(array.shape[0], *[1] * (rank - 2), array.shape[-1])
