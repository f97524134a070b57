"""Names that packages add by entry points: ours, and those of other packages."""

import pathlib
import subprocess
import sys

import pytest

from transformer_jax import config, optim, tasks
from transformer_jax.base import entry_points
from transformer_jax.base.errors import UserError
from transformer_jax.data.reading import sources
from transformer_jax.models import registry

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that installs a package with a module and entry points."""
    monkeypatch.syspath_prepend(tmp_path)

    def add(name, text, module=""):
        about = tmp_path / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n")
        (about / "entry_points.txt").write_text(text)
        (tmp_path / f"{name}.py").write_text(module)
        entry_points._foreign.cache_clear()

    entry_points._foreign.cache_clear()
    yield add
    entry_points._foreign.cache_clear()


def test_every_name_of_this_package_can_be_imported():
    for group in ("tasks", "models", "corpora", "figures", "plots"):
        assert entry_points.names(group), group
        for name in entry_points.names(group):
            assert entry_points.find(group, name) is not None


def test_the_metadata_has_what_the_files_have():
    code = "import setup; print(sum(map(len, setup.entry_points().values())))"
    code = f"import setuptools; setuptools.setup = lambda **_: None; {code}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert int(done.stdout) == sum(map(len, entry_points._own().values())), done.stderr


def test_a_task_of_another_package_is_found_by_its_short_name(install):
    module = (
        "import dataclasses\n"
        "from transformer_jax.tasks import translation\n"
        "TASK = dataclasses.replace(translation.TASK, metrics=('chrf',))\n"
    )
    install("others_a", "[transformer_jax.tasks]\nshouting = others_a:TASK\n", module)
    assert "shouting" in tasks.names()
    assert tasks.find("shouting").metrics == ("chrf",)


def test_forms_and_optimizers_of_another_package_are_choices_with_their_options(
    install,
):
    module = (
        "import dataclasses, optax\n"
        "from transformer_jax.base.schema import option\n"
        "from transformer_jax.data.reading.forms import Tsv\n"
        "from transformer_jax.optim import Optimizer\n"
        "class Csv(Tsv): pass\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Options:\n"
        "    slope: float = option(0.5, 'A slope.', least=0)\n"
        "    turns: int = option(3, 'Turns.', least=1)\n"
        "SLOPED = Optimizer(lambda s: optax.scale(s.slope * s.turns), Options)\n"
    )
    text = "[transformer_jax.forms]\ncsv = others_b:Csv\n"
    text += "[transformer_jax.optimizers]\nsloped = others_b:SLOPED\n"
    install("others_b", text, module)
    assert sources.forms()["csv"].__name__ == "Csv"

    settings = config.load(
        "quickstart", {"optim.name": "sloped", "optim.slope": "0.25"}
    ).optim
    update, _ = optim.find("sloped").make(settings).update(2.0, ())
    assert update == 2.0 * 0.25 * 3
    with pytest.raises(UserError, match=r"optim.turns = 0: must be at least 1"):
        config.load("quickstart", {"optim.name": "sloped", "optim.turns": "0"})


def test_two_packages_with_one_name_are_refused_by_both_places(install):
    install("others_c", "[transformer_jax.tasks]\ntwice = others_c:A\n")
    install("others_d", "[transformer_jax.tasks]\ntwice = others_d:B\n")
    with pytest.raises(UserError, match="twice, others_[cd]:[AB] and others_[cd]:[AB]"):
        tasks.names()


def test_a_name_of_this_package_cannot_be_taken(install):
    install("others_e", "[transformer_jax.models]\ntransformer = others_e:MODEL\n")
    with pytest.raises(UserError, match="transformer_jax.models: transformer"):
        registry.names()


def test_a_broken_entry_point_names_its_package(install):
    install("others_f", "[transformer_jax.tasks]\nlost = others_f:NOTHING\n")
    with pytest.raises(UserError, match="tasks: lost = others_f:NOTHING cannot be"):
        tasks.find("lost")


def test_a_name_that_nobody_has_is_none_or_refused():
    assert entry_points.find("figures", "nothing") is None
    with pytest.raises(UserError, match="no entry point transformer_jax.figures"):
        entry_points.require("figures", "nothing")


def test_old_metadata_of_this_package_is_not_believed(install):
    """A member that was deleted is gone, also before the package is installed again."""
    install("transformer-jax", "[transformer_jax.tasks]\ngone = nowhere:TASK\n")
    assert "gone" not in entry_points.names("tasks")
    install("others_b", "[transformer_jax.tasks]\nthere = nowhere:TASK\n")
    assert "there" in entry_points.names("tasks")
