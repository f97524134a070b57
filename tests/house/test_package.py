"""The package as others get it: a wheel, quick to import, free of TensorFlow."""

import ast
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest

import transformer_jax

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    clean = folder / "checkout"  # a build reuses what an earlier one left behind
    for name in ("transformer_jax", "configs"):
        shutil.copytree(ROOT / name, clean / name)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clean)
    # As a release is made: the wheel is built from the source distribution.
    subprocess.run(
        [sys.executable, "-m", "build", "-no", folder, clean],
        check=True,
        capture_output=True,
    )
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.system
def test_the_wheel_holds_the_package_its_configs_and_its_types(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "transformer_jax"
    for path in package.rglob("*.py"):
        assert str(path.relative_to(ROOT)) in names, path
    for path in package.rglob("entry_points.txt"):
        assert str(path.relative_to(ROOT)) in names, path
    for path in (package / "visualize" / "viewer").glob("page.*"):
        assert str(path.relative_to(ROOT)) in names, path
    for path in (ROOT / "configs").glob("*.py"):
        assert f"transformer_jax/configs/{path.name}" in names
    assert "transformer_jax/py.typed" in names


@pytest.mark.system
def test_a_wheel_trains_outside_the_checkout(wheel, tiny, tmp_path):
    place = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    flags = [f"--config.{k}={v}" for k, v in tiny(train__steps=6).items()]
    code = (
        "import transformer_jax, transformer_jax.models.attention as a, runpy, sys;"
        f"assert transformer_jax.__file__.startswith({str(place)!r});"
        f"assert a.__file__.startswith({str(place)!r});"
        "runpy.run_module('transformer_jax.train', run_name='__main__', alter_sys=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--config=quickstart", "--workdir=run", *flags],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(place), "JAX_NUM_CPU_DEVICES": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "done: run, step 6" in done.stdout
    assert (tmp_path / "run" / "result.json").exists()


@pytest.mark.system
def test_a_notebook_alone_beside_a_wheel_installs_it_and_keeps_jax(wheel, tmp_path):
    place, runtime, others = (tmp_path / n for n in ("alone", "runtime", "others"))
    place.mkdir()
    shutil.copy(ROOT / "notebooks" / "attention.ipynb", place)
    shutil.copy(wheel, place)
    # A runtime with everything but the package, which pip sees as installed.
    subprocess.run([sys.executable, "-m", "venv", runtime], check=True)
    (site,) = runtime.glob("lib/python*/site-packages")
    others.mkdir()
    for path in pathlib.Path(sysconfig.get_path("purelib")).iterdir():
        if "transformer_jax" not in path.name and path.suffix != ".pth":
            (others / path.name).symlink_to(path)
    (site / "others.pth").write_text(str(others))
    given = {"PIP_NO_INDEX": "1", "TRANSFORMER_JAX_NOTEBOOK_SMALL": "1"}
    given |= {"JUPYTER_DATA_DIR": str(tmp_path / "jupyter"), "JAX_NUM_CPU_DEVICES": "1"}
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | given

    def inside(code, *words):
        command = [runtime / "bin" / "python", "-c", code, *words]
        done = subprocess.run(
            command, cwd=place, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    find = "import importlib.util as u; print(u.find_spec('transformer_jax'))"
    assert inside(find).strip() == "None"
    run = "from nbclient.cli import main; main()"
    inside(run, "attention.ipynb", "--output=executed.ipynb")
    assert str(site) in inside(find)
    cells = json.loads((place / "executed.ipynb").read_text())["cells"]
    assert not [cell for cell in cells if cell.get("execution_count", 1) is None]
    added = {path.name.split("-")[0] for path in site.glob("*.dist-info")}
    assert added - {"pip", "setuptools"} == {"transformer_jax"}


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.system
def test_importing_the_package_imports_nothing_heavy():
    heavy = python(
        "import transformer_jax, sys;"
        "print({'jax', 'flax', 'numpy', 'sentencepiece'} & set(sys.modules))"
    )
    assert heavy.strip() == "set()"


@pytest.mark.system
def test_training_imports_neither_tensorflow_nor_torch():
    found = python(
        "import transformer_jax.train, transformer_jax.predict, sys;"
        "print({'tensorflow', 'torch', 'matplotlib'} & set(sys.modules))"
    )
    assert found.strip() == "set()"


@pytest.mark.system
def test_a_typo_on_the_command_line_exits_with_2_before_any_device_is_touched(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "transformer_jax.train", "--config", "quickstart",
         "--config.model.num_head=4", "--workdir", tmp_path / "typo"],
        capture_output=True, text=True,
        # A backend that cannot be had: touching a device would be another error.
        env={**os.environ, "JAX_PLATFORMS": "cuda"},
    )  # fmt: skip
    assert done.returncode == 2
    assert "'model.num_heads'" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "typo").exists()


# What a command prints on stdout is its result; all else goes through loggers.
PRINTS = {
    "__main__.py": 4,  # commands, configs and keys
    "audit.py": 1,  # the report
    "cli.py": 1,  # the text of --help
    "convert/bundle.py": 1,
    "convert/ctranslate2.py": 1,  # what was written, and where
    "convert/exported.py": 1,  # the same
    "convert/onnx.py": 1,  # the same
    "convert/onnx_runner.py": 1,  # the answers
    "convert/page.py": 1,  # the same
    "convert/runner.py": 1,  # the answers
    "convert/huggingface/__main__.py": 2,  # what was written, and where
    "corpora/phrasebook/__main__.py": 5,  # the tour
    "data/tfds.py": 2,  # the config keys to copy
    "data/text/learning.py": 1,  # into the trainer's file of rules
    "evaluate.py": 16,  # the scores, spreads, comparisons and analyses
    "inspect_data.py": 26,  # the report
    "plan.py": 8,  # the plan
    "report/__main__.py": 2,  # the report, or where it was written
    "runs/session.py": 2,  # a conversation on a terminal
    "shards/__main__.py": 1,  # how much is done
    "shards/workers.py": 3,  # the plan, and the answers of a process
    "visualize/__main__.py": 1,  # what can be drawn
    "visualize/flags.py": 2,  # tables of numbers
    "visualize/neighbours.py": 6,  # tables of words
    "visualize/commands.py": 1,  # alignment error rates
}


def test_only_commands_print_and_only_their_results():
    package = ROOT / "transformer_jax"
    found = {}
    for path in package.rglob("*.py"):
        calls = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        ]
        if calls:
            found[path.relative_to(package).as_posix()] = len(calls)
    assert found == PRINTS


def test_the_changelog_has_this_version():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert f"## {transformer_jax.__version__}" in text
    assert transformer_jax.__version__ in (ROOT / "CITATION.cff").read_text()
