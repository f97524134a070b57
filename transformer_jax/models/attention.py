"""Scaled dot-product and multi-head attention (paper, section 3.2).

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V

Axis letters in the signatures and einsums of this package:
`B` batch · `T` target or query length · `S` source or key length · `D` d_model ·
`F` feed-forward · `N` heads · `G` heads of keys and values (fewer, if queries share
them) · `K`, `H` sizes of one head's keys and values (they may differ: Table 3, rows B)
· `V` vocabulary · `R` rows of a decoder, B × beams.
Pitfall: a fully masked row must stay finite, so masked scores are finite.
"""

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax import sharding
from transformer_jax.models import kernels
from transformer_jax.models.cache import KeysValues
from transformer_jax.models.layers import (
    Dropout,
    apply_together,
    begin_normal,
    dense,
    drop,
    rms_norm,
)
from transformer_jax.models.masks import MASKED, Mask
from transformer_jax.models.positions import DistanceBias, PositionSignal, rotate

# Queries, keys and values are initialised like one matrix of all three, as in PyTorch.
# With Glorot's variance for each, post-norm models learned later to attend to the
# source, or never at a high learning rate: cross-attention stayed uniform.
QKV_SCALE = 0.5


def padding_mask(segments: Int[Array, "B S"]) -> Mask:
    """Let every query see every key that is not padding."""
    return Mask(key_segments=segments)


def look_ahead_mask(
    positions: Int[Array, "#B T"],
    segments: Int[Array, "#B T"] | None = None,
    whole: bool = False,
) -> Mask:
    """Let a position see itself and earlier positions of its own segment."""
    keys = jnp.ones_like(positions) if segments is None else segments
    return Mask(keys, segments, positions, positions, causal=True, whole=whole)


def all_real(
    segments: Int[Array, "B T"] | None, tokens: Int[Array, "B T"]
) -> Int[Array, "B T"]:
    """Return the segments; if there are none, every token is real (segment 1)."""
    return jnp.ones_like(tokens) if segments is None else segments


def attend(
    query: Float[Array, "B T N K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G H"],
    mask: Mask | Bool[Array, "#B #N #T S"] | None = None,
    bias: DistanceBias | Float[Array, "#B #N #T S"] | None = None,
    dropout: Any = None,
    kernel: str = "einsum",
) -> tuple[Float[Array, "B T N H"], Float[Array, "B N T S"] | None]:
    """Return the attended values and the attention weights (before dropout).

    This is attention alone; the modules call `attend_by_head`, in another layout. The
    softmax is in float32, because bfloat16 cannot order close scores. `bias` is
    added to the scores and may contain -1e9 or -inf. Unused weights cost nothing under
    `jit`. Only the einsum returns weights, applies dropout to them and takes masks and
    biases as arrays; the other `kernels.KERNELS` return None for the weights.
    """
    if kernel != "einsum":
        return kernels.attend(kernel, query, key, value, mask, bias), None
    if isinstance(bias, DistanceBias):
        bias = bias.dense()
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    attended, weights = attend_by_head(query, key, value, mask, bias, dropout)
    return attended.swapaxes(1, 2), weights


def attend_by_head(
    query: Float[Array, "B N T K"],
    key: Float[Array, "B G S K"],
    value: Float[Array, "B G S H"],
    mask: Mask | Bool[Array, "#B #N #T S"] | None = None,
    bias: Float[Array, "#B #N #T S"] | None = None,
    dropout: Any = None,
) -> tuple[Float[Array, "B N T H"], Float[Array, "B N T S"]]:
    """Attend like `attend`, but in the layout of a cache, so that no data is moved.

    Queries n·N/G … (n+1)·N/G - 1 share the keys and values of head n.
    """
    rows, heads, length, size = query.shape
    grouped = query.reshape(rows, key.shape[1], -1, size) / math.sqrt(size)
    scores = _score(grouped, key).reshape(rows, heads, length, -1)
    if bias is not None:
        scores = jnp.maximum(scores + bias, MASKED)
    if mask is not None:
        allowed = mask.dense() if isinstance(mask, Mask) else mask
        scores = jnp.where(allowed, scores, MASKED)
    weights = jax.nn.softmax(scores)
    dropped = weights if dropout is None else dropout(weights)
    dropped = dropped.reshape(rows, key.shape[1], -1, key.shape[2])
    attended = jnp.einsum("bgts,bgsh->bgth", dropped.astype(value.dtype), value)
    return attended.reshape(rows, heads, length, -1), weights


def _score(
    query: Float[Array, "B G T K"], key: Float[Array, "B G S K"]
) -> Float[Array, "B G T S"]:
    """Multiply queries by keys, in float32.

    On a CPU, XLA multiplies a few queries of a search by many keys up to ten times as
    fast if the keys are the rows. The barrier keeps it from exchanging them again.
    """
    few = 1 < query.shape[2] <= key.shape[2] // 4
    if few and sharding.platform() == "cpu":
        scores = jnp.einsum(
            "bgsk,bgtk->bgst", key, query, preferred_element_type=jnp.float32
        )
        return jax.lax.optimization_barrier(scores).swapaxes(2, 3)
    return jnp.einsum("bgtk,bgsk->bgts", query, key, preferred_element_type=jnp.float32)


@functools.partial(jax.checkpoint, static_argnums=0)
def _attend_again(rate, query, key, value, mask, bias, drawn):
    """Attend by head without keeping any array of size queries × keys.

    The dropout key is drawn by the caller, because flax cannot draw it inside
    jax.checkpoint.
    """
    dropout = None if drawn is None else lambda w: drop(w, drawn, rate)
    return attend_by_head(query, key, value, mask, bias, dropout)


class MultiHeadAttention(nn.Module):
    """N attention heads, each with its own projection of queries, keys and values.

    Queries attend to their own sequence (self-attention) or to a memory
    (cross-attention). A memory is given as vectors, or as the keys and values that
    `keys_values` has computed from them, once per source or for a cache.
    With fewer heads of keys and values, several query heads share one (grouped-query
    attention; multi-query with a single one), so each step reads a smaller cache.
    """

    d_model: int
    num_heads: int
    d_k: int = 0  # size of a head's queries and keys; 0 means d_model // num_heads
    d_v: int = 0  # size of a head's values; 0 means d_model // num_heads
    kv_heads: int = 0  # heads of keys and values; 0 means num_heads
    qk_norm: bool = False  # normalise queries and keys, so that scores stay bounded
    dropout: float = 0.0
    dtype: Any = jnp.float32
    kernel: str = "einsum"  # one of kernels.KERNELS
    gradient_dtype: str = "same"  # see `layers.dense`
    remat: bool = False  # recompute scores and weights in the backward pass
    gain: float = 0.0  # DeepNorm's β for values and outputs; 0 means QKV_SCALE
    bias: str = "all"  # of the linear maps: one of layers.BIASED

    def setup(self):
        """Make the projections and the norms of queries and keys."""
        kv_heads = self.kv_heads or self.num_heads
        head = self.d_model // self.num_heads
        d_k, d_v = self.d_k or head, self.d_v or head
        types: dict[str, Any] = {
            "dtype": self.dtype,
            "gradient_dtype": self.gradient_dtype,
        }
        usual: dict[str, Any] = {"scale": QKV_SCALE}
        begin = types | (begin_normal(1.0) if self.gain else usual)
        begin["use_bias"] = self.bias != "none"
        self.query = dense(self.num_heads * d_k, **begin)
        self.key = dense(kv_heads * d_k, **begin)
        self.value = dense(kv_heads * d_v, **begin | begin_normal(self.gain))
        types["use_bias"] = self.bias == "all"
        self.out = dense(self.d_model, **types | begin_normal(self.gain))
        self.drop = Dropout(self.dropout)
        if self.qk_norm:
            self.query_norm = rms_norm(1e-6, self.dtype)
            self.key_norm = rms_norm(1e-6, self.dtype)

    def keys_values(self, x: Float[Array, "B S E"], turn: Any = None) -> KeysValues:
        """Project vectors to keys and values for other vectors to attend to."""
        key, value = apply_together([self.key, self.value], x)
        return self._keep(key, value, turn)

    def project(
        self, x: Float[Array, "B T D"], turn: Any = None
    ) -> tuple[Float[Array, "B T N K"], KeysValues]:
        """Project vectors to the queries, keys and values of self-attention."""
        key, value, query = apply_together([self.key, self.value, self.query], x)
        keys_values = self._keep(key, value, turn)
        return self._ask(query, turn), keys_values

    def _keep(self, key: Array, value: Array, turn: Any) -> KeysValues:
        """Split projected keys and values into heads, in the layout of a cache."""
        kv_heads = self.kv_heads or self.num_heads
        key = _split_heads(key, kv_heads)
        if self.qk_norm:
            key = self.key_norm(key)
        if turn is not None:
            key = rotate(key, turn)
        value = _split_heads(value, kv_heads)
        return KeysValues(key.swapaxes(1, 2), value.swapaxes(1, 2))

    def _ask(self, query: Array, turn: Any) -> Float[Array, "B T N K"]:
        """Split projected queries into heads."""
        query = _split_heads(query, self.num_heads)
        if self.qk_norm:
            query = self.query_norm(query)
        return query if turn is None else rotate(query, turn)

    def __call__(
        self,
        x: Float[Array, "R T D"],
        memory: KeysValues | Float[Array, "B S E"] | None = None,
        mask: Mask | Bool[Array, "#B #N #Q S"] | None = None,
        signal: PositionSignal | None = None,
        train: bool = False,
        need_weights: bool = False,
        query: Float[Array, "R T N K"] | None = None,
    ) -> tuple[Float[Array, "R T D"], Float[Array, "R N T S"] | None]:
        """Attend from `x` to `memory`, or to `x` itself without a memory.

        Return the attended vectors and the weights of each head. A kernel that makes no
        weights returns None for them, so with `need_weights` the einsum is used.
        `signal` rotates the queries and, in self-attention, the keys. Queries, keys and
        values that are given (by `project`) have already been rotated.
        """
        turn, bias = (signal.turn, signal.bias) if signal else (None, None)
        # 1. Queries, and the keys and values that they look at. A layer gives both for
        # self-attention, and the stack those of cross-attention.
        if memory is None:
            query, keys_values = self.project(x, turn)
        elif isinstance(memory, KeysValues):
            keys_values = memory
        else:
            keys_values = self.keys_values(memory)
        if query is None:
            query = self._ask(self.query(x), turn)
        # 2. Beams share one source: fold them into the query axis, so that the keys and
        # values of the source are read once and never copied.
        rows, length, _ = x.shape
        sources, source_length = keys_values.value.shape[0], keys_values.value.shape[2]
        query = query.reshape(sources, -1, *query.shape[2:])
        # 3. Attend, by the formula or by a kernel that makes no weights.
        kernel = "einsum"
        if not need_weights and sources == rows:
            kernel = self.choose_kernel(length, source_length, mask, bias, train)
        if kernel == "einsum":
            attended, weights = self._attend(query, keys_values, mask, bias, train)
            weights = _unfold_beams(weights, rows)
        else:
            key, value = (
                keys_values.key.swapaxes(1, 2),
                keys_values.value.swapaxes(1, 2),
            )
            attended = kernels.attend(kernel, query, key, value, mask, bias)
            weights = None
        # 4. Join the heads.
        return self.out(attended.reshape(rows, length, -1)), weights

    def _attend(
        self, query: Array, keys_values: KeysValues, mask: Any, bias: Any, train: bool
    ) -> tuple[Float[Array, "B T N H"], Float[Array, "B N T S"]]:
        """Attend by einsum, which returns the weights."""
        bias = bias.dense() if isinstance(bias, DistanceBias) else bias
        inputs = query.swapaxes(1, 2), keys_values.key, keys_values.value, mask, bias
        if self.remat:
            draws = train and self.dropout > 0
            drawn = self.drop.draw_key() if draws else None
            attended, weights = _attend_again(self.dropout, *inputs, drawn)
        else:
            attended, weights = attend_by_head(*inputs, lambda w: self.drop(w, train))
        return attended.swapaxes(1, 2), weights

    def choose_kernel(
        self, queries: int, keys: int, mask: Any, bias: Any, train: bool
    ) -> str:
        """Choose the kernel for these lengths, mask and bias (either may be arrays)."""
        in_parts = isinstance(mask, Mask | None), isinstance(bias, DistanceBias | None)
        if not all(in_parts):
            return "einsum"
        head = self.d_model // self.num_heads
        case = kernels.Case(
            platform=sharding.platform(),
            dtype=self.dtype,
            d_k=self.d_k or head,
            d_v=self.d_v or head,
            kv_heads=self.kv_heads or self.num_heads,
            dropout=self.dropout if train else 0.0,
            bias=bias is not None,
            packed=mask is not None and not mask.whole,
            window=mask.window if mask is not None else 0,
            queries=queries,
            keys=keys,
            **sharding.inner_axes(),
        )
        return kernels.choose(self.kernel, case, strict=train).kernel


def _unfold_beams(
    weights: Float[Array, "B N KT S"], rows: int
) -> Float[Array, "R N T S"]:
    """Return the weights of each row, if several beams shared a source's."""
    sources, heads, queries, keys = weights.shape
    if sources == rows:
        return weights
    beams = rows // sources
    weights = weights.reshape(sources, heads, beams, queries // beams, keys)
    return weights.swapaxes(1, 2).reshape(rows, heads, -1, keys)


def _split_heads(x: Float[Array, "B T NK"], heads: int) -> Float[Array, "B T N K"]:
    return x.reshape(*x.shape[:-1], heads, -1)
