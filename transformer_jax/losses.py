"""Losses as sums, to be divided once, by the weight of all that was summed.

    smoothed = (1 - ε) · nll(truth) + ε / (V - 1) · Σ nll(others)      (section 5.4)

A mean of means is wrong as soon as two micro-batches or devices hold unequal numbers
of tokens. The smoothed loss cannot reach 0; `Sums.loss` has that constant taken out.
"""

import math
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@flax.struct.dataclass
class Sums:
    """Totals over the real tokens of a batch; `+` joins batches."""

    loss: Any  # what is minimised
    nll: Any  # plain negative log-likelihood, nats
    correct: Any  # tokens predicted right (teacher-forced)
    weight: Any  # real tokens

    def __add__(self, other: "Sums") -> "Sums":
        return jax.tree.map(lambda a, b: a + b, self, other)


def cross_entropy(
    logits: Float[Array, "B T V"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    smoothing: float,
    vocab_size: int,
) -> Sums:
    """Label-smoothed cross-entropy; columns past `vocab_size` receive no mass."""
    real = logits[..., :vocab_size]
    log_z = jax.nn.logsumexp(real, axis=-1)
    truth = jnp.take_along_axis(real, targets[..., None], axis=-1)[..., 0]
    nll = log_z - truth
    loss = nll
    if smoothing:
        share = smoothing / (vocab_size - 1)
        others = vocab_size * log_z - real.sum(-1) - nll
        loss = (1 - smoothing) * nll + share * others - _entropy(smoothing, share)
    right = truth >= real.max(-1)  # as argmax, but for exact ties, and much cheaper
    return Sums(
        (loss * weights).sum(),
        (nll * weights).sum(),
        (right * weights).sum(),
        weights.sum(),
    )


def accumulate(
    loss: Callable, params: Any, batch: dict, key: Array, micro_batches: int
) -> tuple[Any, Sums]:
    """Gradients of the summed loss, and the sums, over the parts of a batch."""

    def part_of(params, part, key):
        sums = loss(params, part, key)
        return sums.loss, sums

    grad = jax.grad(part_of, has_aux=True)
    if micro_batches == 1:
        return grad(params, batch, key)
    # Part i takes every n-th row: each device keeps its own rows, none is moved.
    parts = jax.tree.map(
        lambda x: x.reshape(-1, micro_batches, *x.shape[1:]).swapaxes(0, 1), batch
    )

    def add(total, i_part):
        i, part = i_part
        return jax.tree.map(
            jnp.add, total, grad(params, part, jax.random.fold_in(key, i))
        ), None

    zero = (jax.tree.map(jnp.zeros_like, params), Sums(*jnp.zeros(4)))
    return jax.lax.scan(add, zero, (jnp.arange(micro_batches), parts))[0]


def _entropy(smoothing: float, share: float) -> float:
    """The least value of the smoothed loss: the entropy of the smoothed truth."""
    return -(1 - smoothing) * math.log(1 - smoothing) - smoothing * math.log(share)
