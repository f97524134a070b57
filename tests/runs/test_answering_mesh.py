"""Answers come from all devices of a process, and are those of one device."""

import jax
import pytest

from transformer_jax import config, sharding
from transformer_jax.runs import run as runs


@pytest.mark.system
def test_eight_devices_answer_what_one_answers(tiny_run):
    alone = runs.load(tiny_run)
    together = runs.load(tiny_run, mesh=sharding.local_mesh(8))
    assert (alone.mesh.size, together.mesh.size) == (1, 8)
    lines = [str(r["source"]) for r in alone.records("test")]
    answers = alone.predict(lines, beams=3)
    assert together.predict(lines, beams=3) == answers
    assert together.score(lines, answers) == pytest.approx(alone.score(lines, answers))


@pytest.fixture
def notes(monkeypatch):
    """What is said on a machine whose eight devices are no CPU's."""
    said = []
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(runs.logger, "info", lambda text, *a: said.append(text % a))
    return said


def test_the_devices_of_a_cpu_are_the_same_cores():
    assert runs.answering_mesh(config.load("quickstart")).size == 1


def test_all_devices_of_an_accelerator_answer(notes):
    assert runs.answering_mesh(config.load("quickstart")).shape["data"] == 8
    assert not notes


def test_rows_that_do_not_divide_leave_devices_unused_with_a_note(notes):
    loaded = config.load("quickstart", {"eval.batch_rows": "12"})
    assert runs.answering_mesh(loaded).size == 4
    assert "4 of 8 devices are used: eval.batch_rows 12" in notes[0]
