"""cuDNN's fused attention, for 16-bit numbers on NVIDIA GPUs.

Pitfall: a mask array takes memory that is quadratic in the length. So the mask is
passed as lengths and a causal flag; only packed rows, which hold several sequences,
need an array that separates their segments, shared by all heads.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.models.masks import Mask


def attend(
    query: Float[Array, "B T N K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G H"],
    mask: Mask | None,
    bias: None = None,
    implementation: Literal["xla", "cudnn"] = "cudnn",
) -> Float[Array, "B T N H"]:
    """Attend with `jax.nn.dot_product_attention`."""
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        implementation=implementation,
        **_options(mask, len(query)),
    )


def _options(mask: Mask | None, rows: int) -> dict[str, Any]:
    if mask is None:
        return {}
    if not mask.whole:
        return {"mask": mask.replace(causal=False).dense(), "is_causal": mask.causal}
    queries = mask.query_segments
    return {
        "is_causal": mask.causal,
        "query_seq_lengths": None if queries is None else _lengths(queries, rows),
        "key_value_seq_lengths": _lengths(mask.key_segments, rows),
    }


def _lengths(segments: Int[Array, "#B S"], rows: int) -> Int[Array, "B"]:
    lengths = (segments != 0).sum(axis=-1, dtype=jnp.int32)
    return jnp.broadcast_to(lengths, (rows,))
