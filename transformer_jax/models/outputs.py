"""The result of a forward pass, of whatever model."""

from typing import Any

import flax.struct


class Outputs(flax.struct.PyTreeNode):
    """Hold logits, and what led to them; each weight is [B, N, T, S], one a layer."""

    logits: Any
    self_attention: tuple[Any, ...] = ()
    cross_attention: tuple[Any, ...] = ()
    encoder_attention: tuple[Any, ...] = ()
    hidden: Any = None  # what the logits are of: model.logits(hidden)
    memory: Any = None  # the encoder's last output, [B, S, D]
