"""The recipes of docs/extending.md, followed to the letter in a copy of the package."""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from transformer_jax import cli

ROOT = pathlib.Path(__file__).parents[2]
RECIPES = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")

# Each command of the recipes in one process: what it takes to start one is paid once.
RUN = """
import json, sys

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax import config, load, train

tiny, commands = json.loads(sys.argv[1])
for spec, overrides, workdir in commands:
    known = dict(config.items(config.load(spec)))
    overrides |= {k: v for k, v in tiny.items() if k in known}
    assert train.train(config.load(spec, overrides), workdir) == 0
    print("recipe", workdir)
reverse = load("runs/reverse")
print("reversed", len(reverse.predict(["the girl reads"])))
run = load("runs/averaging")
print("answered", len(run.predict(["ele vê a casa", "um gato"], beams=2)))

module, variables = run.task.objective.module, {"params": run.params}
source, target = (jnp.asarray([[5, 9, 6, 3], [7, 8, 3, 0]]) for _ in range(2))
real = (source != 0).astype(jnp.int32)
whole = module.apply(variables, source, target, real, real).logits
batch = {"source": source, "source_segments": real}
static, state = module.apply(variables, batch, 4, method="start")
steps = []
for t in range(4):
    tokens, places = target[:, None, t : t + 1], jnp.full((2, 1, 1), t)
    logits, state = module.apply(
        variables, tokens, places, static, state, method="extend"
    )
    steps.append(logits[:, 0])
stepped = jnp.concatenate(steps, axis=1)
np.testing.assert_allclose(stepped, whole, rtol=1e-4, atol=1e-5)
print("stepped", stepped.shape[1])
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A copy of the package to which every block of the recipes is applied."""
    place = tmp_path_factory.mktemp("extended")
    for folder in ("transformer_jax", "configs"):
        leave = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, place / folder, ignore=leave)
    for block in re.findall(r"```python\n(.+?)```", RECIPES, re.DOTALL):
        apply(block, place)
    return place


def apply(block, place):
    """Do what the first line says: write a file, or add lines to one that exists."""
    first, rest = block.split("\n", 1)
    path, side, anchor = re.fullmatch(
        r"# ([^ ,]+)(?:, (below|above): (.+))?", first
    ).groups()
    if not anchor:
        assert not (place / path).exists()
        (place / path).parent.mkdir(exist_ok=True)
        (place / path).write_text(rest, encoding="utf-8")
        return
    text = (place / path).read_text(encoding="utf-8")
    assert text.count(f"\n{anchor}\n") == 1, first
    both = f"{anchor}\n{rest}" if side == "below" else f"{rest}{anchor}\n"
    whole = text.replace(f"\n{anchor}\n", f"\n{both}")
    (place / path).write_text(whole, encoding="utf-8")


def commands():
    """The config, the overrides and the run directory of each command."""
    for line in re.findall(r"^python -m transformer_jax.train (.+)$", RECIPES, re.M):
        rest, overrides = cli.split_overrides(shlex.split(line))
        given = dict(word.removeprefix("--").split("=", 1) for word in rest)
        yield given["config"], overrides, given["workdir"]


@pytest.mark.system
def test_every_recipe_trains_and_predicts(extended, tiny):
    asked = list(commands())
    assert len(asked) == 5
    small = tiny(
        train__steps=3, eval__every=6, checkpoint__average=1, model__layers=1,
        optim__warmup_steps=2, data__train_size=20,
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps([small, asked])],
        cwd=extended,
        env={**os.environ, "PYTHONPATH": str(extended), "JAX_NUM_CPU_DEVICES": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert re.findall("^recipe .+", done.stdout, re.M) == [
        f"recipe {workdir}" for *_, workdir in asked
    ]
    for line in ("reversed 1", "answered 2", "stepped 4"):
        assert f"\n{line}\n" in done.stdout
    # Another process, which has imported nothing of the package that the run names.
    code = (
        "import transformer_jax as t; "
        "print(t.load('runs/shouting', allow_imports=True).predict('oi'))"
    )
    place = {"cwd": extended, "capture_output": True, "text": True}
    found = {"PYTHONPATH": str(extended), "JAX_NUM_CPU_DEVICES": "1"}
    again = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **found}, **place
    )
    assert again.returncode == 0, again.stderr
    elsewhere = {**place, "cwd": extended / "transformer_jax"}
    found["PYTHONPATH"] = str(ROOT)
    code = code.replace("runs/", "../runs/")
    lost = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **found}, **elsewhere
    )
    assert "imports 'mypackage.shouting' cannot be imported" in lost.stderr


def test_a_recipe_touches_as_many_files_as_it_says(extended):
    own = {
        path.relative_to(ROOT): path.read_bytes()
        for folder in ("transformer_jax", "configs")
        for path in (ROOT / folder).rglob("*.py")
    }
    changed = {}
    for path in extended.rglob("*.py"):
        name = path.relative_to(extended)
        before = own.get(name, b"").split(b"\n")
        lines = len(path.read_bytes().split(b"\n")) - len(before)
        if path.read_bytes() != own.get(name):
            changed[str(name)] = lines if name in own else "new"
    assert changed == {
        "transformer_jax/models/layers.py": 1,
        "transformer_jax/models/positions.py": 1,
        "transformer_jax/models/registry.py": 1,
        "transformer_jax/tasks/reverse.py": "new",
        "mypackage/shouting.py": "new",
        "configs/shouting.py": "new",
        "configs/reverse.py": "new",
        "transformer_jax/data/reading/sources.py": 2,
        "transformer_jax/data/csv_files.py": "new",
        "transformer_jax/models/averaging.py": "new",
        "configs/averaging.py": "new",
    }


def run(place, *arguments):
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    command = [sys.executable, *arguments]
    options = {"capture_output": True, "text": True, "env": environment}
    return subprocess.run(command, cwd=place, **options)


KEYS = {
    "data.source": "csv",
    "data.train_files": "train.csv",
    "data.validation_files": "validation.csv",
    "data.source_column": "pt",
    "data.target_column": "en",
}


@pytest.mark.system
def test_a_form_made_by_the_recipe_trains(extended, tiny):
    lines = [f'casa {i},"a house, {i}",x' for i in range(40)]
    for split in ("train", "validation"):
        text = "\n".join(["pt,en,id", *lines]) + "\n"
        (extended / f"{split}.csv").write_text(text)
    keys = {**tiny(train__steps=2, eval__every=2, checkpoint__every=2), **KEYS}
    keys |= {"checkpoint.average": 1, "tokenizer.kind": "byte", "optim.warmup_steps": 1}
    given = [f"--config.{key}={value}" for key, value in keys.items()]
    spec = ["--config", "configs/quickstart.py", "--workdir", "run"]
    done = run(extended, "-m", "transformer_jax.train", *spec, *given)
    assert done.returncode == 0, done.stderr
    assert (extended / "run" / "checkpoints" / "2").is_dir()


@pytest.mark.system
def test_a_form_made_by_the_recipe_says_what_is_wrong(extended):
    (extended / "short.csv").write_text("pt,en\ncasa\n")
    for split in ("train", "validation"):
        (extended / f"{split}.csv").write_text('pt,en,id\ncasa,"a house",x\n')
    code = f"""
from transformer_jax import config
from transformer_jax.data.reading.sources import Source
from transformer_jax.base.errors import UserError

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
    done = run(extended, "-c", code)
    assert done.returncode == 0, done.stderr
    for problem in (
        "train.csv has no column 'pr' (data.source_column): it has pt, en, id. Did you",
        "short.csv, line 2 has 1 columns, but line 1 has 2",
        "data.validation_files: there is no file missing.csv",
        "data.target_column is empty: name the column that holds the target",
    ):
        assert problem in done.stdout
