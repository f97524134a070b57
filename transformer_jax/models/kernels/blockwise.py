"""Attention by blocks of queries and keys, in plain JAX (Dao et al. 2022).

    m ← max(m, s)    l ← l · exp(m_before - m) + Σ exp(s - m)    o likewise

Each query keeps the greatest score m so far, the sum l of its weights and the weighted
sum o of the values; both sums are rescaled when a greater score appears. The backward
pass recomputes each block of weights p from m and l, so memory is linear in the length:

    p = exp(s - m) / l    dv = pᵀ do    ds = p · (do vᵀ - Σ do · o)

as Σ p · (do vᵀ), over all keys of a query, is Σ do · o, over the entries of its output.
Blocks that a mask hides completely are skipped. A query that sees no key gets zeros.
Outputs and gradients are those of `attention.attend_by_head`.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.models.masks import MASKED, Mask
from transformer_jax.models.positions import DistanceBias

BLOCK = 512  # queries, and keys, of a block


class Side(NamedTuple):
    """Mask and bias inputs of the queries or of the keys: [blocks, #B, block]."""

    segments: Any = None
    positions: Any = None  # read by the mask
    places: Any = None  # read by the bias; with a cache they may differ


class Form(NamedTuple):
    """The static part of the inputs: hashable, known at compile time."""

    masked: bool
    causal: bool
    window: int
    bias: DistanceBias | None  # without its arrays


def attend(
    query: Float[Array, "B T N K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G H"],
    mask: Mask | None,
    bias: DistanceBias | None,
    block: int = BLOCK,
) -> Float[Array, "B T N H"]:
    """Attend block by block, with the outputs and gradients of the einsum."""
    rows, length, heads, size = query.shape
    keys, groups = key.shape[1:3]
    query = (query / math.sqrt(size)).reshape(rows, length, groups, -1, size)
    if mask is None and keys % block and keys > block:  # the last block is not full
        mask = Mask(jnp.ones((1, keys), jnp.int32))
    mask_parts = Side(), Side()
    if mask is not None:
        mask_parts = (
            Side(mask.query_segments, mask.query_positions),
            Side(mask.key_segments, mask.key_positions),
        )
    of_queries, of_keys = mask_parts
    table = form = None
    if bias is not None:
        of_queries = of_queries._replace(places=bias.queries)
        of_keys = of_keys._replace(places=bias.keys)
        table, form = bias.table, bias.replace(queries=None, keys=None, table=None)
    limits = (mask.causal, mask.window) if mask is not None else (False, 0)
    form = Form(mask is not None, *limits, form)
    # The last block of keys is padded with a segment that contains no query.
    unused_segment = 0 if of_queries.segments is None else -1
    attended: Any = _attend_blocks(
        form,
        _split(query, block).transpose(0, 1, 3, 4, 2, 5),  # [blocks, B, G, N / G, …]
        _split(key, block).swapaxes(2, 3),
        _split(value, block).swapaxes(2, 3),
        table,
        jax.tree.map(lambda x: _split(x, block), of_queries),
        jax.tree.map(lambda x: _split(x, block, unused_segment), of_keys),
    )  # [blocks, B, G, N / G, block, H]
    attended = attended.transpose(1, 0, 4, 2, 3, 5)
    return attended.reshape(rows, -1, heads, value.shape[-1])[:, :length]


def _split(x: Array, block: int, fill: int = 0) -> Array:
    """Split [B, T, …] into [blocks, B, block, …]; pad the last block."""
    block = min(block, x.shape[1])
    edges = [(0, 0)] * x.ndim
    edges[1] = (0, -x.shape[1] % block)
    x = jnp.pad(x, edges, constant_values=fill)
    return x.reshape(len(x), -1, block, *x.shape[2:]).swapaxes(0, 1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend_blocks(form, query, key, value, table, of_queries, of_keys):
    return _forward(form, query, key, value, table, of_queries, of_keys)[0]


def _forward(form, query, key, value, table, of_queries, of_keys):
    def attend_block(_, q_block):
        query, of_queries = q_block
        rows = query.shape[:-1]

        def add(state, k_block):
            key, value, of_keys = k_block
            allowed = _allowed(form, of_queries, of_keys)

            def see(state):
                most, total, mixed = state
                scores = _scores(form, query, key, table, of_queries, of_keys, allowed)
                now = jnp.maximum(most, scores.max(-1))
                shrink, weights = jnp.exp(most - now), jnp.exp(scores - now[..., None])
                seen = _mix(weights, value)
                mixed = mixed * shrink[..., None] + seen
                return now, total * shrink + weights.sum(-1), mixed

            return _if_any(allowed, see, state), None

        zeros = jnp.zeros((*rows, value.shape[-1]), jnp.float32)
        state = jnp.full(rows, MASKED), jnp.zeros(rows), zeros
        (most, total, mixed), _ = jax.lax.scan(add, state, (key, value, of_keys))
        seen = most > MASKED / 2
        total = jnp.where(seen, total, jnp.inf)  # if no key was seen, all weights are 0
        attended = (mixed / total[..., None]).astype(value.dtype)
        return None, (attended, most, total)

    _, (attended, most, total) = jax.lax.scan(attend_block, None, (query, of_queries))
    kept = query, key, value, table, of_queries, of_keys, attended, most, total
    return attended, kept


def _backward(form, kept, outer):
    query, key, value, table, of_queries, of_keys, attended, most, total = kept
    wide = jnp.float32
    mean = (outer.astype(wide) * attended.astype(wide)).sum(-1)
    by_query = query, of_queries, outer, mean, most, total

    # The outer loop is over blocks of keys, the inner one over blocks of queries.
    def take_keys(carry, k_block):
        key, value, of_keys = k_block

        def add(carry, q_block):
            (query, of_queries, outer, mean, most, total), d_query = q_block
            allowed = _allowed(form, of_queries, of_keys)

            def see(state):
                scores, pull = jax.vjp(
                    lambda q, k, t: _scores(
                        form, q, k, t, of_queries, of_keys, allowed
                    ),
                    query,
                    key,
                    table,
                )
                weights = jnp.exp(scores - most[..., None]) / total[..., None]
                d_value = jnp.einsum(
                    "bgnts,bgnth->bgsh",
                    weights.astype(outer.dtype),
                    outer,
                    preferred_element_type=wide,
                )
                d_weights = jnp.einsum(
                    "bgnth,bgsh->bgnts", outer, value, preferred_element_type=wide
                )
                found = pull(weights * (d_weights - mean[..., None]))
                return jax.tree.map(jnp.add, state, (*found, d_value))

            d_query, *carry = _if_any(allowed, see, (d_query, *carry))
            return carry, d_query

        d_queries, d_table = carry
        begin = [_zeros(key), d_table, _zeros(value)]
        (d_key, d_table, d_value), d_queries = jax.lax.scan(
            add, begin, (by_query, d_queries)
        )
        return (d_queries, d_table), (d_key, d_value)

    begin = _zeros(query), jax.tree.map(_zeros, table)
    (d_query, d_table), (d_key, d_value) = jax.lax.scan(
        take_keys, begin, (key, value, of_keys)
    )
    return (
        d_query.astype(query.dtype),
        d_key.astype(key.dtype),
        d_value.astype(value.dtype),
        d_table,
        None,
        None,
    )


_attend_blocks.defvjp(_forward, _backward)


def _zeros(x: Array) -> Array:
    return jnp.zeros(x.shape, jnp.float32)


def _allowed(
    form: Form, of_queries: Side, of_keys: Side
) -> Bool[Array, "#B 1 1 #T S"] | None:
    if not form.masked:
        return None
    mask = Mask(
        of_keys.segments,
        of_queries.segments,
        of_queries.positions,
        of_keys.positions,
        form.causal,
        form.window,
    )
    return mask.dense()[:, None]


def _if_any(allowed: Array | None, function: Any, state: Any) -> Any:
    if allowed is None:
        return function(state)
    return jax.lax.cond(allowed.any(), function, lambda state: state, state)


def _scores(
    form: Form, query, key, table, of_queries: Side, of_keys: Side, allowed
) -> Float[Array, "B G n T S"]:
    """Compute a block of scores like the einsum."""
    scores = jnp.einsum(
        "bgntk,bgsk->bgnts", query, key, preferred_element_type=jnp.float32
    )
    if form.bias is not None:
        bias = form.bias.replace(
            queries=of_queries.places, keys=of_keys.places, table=table
        ).dense()
        heads = scores.shape[1] * scores.shape[2]
        if bias.shape[1] not in (1, heads):  # this device has only some of the heads
            begin = jax.lax.axis_index("tensor") * heads
            bias = jax.lax.dynamic_slice_in_dim(bias, begin, heads, axis=1)
        groups = scores.shape[1] if bias.shape[1] > 1 else 1
        bias = bias.reshape(len(bias), groups, -1, *bias.shape[2:])
        scores = jnp.maximum(scores + bias, MASKED)
    return scores if allowed is None else jnp.where(allowed, scores, MASKED)


def _mix(
    weights: Float[Array, "B G n T S"], value: Float[Array, "B G S H"]
) -> Float[Array, "B G n T H"]:
    return jnp.einsum(
        "bgnts,bgsh->bgnth",
        weights.astype(value.dtype),
        value,
        preferred_element_type=jnp.float32,
    )
