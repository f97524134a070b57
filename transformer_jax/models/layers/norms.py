"""Norms over the features of a position."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn


def layer_norm(epsilon: float, dtype: Any) -> nn.LayerNorm:
    """Make a layer norm whose variance is computed in two passes.

    The fast variance E[x²] - E[x]² cancels badly in float32 for a large mean.
    """
    return nn.LayerNorm(epsilon, dtype=dtype, use_fast_variance=False)


def rms_norm(epsilon: float, dtype: Any) -> nn.RMSNorm:
    """Make x / √(mean x² + ε) · scale: no mean subtracted, no bias (Zhang 2019)."""
    return nn.RMSNorm(epsilon, dtype=dtype)


# The choices of `model.norm_kind`: functions from (ε, dtype) to a norm.
NORM_KINDS: dict[str, Callable[[float, Any], nn.Module]] = {
    "layer": layer_norm,
    "rms": rms_norm,
}
