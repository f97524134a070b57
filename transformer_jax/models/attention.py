"""Scaled dot-product and multi-head attention (paper, section 3.2).

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V

Axis letters, used by every signature and einsum of the package:
`B` batch · `T` target or query length · `S` source or key length · `D` d_model ·
`F` feed-forward · `N` heads · `K`, `H` sizes of one head's keys and values (they may
differ: Table 3, rows B) · `V` vocabulary · `R` rows of a decoder, B × beams.
The trap: an all-masked row must stay finite, so masked scores are finite too.
"""

import math
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.models.layers import Dropout, dense

MASKED = -1e30  # a score: exp(MASKED - max) is exactly 0 in float32, yet never NaN


@flax.struct.dataclass
class Mask:
    """Which query may see which key, kept as its parts: only `dense` is quadratic.

    A query sees a key of its own segment (0 is padding, seen by nobody), and, if
    `causal`, only keys at its own position or before it.
    """

    key_segments: Any  # Int [B, S]
    query_segments: Any = None  # Int [B, T]
    query_positions: Any = None  # Int [B, T]
    key_positions: Any = None  # Int [B, S]
    causal: bool = flax.struct.field(pytree_node=False, default=False)

    def dense(self) -> Bool[Array, "#B 1 #T S"]:
        keys = self.key_segments[:, None, None, :]
        allowed = keys != 0
        if self.query_segments is not None:
            # A padded query sees the padded keys: its row is ignored by the loss, and
            # an empty row would only make every kernel treat a special case.
            allowed = keys == self.query_segments[:, None, :, None]
        if self.causal:
            before = self.key_positions[:, None, :] <= self.query_positions[:, :, None]
            allowed = allowed & before[:, None]
        return allowed


def padding_mask(segments: Int[Array, "B S"]) -> Mask:
    """Every query sees every key that is not padding."""
    return Mask(key_segments=segments)


def look_ahead_mask(
    positions: Int[Array, "#B T"], segments: Int[Array, "#B T"] | None = None
) -> Mask:
    """A position sees itself and what is before it, within its own segment."""
    keys = jnp.ones_like(positions) if segments is None else segments
    return Mask(keys, segments, positions, positions, causal=True)


def attend(
    query: Float[Array, "B T N K"],
    key: Float[Array, "B S N K"],
    value: Float[Array, "B S N H"],
    mask: Mask | Bool[Array, "#B #N #T S"] | None = None,
    bias: Float[Array, "#B #N #T S"] | None = None,
    dropout: Any = None,
) -> tuple[Float[Array, "B T N H"], Float[Array, "B N T S"]]:
    """The attended values, and the weights that attended them (before dropout).

    The softmax is in float32: bfloat16 cannot order close scores. `bias` is added to
    the scores and may hold -1e9 or -inf. Unused weights cost nothing under `jit`.
    """
    query = query / math.sqrt(query.shape[-1])
    scores = jnp.einsum(
        "btnk,bsnk->bnts", query, key, preferred_element_type=jnp.float32
    )
    if bias is not None:
        scores = jnp.maximum(scores + bias, MASKED)
    if mask is not None:
        allowed = mask.dense() if isinstance(mask, Mask) else mask
        scores = jnp.where(allowed, scores, MASKED)
    weights = jax.nn.softmax(scores)
    dropped = weights if dropout is None else dropout(weights)
    return jnp.einsum("bnts,bsnh->btnh", dropped.astype(value.dtype), value), weights


@flax.struct.dataclass
class KeysValues:
    """Projected keys and values of one layer: of a whole source, or a growing cache."""

    key: Any  # Float [B, S, N, K]
    value: Any  # Float [B, S, N, H]

    def insert(self, new: "KeysValues", positions: Int[Array, "R T"]) -> "KeysValues":
        """The cache with `new` in its slots: slot p holds position p.

        A slot past the end is dropped. A later write to a slot replaces it, so the
        padding of a short prompt is overwritten before anything may see it.
        """
        rows = jnp.arange(positions.shape[0])[:, None]
        return KeysValues(
            self.key.at[rows, positions].set(new.key, mode="drop"),
            self.value.at[rows, positions].set(new.value, mode="drop"),
        )


class MultiHeadAttention(nn.Module):
    """N attentions side by side, each on its own projection of queries, keys, values.

    Keys and values are made by `keys_values` and passed in: from the queries' own
    sequence (self-attention), from the encoder (cross-attention), or from a cache.
    """

    d_model: int
    num_heads: int
    d_k: int
    d_v: int
    dropout: float = 0.0
    dtype: Any = jnp.float32

    def setup(self):
        self.query = dense(self.num_heads * self.d_k, self.dtype)
        self.key = dense(self.num_heads * self.d_k, self.dtype)
        self.value = dense(self.num_heads * self.d_v, self.dtype)
        self.out = dense(self.d_model, self.dtype)
        self.drop = Dropout(self.dropout)

    def keys_values(self, x: Float[Array, "B S D"]) -> KeysValues:
        return KeysValues(
            _split_heads(self.key(x), self.num_heads),
            _split_heads(self.value(x), self.num_heads),
        )

    def __call__(
        self,
        x: Float[Array, "R T D"],
        keys_values: KeysValues,
        mask: Mask | Bool[Array, "#R #N #T S"] | None = None,
        bias: Float[Array, "#R #N #T S"] | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "R T D"], Float[Array, "R N T S"]]:
        rows, length, _ = x.shape
        query = _split_heads(self.query(x), self.num_heads)
        # Several beams share one source: fold them into the query axis, so that the
        # source's keys and values are read once and never copied.
        folded = query.reshape(keys_values.key.shape[0], -1, *query.shape[2:])
        attended, weights = attend(
            folded,
            keys_values.key,
            keys_values.value,
            mask,
            bias,
            lambda w: self.drop(w, train),
        )
        attended = attended.reshape(rows, length, self.num_heads * self.d_v)
        if folded.shape[0] != rows:
            beams = rows // folded.shape[0]
            weights = weights.reshape(*weights.shape[:2], beams, length, -1)
            weights = weights.swapaxes(1, 2).reshape(rows, self.num_heads, length, -1)
        return self.out(attended), weights


def _split_heads(x: Float[Array, "B T NK"], heads: int) -> Float[Array, "B T N K"]:
    return x.reshape(*x.shape[:-1], heads, -1)
