"""Bundles: all it takes to answer, in one folder; what is wrong with one is said."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import transformer_jax
from transformer_jax import evaluate
from transformer_jax.base.errors import UserError
from transformer_jax.runs import bundle
from transformer_jax.runs.folder import Folder

LINES = ["O gato dorme.", "A menina não leu o livro."]


@pytest.fixture(scope="module")
def exported(tiny_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle") / "first"
    bundle.export(transformer_jax.load(tiny_run), folder)
    return folder


@pytest.fixture
def copy(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "copy")


def make_folder(path):
    path.unlink()
    path.mkdir()


def test_a_bundle_that_was_moved_answers_like_its_run(copy, tiny_run):
    run, alone = transformer_jax.load(tiny_run), transformer_jax.load(copy)
    assert run.predict(LINES) == alone.predict(LINES)
    scores = [[r.score for r in one.replies(LINES)] for one in (run, alone)]
    assert scores[0] == scores[1]
    assert (alone.step, alone.weights) == (run.step, run.weights)
    assert not (copy / "checkpoints").exists()


@pytest.mark.parametrize("damage", [pathlib.Path.unlink, make_folder])
def test_a_run_without_its_versions_is_exported_with_a_warning(
    damage, tiny_run, tmp_path, caplog
):
    source = shutil.copytree(tiny_run, tmp_path / "run")
    damage(source / "versions.json")
    bundle.export(transformer_jax.load(source), tmp_path / "made")
    assert "versions.json is missing: the bundle has none" in caplog.text
    alone = transformer_jax.load(tmp_path / "made")
    assert alone.predict(LINES) == transformer_jax.load(tiny_run).predict(LINES)


def test_scores_are_not_kept_in_a_bundle_which_would_be_damaged(copy):
    evaluate.keep_scores(Folder(copy), "test", {"bleu": 1.0})
    bundle.check(copy)


@pytest.mark.system
def test_the_commands_make_and_take_it(tiny_run, tmp_path):
    folder = tmp_path / "made"
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}

    def call(module, *options, **more):
        return subprocess.run(
            [sys.executable, "-m", f"transformer_jax.{module}", *options],
            capture_output=True, text=True, env=environment, timeout=120, **more,
        )  # fmt: skip

    options = [f"--workdir={tiny_run}", f"--output={folder}"]
    made = call("convert.bundle", *options)
    assert made.returncode == 0 and "exported   averaged" in made.stdout, made.stderr
    again = call("convert.bundle", *options)
    assert again.returncode == 2 and "exists: name a new folder" in again.stderr
    answered = call("predict", f"--workdir={folder}", input="O gato dorme.\n")
    assert answered.returncode == 0, answered.stderr
    assert (
        answered.stdout == transformer_jax.load(tiny_run).predict(LINES[:1])[0] + "\n"
    )


@pytest.mark.parametrize("name", ["weights.safetensors", "config.json"])
def test_a_flipped_bit_is_noticed(copy, name):
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name} is not what was exported \(damaged"):
        transformer_jax.load(copy)


def test_a_missing_file_and_another_tokenizer_are_both_named(copy):
    (copy / "versions.json").unlink()
    model = copy / "tokenizer" / "shared.model"
    model.write_bytes(model.read_bytes() + b"\0")
    with pytest.raises(UserError) as caught:
        transformer_jax.load(copy)
    first, second = sorted(caught.value.problems)
    assert "shared.model is not what was exported (another tokenizer" in first
    assert "versions.json is missing" in second


def test_a_bundle_of_another_format_or_with_a_broken_manifest_is_refused(copy):
    manifest = copy / "bundle.json"
    about = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**about, "format": 99}))
    with pytest.raises(UserError, match="format 99, and this version reads format 1"):
        transformer_jax.load(copy)
    manifest.write_text("{")
    with pytest.raises(UserError, match="bundle.json cannot be read"):
        transformer_jax.load(copy)


def test_a_bundle_has_no_other_weights_to_choose(copy):
    with pytest.raises(UserError, match="bundle of averaged parameters: it has no oth"):
        transformer_jax.load(copy, "last")


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_another_user_can_read_a_bundle_if_the_umask_lets_him(tiny_run, tmp_path, mask):
    run, before = transformer_jax.load(tiny_run), os.umask(mask)
    try:
        bundle.export(run, tmp_path / "made")
    finally:
        os.umask(before)
    found = [tmp_path / "made", *(tmp_path / "made").rglob("*")]
    assert len(found) == 7
    for path in found:
        most = 0o777 if path.is_dir() else 0o666
        assert path.stat().st_mode & 0o777 == most & ~mask, path


def test_a_stray_file_beside_a_tokenizer_is_not_exported(tiny_run, tmp_path, caplog):
    source = shutil.copytree(tiny_run, tmp_path / "run")
    (source / "tokenizer" / ".DS_Store").touch()
    bundle.export(transformer_jax.load(source), tmp_path / "made")
    assert ".DS_Store is left out: no bundle has such a file" in caplog.text
    transformer_jax.load(tmp_path / "made")
