"""Choose the likeliest next tokens that the rules allow, and a beam's extensions.

The rules apply to every search: minimum and maximum length, no repeated n-gram, and a
task's constraint. The logits are the largest array of a step, so they are read as
rarely as possible.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.base.ids import EOS
from transformer_jax.decoding import Options
from transformer_jax.decoding.searches.constraints import Constraint
from transformer_jax.decoding.searching import NEG_INF, DecodeInputs
from transformer_jax.models.masks import MASKED


class Choice(NamedTuple):
    """The K extensions of each row that stay in its beam, best first."""

    totals: Any  # Float [B, K]: log-probabilities with the new token
    parents: Any  # Int [B, K]: which hypothesis each extends
    tokens: Any  # Int [B, K]
    lost: Any = None  # as in `beam.Beam`
    progress: Any = None


def best_extensions(
    totals: Float[Array, "B K C"], tokens: Int[Array, "B K C"], count: int
) -> Choice:
    """Choose the `count` likeliest extensions of each row; ties go to the first."""
    rows, _, few = tokens.shape
    totals, best = jax.lax.top_k(totals.reshape(rows, -1), count)
    tokens = jnp.take_along_axis(tokens.reshape(rows, -1), best, axis=1)
    return Choice(totals, best // few, tokens)


def top_next_tokens(
    logits: Float[Array, "B KV"],
    tokens: Int[Array, "B K L"],
    step: Int[Array, "B"],
    inputs: DecodeInputs,
    options: Options,
    constraint: Constraint | None,
    count: int,
) -> tuple[Float[Array, "B K C"], Int[Array, "B K C"]]:
    """Return log-probabilities and ids of the `count` likeliest tokens, best first.

    `tokens` holds the `step` tokens that each hypothesis of a row has written. One at
    its limit must end, even if another rule forbids it. Forbidden tokens score -inf.
    """
    logits = by_hypothesis(logits, tokens)
    allowed = allow(logits, tokens, step, inputs, options, constraint)
    scores, best = largest(allowed, count)
    # Impossible, not merely unlikely, because a beam may be wider than the number of
    # tokens that a model can write.
    scores = jnp.where(scores <= MASKED, NEG_INF, scores)
    # Not `scores[:, :1]`: with a second slice, XLA sorts instead of selecting.
    changed = allowed is not logits
    peak = (logits if changed else scores).max(axis=-1, keepdims=True)
    total = peak + jnp.log(jnp.exp(logits - peak).sum(-1, keepdims=True))
    end = must_end(step, inputs.limits)[..., None]
    first = jnp.arange(count) == 0
    only = jnp.where(first, logits[:, EOS, None], NEG_INF)

    def unfold(flat):
        return flat.reshape(*tokens.shape[:2], -1)

    scores = jnp.where(end, unfold(only - total), unfold(scores - total))
    return scores, jnp.where(end & first, EOS, unfold(best))


def by_hypothesis(
    logits: Float[Array, "B KV"], tokens: Int[Array, "B K L"]
) -> Float[Array, "BK V"]:
    """Give each hypothesis a row, because XLA on a CPU copies arrays of three axes."""
    return logits.reshape(tokens.shape[0] * tokens.shape[1], -1)


def must_end(step: Int[Array, "B"], limits: Int[Array, "B"]) -> Bool[Array, "B 1"]:
    """Return whether the next token is the last that a row may have."""
    return (step + 1 >= limits)[:, None]


def allow(
    logits: Float[Array, "BK V"],
    tokens: Int[Array, "B K L"],
    step: Int[Array, "B"],
    inputs: DecodeInputs,
    options: Options,
    constraint: Constraint | None = None,
) -> Float[Array, "BK V"]:
    """Return the logits, with -inf for every token that a rule forbids."""
    vocab = logits.shape[-1]
    is_end = jnp.arange(vocab) == EOS
    if options.min_length:
        early = jnp.repeat(step + 1 < options.min_length, tokens.shape[1])[:, None]
        logits = jnp.where(early & is_end, NEG_INF, logits)
    if options.no_repeat:
        repeats = _completes(tokens, step, inputs, options.no_repeat, vocab)
        # The end of a sentence is not a repetition.
        repeats = repeats.reshape(logits.shape)
        logits = jnp.where(repeats & ~is_end, NEG_INF, logits)
    if constraint is not None and inputs.constraint is not None:
        arrays = inputs.constraint
        logits = constraint(logits, tokens, step, inputs.limits, arrays)
    return logits


def largest(
    scores: Float[Array, "R V"], count: int
) -> tuple[Float[Array, "R C"], Int[Array, "R C"]]:
    """Return `jax.lax.top_k(scores, count)`, but faster for a large vocabulary.

    One pass finds the maximum of each block; the `count` largest scores lie in the
    `count` blocks with the largest maxima. Ties go to the first, so blocks keep their
    order.
    """
    rows, vocab = scores.shape
    block = math.gcd(vocab, 64)
    if vocab < 2 * count * block or block < 8:
        found, place = jax.lax.top_k(scores, count)
        return found, place
    blocks = scores.reshape(rows, vocab // block, block)
    _, chosen = jax.lax.top_k(blocks.max(axis=-1), count)
    chosen = jnp.sort(chosen, axis=-1)
    candidates = jnp.take_along_axis(blocks, chosen[..., None], axis=1)
    found, place = jax.lax.top_k(candidates.reshape(rows, -1), count)
    inside = jnp.take_along_axis(chosen, place // block, axis=-1)
    return found, inside * block + place % block


def _completes(tokens, step, inputs: DecodeInputs, n: int, vocab: int):
    """Return which tokens would repeat an n-gram of the prompt or text, [B, K, V]."""
    rows, beams, _ = tokens.shape
    given, begin = _align_right(inputs)
    given = jnp.broadcast_to(given[:, None], (rows, beams, given.shape[1]))
    tokens = jnp.concatenate([given, tokens], -1)
    step = (step + given.shape[-1])[:, None, None]
    starts = jnp.arange(tokens.shape[-1])
    # Windows that have been written completely.
    same = (starts >= begin[:, None, None]) & (starts + n <= step)
    same = jnp.broadcast_to(same, tokens.shape)
    for i in range(n - 1):
        place = jnp.clip(step - (n - 1) + i, 0, tokens.shape[-1] - 1)
        recent = jnp.take_along_axis(tokens, place, axis=-1)
        same = same & (jnp.roll(tokens, -i, axis=-1) == recent)
    last = jnp.where(same, jnp.roll(tokens, -(n - 1), axis=-1), vocab)
    row, beam = jnp.arange(rows)[:, None, None], jnp.arange(beams)[None, :, None]
    banned = jnp.zeros((rows, beams, vocab), bool)
    return banned.at[row, beam, last].set(True, mode="drop")


def _align_right(inputs: DecodeInputs) -> tuple[Int[Array, "B P"], Int[Array, "B"]]:
    """Move each prompt, without its start token, to the end of its row.

    Return the moved prompts and the index at which each begins.
    """
    width = inputs.prompt.shape[1]
    begin = width - (inputs.prompt_lengths - 1)
    place = jnp.arange(width) - begin[:, None] + 1
    moved = jnp.take_along_axis(inputs.prompt, jnp.maximum(place, 0), axis=1)
    return jnp.where(place > 0, moved, 0), begin
