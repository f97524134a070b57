"""Optimizers and learning-rate schedules; the paper uses adam and noam (section 5.3).

    lr(s) = c · d_model^-½ · min(s^-½, s · warmup^-1.5),   s = 1 at the first update

Constant and warmup are both explicit: the formula's peak is c / √(d_model · warmup).
In all other schedules c itself is the peak, reached after a linear warmup. A parameter
changes by factor(path) · lr(s) · (direction + decay · parameter): `optim.rates` scale
the finished update, after the gradients are clipped. With factor 0 the parameter has
no moments, and no gradient is computed (`make_loss` in train.py).
"""

import collections
import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax.base import entry_points
from transformer_jax.base.schema import option
from transformer_jax.models.layers import adapters
from transformer_jax.sharding import by_path, path_name


@dataclasses.dataclass(frozen=True)
class OptimOptions:
    """The optimizer and its learning rate: the options of `config.optim`."""

    name: str = option("adam", "Optimizer (5.3).", choices=lambda: names())
    schedule: str = option(
        "noam", "Learning-rate schedule (5.3).", choices=lambda: SCHEDULES
    )
    learning_rate: float = option(
        0.0, "Highest rate of any schedule; 0 means by optim.constant.", least=0
    )
    constant: float = option(1.0, "noam: a factor; others: the peak rate.", least=0)
    warmup_steps: int = option(4000, "Updates of linear warmup.", least=1, most=10**9)
    decay_steps: int = option(
        0,
        "linear, cosine, wsd: updates until the rate is 0; 0 means train.steps.",
        least=0,
        most=10**9,
    )
    decay_share: float = option(
        0.1, "wsd: the final share of these updates, with decay.", above=0, most=1
    )
    beta1: float = option(0.9, "Decay of the mean gradient.", least=0, below=1)
    beta2: float = option(0.98, "Decay of the mean squared gradient.", least=0, below=1)
    epsilon: float = option(1e-9, "Added to its square root.", least=1e-30, most=1)
    weight_decay: float = option(
        0.0, "For matrices and tables, times the rate; not for adam.", least=0
    )
    clip_norm: float = option(0.0, "Largest gradient norm; 0 means any.", least=0)
    state_dtype: str = option(
        "float32", "Type of the stored moments.", choices=("float32", "bfloat16")
    )
    lowered: tuple = option(
        (), "(step, factor) pairs: after this step the rate is multiplied by factor."
    )
    rates: tuple = option(
        (),
        "(pattern, factor) pairs: the rate of the parameters whose path the pattern is "
        "found in is multiplied by factor, the first pair counts; 0 freezes them.",
    )
    layer_decay: float = option(
        1.0,
        "Multiply the rate by this once per layer below the top, for fine-tuning.",
        above=0,
        most=1,
    )
    ema: float = option(
        0.0,
        "Decay of a running mean of the parameters; 0 means none.",
        least=0,
        below=1,
    )


def make_schedule(config: ConfigDict) -> Callable:
    """Return a function from the number of updates so far to the next update's rate."""
    settings = config.optim
    end = settings.decay_steps or config.train.steps
    shape = SCHEDULES[settings.schedule]
    scale, lowered = peak(config), tuple(settings.lowered)

    def rate(count):
        step = jnp.asarray(count, jnp.float32) + 1
        rising = 1.0
        if settings.schedule != "constant":
            rising = jnp.minimum(step / settings.warmup_steps, 1.0)
        found = jnp.float32(scale) * rising * shape(step, end, settings)
        for begin, factor in lowered:
            found *= jnp.where(step > begin, jnp.float32(factor), 1.0)
        return found

    return rate


def peak(config: ConfigDict) -> float:
    """Return the highest learning rate of a config's schedule."""
    settings = config.optim
    scale = settings.constant
    if settings.schedule == "noam":
        scale /= math.sqrt(config.model.d_model * settings.warmup_steps)
    return settings.learning_rate or scale


def _rsqrt(step: Array, end: int, settings: ConfigDict) -> Array:
    return jnp.sqrt(settings.warmup_steps / jnp.maximum(step, settings.warmup_steps))


def _linear(step: Array, end: int, settings: ConfigDict) -> Array:
    """Decay linearly from the peak to 0 after the last update."""
    done = (step - settings.warmup_steps) / (end + 1 - settings.warmup_steps)
    return 1 - jnp.clip(done, 0, 1)


def _cosine(step: Array, end: int, settings: ConfigDict) -> Array:
    return (1 - jnp.cos(jnp.pi * _linear(step, end, settings))) / 2


def _warmup_stable_decay(step: Array, end: int, settings: ConfigDict) -> Array:
    """Stay at the peak, then decay linearly to 0."""
    return jnp.clip((end + 1 - step) / max(settings.decay_share * end, 1), 0, 1)


SCHEDULES: dict[str, Callable] = {
    "noam": _rsqrt,
    "constant": lambda *_: 1.0,
    "rsqrt": _rsqrt,
    "linear": _linear,
    "cosine": _cosine,
    "wsd": _warmup_stable_decay,
}
ENDING = ("linear", "cosine", "wsd")  # depend on the number of steps


def make_optimizer(config: ConfigDict) -> optax.GradientTransformation:
    """Chain clipping, the optimizer, weight decay and the learning rate."""
    settings = config.optim
    rate = optax.scale_by_learning_rate(make_schedule(config))
    steps = [find(settings.name).make(settings), rate]
    if settings.weight_decay:
        steps.insert(1, optax.add_decayed_weights(settings.weight_decay, _matrices))
    if settings.clip_norm:
        steps.insert(0, optax.clip_by_global_norm(settings.clip_norm))
    optimizer = optax.chain(*steps)
    if settings.state_dtype == "bfloat16":
        optimizer = keep_in_bfloat16(optimizer)
    if freezes(config):
        optimizer = _freeze(optimizer, config)
    if scales_rates(config):
        optimizer = optax.chain(optimizer, _scale_by_path(config))
    return optimizer


def _freeze(
    optimizer: optax.GradientTransformation, config: ConfigDict
) -> optax.GradientTransformation:
    """Apply an optimizer to the parameters that are trained alone."""
    # Frozen parameters have no moments and do not count towards the clipped norm. The
    # labels are part of the paths in a checkpoint.
    kinds: dict[Hashable, optax.GradientTransformation] = {
        "moves": optimizer,
        "stays": optax.set_to_zero(),
    }

    def label(params: Any) -> Any:
        factors = rate_factors(config, params)
        return jax.tree.map(lambda factor: "moves" if factor else "stays", factors)

    return optax.partition(kinds, label)


def freezes(config: ConfigDict) -> bool:
    """Return whether some parameters stay as they begin."""
    tables = config.model.get("train_word_vectors", True)  # not of image models
    if config.lora.rank or not tables:
        return True
    return any(not factor for _, factor in config.optim.rates)


def scales_rates(config: ConfigDict) -> bool:
    """Return whether parameters that are trained have different rates."""
    factors = {factor for _, factor in config.optim.rates} - {0}
    return config.optim.layer_decay < 1 or bool(factors - {1})


def rate_factors(config: ConfigDict, params: Any) -> Any:
    """Return the factor of each parameter's rate, by its path; 0 freezes it.

    Beside adapters everything is frozen that no pattern of `optim.rates` names.
    """
    depths = _depths([*by_path(params)])
    fixed = not config.model.get("train_word_vectors", True)

    def factor_of(path, leaf):
        name = path_name(path)
        if fixed and name.endswith("embedding/embedding"):
            return 0.0
        for pattern, factor in config.optim.rates:
            if re.search(pattern, name):
                return float(factor)
        if config.lora.rank and not name.startswith(f"{adapters.NAME}/"):
            return 0.0
        return config.optim.layer_decay ** depths[name]

    return jax.tree_util.tree_map_with_path(factor_of, params)


def find_unmatched(config: ConfigDict, params: Any) -> list[str]:
    """List the patterns of `optim.rates` that are found in no parameter's path."""
    names = [*by_path(params)]
    if not any(jax.tree.leaves(rate_factors(config, params))):
        return [f"optim.rates = {config.optim.rates!r} would freeze all parameters"]
    return [
        f"optim.rates: {pattern!r} is found in no path of a parameter, such as "
        f"{names[0]} or {names[-1]}: correct it, or leave it out"
        for pattern, _ in config.optim.rates
        if not any(re.search(pattern, name) for name in names)
    ]


BELOW = "embedding|positions|patches|class_token|source_norm|target_norm"


def _depths(names: Sequence[str]) -> dict[str, int]:
    """Count the layers between each parameter and the top of its stack.

    Embeddings lie below all layers; what belongs to no layer otherwise is at the top.
    """
    found = {name: re.match(r"(.*/)?layer_(\d+)/", name) for name in names}
    layers: dict[str, int] = collections.Counter()
    for match in filter(None, found.values()):
        stack = match[1] or ""
        layers[stack] = max(layers[stack], int(match[2]) + 1)
    lowest = max(layers.values(), default=0)
    depths = {}
    for name, match in found.items():
        first = name.partition("/")[0]
        if match:
            depths[name] = layers[match[1] or ""] - 1 - int(match[2])
        else:
            below = re.search(BELOW, first) is not None
            depths[name] = lowest if below else 0
    return depths


def _scale_by_path(config: ConfigDict) -> optax.GradientTransformation:
    """Multiply updates by the factors of their parameters."""

    def scale(updates, params=None):
        factors = rate_factors(config, updates)
        return jax.tree.map(lambda factor, u: factor * u, factors, updates)

    return optax.stateless(scale)


def _adam(settings: ConfigDict) -> optax.GradientTransformation:
    return optax.scale_by_adam(settings.beta1, settings.beta2, settings.epsilon)


def _adafactor(settings: ConfigDict) -> optax.GradientTransformation:
    """Scale steps by the size of the parameter; factor second moments (Shazeer, Stern
    2018). Matrices of at least 128 rows and columns keep only the row and column means
    of the squared gradient."""
    return optax.chain(
        optax.scale_by_factored_rms(min_dim_size_to_factor=FACTORED),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(),
    )


def _muon(settings: ConfigDict) -> optax.GradientTransformation:
    """Orthogonalise the mean gradient of hidden matrices, and use Adam for the rest;
    both have Nesterov momentum and share a learning rate (Jordan 2024, Liu et al.
    2025). The mean is corrected for its bias as Adam's is; Jordan's is not, so that
    his first updates differ slightly."""

    def sides(params: Any) -> Any:
        sides = optax.contrib.MuonDimensionNumbers()
        return jax.tree.map(lambda hidden: sides if hidden else None, _hidden(params))

    momentum = optax.contrib.muon(
        -1.0,  # undoes the sign flip of `scale_by_learning_rate`
        ns_steps=0,  # leaves the mean as it is but for its norm
        beta=settings.beta1,
        nesterov=True,
        adam_b1=settings.beta1,
        adam_b2=settings.beta2,
        eps=settings.epsilon,
        muon_weight_dimension_numbers=sides,
        consistent_rms=SPREAD,
    )

    def direct(hidden: bool, mean: Array) -> Array:
        if not hidden:
            return mean
        scale = SPREAD * math.sqrt(max(mean.shape))  # optax has multiplied by this
        return scale * orthogonalise(mean / scale)

    def update(updates, state, params=None):
        updates, state = momentum.update(updates, state, params)
        return jax.tree.map(direct, _hidden(updates), updates), state

    return optax.GradientTransformation(momentum.init, update)


def orthogonalise(matrix: Array) -> Array:
    """Bring the singular values of a matrix of norm 1 near to 1, by Newton-Schulz.

    optax computes the same, but takes a CPU 1.7 times as long (docs/recipes.md).
    """
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * (square @ square)) @ x
    return x.T if tall else x


SPREAD = 0.2  # root mean square of the entries of an update by Muon
FACTORED = 128  # Adafactor keeps all squared gradients of smaller matrices
Make = Callable[[ConfigDict], optax.GradientTransformation]


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer of another package, which has the entry point of its name."""

    make: Make  # from `config.optim` to updates that are not yet scaled by the rate
    options: type | None = None  # the dataclass of the options that it adds


OPTIMIZERS: dict[str, Make] = {
    "adam": _adam,
    "adamw": _adam,  # `make_optimizer` adds the weight decay
    "adafactor": _adafactor,
    "lion": lambda settings: optax.scale_by_lion(settings.beta1, settings.beta2),
    "muon": _muon,
}


def names() -> list[str]:
    """List the optimizers: ours, then those of other packages."""
    return [*OPTIMIZERS, *entry_points.names("optimizers")]


def find(name: str) -> Optimizer:
    """Return the optimizer that `optim.name` names."""
    if name in OPTIMIZERS:
        return Optimizer(OPTIMIZERS[name])
    return entry_points.require("optimizers", name)


def option_classes() -> list[type]:
    """List the options of `config.optim`: ours, and those of other packages."""
    others = [find(name).options for name in entry_points.names("optimizers")]
    return [OptimOptions, *filter(None, others)]


class RoundedState(NamedTuple):
    """The state of an optimizer whose moments are rounded."""

    count: Any  # updates so far
    inner: Any


def keep_in_bfloat16(
    optimizer: optax.GradientTransformation,
) -> optax.GradientTransformation:
    """Store the moments of an optimizer in bfloat16, but compute in float32.

    Rounding is stochastic, so that it is right on average. Rounding to the nearest
    value would lose every update smaller than 1/256 of a moment, as for the mean
    squared gradient with `beta2` above 0.996.
    """

    def init(params):
        inner = _map_moments(
            lambda x, _: x.astype(jnp.bfloat16), optimizer.init(params)
        )
        return RoundedState(jnp.int32(0), inner)

    def update(updates, state: Any, params=None):
        inner = _map_moments(lambda x, _: x.astype(jnp.float32), state.inner)
        updates, inner = optimizer.update(updates, inner, params)
        inner = _map_moments(
            lambda x, leaf: round_by_chance(x, _mix(state.count + 1) + leaf), inner
        )
        return updates, RoundedState(state.count + 1, inner)

    return optax.GradientTransformation(init, update)


def round_by_chance(x: Array, seed: Array) -> Array:
    """Round float32 stochastically to one of the two nearest bfloat16 values.

    The random bits are a hash of the seed and the index, so any devices round alike.
    """
    index = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        index = index * np.uint32(size)
        index += jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    chance = _mix(_mix(index) ^ _mix(seed)) >> 16
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32) + chance
    short = jax.lax.convert_element_type(bits >> 16, jnp.uint16)
    return jax.lax.bitcast_convert_type(short, jnp.bfloat16)


def _mix(x: Array) -> Array:
    """Hash 32-bit words so that every bit depends on every other."""
    x = jnp.asarray(x).astype(jnp.uint32)
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _map_moments(function: Callable, state: Any) -> Any:
    """Apply a function to each moment and its number, but not to Muon's constants."""
    numbers = itertools.count(1)

    def apply(path, leaf):
        constant = leaf.ndim == 0 or path_name(path).endswith("ns_coeffs")
        if constant or not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return function(leaf, np.uint32(next(numbers)))

    return jax.tree_util.tree_map_with_path(apply, state)


def find_problems(config: ConfigDict) -> list[str]:
    """List settings of a schedule or an optimizer that cannot work."""
    settings, steps, problems = config.optim, config.train.steps, []
    if settings.schedule == "noam" and "d_model" not in config.model:
        problems.append(
            "optim.schedule = 'noam' divides by the root of model.d_model, which the "
            f"model {config.model.name!r} does not have: choose another schedule, such "
            "as linear"
        )
    if settings.schedule != "constant" and settings.warmup_steps > steps:
        problems.append(
            f"optim.warmup_steps {settings.warmup_steps} is beyond train.steps "
            f"{steps}: the learning rate would never reach its peak"
        )
    end = settings.decay_steps or steps
    if settings.schedule in ENDING and end <= settings.warmup_steps:
        name = "optim.decay_steps" if settings.decay_steps else "train.steps"
        problems.append(
            f"{name} {end} is not beyond optim.warmup_steps {settings.warmup_steps}: "
            f"{settings.schedule} would end before it has risen; raise {name}, or "
            "lower the warmup"
        )
    if settings.weight_decay and settings.name == "adam":
        problems.append(
            f"optim.weight_decay = {settings.weight_decay} is not part of adam: set "
            "optim.name = 'adamw', or the decay to 0.0"
        )
    if not all(map(_is_lowered, settings.lowered)):
        problems.append(
            f"optim.lowered = {settings.lowered!r}: give pairs of a step, at least 0, "
            "and a factor, more than 0 and at most 1, such as ((3000, 0.5),)"
        )
    if not all(map(_is_rate, settings.rates)):
        problems.append(
            f"optim.rates = {settings.rates!r}: give pairs of a regular expression and "
            "a factor of at least 0, such as (('embedding', 0.0), ('head', 10.0))"
        )
    if config.eval.weights == "ema" and not settings.ema:
        problems.append(
            "eval.weights = 'ema' needs a running mean: set optim.ema, such as 0.999"
        )
    return problems


def _is_rate(pair: Any) -> bool:
    if not (isinstance(pair, tuple | list) and len(pair) == 2):
        return False
    pattern, factor = pair
    if not isinstance(pattern, str) or type(factor) not in (int, float):
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    return 0 <= factor < math.inf


def _is_lowered(pair: Any) -> bool:
    return (
        isinstance(pair, tuple | list)
        and [type(x) in (int, float) for x in pair] == [True, True]
        and type(pair[0]) is int
        and pair[0] >= 0
        and 0 < pair[1] <= 1
    )


def _matrices(params: Any) -> Any:
    """Mark the parameters with weight decay: all but biases, scales and class tokens.

    Embedding tables are included.
    """
    return jax.tree.map(lambda p: p.ndim > 1, params)


def _hidden(params: Any) -> Any:
    """Mark the matrices between hidden layers: not tables, first or last layers."""
    ends = ("projection/", "head/", "patches/", "stem/")

    def is_hidden(path, leaf):
        name = path_name(path)
        return name.endswith("kernel") and leaf.ndim == 2 and not name.startswith(ends)

    return jax.tree_util.tree_map_with_path(is_hidden, params)
