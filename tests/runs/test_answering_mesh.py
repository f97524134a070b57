"""Answers come from all devices of a process, and are those of one device."""

import jax
import pytest

from transformer_jax import sharding
from transformer_jax.runs import run as runs


@pytest.mark.system
def test_any_number_of_devices_answers_what_one_answers(tiny_run):
    """Seven, over which neither eval.batch_rows nor data.row_multiple divides."""
    alone = runs.load(tiny_run)
    together = runs.load(tiny_run, mesh=sharding.local_mesh(7))
    assert (alone.mesh.size, together.mesh.size) == (1, 7)
    lines = [str(r["source"]) for r in alone.records("test")]
    answers = alone.predict(lines, beams=3)
    assert together.predict(lines, beams=3) == answers
    assert together.score(lines, answers) == pytest.approx(alone.score(lines, answers))


def test_the_devices_of_a_cpu_are_the_same_cores():
    assert runs.answering_mesh().size == 1


def test_all_devices_of_an_accelerator_answer(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert runs.answering_mesh().shape["data"] == 8
