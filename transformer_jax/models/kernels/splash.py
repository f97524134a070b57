"""Splash attention, the Pallas kernel for TPUs, row by row.

It reads blocks of at least 128 queries and keys, and skips blocks that causality
hides. Rows are padded to a multiple of 128, and padding forms its own segment.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention
from jaxtyping import Array, Float, Int

from transformer_jax.models.masks import Mask

LANES = 128
LARGEST = 512  # queries or keys of a block
PADDING = -1  # a segment that contains no query


def attend(
    query: Float[Array, "B T N K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G H"],
    mask: Mask | None,
    bias: None = None,
    interpret: bool = False,
) -> Float[Array, "B T N H"]:
    """Attend with a kernel built for these lengths."""
    rows, length, heads, size = query.shape
    query = query / math.sqrt(size)
    wanted = _round_up(length), _round_up(key.shape[1])
    kernel = _make_kernel(heads, _visible(mask, wanted), interpret)
    segments = _segments(mask, rows, length, key.shape[1], wanted)
    query = _pad(query, wanted[0])
    key, value = _pad(key, wanted[1]), _pad(value, wanted[1])
    attended: Any = jax.vmap(kernel)(query, key, value, segment_ids=segments)
    return attended.swapaxes(1, 2)[:, :length].astype(value.dtype)


def _round_up(length: int) -> int:
    return -(-length // LANES) * LANES


def _visible(mask: Mask | None, shape: tuple[int, int]) -> Any:
    """Return which keys a query sees by index, apart from segments."""
    if mask is None or not mask.causal:
        return splash_attention.FullMask(shape)
    if mask.window:
        before_and_after = mask.window - 1, 0
        return splash_attention.LocalMask(shape, before_and_after, offset=0)
    return splash_attention.CausalMask(shape)


def _make_kernel(heads: int, visible: Any, interpret: bool):
    block_q, block_kv = map(_block, visible.shape)
    blocks = splash_attention.BlockSizes(
        block_q=block_q,
        block_kv=block_kv,
        block_kv_compute=block_kv,
        block_q_dkv=block_q,
        block_kv_dkv=block_kv,
        block_kv_dkv_compute=block_kv,
        block_q_dq=block_q,
        block_kv_dq=block_kv,
    )
    return splash_attention.make_splash_mha_single_device(
        splash_attention.MultiHeadMask([visible] * heads),
        block_sizes=blocks,
        interpret=interpret,
    )


def _block(length: int) -> int:
    """Return the largest multiple of LANES up to LARGEST that divides a length."""
    return max(n for n in range(LANES, LARGEST + 1, LANES) if length % n == 0)


def _pad(x: Float[Array, "B T N K"], length: int) -> Float[Array, "B N L K"]:
    return jnp.pad(x, ((0, 0), (0, length - x.shape[1]), (0, 0), (0, 0))).swapaxes(1, 2)


def _segments(
    mask: Mask | None, rows: int, queries: int, keys: int, wanted: tuple[int, int]
) -> splash_attention.SegmentIds | None:
    """Return the padded segments [B, T] and [B, S], or None if nothing is masked."""
    if mask is None and wanted == (queries, keys):
        return None
    if mask is None:
        mask = Mask(jnp.ones((1, keys), jnp.int32))
    of_keys, of_queries = mask.key_segments, mask.query_segments
    if of_queries is None:  # one sequence: each query sees all keys except padding
        of_keys = (of_keys != 0).astype(jnp.int32)
        of_queries = jnp.ones((1, queries), jnp.int32)

    def widen(segments: Int[Array, "#B S"], length: int) -> Int[Array, "B L"]:
        segments = jnp.broadcast_to(segments, (rows, segments.shape[1]))
        edges = (0, 0), (0, length - segments.shape[1])
        return jnp.pad(segments, edges, constant_values=PADDING)

    return splash_attention.SegmentIds(
        widen(of_queries, wanted[0]), widen(of_keys, wanted[1])
    )
