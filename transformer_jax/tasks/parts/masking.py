"""Hide tokens like BERT: choose them and what is shown in their place."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from transformer_jax.data.text.tokenizer import SPECIAL
from transformer_jax.models.layers import mix

PERCENT = 15  # percentage of a text's tokens that are predicted
SHOWN_AS_MASK, SHOWN_AS_OTHER = 0.8, 0.1  # shares of these; the rest are not hidden


def of_content(tokens: Int[Array, "B T"]) -> UInt32[Array, "B 1"]:
    """Return a hash of each row's real tokens."""
    factor = jnp.full(tokens.shape[1], 0x9E3779B1, jnp.uint32)
    terms = tokens.astype(jnp.uint32) * jnp.cumprod(factor, dtype=jnp.uint32)
    return mix(terms.sum(axis=1, keepdims=True, dtype=jnp.uint32))


def hide(
    tokens: Int[Array, "B T"], seeds: UInt32[Array, "B 1"], mask: int, vocab_size: int
) -> tuple[Int[Array, "B T"], Int[Array, "B K"], Float[Array, "B K"]]:
    """Return the tokens to show, the places to predict, and the weights of the places.

    The number of places per row is rounded up. The draws depend only on the row's seed
    and the place, not on other rows or padding. Special tokens are never hidden.
    """
    length = tokens.shape[1]
    places = jnp.arange(length, dtype=jnp.uint32)
    draws = mix(mix(seeds + places))
    real = (tokens >= SPECIAL) & (tokens != mask)
    order = jnp.argsort(jnp.where(real, draws, np.uint32(2**32 - 1)), axis=1)
    chosen = order[:, : -(-length * PERCENT // 100)]
    count = (real.sum(axis=1, keepdims=True) * PERCENT + 99) // 100
    counts = jnp.arange(chosen.shape[1]) < count

    truth, draws = (jnp.take_along_axis(a, chosen, axis=1) for a in (tokens, draws))
    share = mix(draws + np.uint32(1)) / 2.0**32
    other = SPECIAL + mix(draws + np.uint32(2)) % np.uint32(vocab_size - SPECIAL)
    shown = jnp.where(share < SHOWN_AS_MASK + SHOWN_AS_OTHER, other, truth)
    shown = jnp.where(share < SHOWN_AS_MASK, mask, shown).astype(tokens.dtype)
    shown = jnp.where(counts, shown, truth)
    rows = jnp.arange(len(tokens))[:, None]
    return tokens.at[rows, chosen].set(shown), chosen, counts.astype(jnp.float32)
