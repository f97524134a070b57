"""The recipes of docs/extending.md, followed to the letter outside of the package."""

import importlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib
import types

import jax
import jax.numpy as jnp
import optax
import pytest
from installing import write_metadata

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
forecast = load("runs/forecast")
print("forecast", len(forecast.predict([" ".join(["0.5"] * 20), "0.5"])))

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
    """The package of the recipes, installed in a folder outside of this one."""
    place = tmp_path_factory.mktemp("extended")
    for block in re.findall(r"```(?:python|toml)\n(.+?)```", RECIPES, re.DOTALL):
        first, rest = block.split("\n", 1)
        path = place / first.removeprefix("# ")
        assert not path.exists(), first
        path.parent.mkdir(exist_ok=True)
        path.write_text(rest, encoding="utf-8")
    project = tomllib.loads((place / "pyproject.toml").read_text())["project"]
    write_metadata(place, project["name"], project["entry-points"], project["version"])
    return place


def commands():
    """The config, the overrides and the run directory of each command."""
    joined = RECIPES.replace("\\\n", "")
    for line in re.findall(r"^python -m transformer_jax.train (.+)$", joined, re.M):
        rest, overrides = cli.split_overrides(shlex.split(line))
        given = dict(word.removeprefix("--").split("=", 1) for word in rest)
        yield given["config"], overrides, given["workdir"]


@pytest.mark.system
def test_every_recipe_trains_and_predicts(extended, tiny):
    asked = list(commands())
    assert len(asked) == 7
    small = tiny(
        train__steps=3, eval__every=6, checkpoint__average=1, model__layers=1,
        optim__warmup_steps=2, data__train_size=20,
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps([small, asked])],
        cwd=extended,
        env={
            **os.environ,
            "PYTHONPATH": f"{extended}:{ROOT}",
            "JAX_NUM_CPU_DEVICES": "1",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert re.findall("^recipe .+", done.stdout, re.M) == [
        f"recipe {workdir}" for *_, workdir in asked
    ]
    for line in ("reversed 1", "answered 2", "forecast 2", "stepped 4"):
        assert f"\n{line}\n" in done.stdout
    written = (extended / "runs" / "norms" / "norms.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in written]
    assert [line["step"] for line in lines] == [3]
    assert len(lines[0]) == 3  # two parameters, as the command says
    drawn = run(
        extended, "-m", "transformer_jax.visualize", "forecast",
        "--workdir=runs/forecast", "--output=forecast.png",
    )  # fmt: skip
    assert drawn.returncode == 0, drawn.stderr
    assert (extended / "forecast.png").exists()
    # Another process, which has imported nothing of the package that the run names.
    code = (
        "import transformer_jax as t; "
        "print(t.load('runs/shouting', allow_imports=True).predict('oi'))"
    )
    place = {"cwd": extended, "capture_output": True, "text": True}
    found = {"PYTHONPATH": f"{extended}:{ROOT}", "JAX_NUM_CPU_DEVICES": "1"}
    again = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **found}, **place
    )
    assert again.returncode == 0, again.stderr
    elsewhere = {**place, "cwd": extended / "configs"}
    found["PYTHONPATH"] = str(ROOT)
    code = code.replace("runs/", "../runs/")
    lost = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **found}, **elsewhere
    )
    assert "imports 'mypackage.shouting' cannot be imported" in lost.stderr


def test_the_recipes_touch_no_file_of_this_package(extended):
    made = [*extended.rglob("*.py"), *extended.glob("*.toml")]
    assert {path.relative_to(extended).as_posix() for path in made} == {
        "pyproject.toml",
        "mypackage/averaging.py",
        "mypackage/bars.py",
        "mypackage/cautious.py",
        "mypackage/forecast.py",
        "mypackage/forecast_figure.py",
        "mypackage/gentle.py",
        "mypackage/norms.py",
        "mypackage/reverse.py",
        "mypackage/shouting.py",
        "configs/averaging.py",
        "configs/forecast.py",
        "configs/reverse.py",
        "configs/shouting.py",
    }


def test_gradients_are_changed_as_the_recipe_says(extended, monkeypatch):
    """An optimizer changes gradients by their size and by the step, purely."""
    monkeypatch.syspath_prepend(extended)
    gentle = importlib.import_module("mypackage.gentle")
    settings = {"beta1": 0.0, "beta2": 0.5, "epsilon": 1e-9, "largest": 0.5}
    gradients = {"large": jnp.full((2, 3), 7.0), "small": jnp.array([0.1, -0.2])}
    with monkeypatch.context() as patch:
        patch.setattr(optax, "scale_by_adam", lambda *_: optax.identity())
        plain, noisy = (
            gentle.make(types.SimpleNamespace(**settings, noise=noise))
            for noise in (0.0, 0.01)
        )
    found, _ = plain.update(gradients, plain.init(gradients), gradients)
    assert optax.tree.norm(found["large"]) == pytest.approx(0.5)
    assert (found["small"] == gradients["small"]).all()
    state = noisy.init(gradients)
    deviations = []
    for _ in range(3):
        again, _ = noisy.update(gradients, state, gradients)
        blurred, state = noisy.update(gradients, state, gradients)
        assert jax.tree.all(jax.tree.map(jnp.array_equal, again, blurred))
        deviations.append(float(blurred["small"][0] - found["small"][0]))
    assert len(set(deviations)) == 3 and all(0 < abs(d) < 0.05 for d in deviations)


def run(place, *arguments):
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    environment["PYTHONPATH"] = f"{place}:{ROOT}"
    command = [sys.executable, *arguments]
    options = {"capture_output": True, "text": True, "env": environment}
    return subprocess.run(command, cwd=place, **options)


KEYS = {
    "data.source": "bars",
    "data.train_files": "train.bars",
    "data.validation_files": "validation.bars",
    "data.source_column": "pt",
    "data.target_column": "en",
}


@pytest.mark.system
def test_a_form_made_by_the_recipe_trains(extended, tiny):
    lines = [f"casa {i} ||| a house, {i} ||| x" for i in range(40)]
    for split in ("train", "validation"):
        text = "\n".join(["pt ||| en ||| id", *lines]) + "\n"
        (extended / f"{split}.bars").write_text(text)
    keys = {**tiny(train__steps=2, eval__every=2, checkpoint__every=2), **KEYS}
    keys |= {"checkpoint.average": 1, "tokenizer.kind": "byte", "optim.warmup_steps": 1}
    given = [f"--config.{key}={value}" for key, value in keys.items()]
    spec = ["--config", "quickstart", "--workdir", "run"]
    done = run(extended, "-m", "transformer_jax.train", *spec, *given)
    assert done.returncode == 0, done.stderr
    assert (extended / "run" / "checkpoints" / "2").is_dir()


@pytest.mark.system
def test_a_form_made_by_the_recipe_says_what_is_wrong(extended):
    (extended / "short.bars").write_text("pt ||| en\ncasa\n")
    for split in ("train", "validation"):
        (extended / f"{split}.bars").write_text(
            "pt ||| en ||| id\ncasa ||| a house ||| x\n"
        )
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
problem(train_files="short.bars")
problem(validation_files="missing.bars", target_column="")
"""
    done = run(extended, "-c", code)
    assert done.returncode == 0, done.stderr
    for problem in (
        "train.bars has no column 'pr' (data.source_column): it has pt, en, id. Did",
        "short.bars, line 2 has 1 columns, but line 1 has 2",
        "data.validation_files: there is no file missing.bars",
        "data.target_column is empty: name the column that holds the target",
    ):
        assert problem in done.stdout
