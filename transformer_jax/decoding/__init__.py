"""Decoding: pure functions that drive any autoregressive model.

A model is two functions. `start(batch, beams, length) → (static, state)` reads what is
given; `extend(tokens [B, K, T], positions, static, state) → (logits, state)` reads
tokens and predicts what follows each. Leaves of `state` are [B, K, …] and are gathered
by beam parent; `static` is never copied per beam.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax.numpy as jnp

from transformer_jax.ids import BOS, PAD
from transformer_jax.models.attention import MASKED


class Model(NamedTuple):
    """An autoregressive model with its parameters bound."""

    start: Callable[[dict, int, int], tuple[Any, Any]]
    extend: Callable[[Any, Any, Any, Any], tuple[Any, Any]]


def bind(module: nn.Module, params: Any) -> Model:
    """A linen module's two methods, with padding and start-of-sentence never chosen."""
    variables = {"params": params}

    def start(batch, beams, length):
        return module.apply(variables, batch, beams, length, method="start")

    def extend(tokens, positions, static, state):
        logits, state = module.apply(
            variables, tokens, positions, static, state, method="extend"
        )
        logits = logits.at[..., jnp.array([PAD, BOS])].set(MASKED)
        # Impossible, not merely unlikely: a beam may be wider than the real choices.
        return jnp.where(logits <= MASKED, -jnp.inf, logits), state

    return Model(start, extend)


@flax.struct.dataclass
class Hypotheses:
    """What a search found, best first; a slot that found nothing scores -inf."""

    tokens: Any  # Int [B, K, L], padded with 0 behind the end of sentence
    lengths: Any  # Int [B, K], end of sentence counted
    log_probs: Any  # Float [B, K]
    scores: Any  # Float [B, K]: log_probs over the length penalty
