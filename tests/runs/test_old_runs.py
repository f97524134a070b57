"""A run directory and a bundle of an earlier version still load, answer and resume.

`tests/fixtures/commit_b9c4e52.tar.gz` holds a run of the quickstart's kind, cut to six
steps of a tiny model, its bundle, and what that commit answered with it.
"""

import json
import pathlib
import tarfile

import pytest

import transformer_jax
from transformer_jax.runs.folder import Folder
from transformer_jax.train import train

ARCHIVE = pathlib.Path(__file__).parent.parent / "fixtures" / "commit_b9c4e52.tar.gz"

# The losses of steps 7 to 12 when that commit continued the run.
LOSSES = [3.708988, 3.66595, 3.796172, 3.763461, 3.694417, 3.680966]


@pytest.fixture
def old(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        # Python 3.11.3 and earlier has no filters.
        trusted = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(tmp_path, **trusted)
    return tmp_path


@pytest.mark.parametrize("name", ["run", "bundle"])
def test_an_old_run_and_an_old_bundle_give_the_same_answers(old, name):
    lines = (old / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    run = transformer_jax.load(old / name)
    assert run.predict([e["input"] for e in entries]) == [e["output"] for e in entries]
    found = [reply.score for reply in run.replies([e["input"] for e in entries])]
    assert found == pytest.approx([e["score"] for e in entries], rel=1e-5)


@pytest.mark.parametrize("scan", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_old_run_resumes_with_the_very_next_batch(old, scan, one_device):
    """With the same losses if its layers are scanned from now on, and not before."""
    folder = Folder(old / "run")
    config = folder.config()
    with config.unlocked():
        config.train.steps = 12
        config.model.scan_layers = scan
    assert train(config, folder.path) == 0
    entries = map(json.loads, (folder.path / "metrics.jsonl").read_text().splitlines())
    losses = {e["step"]: e["loss"] for e in entries if e["kind"] == "train"}
    assert [losses[step] for step in range(7, 13)] == pytest.approx(LOSSES, rel=1e-5)
