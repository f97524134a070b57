"""Label-smoothed cross-entropy against its definition, in NumPy and float64."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import losses, sharding
from transformer_jax.losses import Sums, cross_entropy, cross_entropy_of

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
    return np.array(
        [sums.loss, sums.metrics["nll"], sums.metrics["accuracy"], sums.weight]
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_the_sums_are_those_of_the_definition(batch, smoothing):
    got = as_array(cross_entropy(*batch, smoothing, V))
    np.testing.assert_allclose(got, definition(*batch, smoothing), rtol=1e-5)
    assert 2 <= got[2] < got[3]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("past", [1e3, -1e30])
def test_columns_on_several_devices_give_the_same_sums_and_gradient(
    batch, smoothing, past
):
    """There a mask takes the place of a slice."""

    def loss(logits):
        sums = cross_entropy(logits, *batch[1:], smoothing, V)
        return sums.loss, sums

    logits = batch[0].at[..., V:].set(past)
    expected = jax.value_and_grad(loss, has_aux=True)(logits)
    sizes = dict.fromkeys(sharding.AXES, 1) | {"data": -1}
    with jax.set_mesh(sharding.make_mesh(sizes)):
        got = jax.value_and_grad(loss, has_aux=True)(logits)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7),
        got,
        expected,
    )


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


ROWS_OF, LENGTH, WIDTH = 6, 5, 4


@pytest.fixture
def head():
    """What a model ends with: hidden states, a table with an offset, what is asked."""
    rng = np.random.default_rng(1)
    hidden, table, offset = (
        jnp.asarray(rng.normal(size=size), jnp.float32)
        for size in ((ROWS_OF, LENGTH, WIDTH), (ROWS, WIDTH), (ROWS,))
    )
    targets = jnp.asarray(rng.integers(0, V, (ROWS_OF, LENGTH)), jnp.int32)
    weights = rng.random((ROWS_OF, LENGTH)) * rng.integers(0, 2, (ROWS_OF, LENGTH))
    weights = jnp.asarray(weights, jnp.float32)  # unequal, many of them 0
    return {"hidden": hidden, "table": table, "offset": offset}, targets, weights


def logits_of(params):
    def project(hidden):
        return hidden @ params["table"].T.astype(hidden.dtype) + params["offset"]

    return project


def plain(params, targets, weights):
    """The sums of all logits at once, with JAX's own gradient."""
    logits = logits_of(params)(params["hidden"])
    return cross_entropy(logits, targets, weights, 0.1, V)


def in_parts(count, params, targets, weights):
    """The same sums, with the logits made in so many parts."""
    assert losses._count_parts(*targets.shape, V) == count
    return cross_entropy_of(
        params["hidden"], logits_of(params), targets, weights, 0.1, V
    )


@pytest.mark.parametrize(
    ("at_once", "parts"), [(2**22, 1), (105, 2), (70, 3), (69, 6), (1, 6)]
)
@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_logits_made_in_parts_change_no_sum_and_no_gradient(
    head, at_once, parts, factor, monkeypatch
):
    """The blocked form with a gradient of its own equals the plain one."""
    monkeypatch.setattr(losses, "LOGITS_BYTES", {"cpu": 4 * at_once})

    def found(sums_of):
        def loss(*asked):
            sums = sums_of(*asked)
            return sums.loss * factor, sums

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(*head)

    (loss, sums), slopes = found(plain)
    (same_loss, same_sums), same_slopes = found(functools.partial(in_parts, parts))
    np.testing.assert_allclose(same_loss, loss, rtol=1e-6)
    np.testing.assert_allclose(as_array(same_sums), as_array(sums), rtol=1e-6)
    without_gradient = jax.jit(functools.partial(in_parts, parts))(*head)
    np.testing.assert_allclose(as_array(without_gradient), as_array(sums), rtol=1e-6)
    for name, slope in slopes.items():
        np.testing.assert_allclose(same_slopes[name], slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("at_once", [2**22, 70, 1])
def test_the_losses_of_tokens_add_up_to_the_loss(head, at_once, monkeypatch):
    monkeypatch.setattr(losses, "LOGITS_BYTES", {"cpu": 4 * at_once})
    params, targets, weights = head
    logits = logits_of(params)
    found = losses.token_losses(params["hidden"], logits, targets, V)
    chances = jax.nn.log_softmax(logits(params["hidden"])[..., :V])
    wanted = -np.take_along_axis(np.asarray(chances), targets[..., None], -1)[..., 0]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    sums = cross_entropy(logits(params["hidden"]), targets, weights, 0.0, V)
    np.testing.assert_allclose((found * weights).sum(), sums.loss, rtol=1e-5)


def test_no_more_logits_are_made_at_once_than_are_good(head, monkeypatch):
    def most(count):
        grad = jax.grad(lambda params: in_parts(count, params, *head[1:]).loss)
        arrays = re.findall(
            rf"f32\[([0-9,]+),{ROWS}\]", str(jax.make_jaxpr(grad)(head[0]))
        )
        return max(math.prod(map(int, size.split(","))) for size in arrays)

    assert most(1) == ROWS_OF * LENGTH
    monkeypatch.setattr(losses, "LOGITS_BYTES", {"cpu": 280})
    assert most(3) == 2 * LENGTH


def test_a_gradient_in_parts_has_the_type_of_what_it_is_of(head, monkeypatch):
    monkeypatch.setattr(losses, "LOGITS_BYTES", {"cpu": 280})
    params = head[0] | {"hidden": head[0]["hidden"].astype(jnp.bfloat16)}
    slopes = jax.grad(lambda params: in_parts(3, params, *head[1:]).loss)(params)
    assert {n: s.dtype for n, s in slopes.items()} == {
        "hidden": jnp.bfloat16, "table": jnp.float32, "offset": jnp.float32
    }  # fmt: skip


def test_metrics_are_added_up_and_divided_by_the_weight_or_their_own():
    def loss(params, batch, key=None):
        total = (params * batch["x"]).sum()
        metrics = {"part": (2 * total, batch["x"].sum()), "same": total}
        return losses.Sums(total, jnp.float32(len(batch["x"])), metrics)

    batch = {"x": jnp.array([1.0, 2.0, 3.0, 4.0])}
    whole, parts = (
        jax.jit(losses.make_gradient(loss, n))(3.0, batch, jax.random.key(0))
        for n in (1, 2)
    )
    np.testing.assert_allclose(whole[0], parts[0])
    assert losses.means(whole[1]) == losses.means(parts[1])
    assert losses.means(whole[1]) == {"loss": 7.5, "part": 6, "same": 7.5}
    none = losses.Sums(0.0, 0.0)
    assert (none + whole[1]).metrics == (whole[1] + none).metrics == whole[1].metrics
