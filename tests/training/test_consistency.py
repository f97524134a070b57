"""Two passes over each batch that drop other units, and must predict the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import config, losses, sharding, train
from transformer_jax.base.errors import UserError
from transformer_jax.runs import folder as folders
from transformer_jax.training import prepare, teacher

B, T, V, COLUMNS = 3, 5, 7, 9  # two columns more than there are tokens


@pytest.fixture(scope="module")
def passes():
    """The hidden states of two passes, their common table, targets and weights."""
    draw = np.random.default_rng(4)
    one, two = (jnp.asarray(draw.normal(size=(B, T, 2)), jnp.float32) for _ in "ab")
    table = jnp.asarray(draw.normal(size=(2, COLUMNS)) * 2, jnp.float32)
    targets = jnp.asarray(draw.integers(0, V, (B, T)), jnp.int32)
    weights = jnp.asarray(draw.integers(0, 3, (B, T)) / 2, jnp.float32)
    return {"one": one, "two": two, "table": table}, targets, weights


def sums_of(params, targets, weights, share):
    def logits_of(hidden):
        return hidden @ params["table"]

    twin = losses.Twin(params["two"], logits_of, share)
    asked = targets, weights, 0.1, V
    return losses.cross_entropy_of(params["one"], logits_of, *asked, twin)


def test_the_loss_is_that_of_the_definition(passes):
    params, targets, weights = passes
    found = sums_of(*passes, share=3.0)
    logits = [params[n] @ params["table"] for n in ("one", "two")]
    truths = [losses.cross_entropy(x, targets, weights, 0.1, V) for x in logits]
    kl, logits = 0.0, [np.asarray(x, np.float64) for x in logits]
    for place in np.ndindex(B, T):
        p, q = (np.exp(x[place][:V]) / np.exp(x[place][:V]).sum() for x in logits)
        both = (p * np.log(p / q)).sum() + (q * np.log(q / p)).sum()
        kl += float(weights[place]) * both
    np.testing.assert_allclose(found.metrics["kl"], kl / 2, rtol=1e-5)
    # Half of R-Drop's loss_1 + loss_2 + alpha / 2 · (KL + KL), with alpha = 3.
    expected = (truths[0].loss + truths[1].loss + 3 / 2 * kl) / 2
    np.testing.assert_allclose(found.loss, expected, rtol=1e-5)
    np.testing.assert_allclose(found.weight, weights.sum())
    for name in ("nll", "accuracy"):
        mean = (truths[0].metrics[name] + truths[1].metrics[name]) / 2
        np.testing.assert_allclose(found.metrics[name], mean, rtol=1e-5)


def test_both_sides_of_the_divergence_are_learned(passes):
    slopes = jax.grad(lambda p: sums_of(p, *passes[1:], 3.0).loss)(passes[0])

    def plain(params):  # the formula again, nothing shared with the package
        _, targets, weights = passes
        log_p, log_q = (
            jax.nn.log_softmax((params[n] @ params["table"])[..., :V])
            for n in ("one", "two")
        )
        right = jax.nn.one_hot(targets, V)
        right = right * 0.9 + (1 - right) * 0.1 / (V - 1)
        nll = -(right * (log_p + log_q)).sum(-1) / 2
        kl = ((jnp.exp(log_p) - jnp.exp(log_q)) * (log_p - log_q)).sum(-1)
        return ((nll + 3 / 4 * kl) * weights).sum()

    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, slopes, jax.grad(plain)(passes[0]))


def test_logits_in_parts_change_neither_sums_nor_gradients(passes, monkeypatch):
    def found():
        def loss(params):
            sums = sums_of(params, *passes[1:], share=3.0)
            return sums.loss, sums

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(passes[0])

    whole = found()
    monkeypatch.setattr(losses, "LOGITS_BYTES", {"cpu": 1})
    assert losses._count_parts(B, T, V) == B
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, found(), whole)


RATES = "attention", "embedding", "feed_forward", "layers", "residual", "words"
NONE = {f"model.dropout_{place}": "0.0" for place in RATES}


def load(spec, tiny, **changes):
    known = dict(config.items(config.load(spec)))
    overrides = {k: v for k, v in tiny().items() if k in known}
    if "data.window" in known:
        overrides["data.window"] = "37"
    if spec == "language":
        overrides["decode.max_length"] = "20"
    twice = {"train.consistency": "2.0", "model.dropout_residual": "0.2"}
    return config.load(spec, overrides | twice | changes)


def prepared(loaded, folder):
    return prepare.prepare(loaded, folders.Folder(folder), lambda line: None)


@pytest.mark.parametrize(
    "spec",
    [pytest.param("quickstart", marks=pytest.mark.system), "opinions", "language"],
)
def test_a_task_compares_two_passes_of_its_model(spec, tiny, tmp_path, one_device):
    found = prepared(load(spec, tiny), tmp_path)
    mesh, own = sharding.local_mesh(), found.task.objective
    planned = prepare.make_plan(found.task.config, found.task, found.train)
    batch = train.Feed(found.task, found.train.store, planned, mesh, {}).place(0)
    params = jax.jit(own.init)(jax.random.key(0))
    loss = jax.jit(teacher.add_to_loss(found.task))
    key = jax.random.key(1)
    both = loss(params, batch.arrays, key)
    each = [own.loss(params, batch.arrays, k) for k in jax.random.split(key)]
    assert not np.isclose(each[0].loss, each[1].loss, rtol=1e-6)  # other units
    mean = (each[0].loss + each[1].loss) / 2
    np.testing.assert_allclose(both.loss - both.metrics["kl"], mean, rtol=1e-5)
    assert both.metrics["kl"] > 0
    assert "kl" in own.means(both)
    plain = loss(params, batch.arrays)  # without dropout both would be the same
    once = own.loss(params, batch.arrays)
    np.testing.assert_allclose(plain.loss, once.loss, rtol=1e-6)
    assert "kl" not in plain.metrics


@pytest.mark.system
def test_the_divergence_is_in_each_log_line(tiny, tmp_path, capfd, one_device):
    few = {"train.steps": "6", "eval.splits": "", "log.every": "1"}
    assert train.train(load("quickstart", tiny, **few), tmp_path) == 0
    assert " kl " in capfd.readouterr().out


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (NONE, "but nothing is dropped"),
        ({"train.teacher": "runs/large"}, "compares two passes of this model"),
        ({"train.consistency": "-1.0"}, "train.consistency"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_the_config(changes, problem, tiny):
    with pytest.raises(UserError, match=problem):
        load("quickstart", tiny, **changes)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("masked:opinions", "draws the tokens that it predicts anew"),
        ("similarity", "is not only a cross-entropy"),
    ],
)
def test_a_task_with_other_losses_is_refused(spec, problem, tiny, tmp_path):
    with pytest.raises(UserError, match=problem):
        prepared(load(spec, tiny), tmp_path)
