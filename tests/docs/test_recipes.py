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
run = load(workdir)
print("answered", len(run.predict(["ele vê a casa", "um gato"], beams=2)))

module, variables = run.task.module, {"params": run.params}
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
    """Do what the first line says: write a file, or add lines below a line of one."""
    first, rest = block.split("\n", 1)
    path, _, anchor = first.removeprefix("# ").partition(", below: ")
    if not anchor:
        assert not (place / path).exists()
        (place / path).write_text(rest, encoding="utf-8")
        return
    text = (place / path).read_text(encoding="utf-8")
    assert text.count(f"\n{anchor}\n") == 1, first
    whole = text.replace(f"\n{anchor}\n", f"\n{anchor}\n{rest}")
    (place / path).write_text(whole, encoding="utf-8")


def commands():
    """The config, the overrides and the run directory of each command."""
    for line in re.findall(r"^python -m transformer_jax.train (.+)$", RECIPES, re.M):
        rest, overrides = cli.split_overrides(shlex.split(line))
        given = dict(word.removeprefix("--").split("=", 1) for word in rest)
        yield given["config"], overrides, given["workdir"]


def test_every_recipe_trains_and_predicts(extended, tiny):
    asked = list(commands())
    assert len(asked) == 3
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
    assert "answered 2" in done.stdout and "stepped 4" in done.stdout


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
        "transformer_jax/models/averaging.py": "new",
        "configs/averaging.py": "new",
    }
