"""Contrastive search: a likely token that makes the text differ from what it has said.

    v = argmax over the k likeliest: (1 − α) p(v) − α max_j cos(h_v, h_j)

h_v is what the last layer of the decoder makes of v after the text, and h_j what it has
made of each earlier token, the prompt's included (Su et al. 2022). A text that repeats
itself has vectors that are alike, so another token is preferred.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.base.ids import EOS
from transformer_jax.decoding.searches.rules import top_next_tokens
from transformer_jax.decoding.searches.sampling import SamplingSearch, Texts
from transformer_jax.decoding.searching import (
    NEG_INF,
    BoundModel,
    DecodeInputs,
    gather,
    reorder,
    tile,
    write,
)


class Contrasted(Texts):
    """The state of the one text of each row; the model's has k copies of it."""

    seen: Any  # Float [B, P + L, D]: unit vectors of the prompt and the text


@dataclasses.dataclass(frozen=True)
class ContrastiveSearch(SamplingSearch):
    """Write one text per row, each token chosen among `top_k` that are read."""

    def begin(
        self,
        model: BoundModel,
        batch: dict,
        inputs: DecodeInputs,
        length: int,
        slots: int | None = None,
    ) -> Contrasted:
        """Read the prompts."""
        inputs = inputs.with_numbers(self.options)
        rows, width = inputs.prompt.shape
        static, state = model.start(batch, width + (length if slots is None else slots))
        place = jnp.arange(width)
        positions = jnp.where(place < inputs.prompt_lengths[:, None, None], place, -1)
        logits, state, vectors = model.see(
            inputs.prompt[:, None], positions, static, state
        )
        last = (inputs.prompt_lengths - 1)[:, None, None]
        seen = jnp.pad(_unit(vectors[:, 0]), ((0, 0), (0, length), (0, 0)))
        return Contrasted(
            step=jnp.zeros(rows, jnp.int32),
            tokens=jnp.zeros((rows, 1, length), jnp.int32),
            log_probs=jnp.zeros((rows, 1), jnp.float32),
            done=inputs.limits[:, None] < 1,
            inputs=inputs,
            logits=jnp.take_along_axis(logits[:, 0], last, axis=1)[:, 0],
            static=static,
            state=tile(state, self.options.top_k),
            seen=seen,
        )

    def advance(self, model: BoundModel, texts: Contrasted) -> Contrasted:
        """Read the candidates of every text, and add the best of each."""
        inputs, count = texts.inputs, self.options.top_k
        written = texts.logits, texts.tokens, texts.step
        rules = inputs, self.options, self.constraint
        found = top_next_tokens(*written, *rules, min(count, texts.logits.shape[1]))
        gains, tokens = (
            _pad(found[0][:, 0], count, NEG_INF),
            _pad(found[1][:, 0], count, EOS),
        )
        place = inputs.prompt_lengths + texts.step
        logits, state, vectors = model.see(
            tokens[..., None],
            jnp.broadcast_to(place[:, None, None], (*tokens.shape, 1)),
            texts.static,
            texts.state,
        )
        vectors = _unit(vectors[:, :, 0])
        best = self._find_best(texts, gains, vectors)
        token, gain = (gather(a, best[:, None]) for a in (tokens, gains))
        chosen = gather(vectors, best[:, None])
        at = jnp.arange(texts.seen.shape[1])
        # The prompt's padding is overwritten, so that what has been seen is contiguous.
        seen = jnp.where((at == place[:, None])[..., None], chosen, texts.seen)
        return texts.replace(
            step=texts.step + self.unfinished(texts),
            tokens=write(texts.tokens, texts.step, jnp.where(texts.done, 0, token)),
            log_probs=jnp.where(texts.done, texts.log_probs, texts.log_probs + gain),
            done=texts.done | (token == EOS),
            logits=gather(logits[:, :, 0], best[:, None])[:, 0],
            state=reorder(state, jnp.broadcast_to(best[:, None], tokens.shape)),
            seen=seen,
        )

    def _find_best(
        self,
        texts: Contrasted,
        gains: Float[Array, "B K"],
        vectors: Float[Array, "B K D"],
    ) -> Int[Array, "B"]:
        """Return which candidate is likely and unlike the text; ties: the likeliest."""
        weight = texts.inputs.numbers["contrast"][:, None]
        likeness = jnp.einsum("bkd,bsd->bks", vectors, texts.seen)
        place = texts.inputs.prompt_lengths + texts.step
        before = jnp.arange(likeness.shape[-1]) < place[:, None, None]
        closest = jnp.where(before, likeness, NEG_INF).max(axis=-1)
        scores = (1 - weight) * jnp.exp(gains) - weight * closest
        return jnp.where(gains > NEG_INF, scores, NEG_INF).argmax(axis=-1)


def _pad(array: Array, count: int, fill: float | int) -> Array:
    """Fill up the candidates of a model that has fewer tokens."""
    extra = count - array.shape[1]
    return jnp.pad(array, ((0, 0), (0, extra)), constant_values=fill)


def _unit(vectors: Float[Array, "... D"]) -> Float[Array, "... D"]:
    """Scale vectors to a length of 1, so that products are cosines."""
    vectors = vectors.astype(jnp.float32)
    length = jnp.sqrt((vectors**2).sum(axis=-1, keepdims=True))
    return vectors / jnp.maximum(length, 1e-6)
