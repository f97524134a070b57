"""Optimizers and schedules, by name; the paper's are adam and noam (section 5.3).

    lr(s) = c · d_model^-½ · min(s^-½, s · warmup^-1.5),   s = 1 at the first update

Constant and warmup are both explicit: the formula's peak is c / √(d_model · warmup).
Of all other schedules c itself is the peak, reached after a linear warmup.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax.sharding import path_name


def make_schedule(config: ConfigDict) -> Callable:
    """The learning rate of the update that follows `count` updates."""
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
    """From the peak to 0 after the last update."""
    done = (step - optim.warmup_steps) / (end + 1 - optim.warmup_steps)
    return 1 - jnp.clip(done, 0, 1)


def _cosine(step: Array, end: int, optim: ConfigDict) -> Array:
    return (1 - jnp.cos(jnp.pi * _linear(step, end, optim))) / 2


def _warmup_stable_decay(step: Array, end: int, optim: ConfigDict) -> Array:
    """The peak for most of the time, and a line to 0 in the end."""
    return jnp.clip((end + 1 - step) / max(optim.decay_share * end, 1), 0, 1)


SCHEDULES: dict[str, Callable] = {
    "noam": _rsqrt,
    "constant": lambda *_: 1.0,
    "rsqrt": _rsqrt,
    "linear": _linear,
    "cosine": _cosine,
    "wsd": _warmup_stable_decay,
}
ENDING = ("linear", "cosine", "wsd")  # that know when training will be over


def make_optimizer(config: ConfigDict) -> optax.GradientTransformation:
    optim = config.optim
    rate = optax.scale_by_learning_rate(make_schedule(config))
    steps = [OPTIMIZERS[optim.name](optim), rate]
    if optim.weight_decay:
        steps.insert(1, optax.add_decayed_weights(optim.weight_decay, _matrices))
    if optim.clip_norm:
        steps.insert(0, optax.clip_by_global_norm(optim.clip_norm))
    return optax.chain(*steps)


def _adam(optim: ConfigDict) -> optax.GradientTransformation:
    return optax.scale_by_adam(optim.beta1, optim.beta2, optim.epsilon)


def _adafactor(optim: ConfigDict) -> optax.GradientTransformation:
    """No mean gradient, of its square one number a row and a column; a step is as
    large as the parameter that it changes (Shazeer, Stern 2018)."""
    return optax.chain(
        optax.scale_by_factored_rms(),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(),
    )


def _muon(optim: ConfigDict) -> optax.GradientTransformation:
    """Adam, but of hidden matrices the mean gradient is made orthogonal; scaled so that
    one learning rate fits both (Jordan 2024, Liu et al. 2025)."""

    def sides(params: Any) -> Any:
        sides = optax.contrib.MuonDimensionNumbers()
        return jax.tree.map(lambda hidden: sides if hidden else None, _hidden(params))

    return optax.contrib.muon(
        -1.0,  # which takes back the sign that `scale_by_learning_rate` gives
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
    """Which parameters decay: not biases, scales and class tokens."""
    return jax.tree.map(lambda p: p.ndim > 1, params)


def _hidden(params: Any) -> Any:
    """Which are matrices between two hidden layers: no table, no first, no last one."""
    ends = ("projection/", "head/", "patches/")

    def is_hidden(path, leaf):
        name = path_name(path)
        return name.endswith("kernel") and leaf.ndim == 2 and not name.startswith(ends)

    return jax.tree_util.tree_map_with_path(is_hidden, params)
