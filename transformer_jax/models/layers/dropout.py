"""Dropout whose mask is a hash of the key and the index."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class Dropout(nn.Module):
    """Zero a share `rate` of the entries and scale the others to keep the mean."""

    rate: float

    def __call__(self, x: Float[Array, "..."], train: bool) -> Float[Array, "..."]:
        """Drop entries in training; otherwise return `x` unchanged."""
        if not train or self.rate == 0.0:
            return x
        return drop(x, self.draw_key(), self.rate)

    def draw_key(self) -> Array:
        """Draw the key of a mask; a scan over layers replaces this method."""
        return self.make_rng("dropout")


def drop(x: Float[Array, "..."], key: Array, rate: float) -> Float[Array, "..."]:
    """Zero a share `rate` of the entries, drawn with `key`, and scale the others."""
    keep = keep_mask(key, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), 0.0).astype(x.dtype)


def keep_mask(key: Array, share: float, shape: tuple[int, ...]) -> Array:
    """Draw True with probability `share`, by hashing the key and the index.

    Two rounds of an integer hash over the index, seeded by the key's two words, are
    enough for a dropout mask. They fuse into the multiplication that uses the mask,
    whereas JAX's generator is a large program to compile and to run.
    `keep_mask_plainly` has the same distribution.
    """
    words = jax.random.bits(key, (2,), jnp.uint32)
    index = jnp.zeros(shape, jnp.uint32)
    for axis in range(len(shape)):
        stride = math.prod(shape[axis + 1 :]) % 2**32
        index += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * np.uint32(stride)
    bits = mix(mix(index + words[0]) ^ words[1])
    return bits < np.uint32(min(round(share * 2**32), 2**32 - 1))


def keep_mask_plainly(key: Array, share: float, shape: tuple[int, ...]) -> Array:
    """Draw such a mask with JAX's generator: the reference form of `keep_mask`."""
    return jax.random.bernoulli(key, share, shape)


def mix(x: Array) -> Array:
    """Hash 32-bit words so that every output bit depends on every input bit."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)
