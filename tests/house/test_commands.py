"""What the documents name exists: keys, flags, configs, files and modules."""

import functools
import importlib
import pathlib
import re
import runpy

import pytest
from absl import flags

from transformer_jax import (
    audit,
    config,
    evaluate,
    inspect_data,
    plan,
    predict,
    tasks,
    train,
)
from transformer_jax.convert import bundle, ctranslate2, exported, onnx, page
from transformer_jax.convert.huggingface import __main__ as huggingface
from transformer_jax.data import tfds
from transformer_jax.prepare import __main__ as prepare
from transformer_jax.report import __main__ as report
from transformer_jax.serve import __main__ as serve
from transformer_jax.shards import __main__ as shards
from transformer_jax.visualize import flags as drawing
from transformer_jax.visualize import neighbours
from transformer_jax.visualize.viewer import command as viewer

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("[a-z]*/README.md")]
PAGES += ROOT.glob("transformer_jax/family/*/README.md")
DOCUMENTS = [
    *PAGES,
    *ROOT.glob("configs/*.py"),
    *ROOT.glob("notebooks/*.py"),
    ROOT / ".ci" / "run",
]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_key_that_a_document_sets_exists(path):
    known = {
        key for task in tasks.names() for key, _ in config.items(config.base(task))
    }
    named = set(re.findall(r"--config\.([\w.]+)[=`]", path.read_text()))
    named -= {"section.key", "x", "model.num_head"}  # a pattern, and a typo on purpose
    named -= {
        "optim.agreement",
        "optim.largest",
        "log.norms",
        "log.norms_count",
    }  # of recipes
    assert named <= known


@pytest.fixture(scope="module")
def known_flags():
    """The flags of each entry point."""
    found = {}
    modules = (train, evaluate, predict, inspect_data, plan, audit)
    modules += (bundle, ctranslate2, exported, onnx, page, tfds, report, serve)
    modules += (prepare, shards)
    for module in (*modules, drawing, viewer, neighbours, huggingface):
        values = flags.FlagValues()
        with pytest.MonkeyPatch.context() as patch:
            for kind in ("string", "integer", "float", "bool", "multi_string", "list"):
                name = f"DEFINE_{kind}"
                define = functools.partial(getattr(flags, name), flag_values=values)
                patch.setattr(flags, name, define)
            module.define_flags()
        name = module.__name__.removeprefix("transformer_jax.")
        for suffix in (".flags", ".command", ".viewer", ".__main__"):
            name = name.removesuffix(suffix)
        found.setdefault(name, set()).update(values)
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_flag_that_a_document_gives_to_a_module_exists(path, known_flags):
    text = path.read_text().replace("\\\n", " ").replace("\\\\\n", " ")
    for name, rest in re.findall(r"-m transformer_jax\.([\w.]+)([^\n`]*)", text):
        given = set(re.findall(r"--(\w+)(?=[ =]|$)", rest))
        assert given - {"helpfull"} <= known_flags.get(name, set()), name


# Of absl, pip, Sphinx, pytest, pyright, JAX's and Jupyter's commands.
FOREIGN = {"help", "helpfull", "keep-going", "output", "cov", "pythonpath"}
FOREIGN |= {"resolution"}  # of uv


@pytest.fixture(scope="module")
def all_flags(known_flags):
    """The flags of all commands and scripts."""
    found = FOREIGN.union(*known_flags.values())
    for path in [*ROOT.glob("*/*.py"), *ROOT.glob("benchmarks/*.py")]:
        text = path.read_text()
        found.update(re.findall(r"[\"']--(\w+)[\"']", text))
        found.update(re.findall(r"DEFINE_\w+\(\s*\"(\w+)\"", text))
    return found


pages = pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


@pages
def test_every_flag_that_a_page_names_exists(path, all_flags):
    named = set(re.findall(r"(?<![\w-])--([a-z][\w-]*)", path.read_text()))
    named -= {"config", "echo", "gpus"}  # of sacreBLEU and COMET
    named = {n for n in named if not n.startswith("xla_")}
    assert {n for n in named if not {n, n.removeprefix("no")} & all_flags} == set()


def made_by(text):
    """The files that the blocks of a recipe make."""
    return set(re.findall(r"```python\n# ([\w/.]+)\n", text))


@pages
def test_every_config_that_a_page_names_makes_a_config(path):
    text = path.read_text()
    named = set(re.findall(r"configs/(\w+)\.py(?::(\w+))?", text))
    named |= set(re.findall(r"--config[ =](\w+)(?::(\w+))?(?=[\s`]|$)", text))
    for name, variant in named:
        if f"configs/{name}.py" in made_by(text):
            continue
        get_config = runpy.run_path(str(config.shipped()[name]))["get_config"]
        assert get_config(variant) if variant else get_config()


@pages
def test_every_file_that_a_page_names_exists(path):
    rooms = "configs|docs|tests|benchmarks|launch|results|notebooks|transformer_jax"
    named = re.findall(rf"(?<![\w/])((?:{rooms})/[\w./]+\.\w+)", path.read_text())
    named = set(named) - made_by(path.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


@pages
def test_every_module_that_a_page_names_exists(path):
    text = path.read_text()
    named = set(re.findall(r"\btransformer_jax(?:\.\w+)+", text))
    groups = ("forms", "optimizers", "hooks", "figures", "plots")
    named -= {f"transformer_jax.{group}" for group in groups}  # of entry points
    if path.name == "architecture.md":  # which leaves out the package's name
        rooms = "|".join(p.stem for p in (ROOT / "transformer_jax").glob("[a-z]*"))
        short = re.findall(rf"`((?:{rooms})(?:\.\w+)+)`", text)
        short = [name for name in short if not name.endswith((".py", ".txt"))]
        named |= {f"transformer_jax.{name}" for name in short}
        assert len(named) > 10
    made = {name[:-3].replace("/", ".") for name in made_by(text)}
    for name in named - made:
        module, _, member = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), member), name


def test_every_file_that_the_map_names_exists():
    text = (ROOT / "README.md").read_text().split("## The map")[1].split("\n## ")[0]
    rows = [line for line in text.split("\n") if line.startswith("| `")]
    assert len(rows) > 8
    for row in rows:
        folder = ROOT
        for name in re.findall(r"`([\w./]+)`", row.split("|")[1]):
            # `a/b.py`, `c.py` stand side by side
            path = ROOT / name if (ROOT / name).exists() else folder / name
            assert path.exists(), name
            folder = path.parent


def test_the_commands_that_ci_reads_from_the_readme_are_there():
    text = (ROOT / "README.md").read_text()
    for name in ("quickstart", "test"):
        found = re.search(rf"<!-- command: {name} -->\n```\n(.+)\n```", text)
        assert found and found.group(1).startswith("python3 -m venv .venv && ")
    assert "readme_command test" in (ROOT / ".ci" / "run").read_text()
