"""Optimizers and learning-rate schedules; the paper's are adam and noam (section 5.3).

    lr(s) = c · d_model^-½ · min(s^-½, s · warmup^-1.5),   s = 1 at the first update

Constant and warmup are both explicit: the formula's peak is c / √(d_model · warmup).
In all other schedules c itself is the peak, reached after a linear warmup.
"""

import math
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax.sharding import path_name


def make_schedule(config: ConfigDict) -> Callable:
    """Return a function from the number of updates so far to the next one's rate."""
    optim = config.optim
    end = optim.decay_steps or config.train.steps
    shape = SCHEDULES[optim.schedule]
    scale = optim.constant
    if optim.schedule == "noam":
        scale /= math.sqrt(config.model.d_model * optim.warmup_steps)

    def rate(count):
        step = jnp.asarray(count, jnp.float32) + 1
        rising = 1.0
        if optim.schedule != "constant":
            rising = jnp.minimum(step / optim.warmup_steps, 1.0)
        return jnp.float32(scale) * rising * shape(step, end, optim)

    return rate


def _rsqrt(step: Array, end: int, optim: ConfigDict) -> Array:
    return jnp.sqrt(optim.warmup_steps / jnp.maximum(step, optim.warmup_steps))


def _linear(step: Array, end: int, optim: ConfigDict) -> Array:
    """Fall in a line from the peak to 0 after the last update."""
    done = (step - optim.warmup_steps) / (end + 1 - optim.warmup_steps)
    return 1 - jnp.clip(done, 0, 1)


def _cosine(step: Array, end: int, optim: ConfigDict) -> Array:
    return (1 - jnp.cos(jnp.pi * _linear(step, end, optim))) / 2


def _warmup_stable_decay(step: Array, end: int, optim: ConfigDict) -> Array:
    """Keep the peak for most of the time, then fall in a line to 0."""
    return jnp.clip((end + 1 - step) / max(optim.decay_share * end, 1), 0, 1)


SCHEDULES: dict[str, Callable] = {
    "noam": _rsqrt,
    "constant": lambda *_: 1.0,
    "rsqrt": _rsqrt,
    "linear": _linear,
    "cosine": _cosine,
    "wsd": _warmup_stable_decay,
}
ENDING = ("linear", "cosine", "wsd")  # they depend on the number of steps


def make_optimizer(config: ConfigDict) -> optax.GradientTransformation:
    """Chain clipping, the optimizer, weight decay and the learning rate."""
    optim = config.optim
    rate = optax.scale_by_learning_rate(make_schedule(config))
    steps = [OPTIMIZERS[optim.name](optim), rate]
    if optim.weight_decay:
        steps.insert(1, optax.add_decayed_weights(optim.weight_decay, _matrices))
    if optim.clip_norm:
        steps.insert(0, optax.clip_by_global_norm(optim.clip_norm))
    optimizer = optax.chain(*steps)
    if config.model.get("train_word_vectors", True):  # an image has none
        return optimizer
    # Frozen tables have no moments and do not count in the clipped norm.
    # The labels are part of the paths in a checkpoint.
    kinds: dict[Hashable, optax.GradientTransformation] = {
        "moves": optimizer,
        "stays": optax.set_to_zero(),
    }
    return optax.partition(kinds, _label_tables)


def _adam(optim: ConfigDict) -> optax.GradientTransformation:
    return optax.scale_by_adam(optim.beta1, optim.beta2, optim.epsilon)


def _adafactor(optim: ConfigDict) -> optax.GradientTransformation:
    """Keep row and column means of the squared gradient only, and scale each step by
    the size of its parameter (Shazeer, Stern 2018)."""
    return optax.chain(
        optax.scale_by_factored_rms(),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(),
    )


def _muon(optim: ConfigDict) -> optax.GradientTransformation:
    """Orthogonalise the mean gradient of hidden matrices; use Adam for the rest. Both
    are scaled for one learning rate (Jordan 2024, Liu et al. 2025)."""

    def sides(params: Any) -> Any:
        sides = optax.contrib.MuonDimensionNumbers()
        return jax.tree.map(lambda hidden: sides if hidden else None, _hidden(params))

    return optax.contrib.muon(
        -1.0,  # undoes the sign that `scale_by_learning_rate` gives
        beta=optim.beta1,
        adam_b1=optim.beta1,
        adam_b2=optim.beta2,
        eps=optim.epsilon,
        muon_weight_dimension_numbers=sides,
        consistent_rms=0.2,
    )


OPTIMIZERS: dict[str, Callable] = {
    "adam": _adam,
    "adamw": _adam,  # with `weight_decay`, which is the same for all of these
    "adafactor": _adafactor,
    "lion": lambda optim: optax.scale_by_lion(optim.beta1, optim.beta2),
    "muon": _muon,
}


def _matrices(params: Any) -> Any:
    """Mark the parameters that decay: all but biases, scales and class tokens."""
    return jax.tree.map(lambda p: p.ndim > 1, params)


def _hidden(params: Any) -> Any:
    """Mark the matrices between two hidden layers: no table, no first or last layer."""
    ends = ("projection/", "head/", "patches/")

    def is_hidden(path, leaf):
        name = path_name(path)
        return name.endswith("kernel") and leaf.ndim == 2 and not name.startswith(ends)

    return jax.tree_util.tree_map_with_path(is_hidden, params)


def _label_tables(params: Any) -> Any:
    def label(path, leaf):
        return "stays" if path_name(path).endswith("embedding/embedding") else "moves"

    return jax.tree_util.tree_map_with_path(label, params)
