"""The parts of every layer, one subject a file."""

from transformer_jax.models.layers.dense import (
    BIASED,
    DTYPES,
    apply_together,
    begin_normal,
    dense,
    dot_rows,
    output_layer,
)
from transformer_jax.models.layers.dropout import (
    Dropout,
    drop,
    keep_mask,
    keep_mask_plainly,
    mix,
)
from transformer_jax.models.layers.feed_forward import ACTIVATIONS, GATES, FeedForward
from transformer_jax.models.layers.norms import NORM_KINDS, layer_norm, rms_norm
from transformer_jax.models.layers.recompute import (
    REMATS,
    keep_products,
    recompute,
)
from transformer_jax.models.layers.residual import (
    NORM_FIRST,
    NORMS,
    SHARINGS,
    DeepNorm,
    deepnorm_for,
    residual,
)

__all__ = [
    "ACTIVATIONS",
    "BIASED",
    "DTYPES",
    "DeepNorm",
    "Dropout",
    "FeedForward",
    "GATES",
    "NORMS",
    "NORM_FIRST",
    "NORM_KINDS",
    "REMATS",
    "SHARINGS",
    "apply_together",
    "begin_normal",
    "deepnorm_for",
    "dense",
    "dot_rows",
    "drop",
    "keep_mask",
    "keep_mask_plainly",
    "keep_products",
    "layer_norm",
    "mix",
    "output_layer",
    "recompute",
    "residual",
    "rms_norm",
]
