"""Bundles: all it takes to answer, in one folder; what is wrong with one is said."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

import transformer_jax
from transformer_jax import evaluate, sharding
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
    both = call("convert.bundle", *options, "--int8", "--trained")
    assert both.returncode == 2 and "leave one of the two flags out" in both.stderr
    trained = call("convert.bundle", *options[:1], f"--output={folder}2", "--trained")
    assert trained.returncode == 2 and "has trained all of its" in trained.stderr
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
    with pytest.raises(UserError, match="format 99, and this version reads formats 1"):
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
    assert len(found) == 8
    for path in found:
        most = 0o777 if path.is_dir() else 0o666
        assert path.stat().st_mode & 0o777 == most & ~mask, path


def test_a_stray_file_beside_a_tokenizer_is_not_exported(tiny_run, tmp_path, caplog):
    source = shutil.copytree(tiny_run, tmp_path / "run")
    (source / "tokenizer" / ".DS_Store").touch()
    bundle.export(transformer_jax.load(source), tmp_path / "made")
    assert ".DS_Store is left out: no bundle has such a file" in caplog.text
    transformer_jax.load(tmp_path / "made")


def test_matrices_of_8_bits_are_a_quarter_and_nearly_the_same(tiny_run, tmp_path):
    run = transformer_jax.load(tiny_run)
    bundle.export(run, tmp_path / "whole")
    bundle.export(run, tmp_path / "small", int8=True)
    sizes = [(tmp_path / n / bundle.WEIGHTS).stat().st_size for n in ("whole", "small")]
    assert sizes[1] < sizes[0] / 2  # a tiny model has many biases and scales
    small = transformer_jax.load(tmp_path / "small")
    for (path, found), wanted in zip(
        jax.tree_util.tree_leaves_with_path(small.params),
        jax.tree.leaves(run.params),
        strict=True,
    ):
        name = sharding.path_name(path)
        if wanted.ndim != 2:
            np.testing.assert_array_equal(found, wanted)
            continue
        axis = 0 if name.endswith("kernel") else 1
        largest = np.abs(wanted).max(axis=axis, keepdims=True)
        assert (np.abs(found - wanted) <= largest / 254 * 1.001).all(), name
        assert (np.abs(found).max(axis=axis) > 0).all()
    source, target = LINES[0], "The cat sleeps."
    assert small.score(source, target) == pytest.approx(
        run.score(source, target), rel=0.02
    )


def test_8_bits_without_their_factors_are_refused(tiny_run, tmp_path):
    from safetensors.numpy import load_file, save_file

    bundle.export(transformer_jax.load(tiny_run), tmp_path / "made", int8=True)
    path = tmp_path / "made" / bundle.WEIGHTS
    found = load_file(path)
    name = next(name for name in found if name.endswith(bundle.SCALE))
    for damage in (None, found[name].ravel()[:2].reshape(2, 1)):
        changed = {k: v for k, v in found.items() if k != name}
        save_file(changed | ({} if damage is None else {name: damage}), path)
        manifest = json.loads((tmp_path / "made" / "bundle.json").read_text())
        manifest["files"][bundle.WEIGHTS] = bundle._hash(path)
        (tmp_path / "made" / "bundle.json").write_text(json.dumps(manifest))
        with pytest.raises(UserError, match="as I8, not F32 or BF16 or F16"):
            transformer_jax.load(tmp_path / "made")


def test_a_card_says_what_the_run_is_and_goes_with_it(tiny_run, exported):
    text = (tiny_run / "card.md").read_text()
    assert text == (exported / "card.md").read_text()
    for words in (
        "| task | translation |",
        "| weights | averaged parameters of step 12 |",
        "Not described: the option `card` of its config",
        "- `data.source`: phrasebook",
        "- train: 80 of 80 examples",
    ):
        assert words in text
    assert "## Scores" in text


def test_a_name_that_no_model_of_the_package_has_is_refused():
    with pytest.raises(UserError, match="no model 'tatoeba:xx' in this package"):
        transformer_jax.load("tatoeba:xx")


@pytest.mark.system
def test_a_card_names_the_step_of_the_parameters_that_answer(tiny_run_of):
    changes = {"eval.weights": "best", "eval.every": "3", "optim.learning_rate": "50.0"}
    run = transformer_jax.load(folder := tiny_run_of("quickstart", **changes))
    assert run.step < 12  # at such a rate it only gets worse
    text = (folder / "card.md").read_text()
    assert f"| weights | best parameters of step {run.step} |" in text
