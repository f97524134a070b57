"""Run directories that cannot be: said at the start, in one line, before any work."""

import os
import shutil
import subprocess
import sys

import pytest

from transformer_jax import config, train
from transformer_jax.base.errors import UserError
from transformer_jax.runs import run as runs
from transformer_jax.runs.checkpoint import Checkpoints
from transformer_jax.runs.folder import Folder
from transformer_jax.training import log


def make_file(place):
    place.write_text("mine")
    return place


def make_link(place):
    place.symlink_to(place.parent / "nowhere")
    return place


def below_a_file(place):
    return make_file(place) / "run"


WRONG = {
    "a file": (make_file, "is a file, not a folder"),
    "a dangling link": (make_link, "is a link to .*nowhere, not a folder"),
    "too long": (
        lambda place: place.with_name("n" * 300),
        "--workdir=.*n: File name too long: name another one",
    ),
    "below a file": (below_a_file, "Not a directory"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_place_that_cannot_be_a_run_is_refused_at_the_start(
    tmp_path, kind, monkeypatch
):
    monkeypatch.setattr(train, "open_mesh", lambda _: pytest.fail("work was begun"))
    make, message = WRONG[kind]
    place = make(tmp_path / "run")
    before = sorted(tmp_path.iterdir())
    for use in (lambda: train.train(config.load("quickstart"), place), load(place)):
        with pytest.raises(UserError, match=message) as caught:
            use()
        assert "\n" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


def load(place):
    return lambda: runs.load(place)


def test_a_place_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    folder = Folder(tmp_path / "deep" / "run")
    folder.check_writable()
    assert not folder.path.parent.exists()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UserError, match=f"{tmp_path} is read-only, or another user's"):
        folder.check_writable()


@pytest.mark.system
def test_the_command_says_so_and_exits_with_2(tmp_path):
    place = make_link(tmp_path / "run")
    command = [sys.executable, "-m", "transformer_jax.train", "--config=quickstart"]
    done = subprocess.run(
        [*command, f"--workdir={place}"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_a_folder_of_runs_proposes_those_inside(tmp_path):
    for number in range(7):
        (tmp_path / "runs" / f"run_{number}").mkdir(parents=True)
        (tmp_path / "runs" / f"run_{number}" / "config.json").write_text("{}")
    said = "holds no run .*, but there are runs inside: name one, .*runs/run_0, .*"
    with pytest.raises(UserError, match=f"{said}run_4 and 2 more$"):
        Folder(tmp_path / "runs").config()
    said = "run__3 does not exist .*Did you mean 'run_3'. Train one with"
    with pytest.raises(UserError, match=said):
        Folder(tmp_path / "runs" / "run__3").config()


@pytest.mark.parametrize("name", ["seed[1]", "what?", "all*"])
def test_a_place_whose_checkpoints_could_not_be_read_is_refused(tmp_path, name):
    place = tmp_path / name / "run"
    with pytest.raises(UserError, match=r"characters \* \? \[ in its name") as caught:
        train.train(config.load("quickstart"), place)
    assert str(caught.value).startswith(str(place))
    assert not place.exists()


def test_a_run_in_such_a_place_answers(tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "seed[1]")
    assert runs.load(tmp_path / "seed[1]").predict("O gato dorme.") is not None


MOMENTS = {
    "a line of the log": (log.RunLog, "record"),
    "a score": (Checkpoints, "score"),
    "the result": (Folder, "add_scores"),
}


@pytest.mark.parametrize(
    "moment",
    [m if m == "a score" else pytest.param(m, marks=pytest.mark.slow) for m in MOMENTS],
)
@pytest.mark.system
def test_a_run_that_is_renamed_stops_and_goes_on_there(
    tiny, tmp_path, monkeypatch, one_device, moment
):
    given = config.load("quickstart", tiny(eval__splits="test", eval__answers=0))
    owner, name = MOMENTS[moment]
    inner, old, new = getattr(owner, name), tmp_path / "old", tmp_path / "new"

    def rename_first(*args, **kwargs):
        if old.exists() and (old / "checkpoints").exists():
            Checkpoints(old / "checkpoints").wait()
            old.rename(new)
        return inner(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, rename_first)
        with pytest.raises(UserError, match="moved or removed") as caught:
            train.train(given, old)
    assert "\n" not in str(caught.value)
    assert not old.exists()
    assert train.train(given, new) == 0
    assert runs.load(new).step == 12
