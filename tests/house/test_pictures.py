"""The scripts that draw the pictures of the pages run on a trained model."""

import importlib.util
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def called(monkeypatch, tiny_run, tmp_path):
    """A function: run a script on a small run; it writes into an empty folder."""

    def run(name, **places):
        script = load(name)
        for constant, value in places.items():
            monkeypatch.setattr(script, constant, value)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", f"--workdir={tiny_run}"])
        script.main()

    return run


def test_the_picture_of_the_readme_has_pieces_on_both_sides(called, tmp_path, capsys):
    called("draw_attention", OUTPUT=tmp_path / "attention.svg")
    assert (tmp_path / "attention.svg").read_text().startswith("<?xml")
    assert "wrote attention.svg: A menina não leu" in capsys.readouterr().out


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_pages_show_curves_attention_positions_and_the_viewer(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for name in ("attention.svg", "curves.png", "positions.png", "viewer.png"):
        assert name in text, name
