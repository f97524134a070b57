"""Scaled dot-product and multi-head attention (paper, section 3.2).

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V

Axis letters, used by every signature and einsum of the package:
`B` batch · `T` target or query length · `S` source or key length · `D` d_model ·
`F` feed-forward · `N` heads · `G` heads of keys and values (fewer, if queries share
them) · `K`, `H` sizes of one head's keys and values (they may differ: Table 3, rows B)
· `V` vocabulary · `R` rows of a decoder, B × beams.
The trap: an all-masked row must stay finite, so masked scores are finite too.
"""

import math
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.models.layers import Dropout, dense, rms_norm
from transformer_jax.models.positions import Place, rotate

MASKED = -1e30  # a score: exp(MASKED - max) is exactly 0 in float32, yet never NaN

# Queries, keys and values begin as one matrix of all three would, as in PyTorch. With
# Glorot's variance for each, post-norm models learned to look at the source later, or,
# at a high rate, not at all: cross-attention stayed even.
QKV_SPREAD = 0.5


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
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G H"],
    mask: Mask | Bool[Array, "#B #N #T S"] | None = None,
    bias: Float[Array, "#B #N #T S"] | None = None,
    dropout: Any = None,
) -> tuple[Float[Array, "B T N H"], Float[Array, "B N T S"]]:
    """The attended values, and the weights that attended them (before dropout).

    The softmax is in float32: bfloat16 cannot order close scores. `bias` is added to
    the scores and may hold -1e9 or -inf. Unused weights cost nothing under `jit`.
    """
    by_head = query.swapaxes(1, 2), key.transpose(0, 2, 3, 1), value.swapaxes(1, 2)
    attended, weights = attend_by_head(*by_head, mask, bias, dropout)
    return attended.swapaxes(1, 2), weights


def attend_by_head(
    query: Float[Array, "B N T K"],
    key: Float[Array, "B G K S"],
    value: Float[Array, "B G S H"],
    mask: Mask | Bool[Array, "#B #N #T S"] | None = None,
    bias: Float[Array, "#B #N #T S"] | None = None,
    dropout: Any = None,
) -> tuple[Float[Array, "B N T H"], Float[Array, "B N T S"]]:
    """`attend`, laid out as a cache holds it: two products, and nothing is moved.

    Queries n·N/G … (n+1)·N/G - 1 share the keys and values of head n.
    """
    rows, heads, length, size = query.shape
    grouped = query.reshape(rows, key.shape[1], -1, size) / math.sqrt(size)
    scores = jnp.einsum(
        "bgtk,bgks->bgts", grouped, key, preferred_element_type=jnp.float32
    ).reshape(rows, heads, length, -1)
    if bias is not None:
        scores = jnp.maximum(scores + bias, MASKED)
    if mask is not None:
        allowed = mask.dense() if isinstance(mask, Mask) else mask
        scores = jnp.where(allowed, scores, MASKED)
    weights = jax.nn.softmax(scores)
    dropped = weights if dropout is None else dropout(weights)
    dropped = dropped.reshape(rows, key.shape[1], -1, key.shape[-1])
    attended = jnp.einsum("bgts,bgsh->bgth", dropped.astype(value.dtype), value)
    return attended.reshape(rows, heads, length, -1), weights


@flax.struct.dataclass
class KeysValues:
    """Projected keys and values of one layer, of whatever is attended to."""

    key: Any  # Float [B, G, K, S]
    value: Any  # Float [B, G, S, H]


@flax.struct.dataclass
class Cache:
    """What the hypotheses of each row have read: written once, and never moved.

    A step writes into slot `filled`, beside each other for all hypotheses. One that
    follows another takes over what that one has read by `writer`: which hypothesis
    wrote what stands for it in each slot. So a search reorders small numbers, not keys
    and values.
    """

    layers: tuple[KeysValues, ...]  # of S × beams, those of one slot side by side
    writer: Any  # Int [B, beams, S]
    positions: Any  # Int [B, S]; -1: nobody sees what stands there
    filled: Any  # Int []: slots written so far
    attended: Any = None  # Float [B, beams, S of the source]: if it is watched
    source_segments: Any = None  # Int [B, S of the source]

    @classmethod
    def empty(cls, layers: int, rows: int, beams: int, slots: int, sizes, dtype):
        """`sizes` are (heads of keys, size of a head's keys, of its values)."""
        heads, d_k, d_v = sizes
        width = slots * beams
        one = KeysValues(
            jnp.zeros((rows, heads, d_k, width), dtype),
            jnp.zeros((rows, heads, width, d_v), dtype),
        )
        own = jnp.arange(beams, dtype=jnp.int32)[None, :, None]
        return cls(
            (one,) * layers,
            jnp.broadcast_to(own, (rows, beams, slots)),
            jnp.full((rows, slots), -1, jnp.int32),
            jnp.int32(0),
        )

    def follow(self, parents: Int[Array, "B beams"]) -> "Cache":
        """The cache of hypotheses that each go on from a parent."""
        row = jnp.arange(parents.shape[0])[:, None]
        slots = jnp.arange(self.positions.shape[1])
        # What is not yet written will be written by each for itself.
        writer = jnp.where(slots < self.filled, self.writer[row, parents], self.writer)
        attended = self.attended
        if attended is not None:
            attended = attended[row, parents]
        return self.replace(writer=writer, attended=attended)

    def spread(self, beams: int) -> "Cache":
        """For several hypotheses that all go on from the one that has read so far."""

        def widen(array, axis):
            wide = jnp.expand_dims(array, axis + 1)
            edges = [(0, 0)] * wide.ndim
            edges[axis + 1] = (0, beams - 1)
            shape = list(array.shape)
            shape[axis] *= beams
            return jnp.pad(wide, edges).reshape(shape)

        rows, _, slots = self.writer.shape
        own = jnp.arange(beams, dtype=jnp.int32)[:, None]
        writer = jnp.where(jnp.arange(slots) < self.filled, 0, own)
        attended = self.attended
        if attended is not None:
            attended = jnp.repeat(attended, beams, axis=1)
        return self.replace(
            layers=tuple(
                KeysValues(widen(one.key, 3), widen(one.value, 2))
                for one in self.layers
            ),
            writer=jnp.broadcast_to(writer, (rows, beams, slots)),
            attended=attended,
        )

    def resize(self, slots: int) -> "Cache":
        """With another number of slots; those that are cut off must be unwritten."""
        rows, beams, had = self.writer.shape
        more = max(slots - had, 0)

        def fit(array, axis, each, value=0):
            edges = [(0, 0)] * array.ndim
            edges[axis] = (0, more * each)
            longer = jnp.pad(array, edges, constant_values=value)
            return jax.lax.slice_in_dim(longer, 0, slots * each, axis=axis)

        own = jnp.arange(beams, dtype=jnp.int32)[None, :, None]
        own = jnp.broadcast_to(own, (rows, beams, more))
        writer = jnp.concatenate([self.writer, own], axis=2)[..., :slots]
        layers = tuple(
            KeysValues(fit(one.key, 3, beams), fit(one.value, 2, beams))
            for one in self.layers
        )
        positions = fit(self.positions, 1, 1, value=-1)
        return self.replace(layers=layers, writer=writer, positions=positions)

    def watch(self, source_segments: Int[Array, "B S"]) -> "Cache":
        """From now on it adds up how much each word of the source is attended to."""
        rows, beams, _ = self.writer.shape
        return self.replace(
            attended=jnp.zeros((rows, beams, source_segments.shape[1])),
            source_segments=source_segments,
        )

    def uncovered(self) -> Float[Array, "B beams"]:
        """Σ log min(attention, 1) over the source: 0 if every word had its share."""
        return uncovered_share(self.attended, self.source_segments[:, None] != 0)

    def read(self, positions: Int[Array, "B beams T"]) -> "Cache":
        """Before a step: its tokens stand at these positions (-1: padding)."""
        return self.replace(
            positions=jax.lax.dynamic_update_slice(
                self.positions, positions[:, 0], (0, self.filled)
            )
        )

    def done(self, layers: tuple, cross_weights: Any, positions: Any) -> "Cache":
        """After a step: what each layer wrote; what the last one saw of the source."""
        rows, beams, length = positions.shape
        attended = self.attended
        if attended is not None:
            seen = cross_weights.mean(axis=1).reshape(rows, beams, length, -1)
            attended = attended + jnp.where(positions[..., None] < 0, 0, seen).sum(2)
        return self.replace(
            layers=layers, filled=self.filled + length, attended=attended
        )

    def places(self, positions: Int[Array, "R T"]) -> tuple[Array, Array]:
        """Where queries and keys stand, [B, Q] and [B, S], as `mask` has them."""
        rows, beams, _ = self.writer.shape
        return positions.reshape(rows, -1), jnp.repeat(self.positions, beams, axis=1)

    def mask(self, positions: Int[Array, "B beams T"]) -> Bool[Array, "B 1 Q S"]:
        """A query sees what its hypothesis has read at its position or before it."""
        rows, beams, length = positions.shape
        slots = self.positions.shape[1]
        keys = self.positions[:, None, None, :]
        before = (keys >= 0) & (keys <= positions[..., None])
        own = self.writer[..., None] == jnp.arange(beams)
        allowed = before[..., None] & own[:, :, None]  # [B, beams, T, S, beams]
        return allowed.reshape(rows, 1, beams * length, slots * beams)

    def write(self, layer: KeysValues, new: KeysValues) -> KeysValues:
        """A layer with the keys and values [B × beams, G, …] of this step.

        Whoever attends reads the same array: of any other form XLA would make a copy.
        """
        rows, beams, _ = self.writer.shape
        place = self.filled * beams

        key = new.key.reshape(rows, beams, *new.key.shape[1:])
        key = key.transpose(0, 2, 3, 4, 1)  # [B, G, K, T, beams]
        key = key.reshape(*key.shape[:3], -1).astype(layer.key.dtype)
        value = new.value.reshape(rows, beams, *new.value.shape[1:])
        value = value.transpose(0, 2, 3, 1, 4)  # [B, G, T, beams, H]
        value = value.reshape(*layer.value.shape[:2], -1, value.shape[-1])
        write = jax.lax.dynamic_update_slice
        return KeysValues(
            write(layer.key, key, (0, 0, 0, place)),
            write(layer.value, value.astype(layer.value.dtype), (0, 0, place, 0)),
        )


def uncovered_share(
    attended: Float[Array, "B beams S"], real: Bool[Array, "B #beams S"]
) -> Float[Array, "B beams"]:
    shares = jnp.log(jnp.clip(attended, 1e-9, 1.0))
    return jnp.where(real, shares, 0.0).sum(-1)


class MultiHeadAttention(nn.Module):
    """N attentions side by side, each on its own projection of queries, keys, values.

    Keys and values are made by `keys_values` and passed in: from the queries' own
    sequence (self-attention), from the encoder (cross-attention), or from a cache.
    With fewer heads of keys and values, several of the queries share one (grouped, or
    with one alone multi-query attention): a smaller cache to read at each step.
    """

    d_model: int
    num_heads: int
    d_k: int
    d_v: int
    kv_heads: int = 0  # heads of keys and values; 0: num_heads
    qk_norm: bool = False  # queries and keys are normed: scores cannot run away
    dropout: float = 0.0
    dtype: Any = jnp.float32

    def setup(self):
        kv_heads = self.kv_heads or self.num_heads
        begin = dict(dtype=self.dtype, spread=QKV_SPREAD)
        self.query = dense(self.num_heads * self.d_k, **begin)
        self.key = dense(kv_heads * self.d_k, **begin)
        self.value = dense(kv_heads * self.d_v, **begin)
        self.out = dense(self.d_model, self.dtype)
        self.drop = Dropout(self.dropout)
        if self.qk_norm:
            self.query_norm = rms_norm(1e-6, self.dtype)
            self.key_norm = rms_norm(1e-6, self.dtype)

    def keys_values(self, x: Float[Array, "B S D"], turn: Any = None) -> KeysValues:
        kv_heads = self.kv_heads or self.num_heads
        key = _split_heads(self.key(x), kv_heads)
        if self.qk_norm:
            key = self.key_norm(key)
        if turn is not None:
            key = rotate(key, turn)
        value = _split_heads(self.value(x), kv_heads)
        return KeysValues(key.transpose(0, 2, 3, 1), value.swapaxes(1, 2))

    def __call__(
        self,
        x: Float[Array, "R T D"],
        keys_values: KeysValues,
        mask: Mask | Bool[Array, "#B #N #Q S"] | None = None,
        place: Place | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "R T D"], Float[Array, "R N T S"]]:
        rows, length, _ = x.shape
        query = _split_heads(self.query(x), self.num_heads)
        if self.qk_norm:
            query = self.query_norm(query)
        if place is not None and place.turn is not None:
            query = rotate(query, place.turn)
        # Several beams share one source: fold them into the query axis, so that the
        # source's keys and values are read once and never copied.
        sources = keys_values.value.shape[0]
        query = query.reshape(sources, -1, *query.shape[2:])
        attended, weights = attend_by_head(
            query.swapaxes(1, 2),
            keys_values.key,
            keys_values.value,
            mask,
            place and place.bias,
            lambda w: self.drop(w, train),
        )
        attended = attended.swapaxes(1, 2).reshape(rows, length, -1)
        if sources != rows:
            beams = rows // sources
            weights = weights.reshape(*weights.shape[:2], beams, length, -1)
            weights = weights.swapaxes(1, 2).reshape(rows, self.num_heads, length, -1)
        return self.out(attended), weights


def _split_heads(x: Float[Array, "B T NK"], heads: int) -> Float[Array, "B T N K"]:
    return x.reshape(*x.shape[:-1], heads, -1)
