"""Recompute values in a layer's backward pass instead of keeping them."""

from collections.abc import Callable
from typing import Any

import jax

# What a layer recomputes in its backward pass instead of keeping it: nothing; attention
# scores and weights, as kernels do anyway; everything except the outputs of its linear
# maps; or everything except its input.
REMATS = ("none", "attention", "dots", "full")


def recompute(remat: Any, wrap: Callable, function: Callable, **options: Any) -> Any:
    """Wrap a layer with jax.checkpoint, or flax's form of it, if `remat` asks for it.

    `MultiHeadAttention` itself implements `remat = "attention"`.
    """
    if remat not in ("dots", "full"):
        return function
    return wrap(
        function, policy=keep_linear_maps if remat == "dots" else None, **options
    )


def keep_linear_maps(primitive: Any, *_: Any, **params: Any) -> bool:
    """Keep the outputs of linear maps and of kernels: the policy of `dots`."""
    dots = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return _is_kernel(primitive) or dots(primitive, *_, **params)


def keep_products(primitive: Any, *_: Any, **__: Any) -> bool:
    """Keep the outputs of all products, and recompute everything between them.

    XLA does so by itself when it fuses operations, but not across the two loops of a
    scan, where everything would be kept: several times as much memory.
    """
    return primitive.name == "dot_general" or _is_kernel(primitive)


def _is_kernel(primitive: Any) -> bool:
    """Return whether this is cuDNN's attention or a Pallas kernel."""
    return primitive.name.startswith(("dot_product_attention", "pallas_call"))
