"""A kill, or a wish to stop, during an evaluation: what it scores is saved before."""

import json
import os
import pathlib
import shutil
import signal

import pytest

from transformer_jax import cli, config, train
from transformer_jax.runs.checkpoint import Checkpoints
from transformer_jax.training import evaluator as evaluators
from transformer_jax.training import log as metrics
from transformer_jax.training.evaluator import Evaluator

SCORED = dict(data__shapes=2, eval__splits="test")  # as `tiny_run` is


class Killed(BaseException):
    """What no code of the training catches."""


@pytest.fixture
def answering(monkeypatch):
    """Run a function once, in the midst of the first evaluation's answers."""

    def meanwhile(action):
        whole = evaluators.answer_all

        def answer_all(*args):
            *rest, progress = args

            def disturbed(done, total):
                monkeypatch.setattr(evaluators, "answer_all", whole)
                action()
                progress(done, total)

            return whole(*rest, disturbed)

        monkeypatch.setattr(evaluators, "answer_all", answer_all)

    return meanwhile


def logged(folder):
    """The curves of a run, without what depends on the clock."""
    entries = metrics.read_entries(pathlib.Path(folder) / "metrics.jsonl")
    clock = ("time", "seconds", "seconds_left", "tokens_per_second")
    clock += ("answering_seconds",)
    return [{k: v for k, v in e.items() if k not in clock} for e in entries]


@pytest.mark.system
def test_a_kill_during_an_evaluation_loses_nothing_but_the_evaluation(
    tiny, tiny_run, tmp_path, one_device, answering, capsys
):
    loaded, folder = config.load("quickstart", tiny(**SCORED)), tmp_path / "run"

    def die():
        raise Killed

    answering(die)
    with pytest.raises(Killed):
        train.train(loaded, folder)
    assert Checkpoints(folder / "checkpoints").steps() == [3, 6]
    assert Checkpoints(folder / "checkpoints").best_step() is None
    kinds = [(e["kind"], e["step"]) for e in logged(folder)]
    assert kinds[-1] == ("train", 6)
    assert train.train(loaded, folder) == 0
    assert "resumed    from step 6" in capsys.readouterr().out
    assert logged(folder) == logged(tiny_run)
    kept = [Checkpoints(run / "checkpoints") for run in (folder, tiny_run)]
    assert kept[0].steps() == kept[1].steps()
    assert kept[0].best_step() == kept[1].best_step()


@pytest.mark.system
def test_a_signal_does_not_wait_for_the_end_of_an_evaluation(
    tiny, tiny_run, tmp_path, one_device, answering, capsys, hear
):
    number = hear("SIGINT")
    loaded, folder = config.load("quickstart", tiny(**SCORED)), tmp_path / "run"
    answering(lambda: os.kill(os.getpid(), number))
    assert train.train(loaded, folder) == cli.PREEMPTED
    out = capsys.readouterr().out
    assert "preempted  step 6 is saved, and will be scored; the same command" in out
    assert "validation step" not in out
    assert train.train(loaded, folder) == 0
    assert logged(folder) == logged(tiny_run)


def test_a_signal_between_two_batches_ends_an_evaluation(
    tiny, tmp_path, one_device, monkeypatch
):
    loaded, passes = config.load("quickstart", tiny()), []

    def teacher_forced(self, params, progress):
        passes.append(self)
        signal.raise_signal(signal.SIGTERM)
        progress(1, 2)
        raise AssertionError("the evaluation went on")

    monkeypatch.setattr(Evaluator, "teacher_forced", teacher_forced)
    assert train.train(loaded, tmp_path) == cli.PREEMPTED
    assert len(passes) == 1


@pytest.mark.system
def test_a_signal_while_test_sets_are_scored_is_heard_too(
    tiny, tiny_run, tmp_path, one_device, answering, capsys
):
    loaded, folder = config.load("quickstart", tiny(**SCORED)), tmp_path / "run"
    shutil.copytree(tiny_run, folder)
    (folder / "result.json").unlink()
    answering(lambda: signal.raise_signal(signal.SIGTERM))
    assert train.train(loaded, folder) == cli.PREEMPTED
    assert "preempted  test will be scored" in capsys.readouterr().out
    assert not (folder / "result.json").exists()
    assert train.train(loaded, folder) == 0
    ends = [json.loads((run / "result.json").read_text()) for run in (folder, tiny_run)]
    for end in ends:
        del end["seconds"], end["scores"]["test"]["answering_seconds"]
        del end["scores"]["test"]["seconds"]
    assert ends[0] == ends[1]
    assert logged(folder) == logged(tiny_run)


@pytest.mark.system
def test_a_score_that_was_lost_is_made_again(
    tiny, tiny_run, tmp_path, one_device, capsys
):
    """A kill between the score of a checkpoint and its entry in the log."""
    loaded, folder = config.load("quickstart", tiny(**SCORED)), tmp_path / "run"
    shutil.copytree(tiny_run, folder)
    (folder / "result.json").unlink()
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [x for x in lines if json.loads(x)["kind"] == "train" or '"step": 6' in x]
    (folder / "metrics.jsonl").write_text("".join(kept))
    assert train.train(loaded, folder) == 0
    assert "validation step 12" in capsys.readouterr().out
    assert logged(folder) == logged(tiny_run)
