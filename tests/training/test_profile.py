"""A trace of some steps, and the share of the peak on each line of the log."""

import json

import jax
import pytest

from transformer_jax import config as configs
from transformer_jax import hardware as targets
from transformer_jax import train
from transformer_jax.base.errors import UserError
from transformer_jax.training.steps import rehearsal
from transformer_jax.training.steps.profile import Profile


@pytest.mark.parametrize("steps", ["10", "5:3", "0:2", "a:b"])
def test_steps_that_are_none_are_refused(steps, tmp_path):
    with pytest.raises(UserError, match="name the first and the last step"):
        Profile(steps, tmp_path)


def test_the_steps_asked_for_are_traced_also_when_a_run_begins_within(
    tmp_path, monkeypatch
):
    calls = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda f: calls.append("start"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: calls.append("stop"))
    for first, expected in ((1, 3), (4, 4)):
        profile, calls[:] = Profile("3:5", tmp_path), []
        for step in range(first, 9):
            profile.reach(step)
            assert bool(calls) == (step >= expected)
            if profile.ends_with(step):
                assert step == 5 and profile.close() == tmp_path / "profile"
        profile.close()
        assert calls == ["start", "stop"]
    Profile("", tmp_path).reach(1)
    assert calls == ["start", "stop"]


@pytest.mark.system
@pytest.mark.usefixtures("one_device")
def test_a_run_on_known_hardware_logs_its_mfu_and_rehearses_everything(
    tiny, tmp_path, monkeypatch, capsys
):
    """The CPU of this test is taken for an accelerator whose peak is known."""
    peak = targets.Hardware("cpu", ("cpu",), peak={"float32": 1e9})
    monkeypatch.setattr(targets, "recognise", lambda kind: peak)
    rehearsed = []
    monkeypatch.setattr(rehearsal, "has_little_memory", lambda mesh: True)
    evaluate = rehearsal.rehearse_evaluation

    def note(*parts):
        rehearsed.append(parts)
        evaluate(*parts)

    monkeypatch.setattr(rehearsal, "rehearse_evaluation", note)
    changes = tiny(
        train__steps=3, eval__every=3, checkpoint__average=1, optim__warmup_steps=2,
        eval__batch_rows=8, eval__answers=1,
    )  # fmt: skip
    config = configs.load("quickstart", changes)
    assert train.train(config, tmp_path / "run") == 0
    assert len(rehearsed) == 1
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [e for e in map(json.loads, lines) if e["kind"] == "train"]
    assert all(e["mfu"] > 0 for e in steps)
    assert "MFU " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_trace_is_written_into_the_run(tiny, tmp_path):
    config = configs.load("quickstart", tiny())
    assert train.train(config, tmp_path / "run", profiled="2:3") == 0
    assert list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))
