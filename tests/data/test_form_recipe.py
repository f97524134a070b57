"""The recipe for a data form, followed to the letter: the form trains a model."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
RECIPE = (ROOT / "docs" / "extending_data.md").read_text()
EDIT = re.compile(
    r"```python\n# ([\w/.]+)(?:, (above|below) `([^\n]+)`)?\n(.*?)```", re.S
)


def follow(recipe, root):
    """Write the files of a recipe and insert its lines; return the files' names."""
    touched = set()
    for name, side, anchor, code in EDIT.findall(recipe):
        path = root / name
        if anchor:
            text = path.read_text()
            assert text.count(anchor + "\n") == 1, anchor
            both = code + anchor if side == "above" else anchor + "\n" + code[:-1]
            code = text.replace(anchor, both)
        path.write_text(code)
        touched.add(name)
    return touched


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package with the form, and two corpora in that form."""
    root = tmp_path_factory.mktemp("recipe")
    copy = root / "transformer_jax"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "transformer_jax", copy, ignore=ignored)
    assert len(follow(RECIPE, root)) == 2
    lines = [f'casa {i},"a house, {i}",x' for i in range(40)]
    for split in ("train", "validation"):
        (root / f"{split}.csv").write_text("\n".join(["pt,en,id", *lines]) + "\n")
    return root


def run(package, *arguments):
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    command = [sys.executable, *arguments]
    options = {"capture_output": True, "text": True, "env": environment}
    return subprocess.run(command, cwd=package, **options)


KEYS = {
    "data.source": "csv",
    "data.train_files": "train.csv",
    "data.validation_files": "validation.csv",
    "data.source_column": "pt",
    "data.target_column": "en",
}


def test_a_form_made_by_the_recipe_trains(package, tiny):
    keys = {**tiny(train__steps=2, eval__every=2, checkpoint__every=2), **KEYS}
    keys |= {"checkpoint.average": 1, "tokenizer.kind": "byte", "optim.warmup_steps": 1}
    given = [f"--config.{key}={value}" for key, value in keys.items()]
    spec = ["--config", str(ROOT / "configs" / "quickstart.py"), "--workdir", "run"]
    done = run(package, "-m", "transformer_jax.train", *spec, *given)
    assert done.returncode == 0, done.stderr
    assert (package / "run" / "checkpoints" / "2").is_dir()


def test_a_form_made_by_the_recipe_says_what_is_wrong(package):
    (package / "short.csv").write_text("pt,en\ncasa\n")
    code = f"""
from transformer_jax import config
from transformer_jax.data.sources import Source
from transformer_jax.errors import UserError

def problem(**keys):
    data = config.base().data
    data.update({{**{{k[5:]: v for k, v in {KEYS}.items()}}, **keys}})
    try:
        list(Source(data).read("train"))
    except UserError as error:
        print(error)
    print(*Source(data).find_problems(), sep="\\n")

problem()
problem(source_column="pr")
problem(train_files="short.csv")
problem(validation_files="missing.csv", target_column="")
"""
    done = run(package, "-c", code)
    assert done.returncode == 0, done.stderr
    for problem in (
        "train.csv has no column 'pr' (data.source_column): it has pt, en, id. Did you",
        "short.csv, line 2 has 1 columns, but line 1 has 2",
        "data.validation_files: there is no file missing.csv",
        "data.target_column is empty: name the column that holds the target",
    ):
        assert problem in done.stdout
