"""What the documents say exists: keys, flags, files and the commands that CI runs."""

import functools
import pathlib
import re

import pytest
from absl import flags

from transformer_jax import config, evaluate, inspect_data, predict, tasks, train
from transformer_jax.convert import bundle, ctranslate2

ROOT = pathlib.Path(__file__).parent.parent
DOCUMENTS = [
    *ROOT.glob("*.md"),
    *ROOT.glob("*/README.md"),
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
    assert named <= known


@pytest.fixture(scope="module")
def known_flags():
    """The flags of each entry point."""
    found = {}
    for module in (train, evaluate, predict, inspect_data, bundle, ctranslate2):
        values = flags.FlagValues()
        with pytest.MonkeyPatch.context() as patch:
            for kind in ("string", "integer", "float", "bool"):
                name = f"DEFINE_{kind}"
                define = functools.partial(getattr(flags, name), flag_values=values)
                patch.setattr(flags, name, define)
            module.define_flags()
        found[module.__name__.removeprefix("transformer_jax.")] = set(values)
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_flag_that_a_document_gives_to_a_module_exists(path, known_flags):
    text = path.read_text().replace("\\\n", " ").replace("\\\\\n", " ")
    for name, rest in re.findall(r"-m transformer_jax\.([\w.]+)([^\n`]*)", text):
        given = set(re.findall(r"--(\w+)(?=[ =]|$)", rest))
        assert given <= known_flags.get(name, set()), name


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
