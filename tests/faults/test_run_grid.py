"""Every file of a run, damaged in every way: the same answers, or one line."""

import json
import os
import shutil

import jax
import numpy as np
import pytest

from transformer_jax import load
from transformer_jax.base.errors import UserError


@pytest.fixture(scope="module")
def sound(tiny_run):
    return load(tiny_run)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


DAMAGE = {
    "a flipped bit": flip,
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: path.write_bytes(b""),
    "deleted": lambda path: path.unlink(),
    "another type": lambda path: path.write_text('{"a": [3]}'),
    "not text": lambda path: path.write_bytes(b"\xff\xfe\0\xd8"),
}
READ = ("config.json", "versions.json", "tokenizer", "averaged")


def files_of(run):
    """List the files that `load` may read: all but the training's own checkpoints."""
    found = [p.relative_to(run) for p in run.rglob("*") if p.is_file()]
    return sorted(str(p) for p in found if p.parts[0] in READ)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_gives_the_same_parameters_or_one_line(
    tiny_run, sound, tmp_path, damage
):
    outcomes = {name: outcome_of(tiny_run, tmp_path, name, damage, sound)
                for name in files_of(tiny_run)}  # fmt: skip
    assert set(outcomes.values()) <= {"the same", "refused"}, outcomes
    assert "refused" in outcomes.values()


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["config.json", "versions.json"])
def test_damage_to_a_small_file_gives_the_same_parameters_or_one_line(
    tiny_run, sound, tmp_path, name, damage
):
    assert outcome_of(tiny_run, tmp_path, name, damage, sound) in (
        "the same",
        "refused",
    )


def outcome_of(run, tmp_path, name, damage, sound):
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    DAMAGE[damage](copy / name)
    try:
        found = load(copy)
    except UserError as error:
        return "refused" if all("\n" not in p for p in error.problems) else str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    same = jax.tree.map(np.array_equal, found.params, sound.params)
    answers = json.dumps(found.config.model.to_dict(), default=str)
    asked = json.dumps(sound.config.model.to_dict(), default=str)
    return "the same" if all(jax.tree.leaves(same)) and answers == asked else "other"
