"""Layer norm and batch norm as functions, on padded batches.

    layer norm   y[b, t] = (x[b, t] - μ[b, t]) / √(σ²[b, t] + ε)   over the features
    batch norm   y[:, :, d] = (x[:, :, d] - μ[d]) / √(σ²[d] + ε)   over the batch

Pitfall: padding is part of a batch's statistics unless `real` leaves it out. Even then
a sentence's answer depends on the other sentences of its batch, so no model of this
package has a batch norm. Scale and bias are left to the caller.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def layer_norm(
    x: Float[Array, "B T D"], epsilon: float = 1e-6
) -> Float[Array, "B T D"]:
    """Normalise each token by the mean and the variance of its own features."""
    mean, variance = moments(x, (-1,))
    return normalise(x, mean, variance, epsilon)


def batch_norm(
    x: Float[Array, "B T D"],
    real: Bool[Array, "B T"] | None = None,
    epsilon: float = 1e-6,
) -> Float[Array, "B T D"]:
    """Normalise each feature by its mean and its variance over the batch's tokens.

    `real` is False for padding; without it, padding is counted.
    """
    mean, variance = moments(x, (0, 1), real)
    return normalise(x, mean, variance, epsilon)


def moments(
    x: Float[Array, "B T D"],
    axes: Sequence[int],
    real: Bool[Array, "B T"] | None = None,
) -> tuple[Float[Array, "#B #T #D"], Float[Array, "#B #T #D"]]:
    """Return the mean and the variance over some axes, of the real tokens alone.

    The variance takes a second pass, because E[x²] - E[x]² cancels in float32 if the
    mean is large. If no token is real, both are 0.
    """
    x = x.astype(jnp.float32)
    kept = jnp.ones(x.shape[:2], bool) if real is None else real
    weight = jnp.broadcast_to(kept[..., None], x.shape).astype(jnp.float32)
    count = jnp.maximum(weight.sum(axes, keepdims=True), 1.0)
    mean = (weight * x).sum(axes, keepdims=True) / count
    variance = (weight * jnp.square(x - mean)).sum(axes, keepdims=True) / count
    return mean, variance


def normalise(
    x: Float[Array, "B T D"],
    mean: Float[Array, "#B #T #D"],
    variance: Float[Array, "#B #T #D"],
    epsilon: float,
) -> Float[Array, "B T D"]:
    """Shift and scale to mean 0 and variance 1, in float32."""
    return (x - mean) / jnp.sqrt(variance + epsilon)
