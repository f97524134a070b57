"""The optimizer and its schedule (paper, section 5.3).

    lr(s) = c · d_model^-½ · min(s^-½, s · warmup^-1.5),   s = 1 at the first update

Constant and warmup are both explicit: the formula's peak is c / √(d_model · warmup).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from transformer_jax.sharding import path_name


def make_schedule(config: ConfigDict) -> Callable:
    """The learning rate of the update that follows `count` updates."""
    optim = config.optim
    if optim.schedule == "constant":
        return lambda count: jnp.asarray(optim.constant, jnp.float32)
    scale = optim.constant * config.model.d_model**-0.5

    def noam(count):
        step = jnp.asarray(count, jnp.float32) + 1
        return scale * jnp.minimum(step**-0.5, step * optim.warmup_steps**-1.5)

    return noam


def make_optimizer(config: ConfigDict) -> optax.GradientTransformation:
    optim = config.optim
    steps = [
        optax.scale_by_adam(optim.beta1, optim.beta2, optim.epsilon),
        optax.scale_by_learning_rate(make_schedule(config)),
    ]
    if optim.clip_norm:
        steps.insert(0, optax.clip_by_global_norm(optim.clip_norm))
    optimizer = optax.chain(*steps)
    if config.model.get("train_word_vectors", True):  # an image has none
        return optimizer
    # What does not move neither has moments nor counts in the clipped norm.
    kinds = {"moves": optimizer, "stays": optax.set_to_zero()}
    return optax.partition(kinds, _label_tables)


def _label_tables(params: Any) -> Any:
    def label(path, leaf):
        return "stays" if path_name(path).endswith("embedding/embedding") else "moves"

    return jax.tree_util.tree_map_with_path(label, params)
