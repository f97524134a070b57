"""Beam search: the K best beginnings side by side, ranked by a length penalty.

    score(Y) = log P(Y | X) / ((5 + |Y|) / 6)^α          (GNMT; the paper uses 4, 0.6)

A hypothesis that ends leaves the beam, which is one narrower from then on: a beam of 1
is greedy search. A row stops when no living hypothesis can still beat what is finished.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.decoding import Hypotheses, Model
from transformer_jax.decoding.greedy import prefill
from transformer_jax.ids import EOS

NEVER = float("-inf")


@flax.struct.dataclass
class Beam:
    """The state of a search; L is the output buffer's length."""

    step: Any  # Int []: tokens written so far
    tokens: Any  # Int [B, K, L] of the living
    log_probs: Any  # Float [B, K] of the living; -inf is an empty place
    finished: Any  # Int [B, K, L]
    finished_log_probs: Any  # Float [B, K]
    finished_scores: Any  # Float [B, K]; -inf is an empty place
    finished_count: Any  # Int [B]
    logits: Any  # Float [B, K, V] of the next token
    state: Any  # the model's, leaves [B, K, …]


def beam_search(
    model: Model,
    batch: dict,
    prompt: Int[Array, "B P"],
    prompt_lengths: Int[Array, "B"],
    limits: Int[Array, "B"],
    length: int,
    beams: int,
    alpha: float,
    n_best: int = 1,
) -> Hypotheses:
    """The best `beams` hypotheses of each row; exact in its first `n_best` places.

    Exact means: what a search without early stopping would return.
    """
    rows = prompt.shape[0]
    static, state, logits = prefill(model, batch, prompt, prompt_lengths, beams, length)
    limits = jnp.clip(limits, 1, length)
    empty = jnp.full((rows, beams), NEVER)
    beam = Beam(
        step=jnp.int32(0),
        tokens=jnp.zeros((rows, beams, length), jnp.int32),
        log_probs=empty.at[:, 0].set(0.0),  # one root, not K equal ones
        finished=jnp.zeros((rows, beams, length), jnp.int32),
        finished_log_probs=empty,
        finished_scores=empty,
        finished_count=jnp.zeros((rows,), jnp.int32),
        logits=logits,
        state=state,
    )

    def unfinished(beam):
        return (beam.step < length) & (beam.log_probs > NEVER).any()

    def advance(beam):
        scores, parents, tokens = _best_extensions(beam, limits)
        place = jnp.arange(beams)
        width = beams - beam.finished_count[:, None]
        taken = (place < width) & (scores > NEVER)
        ended = taken & (tokens == EOS)
        written = _gather(beam.tokens, parents).at[:, :, beam.step].set(tokens)
        beam = _finish(beam, ended, written, scores, alpha)
        alive = jnp.where(taken & ~ended, scores, NEVER)
        done = _settled(beam, alive, limits, alpha, n_best)
        positions = jnp.broadcast_to(
            (prompt_lengths + beam.step)[:, None, None], (*tokens.shape, 1)
        )
        state = jax.tree.map(lambda a: _gather(a, parents), beam.state)
        logits, state = model.extend(tokens[..., None], positions, static, state)
        return beam.replace(
            step=beam.step + 1,
            tokens=written,
            log_probs=jnp.where(done[:, None], NEVER, alive),
            logits=logits[:, :, 0],
            state=state,
        )

    beam = jax.lax.while_loop(unfinished, advance, beam)
    order = jnp.argsort(-beam.finished_scores, axis=-1, stable=True)
    tokens = _gather(beam.finished, order)
    return Hypotheses(
        tokens,
        (tokens != 0).sum(-1),
        _gather(beam.finished_log_probs, order),
        _gather(beam.finished_scores, order),
    )


def length_penalty(length: Array, alpha: float) -> Array:
    return ((5.0 + length) / 6.0) ** alpha


def _best_extensions(beam: Beam, limits: Array) -> tuple[Array, Array, Array]:
    """The K best (total log-probability, parent, token) over all living hypotheses."""
    rows, beams, vocab = beam.logits.shape
    log_z = jax.nn.logsumexp(beam.logits, axis=-1, keepdims=True)
    must_end = (beam.step + 1 == limits)[:, None, None]
    allowed = ~must_end | (jnp.arange(vocab) == EOS)
    totals = beam.log_probs[..., None] + jnp.where(allowed, beam.logits - log_z, NEVER)
    # No beam can place more than K of its own: two small selections, not a huge one.
    few = min(beams, vocab)
    scores, tokens = jax.lax.top_k(totals, few)
    scores, best = jax.lax.top_k(scores.reshape(rows, -1), beams)
    tokens = jnp.take_along_axis(tokens.reshape(rows, -1), best, axis=1)
    return scores, best // few, tokens


def _finish(
    beam: Beam,
    ended: Array,
    written: Int[Array, "B K L"],
    log_probs: Float[Array, "B K"],
    alpha: float,
) -> Beam:
    """Moves what ended to the next free places among the finished."""
    rows, beams = ended.shape
    slot = beam.finished_count[:, None] + jnp.cumsum(ended, axis=1) - 1
    slot = jnp.where(ended, slot, beams)  # out of range: dropped
    row = jnp.arange(rows)[:, None]
    scores = log_probs / length_penalty(beam.step + 1, alpha)

    def put(old, new):
        return old.at[row, slot].set(new, mode="drop")

    return beam.replace(
        finished=put(beam.finished, written),
        finished_log_probs=put(beam.finished_log_probs, log_probs),
        finished_scores=put(beam.finished_scores, scores),
        finished_count=beam.finished_count + ended.sum(1),
    )


def _settled(beam: Beam, alive: Array, limits: Array, alpha: float, n_best: int):
    """True where no continuation can enter the first `n_best` finished places.

    A log-probability only falls, and the penalty is monotonic in the length, so a
    hypothesis can reach no more than its present log-probability over the penalty of
    the longest or the shortest output it may still become.
    """
    longest = length_penalty(limits, alpha)[:, None]
    shortest = length_penalty(beam.step + 2, alpha)
    reach = jnp.maximum(alive / longest, alive / shortest).max(axis=1)
    finished = jax.lax.top_k(beam.finished_scores, n_best)[0][:, -1]
    return finished >= reach


def _gather(array: Array, parents: Int[Array, "B K"]) -> Array:
    return array[jnp.arange(array.shape[0])[:, None], parents]
