"""`eval.weights = "auto"`: the average, the last or the running mean, by validation."""

import json
import logging
import shutil
import threading
from unittest import mock

import jax
import numpy as np
import pytest

from transformer_jax import config, load, train
from transformer_jax.base.errors import UserError
from transformer_jax.convert import bundle as bundles
from transformer_jax.runs import bundle
from transformer_jax.runs.checkpoint import Checkpoints
from transformer_jax.training import scoring

AUTO = dict(
    eval__weights="auto", eval__splits="test", data__shapes=2, checkpoint__best="loss"
)


@pytest.fixture(scope="module")
def chosen(tiny, tmp_path_factory):
    """A run that chose, and its config; the average and the last differ."""
    folder = tmp_path_factory.mktemp("chosen") / "run"
    loaded = config.load("quickstart", tiny(**AUTO))
    with pytest.MonkeyPatch.context() as monkeypatch:
        from transformer_jax import sharding

        monkeypatch.setattr(
            sharding, "make_mesh", lambda sizes, platform="any": sharding.local_mesh()
        )
        assert train.train(loaded, folder) == 0
    return folder, loaded


def read_result(folder):
    return json.loads((folder / "result.json").read_text())


@pytest.mark.system
def test_the_best_of_validation_is_kept_and_said(chosen):
    folder, _ = chosen
    result = read_result(folder)
    losses = {name: s["loss"] for name, s in result["candidates"].items()}
    assert set(losses) == {"averaged", "last", "ema"}
    assert result["weights"] == min(losses, key=losses.get)
    assert result["scores"]["test"]["weights"] == result["weights"]
    run = load(folder)
    assert run.weights == result["weights"]
    named = {"averaged": "average"}.get(run.weights, run.weights)
    same = jax.tree.map(np.array_equal, run.params, load(folder, named).params)
    assert all(jax.tree.leaves(same))


@pytest.mark.parametrize("best", ["averaged", "last", "ema"])
def test_all_that_opens_a_run_takes_what_was_chosen(chosen, tmp_path, best):
    folder = tmp_path / "run"
    shutil.copytree(chosen[0], folder)
    (folder / "result.json").write_text(
        json.dumps({**read_result(folder), "weights": best})
    )
    run = load(folder)
    assert run.weights == best == load(folder, "auto").weights
    bundles.export(run, tmp_path / "bundle")
    assert bundle.check(tmp_path / "bundle")["weights"] == best


def test_a_lost_choice_is_said(chosen, tmp_path, caplog):
    folder = tmp_path / "run"
    shutil.copytree(chosen[0], folder)
    (folder / "result.json").unlink()
    with caplog.at_level(logging.WARNING):
        assert load(folder).weights == "last"
    assert "result.json does not say which parameters are better" in caplog.text


@pytest.mark.parametrize("weights", ["", "average"])
@pytest.mark.parametrize("lost", ["folder", "file"])
def test_a_lost_average_is_reported(chosen, tmp_path, caplog, weights, lost):
    folder = tmp_path / "run"
    shutil.copytree(chosen[0], folder)
    result = read_result(folder) | {"weights": "averaged"}
    (folder / "result.json").write_text(json.dumps(result))
    if lost == "folder":
        shutil.rmtree(folder / "averaged")
    else:
        [file] = folder.glob("averaged/*/_CHECKPOINT_METADATA")
        file.unlink()
    with caplog.at_level(logging.WARNING):
        assert load(folder, weights=weights).weights == "last"
    assert "averaged has no complete average any more: the last" in caplog.text


def test_a_training_that_is_not_done_answers_with_its_last(chosen, tmp_path, caplog):
    folder = tmp_path / "run"
    shutil.copytree(chosen[0], folder)
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "averaged")
    assert load(folder).weights == "last" and not caplog.text


def damage(folder):
    for data in folder.rglob("d/*"):
        data.write_bytes(bytes(byte ^ 1 for byte in data.read_bytes()))


@pytest.mark.system
def test_damaged_weights_lead_to_those_of_other_checkpoints(tiny_run, tmp_path):
    copy = shutil.copytree(tiny_run, tmp_path / "run")
    damage(copy / "averaged")
    with pytest.raises(UserError, match=r"\. Try --weights=best or --weights=last$"):
        load(copy)
    saved = Checkpoints(copy / "checkpoints")
    last = saved.steps()[-1]
    damage(copy / "checkpoints" / str(last))
    with pytest.raises(UserError, match=rf"checkpoints/{last}.*") as caught:
        load(copy, weights="last")
    advice = str(caught.value).rpartition(". ")[2]
    best = ["--weights=best"] * (saved.best_step() != last)
    assert advice == f"Try {' or '.join(['--weights=average', *best])}"


@pytest.mark.system
def test_damaged_weights_without_others_lead_to_training(tiny_run, tmp_path):
    copy = shutil.copytree(tiny_run, tmp_path / "run")
    shutil.rmtree(copy / "averaged")
    *others, last = Checkpoints(copy / "checkpoints").steps()
    for step in others:
        shutil.rmtree(copy / "checkpoints" / str(step))
    damage(copy / "checkpoints")
    for weights in ("last", "best", "average"):
        said = r"There are no other weights: start the training again, and it conti"
        with pytest.raises(UserError, match=said) as caught:
            load(copy, weights=weights)
        assert "--weights" not in str(caught.value)


@pytest.mark.parametrize(
    ("losses", "best"),
    [((1.0, 2.0, 3.0), "average"), ((2.0, 1.0, 3.0), "last"),
     ((3.0, 2.0, 1.0), "ema"), ((1.0, 1.0, 1.0), "average"),
     ((float("nan"), 2.0, 3.0), "last")],
)  # fmt: skip
def test_the_least_loss_is_chosen_and_of_equals_the_average(monkeypatch, losses, best):
    names, said = ("average", "last", "ema"), []
    known = dict(zip(names, losses, strict=True))

    def evaluate(params, *_):
        scores = {"loss": known[params], "seconds": 0.1}
        task = mock.Mock(**{"scoring.summary": lambda scores: "a summary"})
        return mock.Mock(scores=scores, task=task, entry=lambda *_: scores)

    run = mock.MagicMock()
    run.config = config.load("language", {"optim.ema": "0.9", "eval.weights": "auto"})
    run.validation.records, run.validation.evaluate = [1], evaluate
    run.log.say = said.append
    monkeypatch.setattr(
        scoring.runs, "read_params", lambda folder, task, mesh, name: (name, 12, name)
    )
    chosen, entries = scoring.choose_weights(run, True, lambda: False)
    assert chosen == best and list(entries) == list(names)
    assert said[1].startswith(f"weights    last: loss {known['last']:.4f}")
    assert said[-1] == f"weights    {best}: the best by validation loss"


@pytest.mark.system
def test_an_average_of_one_checkpoint_is_the_last(tiny, tmp_path, one_device):
    one = {**AUTO, "checkpoint__average": 1, "optim__ema": 0.0, "train__steps": 3}
    one |= {"optim__warmup_steps": 1, "eval__every": 3}
    assert train.train(config.load("quickstart", tiny(**one)), tmp_path) == 0
    result = read_result(tmp_path)
    assert result["weights"] == "last" and "candidates" not in result


def test_new_configs_choose_and_measured_ones_keep_the_average():
    assert config.base().eval.weights == "auto"
    for name in ("quickstart", "multi30k:de_en", "opinions"):
        assert config.load(name, data=False).eval.weights == "average"


@pytest.mark.parametrize("moment", ["_look", "_find_difference", "_try_to_restore"])
def test_a_checkpoint_that_is_deleted_while_it_is_read_gives_way_to_the_newest(
    tiny_run, tmp_path, monkeypatch, moment
):
    """As by a training: the others are read, a deletion is half done for a moment."""
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    made = run / "checkpoints"
    (made / "12").rename(tmp_path / "12")
    inner = getattr(Checkpoints, moment)

    def go_on(self, *args):
        if not (made / "12").exists():
            (tmp_path / "12").rename(made / "12")
            shutil.rmtree(made / "9" / "params")
            delete = threading.Timer(0.3, shutil.rmtree, (made / "9",))
            delete.start()
        return inner(self, *args)

    monkeypatch.setattr(Checkpoints, moment, go_on)
    assert load(run, weights="last").step == 12
    assert not (made / "9").exists()


def test_a_mean_that_no_training_kept_is_refused(tiny_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    shutil.rmtree(run / "checkpoints" / "12" / "ema")
    with pytest.raises(UserError, match="no running mean of its parameters .its optim"):
        load(run, weights="ema")
