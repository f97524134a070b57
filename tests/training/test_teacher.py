"""A run that learns from the predictions of another one."""

import dataclasses
import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax
from transformer_jax import config, losses, sharding, tasks, train
from transformer_jax.base.errors import UserError
from transformer_jax.config.defaults import items
from transformer_jax.planning import workload
from transformer_jax.runs import folder as folders
from transformer_jax.runs import resuming
from transformer_jax.runs import run as runs
from transformer_jax.runs.checkpoint import Checkpoints
from transformer_jax.training import log as metrics
from transformer_jax.training import prepare, teacher

B, T, V, ROWS, OTHERS = 3, 5, 7, 11, 8  # columns of the student and of the teacher


def definition(logits, theirs, weights, temperature):
    """τ² Σ weight · Σ_v p log(p / q), token by token, in float64."""
    total = 0.0
    for place in np.ndindex(B, T):
        q, p = (
            np.exp(np.asarray(x[place], np.float64)[:V] / temperature)
            for x in (logits, theirs)
        )
        q, p = q / q.sum(), p / p.sum()
        total += float(weights[place]) * (p * np.log(p / q)).sum()
    return temperature**2 * total


@pytest.fixture(scope="module")
def heads():
    """Hidden states and tables of a student and of a teacher of another width."""
    draw = np.random.default_rng(3)
    shapes = {"student": (2, ROWS), "teacher": (13, OTHERS)}
    params = {
        name: {
            "hidden": jnp.asarray(draw.normal(size=(B, T, width)), jnp.float32),
            "table": jnp.asarray(draw.normal(size=(width, rows)) * 2, jnp.float32),
        }
        for name, (width, rows) in shapes.items()
    }
    targets = jnp.asarray(draw.integers(0, V, (B, T)), jnp.int32)
    weights = jnp.asarray(draw.integers(0, 3, (B, T)) / 2, jnp.float32)
    return params, targets, weights


def predictions(own):
    return own["hidden"], lambda hidden: hidden @ own["table"]


def sums_of(params, targets, weights, share, temperature):
    taught = losses.Teacher(*predictions(params["teacher"]), share, temperature)
    asked = targets, weights, 0.1, V
    return losses.cross_entropy_of(*predictions(params["student"]), *asked, taught)


@pytest.mark.parametrize("share", [0.3, 1.0])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_loss_is_that_of_the_definition(heads, share, temperature):
    params, targets, weights = heads
    found = sums_of(*heads, share, temperature)
    logits, theirs = (
        of(hidden) for hidden, of in map(predictions, map(params.get, params))
    )
    truth = losses.cross_entropy(logits, targets, weights, 0.1, V)
    kl = definition(logits, theirs, weights, temperature)
    np.testing.assert_allclose(found.metrics["kl"], kl, rtol=1e-5)
    expected = (1 - share) * truth.loss + share * kl
    np.testing.assert_allclose(found.loss, expected, rtol=1e-5)
    for name in ("nll", "accuracy"):
        np.testing.assert_array_equal(found.metrics[name], truth.metrics[name])


def test_the_gradient_is_that_of_torch_and_the_teacher_has_none(heads):
    torch = pytest.importorskip("torch")
    params, targets, weights = heads
    slopes = jax.grad(lambda p: sums_of(p, *heads[1:], 0.3, 2.5).loss)(params)
    assert not any(map(np.any, jax.tree.leaves(slopes["teacher"])))
    hidden, table, logits = (
        torch.tensor(np.asarray(x), requires_grad=True)
        for x in (
            params["student"]["hidden"],
            params["student"]["table"],
            params["teacher"]["hidden"] @ params["teacher"]["table"],
        )
    )
    own, theirs = (hidden @ table)[..., :V], logits.detach()[..., :V]
    each = torch.nn.functional.kl_div(
        (own / 2.5).log_softmax(-1), (theirs / 2.5).softmax(-1), reduction="none"
    )
    kl = 2.5**2 * (each.sum(-1) * torch.tensor(np.asarray(weights))).sum()
    log_p = own.log_softmax(-1)
    truth = torch.full((B, T, V), 0.1 / (V - 1))
    truth.scatter_(-1, torch.tensor(np.asarray(targets)).long()[..., None], 0.9)
    nll = -(truth * log_p).sum(-1) * torch.tensor(np.asarray(weights))
    (0.7 * nll.sum() + 0.3 * kl).backward()
    for name, leaf in {"hidden": hidden, "table": table}.items():
        np.testing.assert_allclose(
            slopes["student"][name], leaf.grad, rtol=1e-4, atol=1e-5
        )


def test_logits_in_parts_change_neither_sums_nor_gradients(heads, monkeypatch):
    def found():
        def loss(params):
            sums = sums_of(params, *heads[1:], share=0.3, temperature=2.5)
            return sums.loss, sums

        both = jax.value_and_grad(loss, has_aux=True)
        return jax.jit(lambda params: (loss(params), both(params)))(heads[0])

    whole = found()
    monkeypatch.setattr(losses, "LOGITS_BYTES", {"cpu": 1})
    assert losses._count_parts(B, T, V) == B
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, found(), whole)


# Runs.


@pytest.fixture(scope="module")
def of_translation(tiny_run):
    return tiny_run


@pytest.fixture(scope="module")
def of_language(tiny_run_of):
    small = {"data.window": "37", "decode.max_length": "20"}
    return tiny_run_of("language", **small)


@pytest.fixture(scope="module")
def of_labels(tiny_run_of):
    return tiny_run_of("opinions")


@pytest.fixture(scope="module")
def of_masks(tiny_run_of):
    return tiny_run_of("masked:opinions", **{"data.window": "37"})


SPECS = {
    "translation": "quickstart",
    "language": "language",
    "labels": "opinions",
    "masks": "masked:opinions",
}


def load(spec, tiny, place, **changes):
    known = dict(config.items(config.load(spec)))
    overrides = {k: v for k, v in tiny().items() if k in known}
    if "data.window" in known:
        overrides["data.window"] = "37"
    if spec == "language":
        overrides |= {"decode.max_length": "20"}
    smaller = {"model.d_model": "8", "model.d_ff": "12", "train.teacher": str(place)}
    return config.load(spec, overrides | smaller | changes)


def prepared(loaded, folder):
    return prepare.prepare(loaded, folders.Folder(folder), lambda line: None)


def batch_of(found, mesh, place):
    loaded = found.task.config
    planned = prepare.make_plan(loaded, found.task, found.train)
    lent = {losses.TEACHER: transformer_jax.load(place, mesh=mesh).params}
    return train.Feed(found.task, found.train.store, planned, mesh, lent).place(0)


@pytest.mark.parametrize(
    "kind",
    [k if k == "labels" else pytest.param(k, marks=pytest.mark.system) for k in SPECS],
)
def test_each_task_compares_its_logits_with_the_teachers(
    kind, tiny, tmp_path, request, one_device
):
    """Teacher = student: the divergence is that of dropout alone, and 0 without."""
    place = request.getfixturevalue(f"of_{kind}")
    run = transformer_jax.load(place)
    same = {k: str(run.config.model[k]) for k in ("d_model", "d_ff")}
    changes = {f"model.{k}": v for k, v in same.items()}
    none = {
        k: "0.0" for k, _ in config.items(run.config) if k.startswith("model.dropout")
    }
    loaded = load(SPECS[kind], tiny, place, **changes, **none)
    found = prepared(loaded, tmp_path)
    batch = batch_of(found, run.mesh, place).arrays
    loss, key = jax.jit(teacher.add_to_loss(found.task)), jax.random.key(2)
    mine = loss(run.params, batch, key)
    np.testing.assert_allclose(mine.metrics["kl"], 0, atol=1e-3)
    other = jax.tree.map(lambda x: x + 0.1, run.params)
    theirs = loss(other, batch, key)
    assert theirs.metrics["kl"] > 0.01 * theirs.weight
    assert "kl" in found.task.objective.means(theirs)
    truth = found.task.objective.loss(
        other, {k: x for k, x in batch.items() if k != losses.TEACHER}, key
    )
    np.testing.assert_allclose(
        theirs.loss, (truth.loss + theirs.metrics["kl"]) / 2, rtol=1e-5
    )


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.system
def test_a_mesh_gives_the_gradients_of_one_device(
    micro_batches, tiny, tmp_path, of_translation
):
    loaded = load("quickstart", tiny, of_translation)
    found = prepared(loaded, tmp_path)
    axes = (sharding.AxisType.Auto,) * 4
    sizes = sharding.mesh_shape({"data": 2, "fsdp": 2, "tensor": 2, "sequence": 1}, 8)
    meshes = sharding.local_mesh(), jax.make_mesh(sizes, sharding.AXES, axis_types=axes)
    gradients = []
    for mesh in meshes:
        batch = batch_of(found, mesh, of_translation).arrays
        split = {
            x.sharding.is_fully_replicated
            for x in jax.tree.leaves(batch[losses.TEACHER])
        }
        assert split == ({True} if mesh.size == 1 else {True, False})
        loss = teacher.add_to_loss(found.task)

        def plain(params, batch, key, loss=loss):
            return loss(params, batch)  # without dropout

        places = sharding.shardings(
            jax.eval_shape(found.task.objective.init, jax.random.key(5)), mesh
        )
        init = jax.jit(found.task.objective.init, out_shardings=places)
        with jax.set_mesh(mesh):
            gradient = jax.jit(losses.make_gradient(plain, micro_batches))
            gradients.append(
                gradient(init(jax.random.key(5)), batch, jax.random.key(0))
            )
    close = functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=1e-4)
    jax.tree.map(close, *map(jax.device_get, gradients))


FEW = {"eval.splits": "", "checkpoint.every": "2", "eval.every": "4"}


@pytest.mark.system
def test_a_run_continues_bit_for_bit_and_saves_nothing_of_its_teacher(
    tiny, tmp_path, of_translation, one_device
):
    asked = functools.partial(load, "quickstart", tiny, of_translation)
    few = FEW | {"train.teacher_weight": "0.7", "optim.decay_steps": "9"}
    once, twice = tmp_path / "once", tmp_path / "twice"
    assert train.train(asked(**few, **{"train.steps": "8"}), once) == 0
    assert train.train(asked(**few, **{"train.steps": "6"}), twice) == 0
    moved = tmp_path / "teacher"
    shutil.copytree(of_translation, moved)
    again = load("quickstart", tiny, moved, **few, **{"train.steps": "8"})
    assert train.train(again, twice) == 0
    states = []
    for folder in (once, twice):
        run = transformer_jax.load(folder, "last")
        functions = train.make_update(run.config, run.task, run.mesh)
        state = Checkpoints(
            folder / "checkpoints", identity=run.folder.identity(run.config)
        ).restore(8, functions.abstract)
        states.append(state.replace(key=jax.random.key_data(state.key)))
    jax.tree.map(np.testing.assert_array_equal, *states)
    sizes = [sum(x.size for x in jax.tree.leaves(s.params)) for s in states]
    assert sizes[0] < sum(
        x.size for x in jax.tree.leaves(transformer_jax.load(of_translation).params)
    )
    entries = metrics.read_entries(once / "metrics.jsonl")
    assert all(e["kl"] > 0 for e in entries if e["kind"] == "train")
    assert not any("kl" in e for e in entries if e["kind"] == "eval")
    about = json.loads((once / "teacher.json").read_text())
    assert about["place"] == str(of_translation) and about["step"] == 12


@pytest.mark.system
def test_a_run_is_not_continued_with_a_changed_teacher(
    tiny, tmp_path, of_translation, tiny_run_of, one_device
):
    few = FEW | {"train.steps": "6"}
    workdir = tmp_path / "run"
    first = load("quickstart", tiny, of_translation, **few)
    assert train.train(first, workdir) == 0
    other = tiny_run_of("quickstart", seed="5", **FEW)
    shutil.copytree(of_translation / "tokenizer", other / "tokenizer", dirs_exist_ok=1)
    longer = load("quickstart", tiny, other, **few | {"train.steps": "8"})
    with pytest.raises(UserError, match="has other parameters .*give it that teacher"):
        train.train(longer, workdir)


@pytest.mark.system
def test_a_taught_student_agrees_more_with_its_teacher(
    tiny, tmp_path, of_translation, one_device
):
    few = {"train.steps": "60", "checkpoint.every": "60", "eval.every": "60"}
    few |= {"model.d_model": "16", "model.d_ff": "24"}
    teaches = {"train.teacher_weight": "1.0", "train.teacher_temperature": "2.0"}
    found = {}
    for name, place, changes in (
        ("taught", of_translation, teaches),
        ("alone", "", {"tokenizer.kind": "file"}),
    ):
        if not place:
            changes["tokenizer.file"] = str(of_translation / "tokenizer/shared.model")
        loaded = load("quickstart", tiny, place, **few, **changes)
        assert train.train(loaded, tmp_path / name) == 0
        found[name] = transformer_jax.load(tmp_path / name, "last")
    judged = load("quickstart", tiny, of_translation, **few, **teaches)
    judge = prepared(judged, tmp_path / "taught")
    batch = batch_of(judge, found["taught"].mesh, of_translation).arrays
    loss = jax.jit(teacher.add_to_loss(judge.task))
    sums = {name: loss(run.params, batch) for name, run in found.items()}
    assert sums["taught"].metrics["kl"] < 0.5 * sums["alone"].metrics["kl"]
    assert sums["taught"].metrics["nll"] > sums["alone"].metrics["nll"]


def test_what_cannot_be_taught_is_refused(tiny, tmp_path, of_translation):
    refused = [
        ("parsing", of_translation, "was trained for the task 'translation', not"),
        ("quickstart", "nowhere", "train.teacher = 'nowhere' names no run"),
    ]
    for i, (spec, place, words) in enumerate(refused):
        with pytest.raises(UserError, match=words):
            prepared(load(spec, tiny, place), tmp_path / f"refused_{i}")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text('{"task": 7}')
    with pytest.raises(UserError, match=r"train\.teacher cannot be opened: .*damaged"):
        prepared(load("quickstart", tiny, tmp_path / "damaged"), tmp_path / "run")
    for spec in ("images", "speech"):
        loaded = config.load(spec, {"train.teacher": str(of_translation)}, data=False)
        task = workload.open_empty(loaded)
        with pytest.raises(UserError, match="no teacher can join it: leave"):
            teacher.check(task, task)
    with pytest.raises(UserError, match="would add the adapters to the matrices"):
        load("quickstart", tiny, of_translation, **{"lora.rank": "2"})


def test_a_teacher_of_another_vocabulary_is_refused(tiny, tmp_path, of_translation):
    asked = functools.partial(load, "quickstart", tiny)
    own = {"tokenizer.kind": "byte"}
    prepared(asked("", **own), tmp_path)  # has learned its tokenizer
    with pytest.raises(
        UserError, match=r"another vocabulary \('embedding'.*takes the t"
    ):
        prepared(asked(of_translation, **own), tmp_path)


def test_a_teacher_with_other_labels_is_refused(tiny, tmp_path, of_labels):
    other = shutil.copytree(of_labels, tmp_path / "other")
    names = json.loads((other / "tokenizer" / "answers.json").read_text())
    names["labels"] = names["labels"][::-1]
    (other / "tokenizer" / "answers.json").write_text(json.dumps(names))
    with pytest.raises(UserError, match="in this order, but this run .*with the same"):
        prepared(load("opinions", tiny, other), tmp_path / "run")


def test_a_teacher_without_enough_positions_is_refused(
    tiny, tmp_path, of_translation, one_device, monkeypatch
):
    found = prepared(load("quickstart", tiny, of_translation), tmp_path)
    short = found.task.config.copy_and_resolve_references()
    short.unlock()
    short.model.update(positions="learned", max_positions=40)
    task = tasks.find("translation").open(short, of_translation / "tokenizer")
    run = dataclasses.replace(transformer_jax.load(of_translation), task=task)
    monkeypatch.setattr(runs, "load", lambda path, mesh: run)
    asked = found.task.config, found.train.store, folders.Folder(tmp_path)
    with pytest.raises(UserError, match="train.teacher = .* model.max_positions 40"):
        teacher.load(*asked, sharding.local_mesh(), print)


def test_a_plan_compiles_the_step_with_its_teacher(tiny, of_translation):
    sizes = []
    for place in ("", of_translation):
        loaded, mesh = load("quickstart", tiny, place), sharding.local_mesh()
        planned = workload.without_data(loaded)
        functions = train.make_update(loaded, planned.task, mesh)
        with jax.set_mesh(mesh):
            lowered = functions.update.lower(
                functions.abstract, planned.abstract(planned.largest, mesh)
            )
        sizes.append(sum(x.size for x in jax.tree.leaves(lowered.in_avals)))
    params = transformer_jax.load(of_translation).params
    assert sizes[1] - sizes[0] == sum(x.size for x in jax.tree.leaves(params))


@pytest.mark.parametrize(("old", "new"), [("runs/a", ""), ("", "runs/a")])
def test_a_teacher_is_neither_left_nor_found_when_a_run_goes_on(old, new):
    given = dict(items(config.base(task="translation", model="transformer")))
    told = resuming.differences(
        given | {"train.teacher": old}, given | {"train.teacher": new}
    )
    assert told == [f"train.teacher: {old!r} in the run, now {new!r}"]
    moved = [given | {"train.teacher": place} for place in ("runs/a", "runs/b")]
    assert not resuming.differences(*moved)
