"""A run notices when its files do not belong together any more."""

import json
import shutil

import pytest

from transformer_jax.base.errors import UserError
from transformer_jax.runs import run as runs
from transformer_jax.runs.folder import Folder


@pytest.fixture
def copy(tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    return Folder(tmp_path / "run")


def test_an_edited_size_is_noticed(copy):
    edited = copy.read("config.json")
    edited["model"]["num_heads"] = 4
    (copy.path / "config.json").write_text(json.dumps(edited))
    with pytest.raises(UserError, match=r"model.num_heads = 2, but config.json has 4"):
        runs.load(copy.path)


def test_another_tokenizer_is_noticed(copy):
    file = max(copy.tokenizer.iterdir(), key=lambda f: f.stat().st_size)
    runs.load(copy.path)
    content = file.read_bytes()
    at = content.rindex(b"a")
    file.write_bytes(content[:at] + b"b" + content[at + 1 :])
    with pytest.raises(UserError, match=rf"another tokenizer/{file.name}"):
        runs.load(copy.path)


def test_a_checkpoint_under_another_number_is_noticed(copy):
    shutil.copytree(copy.checkpoints / "12", copy.checkpoints / "15")
    with pytest.raises(UserError, match="15: it is a copy of step 12"):
        runs.load(copy.path, weights="last")


def test_a_change_that_was_accepted_is_remembered(copy):
    config = copy.config()
    before = config.model.dropout_residual
    with config.unlocked():
        config.model.num_heads, config.model.dropout_residual = 4, 0.3
    copy.note_start(config)
    assert copy.read("versions.json")["earlier_model"]["num_heads"] == [2]
    copy.note_start(config)
    signed = copy.read("versions.json")["earlier_model"]
    assert signed == {"num_heads": [2], "dropout_residual": [before]}
    assert runs.load(copy.path).config.model.num_heads == 4
