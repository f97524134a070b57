"""A member of the family can leave: nothing else breaks, and it works as a package."""

import configparser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from installing import write_metadata

ROOT = pathlib.Path(__file__).parents[2]
# With a model, with the only arrays that are no tokens, and with rules of sharding.
GONE = ("tagging", "coordinates", "decisions")

IMPORT_ALL = """
import importlib, pathlib, sys

import transformer_jax
from transformer_jax import config, tasks

package = pathlib.Path(transformer_jax.__file__).parent
for path in sorted(package.rglob("*.py")):
    parts = path.relative_to(package.parent).with_suffix("").parts
    if "configs" not in parts and "__main__" not in parts:
        importlib.import_module(".".join(parts).removesuffix(".__init__"))
for name in config.shipped():
    config.load(name, data=False)
print("tasks", *tasks.names())
"""

TRAIN = """
import json, sys

from transformer_jax import config, load, train

spec, small, line = json.loads(sys.argv[1])
known = dict(config.items(config.load(spec)))
small = {name: value for name, value in small.items() if name in known}
assert train.train(config.load(spec, small), "run") == 0
print("answered", len(load("run").predict([line])))
"""


def copy_without(place, gone):
    """Copy the package without some members of the family and their configs."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("transformer_jax", "configs"):
        shutil.copytree(ROOT / name, place / name, ignore=ignore)
    for name in gone:
        shutil.rmtree(place / "transformer_jax" / "family" / name)
        (place / "configs" / f"{name}.py").unlink()


def run_in(place, *arguments, path=()):
    paths = os.pathsep.join(map(str, [*path, place]))
    known = {**os.environ, "PYTHONPATH": paths, "JAX_NUM_CPU_DEVICES": "1"}
    options = {"capture_output": True, "text": True, "env": known, "cwd": place}
    return subprocess.run([sys.executable, *arguments], **options)


@pytest.mark.system
def test_without_three_members_all_else_works(tmp_path, tiny):
    copy_without(tmp_path, GONE)
    done = run_in(tmp_path, "-c", IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    left = set(done.stdout.splitlines()[-1].split()[1:])
    assert not left & set(GONE)
    assert {"translation", "language", "images", "similarity"} <= left
    asked = json.dumps(["quickstart", tiny(), "a casa"])
    done = run_in(tmp_path, "-c", TRAIN, asked)
    assert done.returncode == 0, done.stderr
    assert "answered 1" in done.stdout


@pytest.mark.system
def test_without_three_members_no_other_test_is_lost(tmp_path):
    copy_without(tmp_path, GONE)
    of_documents = ("house", "test_notebooks.py")
    ignore = shutil.ignore_patterns("__pycache__", *of_documents, *GONE)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    options = ("--collect-only", "-q", "-n0", "-m", "not house")
    done = run_in(tmp_path, "-m", "pytest", "tests", *options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert int(re.search(r"(\d+)(/\d+)? tests collected", done.stdout)[1]) > 2000


@pytest.mark.system
def test_a_member_works_as_a_package_of_its_own(tmp_path, tiny):
    copy_without(tmp_path, ["similarity"])
    shutil.copy(ROOT / "configs" / "similarity.py", tmp_path / "configs")
    place = tmp_path / "elsewhere"
    member = ROOT / "transformer_jax" / "family" / "similarity"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(member, place / "sentences", ignore=ignore)
    for path in [*place.rglob("*.py"), *place.rglob("*.txt")]:
        text = path.read_text(encoding="utf-8")
        renamed = text.replace("transformer_jax.family.similarity", "sentences")
        path.write_text(renamed, encoding="utf-8")
    names = configparser.ConfigParser(delimiters="=")
    names.read(place / "sentences" / "entry_points.txt")
    write_metadata(place, "sentences", {g: dict(names[g]) for g in names.sections()})
    asked = json.dumps(["similarity", tiny(), "the girl reads\tthe girl reads a book"])
    lost = run_in(tmp_path, "-c", TRAIN, asked)
    assert "unknown task 'similarity'" in lost.stderr
    done = run_in(tmp_path, "-c", TRAIN, asked, path=[place])
    assert done.returncode == 0, done.stderr
    assert "answered 1" in done.stdout
