"""Linear maps, with the type in which each product and gradient is computed."""

import functools
from collections.abc import Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jaxtyping import Array, Float

from transformer_jax import sharding
from transformer_jax.models.layers import rounded
from transformer_jax.models.layers.rounded import RoundedMatrix

DTYPES = ("float32", "bfloat16")
Distribution = Literal["uniform", "normal"]
BIASED = ("all", "qkv", "none")  # which linear maps of a layer have a bias


def dense(
    features: int,
    dtype: Any,
    use_bias: bool = True,
    scale: float = 1.0,
    gradient_dtype: str = "same",
    distribution: Distribution = "uniform",
) -> nn.Dense:
    """Make a linear map with float32 parameters, computed in `dtype`.

    The initial weights have `scale` times Glorot's variance (2010). Their gradient is
    computed, and summed over devices, in `gradient_dtype`.
    """
    product: Any = dot_rows
    promote: Any = _promote
    if gradient_dtype not in ("same", jnp.dtype(dtype).name):
        types = jnp.dtype(dtype), jnp.dtype(gradient_dtype)
        product = functools.partial(_dot_in_types, types)
        promote = _promote_all_but_kernel
    return nn.Dense(
        features,
        use_bias=use_bias,
        dtype=dtype,
        kernel_init=nn.initializers.variance_scaling(scale, "fan_avg", distribution),
        dot_general=product,
        promote_dtype=promote,
    )


def output_layer(features: int, dtype: Any, use_bias: bool = True) -> nn.Dense:
    """Make a linear map that computes in `dtype` and returns float32.

    Rounding to bfloat16 would make logits equal that differ by less than 1/256.
    """
    if jnp.dtype(dtype) == jnp.float32:
        return dense(features, dtype, use_bias)
    return nn.Dense(
        features,
        use_bias=use_bias,
        dtype=dtype,
        kernel_init=nn.initializers.variance_scaling(1.0, "fan_avg", "uniform"),
        dot_general=lambda x, kernel, *_, **__: _dot_to_float32(x, kernel),
        promote_dtype=_promote_all_but_bias,
    )


def dot_rows(
    x: Float[Array, "*B D"],
    kernel: Float[Array, "D ..."] | RoundedMatrix,
    _: Any = None,
    **options: Any,
) -> Float[Array, "..."]:
    """Multiply x @ kernel with all positions of all sentences as rows of one matrix.

    The result is the same, but XLA on a CPU transposes the gradients of a product with
    three axes before multiplying them, which takes a tenth of a training step.
    """
    if isinstance(kernel, RoundedMatrix):
        return kernel.multiply(x).astype(options.get("preferred_element_type", x.dtype))
    axes = sharding.inner_axes()
    if x.ndim < 3 or axes["sequence"] > 1 or kernel.ndim > 2:
        # Two axes that are split over devices cannot be merged without moving data.
        contract = (((x.ndim - 1,), (0,)), ((), ()))
        return jax.lax.dot_general(x, kernel, contract, **options)
    rows = x.reshape(-1, x.shape[-1])
    product = jax.lax.dot_general(rows, kernel, (((1,), (0,)), ((), ())), **options)
    return product.reshape(*x.shape[:-1], kernel.shape[-1])


def apply_together(
    layers: Sequence[nn.Dense], x: Float[Array, "*B D"]
) -> list[Float[Array, "*B _"]]:
    """Apply several linear maps to `x`.

    Maps of the same size become one product where that is faster. Where columns are
    split over devices, the gradient of `x` is then summed over them once instead of per
    map. In a step of a search, products are so small that fewer take less time.
    """
    first, *others = layers
    split = sharding.inner_axes()["tensor"] > 1 or x.shape[-2] == 1
    if not others or not split or first.is_initializing():
        return [layer(x) for layer in layers]
    sizes = {layer.features for layer in layers}
    if len(sizes) > 1:
        alike = {n: [layer for layer in layers if layer.features == n] for n in sizes}
        made = {n: iter(apply_together(alike[n], x)) for n in sizes}
        return [next(made[layer.features]) for layer in layers]
    params = [layer.variables["params"] for layer in layers]
    multiply: Any = first.dot_general  # set by `dense`
    kernel = rounded.stack([own["kernel"] for own in params])  # [D, maps, F]
    bias = jnp.stack([own["bias"] for own in params]) if first.use_bias else None
    cast: Any = first.promote_dtype(x, kernel, bias, dtype=first.dtype)
    product = multiply(*cast[:2], precision=first.precision)
    product = product if bias is None else product + cast[2]
    return [product[..., i, :] for i in range(len(layers))]


def _promote(x, kernel, bias, *, dtype):
    """Cast the operands of a linear map, except a rounded matrix."""
    if isinstance(kernel, RoundedMatrix):
        return _promote_all_but_kernel(x, kernel, bias, dtype=dtype)
    return promote_dtype(x, kernel, bias, dtype=dtype)


def _promote_all_but_kernel(x, kernel, bias, *, dtype):
    """Cast the operands of a linear map except the kernel, which the product casts."""
    x, bias = promote_dtype(x, bias, dtype=dtype)
    return x, kernel, bias


def _dot_in_types(types, x, kernel, _=None, **options):
    return _dot_with_gradient_in(types, x, kernel)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _dot_with_gradient_in(types, x, kernel):
    """Multiply like `dot_rows`; `types` are the types of the product and gradient."""
    return dot_rows(x, kernel.astype(types[0]))


def _dot_forward(types, x, kernel):
    """Multiply, and keep both factors for `_dot_backward`."""
    return _dot_with_gradient_in(types, x, kernel), (x, kernel)


def _dot_backward(types, kept, slope):
    x, kernel = kept
    every = tuple(range(x.ndim - 1))  # axes of rows and positions
    own = jax.lax.dot_general(
        x, slope, ((every, every), ((), ())), preferred_element_type=types[1]
    )
    _, backward = jax.vjp(lambda x: dot_rows(x, kernel.astype(types[0])), x)
    return *backward(slope), own.astype(kernel.dtype)


_dot_with_gradient_in.defvjp(_dot_forward, _dot_backward)


def _promote_all_but_bias(*arrays, dtype=None, inexact=True):
    """Cast the factors of a linear map; the bias stays float32, like the sum."""
    *multiplied, bias = arrays
    if isinstance(multiplied[-1], RoundedMatrix):
        return list(arrays)
    return [*promote_dtype(*multiplied, dtype=dtype, inexact=inexact), bias]


@jax.custom_vjp
def _dot_to_float32(x, kernel):
    """Multiply like `dot_rows`, to float32; compute gradients in the type of `x`."""
    return dot_rows(x, kernel, preferred_element_type=jnp.float32)


def _dot_to_float32_backward(kept, slope):
    x, kernel = kept
    slope, every = slope.astype(x.dtype), tuple(range(x.ndim - 1))
    own = jax.lax.dot_general(x, slope, ((every, every), ((), ())))
    return dot_rows(slope, kernel.T), own


_dot_to_float32.defvjp(
    lambda *kept: (_dot_to_float32(*kept), kept), _dot_to_float32_backward
)


def begin_normal(gain: float) -> dict[str, Any]:
    """Return the options of `dense` for normal initial weights, if a gain is given."""
    return {"scale": gain**2, "distribution": "normal"} if gain else {}
