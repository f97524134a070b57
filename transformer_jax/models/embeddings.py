"""Tokens to vectors and back (section 3.4).

    x = E[token] · √D        logits = h Eᵀ

One table serves source, target and output when tied. Rows are padded for the hardware;
the rows past the vocabulary can neither be predicted nor receive probability.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.models.attention import MASKED
from transformer_jax.models.layers import dot_rows


class TokenEmbedding(nn.Module):
    """A table of `rows` vectors, of which the first `vocab_size` are tokens."""

    vocab_size: int
    rows: int
    d_model: int
    dtype: Any = jnp.float32

    def setup(self):
        # σ = D^-½: a tied table is also the output layer, and √D brings the inputs
        # back to unit variance.
        self.embedding = self.param(
            "embedding",
            nn.initializers.normal(self.d_model**-0.5),
            (self.rows, self.d_model),
        )

    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        vectors = jnp.take(self.embedding, tokens, axis=0)
        return (vectors * self.d_model**0.5).astype(self.dtype)

    def logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        table = self.embedding.astype(self.dtype)
        scores = dot_rows(x, table.T, preferred_element_type=jnp.float32)
        return mask_padding_rows(scores, self.vocab_size)


def mask_padding_rows(
    logits: Float[Array, "B T V"], vocab_size: int
) -> Float[Array, "B T V"]:
    if vocab_size == logits.shape[-1]:
        return logits
    return jnp.where(jnp.arange(logits.shape[-1]) < vocab_size, logits, MASKED)
