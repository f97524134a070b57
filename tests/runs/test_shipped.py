"""Models that come with the package."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from ml_collections import ConfigDict

import transformer_jax
from transformer_jax import evaluate
from transformer_jax.base.errors import UserError
from transformer_jax.runs import bundle

SHIPPED = bundle.shipped()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_model_is_small_and_says_what_it_is(name):
    files = [path for path in SHIPPED[name].rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 8e6
    for path in files:
        if path.suffix in (".json", ".md"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r'["\s]/\w+/', text), path  # a path of a machine
    card = (SHIPPED[name] / bundle.CARD).read_text(encoding="utf-8")
    assert "CC BY" in card and "BLEU" in card


def test_a_real_sentence_is_translated_by_name():
    run = transformer_jax.load("tatoeba:de_en")
    assert run.predict(["Guten Morgen.", "Das Wasser ist kalt."]) == [
        "Good morning.",
        "The water is cold.",
    ]
    back = transformer_jax.load("tatoeba:en_de")
    assert back.predict("Where is the station?") == "Wo ist der Bahnhof?"


def test_a_name_that_no_model_has_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"Did you mean 'tatoeba:de_en'\? It has "):
        transformer_jax.load("tatoeba:de_fr")


def test_a_bundle_does_not_tell_where_its_data_were(tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    options = json.loads(config.read_text())
    options["data"]["folder"] = "/private/place"
    config.write_text(json.dumps(options))
    bundle.export(transformer_jax.load(tmp_path / "run"), tmp_path / "bundle")
    assert "/private/place" not in (tmp_path / "bundle" / "config.json").read_text()
    assert transformer_jax.load(tmp_path / "bundle").config.data.folder == ""


@pytest.mark.system
def test_a_bundle_is_scored_on_data_whose_folder_is_named(tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    options = json.loads(config.read_text())
    options["data"] |= {"source": "tsv", "test_files": "pairs.tsv", "folder": "/none"}
    options["data"] |= {"source_column": "1", "target_column": "2"}
    config.write_text(json.dumps(options))
    bundle.export(transformer_jax.load(tmp_path / "run"), tmp_path / "bundle")
    (tmp_path / "pairs.tsv").write_text("O gato dorme.\tThe cat sleeps.\n" * 3)

    def score(*more):
        command = ["-m", "transformer_jax.evaluate", f"--workdir={tmp_path / 'bundle'}"]
        return subprocess.run(
            [sys.executable, *command, *more], capture_output=True, text=True
        )

    lost = score("--split=test")
    assert lost.returncode == 2
    assert "does not know where its data are: --config.data.folder=PATH" in lost.stderr
    found = score("--split=test", f"--config.data.folder={tmp_path}")
    assert found.returncode == 0 and "3 examples, " in found.stdout, found.stderr
    twice = score("--source=x", "--reference=y", f"--config.data.folder={tmp_path}")
    assert twice.returncode == 2 and "is for --split" in twice.stderr


def test_a_task_without_files_has_no_folder_to_change(capsys):
    config = ConfigDict({"task": "sets", "data": {}})
    with pytest.raises(SystemExit):
        evaluate.find_data(config, "elsewhere")
    said = capsys.readouterr().err
    assert "--config.data.folder: the task 'sets' reads no files" in said
