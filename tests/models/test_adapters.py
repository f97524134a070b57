"""Low-rank adapters: begin as nothing, train alone, and become part of their matrix."""

import dataclasses
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors

import transformer_jax
from transformer_jax import config, sharding, train
from transformer_jax.base import programs
from transformer_jax.base.errors import UserError
from transformer_jax.models.layers import adapters
from transformer_jax.runs import bundle
from transformer_jax.runs import run as runs
from transformer_jax.training import warm_start

BATCH = {
    "tokens": jnp.array([[2, 9, 3, 0], [2, 8, 7, 3], [2, 5, 3, 0]]),
    "answers": jnp.array([1.0, 0.0, 1.0]),
}


@pytest.fixture(scope="module")
def folder(tiny_run_of):
    return tiny_run_of("opinions:label", **{"model.encoder_layers": "2"})


@pytest.fixture(scope="module")
def run(folder):
    return transformer_jax.load(folder)


def settings(run, **changes):
    changed = run.config.copy_and_resolve_references()
    with changed.unlocked():
        changed.lora.update({"rank": 3, "alpha": 5.0, **changes})
    return changed


def grown(run, changed):
    """Return a run's parameters with adapters that do something."""
    params = adapters.add(run.params, changed, jax.random.key(1))
    drawn = jax.tree.map(
        lambda x: jax.random.normal(jax.random.key(x.size), x.shape) / 3,
        params[adapters.NAME],
    )
    return {**params, adapters.NAME: drawn}


def by_path(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {sharding.path_name(path): leaf for path, leaf in leaves}


@pytest.mark.parametrize("matrices", ["attention/(query|value)$", "", "outer|head"])
@pytest.mark.parametrize("remat", ["none", "all"])
def test_a_model_with_adapters_equals_the_one_they_are_merged_into(
    run, matrices, remat
):
    changed = settings(run, matrices=matrices)
    with changed.unlocked():
        changed.model.remat = remat
    task = transformer_jax.tasks.find(changed.task).open(changed, run.folder.tokenizer)
    params = grown(run, changed)
    plain_loss = jax.jit(task.objective.loss)
    loss = adapters.adapt(task.objective.loss, changed)
    unmerged, plain = jax.jit(loss)(params, BATCH), plain_loss(run.params, BATCH)
    merged = plain_loss(adapters.merge(params, changed), BATCH)
    assert abs(float(unmerged.loss - plain.loss)) > 1e-3
    np.testing.assert_allclose(unmerged.loss, merged.loss, rtol=1e-5)
    gradient = jax.jit(jax.grad(lambda p: loss(p, BATCH).loss))(params)
    assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(gradient[adapters.NAME]))


def test_new_adapters_change_nothing_and_have_the_shapes_of_their_maps(run):
    changed = settings(run, matrices="(attention/query|inner)$")
    params = adapters.add(run.params, changed, jax.random.key(0))
    shapes = {n: x.shape for n, x in by_path(params[adapters.NAME]).items()}
    d_model, d_ff = 16, 24
    assert shapes == {
        f"encoder/layer_{i}/{name}": shape
        for i in range(2)
        for name, shape in {
            "self_attention/query/down": (d_model, 3),
            "self_attention/query/up": (3, d_model),
            "feed_forward/inner/down": (d_model, 3),
            "feed_forward/inner/up": (3, d_ff),
        }.items()
    }
    loss = adapters.adapt(run.task.objective.loss, changed)
    np.testing.assert_array_equal(
        loss(params, BATCH).loss, run.task.objective.loss(run.params, BATCH).loss
    )


def test_dropout_is_of_the_adapter_alone_and_only_with_a_key(run):
    changed = settings(run, dropout=0.5, matrices="head")
    with changed.unlocked():
        for name in ("embedding", "residual", "attention", "words"):
            changed.model[f"dropout_{name}"] = 0.0
    task = transformer_jax.tasks.find(changed.task).open(changed, run.folder.tokenizer)
    params, loss = grown(run, changed), adapters.adapt(task.objective.loss, changed)
    still = settings(run, matrices="head")
    expected = adapters.adapt(task.objective.loss, still)(params, BATCH).loss
    np.testing.assert_array_equal(loss(params, BATCH).loss, expected)
    drawn = [float(loss(params, BATCH, jax.random.key(i)).loss) for i in range(2)]
    assert len({*drawn, float(expected)}) == 3
    quiet = {**params, adapters.NAME: jax.tree.map(jnp.zeros_like, params["adapters"])}
    np.testing.assert_allclose(
        loss(quiet, BATCH, jax.random.key(0)).loss,
        task.objective.loss(run.params, BATCH).loss,
        rtol=1e-6,
    )


def test_a_pattern_that_is_found_nowhere_is_refused(run):
    words = "lora.matrices = 'quary' is found in no path of a linear map"
    with pytest.raises(UserError, match=words):
        adapters.add(run.params, settings(run, matrices="quary"), jax.random.key(0))
    words = r"lora.matrices = '\(' is no regular expression"
    with pytest.raises(UserError, match=words):
        config.load("opinions:label", {"lora.matrices": "("})


def test_an_adapter_that_the_model_would_not_use_is_refused(run):
    changed = settings(run)
    with changed.unlocked():
        changed.model.scan_layers = True
    task = transformer_jax.tasks.find(changed.task).open(changed, run.folder.tokenizer)
    loss = adapters.adapt(task.objective.loss, changed)
    with pytest.raises(
        UserError, match=r"value, which this model does not apply|query"
    ):
        loss(grown(run, changed), BATCH)


@pytest.mark.system
def test_a_run_trains_its_adapters_and_what_optim_rates_names(
    folder, run, tiny, tmp_path, one_device, caplog
):
    """Then it answers with the merged matrices, and resumes."""
    changes = {
        "train.steps": "6",
        "lora.rank": "3",
        "eval.splits": "test",
        "optim.schedule": "constant",
    }
    changes |= {"optim.rates": "(('head', 1.0),)", "eval.weights": "average"}
    changes |= {"model.encoder_layers": "2"}

    def start(steps):
        known = dict(config.items(config.load("opinions:label")))
        overrides = {k: v for k, v in tiny().items() if k in known} | changes
        overrides |= {"train.steps": str(steps)}
        loaded = config.load(
            "opinions:label",
            overrides,
            change=lambda c: warm_start.adopt(c, str(folder)),
        )
        assert train.train(loaded, tmp_path / "run") == 0
        return caplog.text

    said = start(3)
    assert "fresh      8 arrays: adapters 8" in said
    assert "are frozen; the optimizer's state has" in said
    start(6)
    after = transformer_jax.load(tmp_path / "run", weights="last")
    old, new = by_path(run.params), by_path(after.params)
    assert old.keys() == new.keys()
    moved = {name for name in old if np.abs(old[name] - new[name]).max() > 0}
    assert moved == {
        "head/kernel",
        "head/bias",
        *(
            f"encoder/layer_{i}/self_attention/{name}/kernel"
            for i in range(2)
            for name in ("query", "value")
        ),
    }
    # The scores that training recorded are those of the merged parameters.
    like = runs.abstract_params(after.task, after.mesh, with_adapters=True)
    assert adapters.NAME in like
    exported(tmp_path, after, run)
    texts = [record["text"] for record in after.records("test")]
    answers = transformer_jax.load(tmp_path / "run").predict(texts)
    labels = [record["label"] for record in after.records("test")]
    right = sum(a == str(b) for a, b in zip(answers, labels, strict=True))
    recorded = after.folder.read_result()["scores"]["test"]["accuracy"]
    assert recorded == pytest.approx(right / len(texts))


def exported(tmp_path, after, base):
    """What was trained is a small bundle that answers beside its base, and no other."""
    params, _, _ = runs.read_params(
        after.folder, after.task, after.mesh, "last", merged=False
    )
    bundle.export_trained(after, params, tmp_path / "small")
    with safetensors.safe_open(tmp_path / "small" / bundle.WEIGHTS, "numpy") as file:
        names = {name.split("/")[0] for name in file.keys()}  # noqa: SIM118
    assert names == {"adapters", "head"}
    shared = transformer_jax.load(tmp_path / "small", base=base)
    for again in (shared, transformer_jax.load(tmp_path / "small")):
        jax.tree.map(np.testing.assert_array_equal, again.params, after.params)
    table = shared.params["embedding"]["embedding"]
    assert table is base.params["embedding"]["embedding"]  # no copy
    manifest = tmp_path / "small" / bundle.MANIFEST
    told = json.loads(manifest.read_text())
    for wrong, words in (
        ({"base": str(tmp_path / "small")}, "names itself as its base"),
        ({"frozen": ["a"]}, "'frozen' has the wrong type"),
    ):
        manifest.write_text(json.dumps(told | wrong))
        with pytest.raises(UserError, match=words):
            transformer_jax.load(tmp_path / "small")
    manifest.write_text(json.dumps(told))
    changed = {**base.params, "embedding": {"embedding": table * 2}}
    other = dataclasses.replace(base, params=changed)
    with pytest.raises(UserError, match="trained on other parameters.*embedding"):
        transformer_jax.load(tmp_path / "small", base=other)
    with pytest.raises(UserError, match="has all of its parameters: leave base out"):
        transformer_jax.load(base.folder.place, base=base)
    with pytest.raises(UserError, match="has trained all of its parameters"):
        bundle.export_trained(base, base.params, tmp_path / "none")


def test_shapes_that_are_kept_tell_parameters_with_adapters_apart(
    run, tmp_path, one_device, monkeypatch
):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    monkeypatch.setattr(programs, "_folder", lambda: tmp_path)
    monkeypatch.setattr(programs, "_find_source", lambda ours: set())
    task = dataclasses.replace(run.task, config=settings(run))
    plain, adapted = (
        runs.abstract_params(task, run.mesh, with_adapters=adapted)
        for adapted in (False, True)
    )
    assert list(tmp_path.glob("*.shapes"))
    assert adapters.NAME not in plain and adapters.NAME in adapted
