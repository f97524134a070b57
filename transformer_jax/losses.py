"""Losses as sums over tokens, which the training step divides once by their weight.

    smoothed = (1 - ε) · nll(truth) + ε / (V - 1) · Σ nll(others)      (section 5.4)

A mean of means is wrong as soon as two micro-batches or devices hold unequal numbers
of tokens. The smoothed loss has a minimum above 0, which is subtracted in `Sums.loss`.

The logits [B, T, V] are by far the largest array of a step. `cross_entropy_of` computes
them for a few rows at a time.
"""

import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer_jax import sharding
from transformer_jax.sharding import Params

# Bytes of float32 logits that a device computes at a time, by platform; their gradient
# takes as much again. A CPU is faster if the logits stay in its caches. Elsewhere the
# limit is memory: the smallest TPUs have 16 GB.
LOGITS_BYTES = {"cpu": 2**24, "gpu": 2**29, "tpu": 2**28}
NEVER = -1e9  # the logit of a column past the vocabulary, where -inf would give NaNs
TEACHER = "teacher"  # the entry of a batch with another model's parameters, not rows


class Sums(flax.struct.PyTreeNode):
    """Totals over the real tokens of a batch; `+` adds two batches.

    A metric is what a task logs besides its loss: a total, which is divided by `weight`
    like the loss, or a pair of a total and its own divisor.
    """

    loss: Any  # the objective that is minimised
    weight: Any  # the number of real tokens
    metrics: dict[str, Any] = flax.struct.field(default_factory=dict)

    def __add__(self, other: "Sums") -> "Sums":
        """Add the totals; a metric that only one side has stays as it is."""
        metrics = {**self.metrics, **other.metrics}
        for name in self.metrics.keys() & other.metrics.keys():
            pair = self.metrics[name], other.metrics[name]
            metrics[name] = jax.tree.map(operator.add, *pair)
        return Sums(self.loss + other.loss, self.weight + other.weight, metrics)


@runtime_checkable
class LossFn(Protocol):
    """A function that sums the loss over a batch, without dropout if key is None."""

    def __call__(
        self, params: Params, batch: Mapping[str, Array], key: Any = None
    ) -> Sums:
        """Return the sums of a batch."""
        ...


class Predictions(NamedTuple):
    """A model's predictions for a batch, and its targets: see `cross_entropy_of`."""

    hidden: Float[Array, "B T D"]
    logits_of: Callable  # hidden → logits [B, T, V]
    targets: Int[Array, "B T"]
    weights: Float[Array, "B T"]
    smoothing: float
    vocab_size: int


class Teacher(NamedTuple):
    """Another model's predictions for the same batch, and their weight."""

    hidden: Float[Array, "B T D"]
    logits_of: Callable
    weight: float
    temperature: float


class Twin(NamedTuple):
    """The same model's predictions for the same batch, with other units dropped."""

    hidden: Float[Array, "B T D"]
    logits_of: Callable
    weight: float


def means(sums: Sums) -> dict[str, float]:
    """Divide the loss and the metrics on the host; the nll also gives a perplexity."""

    def divide(total: Any, weight: Any = sums.weight) -> float:
        return float(total) / max(float(weight), 1.0)

    found = {"loss": divide(sums.loss)}
    for name, value in sums.metrics.items():
        found[name] = divide(*value) if isinstance(value, tuple) else divide(value)
    if "nll" in found:
        found["perplexity"] = float(np.exp(min(found["nll"], 700.0)))
    return found


def cross_entropy(
    logits: Float[Array, "B T V"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    smoothing: float,
    vocab_size: int,
) -> Sums:
    """Sum the label-smoothed cross-entropy, ignoring columns past `vocab_size`."""
    if sharding.on_one_device():
        real = logits[..., :vocab_size]
        total = real.sum(-1)
        truth = jnp.take_along_axis(real, targets[..., None], axis=-1)[..., 0]
    else:  # slicing or indexing would move columns between devices
        column = jax.lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1)
        known = column < vocab_size
        real = jnp.where(known, logits, -jnp.inf)
        total = jnp.where(known, logits, 0).sum(-1)
        truth = jnp.where(column == targets[..., None], logits, 0).sum(-1)
    log_z = jax.nn.logsumexp(real, axis=-1)
    nll = log_z - truth
    loss = nll
    if smoothing:
        share = smoothing / (vocab_size - 1)
        others = vocab_size * log_z - total - nll
        loss = (1 - smoothing) * nll + share * others - _entropy(smoothing, share)
    right = truth >= real.max(-1)  # like argmax except for exact ties, but much cheaper
    metrics = {"nll": (nll * weights).sum(), "accuracy": (right * weights).sum()}
    return Sums((loss * weights).sum(), weights.sum(), metrics)


def contrastive(
    queries: Float[Array, "B D"],
    texts: Float[Array, "B D"],
    temperature: float,
    others: Bool[Array, "B B"],
    weights: Float[Array, "B"],
) -> Sums:
    """Sum InfoNCE over the pairs of a batch, averaged over both directions.

    The i-th text is the positive of the i-th query; `others` marks the negatives. The
    whole global batch is compared, for which sharded rows are gathered.
    """
    logits = queries.astype(jnp.float32) @ texts.astype(jnp.float32).T / temperature
    truth = jnp.diagonal(logits)
    seen = others | jnp.eye(len(logits), dtype=bool)
    logits = jnp.where(seen, logits, -jnp.inf)
    log_z = [jax.nn.logsumexp(logits, axis=axis) for axis in (0, 1)]
    nll = (sum(log_z) / 2 - truth) * weights
    right = (truth >= logits.max(axis=1)) * weights
    metrics = {"nll": nll.sum(), "accuracy": right.sum()}
    return Sums(nll.sum(), weights.sum(), metrics)


def teach(
    sums: Sums,
    logits: Float[Array, "B T V"],
    theirs: Float[Array, "B T W"],
    weights: Float[Array, "B T"],
    teacher: Teacher,
    vocab_size: int,
) -> Sums:
    """Mix a loss with the divergence from a teacher: (1 - w) · loss + w · τ² · KL.

    KL(teacher ‖ student) is that of softmax(logits / τ). With the factor τ² the
    gradients of both terms stay comparable (Hinton et al. 2015).
    """
    theirs = theirs[..., : logits.shape[-1]]  # only filled up, both have `vocab_size`
    filling = [(0, 0), (0, 0), (0, logits.shape[-1] - theirs.shape[-1])]
    theirs = jnp.pad(jax.lax.stop_gradient(theirs), filling)
    right, own = (
        _log_probs(x / teacher.temperature, vocab_size) for x in (theirs, logits)
    )
    divergence = teacher.temperature**2 * _divergence(right, own, weights)
    loss = (1 - teacher.weight) * sums.loss + teacher.weight * divergence
    return sums.replace(loss=loss, metrics={**sums.metrics, "kl": divergence})


def agree(
    sums: tuple[Sums, Sums],
    logits: list[Float[Array, "B T V"]],
    weights: Float[Array, "B T"],
    twin: Twin,
    vocab_size: int,
) -> Sums:
    """Average the losses of two passes; add w / 2 of their mean divergence, `kl`.

    That is half of the loss of R-Drop (Liang et al. 2021), which adds up both passes,
    so that its scale is that of one pass. Both sides of the divergence are learned.
    """
    one, other = (_log_probs(x, vocab_size) for x in logits)
    kl = _divergence(one, other, weights) + _divergence(other, one, weights)
    mean = jax.tree.map(lambda total: total / 2, sums[0] + sums[1])
    loss = mean.loss + twin.weight / 4 * kl
    return mean.replace(loss=loss, metrics={**mean.metrics, "kl": kl / 2})


def _log_probs(logits: Float[Array, "B T V"], vocab_size: int) -> Float[Array, "B T V"]:
    column = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    return jax.nn.log_softmax(jnp.where(column < vocab_size, logits, NEVER))


def _divergence(
    right: Float[Array, "B T V"], own: Float[Array, "B T V"], weights: Any
) -> Float[Array, ""]:
    return ((jnp.exp(right) * (right - own)).sum(-1) * weights).sum()


def cross_entropy_of(
    hidden: Float[Array, "B T D"],
    logits_of: Callable,
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    smoothing: float,
    vocab_size: int,
    other: Teacher | Twin | None = None,
) -> Sums:
    """Compute `cross_entropy(logits_of(hidden), …)` in parts, to save memory.

    The sums and gradients equal the direct computation, as `tests/test_losses.py`
    checks. Only the loss is differentiable; the other sums are for the log. A teacher
    adds `teach` and a twin `agree`, whose logits are computed in the same parts.
    """
    models = [(hidden, logits_of)]
    if other:
        models.append((other.hidden, other.logits_of))

    def compare(logits, targets, weights):
        about = targets, weights, smoothing, vocab_size
        sums = cross_entropy(logits[0], *about)
        if isinstance(other, Teacher):
            return teach(sums, logits[0], logits[1], weights, other, vocab_size)
        if isinstance(other, Twin):
            both = sums, cross_entropy(logits[1], *about)
            return agree(both, logits, weights, other, vocab_size)
        return sums

    rows, length = targets.shape
    parts = _count_parts(rows, length, vocab_size * len(models))
    if parts == 1:
        return compare([of(states) for states, of in models], targets, weights)
    split, part = [states for states, _ in models], 0
    split = jax.tree.map(lambda x: split_rows(x, parts), (split, targets, weights))
    shared = sharding.splits_evenly(*split[1].shape[1:])
    if shared:
        split = jax.tree.map(lambda x: sharding.split_shards(x, first=1), split)
        part = (0, 0)
    closed = [
        jax.closure_convert(of, states[part])
        for (_, of), states in zip(models, split[0], strict=True)
    ]
    tables = [tables for _, tables in closed]

    def sums(tables, hidden, targets, weights):
        each = zip(closed, hidden, tables, strict=True)
        return compare([of(x, *own) for (of, _), x, own in each], targets, weights)

    if shared:
        # Each device keeps a copy of the tables for all parts and accumulates their
        # gradients locally, so the tables are gathered once and reduced once.
        tables = [
            [sharding.copy_to_shards(t, x.shape[-1], x.dtype) for t in own]
            for x, own in zip(split[0], tables, strict=True)
        ]
        sums = sharding.sum_over_shards(sums)
    return _sum_parts(sums, tables, *split)


def token_losses(
    hidden: Float[Array, "B T D"],
    logits_of: Callable,
    targets: Int[Array, "B T"],
    vocab_size: int,
) -> Float[Array, "B T"]:
    """Return the negative log-likelihood of each token, for a few rows at a time."""

    def losses(part: tuple[Array, Array]) -> Array:
        states, truth = part
        log_probs = _log_probs(logits_of(states), vocab_size)
        return -jnp.take_along_axis(log_probs, truth[..., None], axis=-1)[..., 0]

    rows, length = targets.shape
    parts = _count_parts(rows, length, vocab_size)
    split = jax.tree.map(lambda x: split_rows(x, parts), (hidden, targets))
    found: Any = jax.lax.map(losses, split)
    return found.swapaxes(0, 1).reshape(targets.shape)


def _zeros(function: Callable, *arguments: Any) -> Any:
    """Return zeros in the shapes of a function's result."""
    found = jax.eval_shape(function, *arguments)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), found)


def _first(parts: Any) -> Any:
    return jax.tree.map(lambda x: x[0], parts)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sum_parts(sums, tables, hidden, targets, weights):
    def add(total, part):
        return total + sums(tables, *part), None

    parts = hidden, targets, weights
    return jax.lax.scan(add, _zeros(sums, tables, *_first(parts)), parts)[0]


def _sum_parts_forward(sums, tables, hidden, targets, weights):
    """Compute each part's gradient with its sums, so its logits are freed at once."""

    def loss(tables, hidden, *rest):
        found = sums(tables, hidden, *rest)
        return found.loss, found

    def add(total, part):
        (own, by_part), found = jax.grad(loss, (0, 1), has_aux=True)(tables, *part)
        return jax.tree.map(jnp.add, total, (own, found)), by_part

    parts = hidden, targets, weights
    zero = jax.tree.map(jnp.zeros_like, tables), _zeros(sums, tables, *_first(parts))
    (own, total), by_part = jax.lax.scan(add, zero, parts)
    return total, (own, by_part, targets, weights)


def _sum_parts_backward(sums, kept, outer):
    own, by_part, targets, weights = kept
    own, by_part = jax.tree.map(
        lambda x: (x * outer.loss).astype(x.dtype), (own, by_part)
    )
    nothing = np.zeros(targets.shape, jax.dtypes.float0)
    return own, by_part, nothing, jnp.zeros_like(weights)


_sum_parts.defvjp(_sum_parts_forward, _sum_parts_backward)


def _count_parts(rows: int, length: int, vocab_size: int) -> int:
    """Return the fewest equal parts of a device's rows that fit in LOGITS_BYTES."""
    shards, devices = sharding.row_shards()
    own = max(rows // shards, 1)
    size = 4 * rows * length * vocab_size / devices
    wanted = min(size / LOGITS_BYTES.get(sharding.platform(), 2**28), own)
    return next(n for n in range(1, own + 1) if own % n == 0 and n >= wanted)


def split_rows(x: Array, parts: int) -> Array:
    """Split the rows [B, …] into [parts, B / parts, …] without moving data.

    Part i takes every `parts`-th row, so each device keeps its own rows.
    """
    return x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)


def make_gradient(loss: LossFn, micro_batches: int = 1) -> Callable:
    """Return a function (params, batch, key) → (gradients of the summed loss, sums).

    With several micro-batches the parts of a batch are processed in sequence, which
    takes less memory, and their gradients are added up.
    """

    def loss_and_sums(params, part, key):
        sums = loss(params, part, key)
        return sums.loss, sums

    grad = jax.grad(loss_and_sums, has_aux=True)

    def accumulate(params, batch, key):
        whole = {name: batch[name] for name in batch.keys() & {TEACHER}}

        def add(total, i_part):
            i, part = i_part
            found = grad(params, {**part, **whole}, jax.random.fold_in(key, i))
            return (
                jax.tree.map(jnp.add, total[0], found[0]),
                total[1] + found[1],
            ), None

        rows = {name: x for name, x in batch.items() if name not in whole}
        parts = jax.tree.map(lambda x: split_rows(x, micro_batches), rows)
        _, sums = _zeros(grad, params, {**_first(parts), **whole}, key)
        zero = (jax.tree.map(jnp.zeros_like, params), sums)
        return jax.lax.scan(add, zero, (jnp.arange(micro_batches), parts))[0]

    return grad if micro_batches == 1 else accumulate


def _entropy(smoothing: float, share: float) -> float:
    """Return the minimum of the smoothed loss: the entropy of the smoothed target."""
    return -(1 - smoothing) * math.log(1 - smoothing) - smoothing * math.log(share)
