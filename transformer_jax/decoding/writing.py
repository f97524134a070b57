"""Writing token by token: the likeliest each time (greedy), or drawn by chance.

Sampling takes p^(1/temperature), cut to the `top_k` likeliest, to the fewest that hold
`top_p` of the probability, and to those at least `min_p` times as likely as the best.
A line's draws depend on its seed alone, not on what shares its batch.
"""

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.decoding import (
    NEVER,
    Hypotheses,
    Model,
    Options,
    Question,
    prefill,
)
from transformer_jax.decoding.rules import allow
from transformer_jax.ids import EOS


@flax.struct.dataclass
class Written:
    """K texts of each row, in progress."""

    step: Any  # Int []: tokens written so far
    tokens: Any  # Int [B, K, L]
    log_probs: Any  # Float [B, K]
    done: Any  # Bool [B, K]
    question: Question
    logits: Any  # Float [B, K, V] of the next token
    static: Any  # of the model
    state: Any  # of the model, leaves [B, K, …]


@dataclasses.dataclass(frozen=True)
class Writing:
    """One text a row, or several drawn independently of each other."""

    options: Options

    def begin(self, model: Model, batch: dict, question: Question, length: int):
        copies = self.options.n_best if self.options.sample else 1
        static, state, logits = prefill(model, batch, question, copies, length)
        shape = (len(question.limits), copies)
        return Written(
            step=jnp.int32(0),
            tokens=jnp.zeros((*shape, length), jnp.int32),
            log_probs=jnp.zeros(shape, jnp.float32),
            done=jnp.broadcast_to(question.limits[:, None] < 1, shape),
            question=question,
            logits=logits,
            static=static,
            state=state,
        )

    def unfinished(self, written: Written) -> Array:
        return ~written.done.all(axis=1) & (written.step < written.tokens.shape[-1])

    def advance(self, model: Model, written: Written) -> Written:
        w, question = written, written.question
        log_probs = jax.nn.log_softmax(w.logits)
        allowed = allow(log_probs, w.tokens, w.step, question.limits, self.options)
        token = self._choose(allowed, w.step, question.seeds)
        gain = jnp.take_along_axis(log_probs, token[..., None], axis=-1)[..., 0]
        positions = (question.prompt_lengths + w.step)[:, None, None]
        logits, state = model.extend(
            token[..., None],
            jnp.broadcast_to(positions, (*token.shape, 1)),
            w.static,
            w.state,
        )
        return w.replace(
            step=w.step + 1,
            tokens=w.tokens.at[..., w.step].set(jnp.where(w.done, 0, token)),
            log_probs=jnp.where(w.done, w.log_probs, w.log_probs + gain),
            done=w.done | (token == EOS),
            logits=logits[:, :, 0],
            state=state,
        )

    def result(self, written: Written) -> Hypotheses:
        order = jnp.argsort(-written.log_probs, axis=1, stable=True)
        tokens = jnp.take_along_axis(written.tokens, order[..., None], axis=1)
        scores = jnp.take_along_axis(written.log_probs, order, axis=1)
        return Hypotheses(tokens, (tokens != 0).sum(-1), scores, scores)

    def _choose(self, log_probs: Float[Array, "B K V"], step, seeds):
        if not self.options.sample:
            return first_best(log_probs)
        scores = narrow(log_probs, self.options)

        def draw(seed, texts):
            key = jax.random.fold_in(jax.random.key(self.options.seed), seed)
            keys = jax.random.split(jax.random.fold_in(key, step), texts.shape[0])
            return jax.vmap(jax.random.categorical)(keys, texts)

        return jax.vmap(draw)(seeds, scores).astype(jnp.int32)


def narrow(log_probs: Float[Array, "B K V"], options: Options) -> Float[Array, "B K V"]:
    """What is drawn from: scores at a temperature, -inf for what is cut away."""
    scores = log_probs / max(options.temperature, 1e-6)
    if options.top_k:
        few = min(options.top_k, scores.shape[-1])
        least = jax.lax.top_k(scores, few)[0][..., -1:]
        scores = jnp.where(scores < least, NEVER, scores)
    if options.top_p < 1.0:
        ordered = jnp.sort(scores, axis=-1)[..., ::-1]
        shares = jax.nn.softmax(ordered)
        before = jnp.cumsum(shares, axis=-1) - shares
        # The likeliest is always kept: nothing lies before it.
        kept = (before < options.top_p).sum(axis=-1, keepdims=True)
        least = jnp.take_along_axis(ordered, kept - 1, axis=-1)
        scores = jnp.where(scores < least, NEVER, scores)
    if options.min_p:
        least = scores.max(axis=-1, keepdims=True) + jnp.log(options.min_p)
        scores = jnp.where(scores < least, NEVER, scores)
    return scores


def first_best(scores: Float[Array, "B K V"]) -> Int[Array, "B K"]:
    """The first place of the largest: as argmax, of two reductions that vectorise."""
    places = jnp.arange(scores.shape[-1], dtype=jnp.int32)
    best = scores.max(axis=-1, keepdims=True)
    return jnp.where(scores == best, places, scores.shape[-1]).min(axis=-1)
