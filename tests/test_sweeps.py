"""Several runs in turn: they stop where one stops, and the tables say what is there."""

import importlib
import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

from transformer_jax import config as configs

LAUNCH = pathlib.Path(__file__).parents[1] / "launch"


@pytest.fixture
def systems(monkeypatch):
    monkeypatch.syspath_prepend(str(LAUNCH))
    return importlib.import_module("systems")


@pytest.fixture
def commands(systems, monkeypatch):
    """What would have been started; a run named `stops` is preempted."""
    started = []

    def run(command, env):
        assert env["PATH"] == os.environ["PATH"]
        started.append(command)
        return types.SimpleNamespace(returncode=75 * command[-1].endswith("stops"))

    monkeypatch.setattr(systems.subprocess, "run", run)
    return started


def test_every_system_is_a_config(systems):
    for spec in systems.SYSTEMS:
        assert configs.load(spec).is_locked, spec


def test_runs_go_one_after_the_other_until_one_stops(systems, commands, tmp_path):
    runs = [("one", "a.py"), ("stops", "b.py"), ("never", "c.py")]
    assert systems.train_in_turn(runs, tmp_path, []) == 75
    assert [c[-1] for c in commands] == [str(tmp_path / n) for n in ("one", "stops")]
    assert [c[1:5] for c in commands] == [
        ["-m", "transformer_jax.train", "--config", name] for name in ("a.py", "b.py")
    ]


def test_the_time_of_a_run_adds_up_until_it_is_done(systems, commands, tmp_path):
    noted = tmp_path / "one.seconds"
    noted.write_text("100.0\n")
    systems.train_in_turn([("one", "a.py")], tmp_path, [])
    first = noted.read_text()
    assert float(first) >= 100.0
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "result.json").write_text("{}")
    noted.write_text("7.0\n")
    systems.train_in_turn([("one", "a.py")], tmp_path, [])
    assert noted.read_text() == "7.0\n"  # a run that was done adds nothing


def test_table_3_prints_what_is_there_beside_the_papers_figures(tmp_path):
    (tmp_path / "b_16").mkdir()
    found = {"parameters": 1_230_000, "scores": {"validation": {
        "perplexity": 6.543, "bleu": 21.98}}}  # fmt: skip
    (tmp_path / "b_16" / "result.json").write_text(json.dumps(found))
    command = [sys.executable, str(LAUNCH / "table3.py"), "--workdir", str(tmp_path)]
    done = subprocess.run([*command, "--print"], capture_output=True, text=True)
    lines = {line.split("|")[0].strip(): line for line in done.stdout.split("\n")}
    assert lines["b_16"].split("|")[1].split() == ["6.54", "21.98", "1.23"]
    assert lines["b_16"].split("|")[2].split() == ["5.16", "25.1", "58"]
    assert "not done" in lines["big"] and "213" in lines["big"]
    wrong = subprocess.run([*command, "--rows=z"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "there is no row 'z'" in wrong.stderr
