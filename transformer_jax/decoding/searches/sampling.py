"""Greedy search and sampling: write texts token by token.

Sampling draws from p^(1/temperature), restricted to the `top_k` likeliest tokens, to
the smallest set that holds `top_p` of the probability, and to tokens at least `min_p`
times as likely as the best. A line's draws depend on its seed alone, not on the other
lines of its batch.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.base.ids import EOS
from transformer_jax.decoding import Options
from transformer_jax.decoding.searches.beam import length_penalty
from transformer_jax.decoding.searches.constraints import Constraint
from transformer_jax.decoding.searches.rules import (
    allow,
    by_hypothesis,
    must_end,
    top_next_tokens,
)
from transformer_jax.decoding.searching import (
    NEG_INF,
    BoundModel,
    DecodeInputs,
    Hypotheses,
    prefill,
    write,
)


class Texts(flax.struct.PyTreeNode):
    """The state of K texts of each row."""

    step: Any  # Int [B]: tokens written so far
    tokens: Any  # Int [B, K, L]
    log_probs: Any  # Float [B, K]
    done: Any  # Bool [B, K]
    inputs: DecodeInputs
    logits: Any  # Float [B, K × V] of the next token
    static: Any  # the model's static part
    state: Any  # the model's state (`searching`)


@dataclasses.dataclass(frozen=True)
class SamplingSearch:
    """Greedy search for one text per row or, with `sample`, several independent draws.

    With `sample` off, each step takes the likeliest token: a beam search of width 1.
    """

    options: Options
    constraint: Constraint | None = None

    def begin(
        self,
        model: BoundModel,
        batch: dict,
        inputs: DecodeInputs,
        length: int,
        slots: int | None = None,
    ) -> Texts:
        """Read the prompts."""
        inputs = inputs.with_numbers(self.options)
        copies = self.options.n_best if self.options.sample else 1
        slots = length if slots is None else slots
        static, state, logits = prefill(model, batch, inputs, copies, slots)
        shape = (len(inputs.limits), copies)
        return Texts(
            step=jnp.zeros(len(inputs.limits), jnp.int32),
            tokens=jnp.zeros((*shape, length), jnp.int32),
            log_probs=jnp.zeros(shape, jnp.float32),
            done=jnp.broadcast_to(inputs.limits[:, None] < 1, shape),
            inputs=inputs,
            logits=logits.reshape(len(logits), -1),
            static=static,
            state=state,
        )

    def unfinished(self, texts: Texts) -> Array:
        """Return which rows have unfinished texts and space left for tokens."""
        return ~texts.done.all(axis=1) & (texts.step < texts.tokens.shape[-1])

    def advance(self, model: BoundModel, texts: Texts) -> Texts:
        """Add one token to every text."""
        inputs = texts.inputs
        gain, token = self._choose(texts)
        positions = (inputs.prompt_lengths + texts.step)[:, None, None]
        logits, state = model.extend(
            token[..., None],
            jnp.broadcast_to(positions, (*token.shape, 1)),
            texts.static,
            texts.state,
        )
        return texts.replace(
            step=texts.step + self.unfinished(texts),
            tokens=write(texts.tokens, texts.step, jnp.where(texts.done, 0, token)),
            log_probs=jnp.where(texts.done, texts.log_probs, texts.log_probs + gain),
            done=texts.done | (token == EOS),
            logits=logits.reshape(texts.logits.shape),
            state=state,
        )

    def result(self, texts: Texts) -> Hypotheses:
        """Return the texts, likeliest first; samples have no length penalty."""
        order = jnp.argsort(-texts.log_probs, axis=1, stable=True)
        tokens = jnp.take_along_axis(texts.tokens, order[..., None], axis=1)
        log_probs, scores = (
            jnp.take_along_axis(a, order, axis=1)
            for a in (texts.log_probs, self.scores(texts))
        )
        return Hypotheses(tokens, (tokens != 0).sum(-1), log_probs, scores)

    def written(self, texts: Texts) -> tuple[Array, Array]:
        """Return the texts so far [B, K, L], all of which an answer may begin with."""
        return texts.tokens, jnp.ones(texts.done.shape, bool)

    def scores(self, texts: Texts) -> Float[Array, "B K"]:
        """Return the scores of the texts; those of samples have no length penalty."""
        if self.options.sample:
            return texts.log_probs
        alpha = texts.inputs.numbers["alpha"][:, None]
        return texts.log_probs / length_penalty((texts.tokens != 0).sum(-1), alpha)

    def _choose(self, texts: Texts) -> tuple[Float[Array, "B K"], Int[Array, "B K"]]:
        """Choose the next token of each text; return its log-probability and id."""
        options, rules = self.options, (texts.inputs, self.options, self.constraint)
        numbers = texts.inputs.numbers
        if not options.sample:
            found = top_next_tokens(texts.logits, texts.tokens, texts.step, *rules, 1)
            return found[0][..., 0], found[1][..., 0]
        log_probs = jax.nn.log_softmax(by_hypothesis(texts.logits, texts.tokens))
        allowed = allow(log_probs, texts.tokens, texts.step, *rules)
        # A forbidden end may still be forced, and so needs its log-probability. A
        # constraint may raise the score of a word (see `constraints`).
        log_probs = jnp.maximum(log_probs, allowed)
        log_probs, allowed = (
            a.reshape(*texts.done.shape, -1) for a in (log_probs, allowed)
        )
        allowed = narrow(allowed, options, numbers)

        def draw(whole, seed, step, scores):
            key = jax.random.fold_in(jax.random.key(whole), seed)
            keys = jax.random.split(jax.random.fold_in(key, step), scores.shape[0])
            return jax.vmap(jax.random.categorical)(keys, scores)

        seeds = numbers["seed"], texts.inputs.seeds, texts.step
        drawn = jax.vmap(draw)(*seeds, allowed).astype(jnp.int32)
        token = jnp.where(must_end(texts.step, texts.inputs.limits), EOS, drawn)
        gain = jnp.take_along_axis(log_probs, token[..., None], axis=-1)
        return gain[..., 0], token


def narrow(
    log_probs: Float[Array, "B K V"],
    options: Options,
    numbers: Mapping[str, Any],
) -> Float[Array, "B K V"]:
    """Return the scores to sample from: scaled by temperature, -inf if excluded.

    The options tell which filters are on; the numbers say how they are set.
    """
    temperature, top_p, min_p = (
        numbers[name][:, None, None] for name in ("temperature", "top_p", "min_p")
    )
    scores = log_probs / temperature
    if options.top_k:
        few = min(options.top_k, scores.shape[-1])
        least = jax.lax.top_k(scores, few)[0][..., -1:]
        scores = jnp.where(scores < least, NEG_INF, scores)
    if options.top_p < 1.0:
        ordered = jnp.sort(scores, axis=-1)[..., ::-1]
        shares = jax.nn.softmax(ordered)
        before = jnp.cumsum(shares, axis=-1) - shares
        # The likeliest token is always kept, because the sum before it is 0.
        kept = (before < top_p).sum(axis=-1, keepdims=True)
        least = jnp.take_along_axis(ordered, kept - 1, axis=-1)
        scores = jnp.where(scores < least, NEG_INF, scores)
    if options.min_p:
        least = scores.max(axis=-1, keepdims=True) + jnp.log(min_p)
        scores = jnp.where(scores < least, NEG_INF, scores)
    return scores
