"""The parts of every layer: feed-forward, norm, dropout and the residual sublayer.

    post-norm (the paper, 5.4 and 3.1)   x ← LayerNorm(x + Dropout(f(x)))
    pre-norm                             x ← x + Dropout(f(LayerNorm(x)))
    sandwich (Ding et al., 2021)         x ← x + LayerNorm(Dropout(f(LayerNorm(x))))
    DeepNorm (Wang et al., 2022)         x ← LayerNorm(α x + Dropout(f(x)))

Pitfall: where the norm comes first, the last sum is not normalised, so the stack ends
with one more LayerNorm; a post-norm stack must not.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.dtypes import promote_dtype
from jaxtyping import Array, Float

from transformer_jax import sharding

ACTIVATIONS = {
    "relu": nn.relu,
    "gelu_tanh": nn.gelu,  # tanh approximation, as in the first BERT and GPT-2 code
    "gelu_erf": functools.partial(nn.gelu, approximate=False),  # Hendrycks 2016: x Φ(x)
    "silu": nn.silu,
    "relu2": lambda x: jnp.square(nn.relu(x)),  # So et al. 2021
}
GATES = {  # gated linear units: the activation of the gate (Shazeer 2020)
    "glu": nn.sigmoid,
    "reglu": nn.relu,
    "geglu": nn.gelu,  # tanh approximation
    "swiglu": nn.silu,
}
NORMS = ("post", "pre", "sandwich", "deepnorm")
NORM_FIRST = ("pre", "sandwich")  # such a stack ends with one more norm
SHARINGS = ("none", "all", "universal")  # how the layers of a stack share parameters
DTYPES = ("float32", "bfloat16")
# What a layer recomputes in its backward pass instead of keeping it: nothing; attention
# scores and weights, as kernels do anyway; everything except the outputs of its linear
# maps; or everything except its input.
REMATS = ("none", "attention", "dots", "full")
Distribution = Literal["uniform", "normal"]


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
    promote: Any = promote_dtype
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
    kernel: Float[Array, "D ..."],
    _: Any = None,
    **options: Any,
) -> Float[Array, "..."]:
    """Multiply x @ kernel with all positions of all sentences as rows of one matrix.

    The result is the same, but XLA on a CPU transposes the gradients of a product with
    three axes before multiplying them, which takes a tenth of a training step.
    """
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

    Where their columns are split over devices, maps of the same size become one
    product. The gradient of `x` is then summed over devices once instead of per map.
    """
    first, *others = layers
    split = sharding.inner_axes()["tensor"] > 1
    if not others or not split or first.is_initializing():
        return [layer(x) for layer in layers]
    sizes = {layer.features for layer in layers}
    if len(sizes) > 1:
        alike = {n: [layer for layer in layers if layer.features == n] for n in sizes}
        made = {n: iter(apply_together(alike[n], x)) for n in sizes}
        return [next(made[layer.features]) for layer in layers]
    params = [layer.variables["params"] for layer in layers]
    multiply: Any = first.dot_general  # set by `dense`
    kernel = jnp.stack([own["kernel"] for own in params], 1)  # [D, maps, F]
    bias = jnp.stack([own["bias"] for own in params]) if first.use_bias else None
    cast: Any = first.promote_dtype(x, kernel, bias, dtype=first.dtype)
    product = multiply(*cast[:2], precision=first.precision)
    product = product if bias is None else product + cast[2]
    return [product[..., i, :] for i in range(len(layers))]


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


def layer_norm(epsilon: float, dtype: Any, name: str | None = None) -> nn.LayerNorm:
    """Make a layer norm whose variance is computed in two passes.

    The fast variance E[x²] - E[x]² cancels badly in float32 for a large mean.
    """
    return nn.LayerNorm(epsilon, dtype=dtype, use_fast_variance=False, name=name)


def rms_norm(epsilon: float, dtype: Any) -> nn.RMSNorm:
    """Make x / √(mean x² + ε) · scale: no mean subtracted, no bias (Zhang 2019)."""
    return nn.RMSNorm(epsilon, dtype=dtype)


# The choices of `model.norm_kind`: functions from (ε, dtype) to a norm.
NORM_KINDS: dict[str, Callable[[float, Any], nn.Module]] = {
    "layer": layer_norm,
    "rms": rms_norm,
}


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


class FeedForward(nn.Module):
    """max(0, x W₁ + b₁) W₂ + b₂, the same at every position (section 3.3).

    A gated unit has a third matrix: (gate(x W₀ + b₀) · (x W₁ + b₁)) W₂ + b₂. It has as
    many parameters as a plain one if `d_ff` is two thirds as large.
    """

    d_model: int
    d_ff: int
    activation: str = "relu"
    dropout: float = 0.0
    dtype: Any = jnp.float32
    gradient_dtype: str = "same"  # see `dense`
    gain: float = 0.0  # DeepNorm's β; 0 means Glorot's variance

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], train: bool = False
    ) -> Float[Array, "B T D"]:
        """Transform each position by itself."""
        types: dict[str, Any] = {
            "dtype": self.dtype,
            "gradient_dtype": self.gradient_dtype,
            **begin_normal(self.gain),
        }
        inner = dense(self.d_ff, **types).copy(name="inner")
        outer = dense(self.d_model, **types).copy(name="outer")
        if self.activation in GATES:
            gate = dense(self.d_ff, **types).copy(name="gate")
            passed, hidden = apply_together([gate, inner], x)
            hidden = GATES[self.activation](passed) * hidden
        else:
            hidden = ACTIVATIONS[self.activation](inner(x))
        return outer(Dropout(self.dropout)(hidden, train))


def begin_normal(gain: float) -> dict[str, Any]:
    """Return the options of `dense` for normal initial weights, if a gain is given."""
    return {"scale": gain**2, "distribution": "normal"} if gain else {}


@dataclasses.dataclass(frozen=True)
class DeepNorm:
    """The weight of the residual stream and the initial gain of the sublayers."""

    alpha: float = 1.0
    beta: float = 0.0  # gain of the weights; 0 means no DeepNorm


def deepnorm_for(layers: int, cross: bool, readers: int) -> DeepNorm:
    """Return the constants of a stack of `layers` layers (DeepNet, figure 2).

    `cross` marks a decoder that reads an encoder; `readers` is the number of layers of
    the decoder that reads this encoder, or 0.
    """
    if cross:
        return DeepNorm((3 * layers) ** 0.25, (12 * layers) ** -0.25)
    if readers:
        size = (layers**4 * readers) ** (1 / 16)
        return DeepNorm(0.81 * size, 0.87 / size)
    return DeepNorm((2 * layers) ** 0.25, (8 * layers) ** -0.25)


def residual(
    x: Float[Array, "B T D"],
    sublayer: Callable[[Array], tuple[Array, Any]],
    norm: Callable[[Array], Array],
    dropout: Callable[[Array], Array],
    order: str,
    alpha: float = 1.0,
    output_norm: Callable[[Array], Array] | None = None,
) -> tuple[Float[Array, "B T D"], Any]:
    """Add the output of `sublayer` to `x`; also return the sublayer's second result.

    `alpha` is the weight of `x`, and `output_norm` is the second norm of a sandwich.
    """
    first = order in NORM_FIRST
    y, extra = sublayer(norm(x) if first else x)
    y = dropout(y) if output_norm is None else output_norm(dropout(y))
    x = (x if alpha == 1.0 else alpha * x) + y
    return (x if first else norm(x)), extra
