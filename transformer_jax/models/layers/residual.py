"""The residual sublayer around attention and feed-forward: where the norm stands.

    post-norm (the paper, 5.4 and 3.1)   x ← LayerNorm(x + Dropout(f(x)))
    pre-norm                             x ← x + Dropout(f(LayerNorm(x)))
    sandwich (Ding et al., 2021)         x ← x + LayerNorm(Dropout(f(LayerNorm(x))))
    DeepNorm (Wang et al., 2022)         x ← LayerNorm(α x + Dropout(f(x)))

Pitfall: where the norm comes first, the last sum is not normalised, so the stack ends
with one more LayerNorm; a post-norm stack must not.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float

NORMS = ("post", "pre", "sandwich", "deepnorm")
NORM_FIRST = ("pre", "sandwich")  # such a stack ends with one more norm
SHARINGS = ("none", "all", "universal")  # how the layers of a stack share parameters


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
