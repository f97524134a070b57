"""The result of a forward pass of any model."""

from typing import Any

import flax.struct


class Outputs(flax.struct.PyTreeNode):
    """Logits, attention weights (per layer an array [B, N, T, S]) and hidden states."""

    logits: Any
    self_attention: tuple[Any, ...] = ()
    cross_attention: tuple[Any, ...] = ()
    encoder_attention: tuple[Any, ...] = ()
    hidden: Any = None  # the input of the output layer: logits = model.logits(hidden)
    memory: Any = None  # the encoder's output, [B, S, D]
