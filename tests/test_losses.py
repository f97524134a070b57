"""Label-smoothed cross-entropy against its definition, in NumPy and float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.losses import Sums, cross_entropy

B, T, V, ROWS = 2, 5, 7, 11


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(B, T, ROWS)) * 3
    targets = rng.integers(0, V, size=(B, T))
    targets[0, :2] = logits[0, :2, :V].argmax(-1)  # some are right
    weights = np.array([[1, 1, 1, 0.5, 0], [1, 1, 0, 0, 0]])
    return (
        jnp.asarray(logits, jnp.float32),
        jnp.asarray(targets, jnp.int32),
        jnp.asarray(weights, jnp.float32),
    )


def smoothed(target, smoothing):
    """What the prediction should be: ε spread evenly over all wrong tokens."""
    truth = np.full(V, smoothing / (V - 1))
    truth[target] = 1 - smoothing
    return truth


def definition(logits, targets, weights, smoothing):
    """Sums token by token: cross-entropy with the smoothed truth, less its entropy."""
    sums = np.zeros(4)
    for b in range(B):
        for t in range(T):
            row = np.asarray(logits[b, t, :V], np.float64)
            log_p = row - math.log(sum(math.exp(z) for z in row))
            truth = smoothed(targets[b, t], smoothing)
            entropy = -sum(p * math.log(p) for p in truth if p > 0)
            parts = [
                -(truth * log_p).sum() - entropy,
                -log_p[targets[b, t]],
                float(row.argmax() == targets[b, t]),
                1.0,
            ]
            sums += np.array(parts) * float(weights[b, t])
    return sums


def as_array(sums):
    return np.array([sums.loss, sums.nll, sums.correct, sums.weight])


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_the_sums_are_those_of_the_definition(batch, smoothing):
    got = as_array(cross_entropy(*batch, smoothing, V))
    np.testing.assert_allclose(got, definition(*batch, smoothing), rtol=1e-5)
    assert 2 <= got[2] < got[3]


@pytest.mark.parametrize("smoothing", [0.1, 0.4])
def test_the_loss_is_0_and_flat_only_where_the_prediction_is_the_smoothed_truth(
    batch, smoothing
):
    _, targets, weights = batch
    truth = [[smoothed(t, smoothing) for t in row] for row in np.asarray(targets)]
    logits = jnp.asarray(np.log(truth), jnp.float32)

    def loss(logits):
        return cross_entropy(logits, targets, weights, smoothing, V).loss

    least, slope = jax.value_and_grad(loss)(logits)
    np.testing.assert_allclose(least, 0, atol=1e-5)
    np.testing.assert_allclose(slope, np.zeros(logits.shape), atol=1e-6)
    assert loss(1.1 * logits) > 1e-3 and loss(0.9 * logits) > 1e-3


@pytest.mark.parametrize("value", [1e3, -1e30])
def test_columns_past_the_vocabulary_receive_nothing(batch, value):
    logits, targets, weights = batch

    def loss(logits):
        sums = cross_entropy(logits, targets, weights, 0.1, V)
        return sums.loss, sums

    (_, expected), _ = jax.value_and_grad(loss, has_aux=True)(logits)
    changed = logits.at[..., V:].set(value)
    (_, got), slope = jax.value_and_grad(loss, has_aux=True)(changed)
    np.testing.assert_array_equal(as_array(got), as_array(expected))
    assert (slope[..., V:] == 0).all() and (slope[..., :V] != 0).any()


def test_positions_of_weight_0_do_not_count(batch):
    logits, targets, weights = batch
    empty = weights == 0
    changed = (
        jnp.where(empty[..., None], -5 * logits, logits),
        jnp.where(empty, (targets + 1) % V, targets),
    )
    got = cross_entropy(*changed, weights, 0.1, V)
    expected = cross_entropy(*batch, 0.1, V)
    np.testing.assert_array_equal(as_array(got), as_array(expected))


def test_sums_of_unequal_parts_add_up_to_the_whole(batch):
    first, second = (
        cross_entropy(*(a[i : i + 1] for a in batch), 0.1, V) for i in (0, 1)
    )
    assert first.weight != second.weight
    together = first + second
    assert isinstance(together, Sums)
    whole = cross_entropy(*batch, 0.1, V)
    np.testing.assert_allclose(as_array(together), as_array(whole), rtol=1e-6)
