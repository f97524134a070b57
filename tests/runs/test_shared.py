"""A run directory is one folder for all processes, or refused."""

import jax
import pytest

from transformer_jax import hosts
from transformer_jax.base.errors import UserError
from transformer_jax.runs import shared


@pytest.fixture
def process(monkeypatch):
    """A function: makes this process one of two, of which the others answer so."""

    def be(index, *answers):
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        monkeypatch.setattr(jax, "process_index", lambda: index)
        monkeypatch.setattr(hosts, "name_of", lambda i=index: f"process {i} (node{i})")
        monkeypatch.setattr(hosts, "gather", lambda own: [own, *answers])
        monkeypatch.setattr(shared, "PATIENCE", 0.0)

    return be


def test_a_folder_that_all_see_is_used_and_left_clean(process, tmp_path, monkeypatch):
    process(0, "")
    monkeypatch.setattr(hosts, "decide_in_first", lambda decide: decide())
    shared.prove(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


def test_a_process_that_sees_another_folder_is_named(process, tmp_path, monkeypatch):
    process(1)
    monkeypatch.setattr(hosts, "decide_in_first", lambda decide: "written elsewhere")
    with pytest.raises(UserError, match=r"what process 0 \(node0\) wrote") as caught:
        shared.prove(tmp_path)
    assert "does not appear on process 1 (node1)" in str(caught.value)


def test_one_process_proves_nothing(tmp_path):
    shared.prove(tmp_path / "run")
    assert not (tmp_path / "run").exists()
