"""Several runs in turn: they stop where one stops, and the tables say what is there."""

import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest
from waiting import wait_for

from transformer_jax import config as configs

LAUNCH = pathlib.Path(__file__).parents[2] / "launch"


@pytest.fixture
def systems(monkeypatch):
    monkeypatch.syspath_prepend(str(LAUNCH))
    # JAX is in this process, beside which it warns of a function after a fork.
    monkeypatch.setattr(importlib.import_module("sweep"), "make_mortal", lambda: None)
    return importlib.import_module("systems")


@pytest.fixture
def commands(systems, monkeypatch):
    """What would have been started; a run named `stops` is preempted."""
    started = []

    def run(command):
        started.append(command)
        return 75 * command[-1].endswith("stops")

    monkeypatch.setattr(systems, "run_to_the_end", run)
    return started


def test_every_system_is_a_config(systems):
    for spec in systems.SYSTEMS:
        assert configs.load(spec).is_locked, spec


def test_what_the_digits_need_is_asked_for_before_anything_is_trained(
    systems, commands, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(systems.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["systems.py", "--workdir", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        systems.main()
    assert stop.value.code == 2 and not commands
    assert "pip install -e '.[images]'" in capsys.readouterr().err


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


def test_being_asked_to_stop_is_passed_on_to_the_training(systems, tmp_path):
    ready = tmp_path / "ready"
    code = f"""
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
pathlib.Path({str(ready)!r}).touch()
time.sleep(60)
"""
    before = signal.getsignal(signal.SIGTERM)

    def stop():
        wait_for(ready.exists)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    assert systems.run_to_the_end([sys.executable, "-c", code]) == 75
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_table_of_systems_takes_the_time_that_is_known(systems, tmp_path, capsys):
    for name, seconds in (("one", 60.0), ("two", 120.0)):
        (tmp_path / name).mkdir()
        found = {"seconds": seconds, "scores": {"test": {"summary": f"of {name}"}}}
        (tmp_path / name / "result.json").write_text(json.dumps(found))
    (tmp_path / "one.seconds").write_text("90.0\n")
    systems.print_table({"one": "one", "two": "two"}, tmp_path)
    lines = capsys.readouterr().out.split("\n")
    assert "1.5 min  test: of one" in lines[0] and "2.0 min" in lines[1]
    assert "3.5 min" in lines[2]


@pytest.mark.system
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
