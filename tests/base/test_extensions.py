"""Modules that a run names: imported at the user's word, never from inside the run."""

import json
import os
import subprocess
import sys

import pytest

import transformer_jax
from transformer_jax import config
from transformer_jax.base import extensions
from transformer_jax.base.errors import UserError
from transformer_jax.runs import bundle

HELPER = '# transformer_jax\nimport pathlib\npathlib.Path("EXECUTED").touch()\n'


@pytest.fixture
def exported(tiny_run, tmp_path, monkeypatch):
    """A bundle in the current folder, in which Python looks for modules first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(extensions, "_imported", set())
    bundle.export(transformer_jax.load(tiny_run), tmp_path / "mybundle")
    return tmp_path / "mybundle"


def name_modules(folder, **changes):
    """Name modules in a config, as a stranger can, with a manifest that agrees."""
    path = folder / "config.json"
    stored = json.loads(path.read_text())
    for key, value in changes.items():
        section, _, last = key.rpartition("__")
        (stored[section] if section else stored)[last] = value
    path.write_text(json.dumps(stored))
    manifest = folder / bundle.MANIFEST
    if manifest.exists():
        about = json.loads(manifest.read_text())
        files = [p for p in folder.rglob("*") if p.is_file() and p != manifest]
        about["files"] = {str(p.relative_to(folder)): bundle._hash(p) for p in files}
        manifest.write_text(json.dumps(about))


def predict(*words):
    done = subprocess.run(
        [sys.executable, "-m", "transformer_jax.predict", *words],
        input="O gato dorme.\n",
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.path.dirname(config.__path__[0]) + "/.."},
    )
    return done.returncode, done.stderr


def test_a_program_in_a_bundle_is_not_executed(exported, tmp_path):
    (exported / "tokenizer" / "helper.py").write_text(HELPER)
    name_modules(exported, imports=["mybundle.tokenizer.helper"])
    with pytest.raises(UserError, match=r"names 'tokenizer/helper.py': no bundle has"):
        transformer_jax.load("mybundle", allow_imports=True)
    code, said = predict("--workdir=mybundle", "--allow_imports")
    assert code == 2 and "no bundle has that" in said
    assert not (tmp_path / "EXECUTED").exists()


NAMES = {
    "an import": {"imports": ["myrun.helper"]},
    "a model": {"model__name": "myrun.helper"},
    "a task": {"task": "myrun.helper"},
    "by another way": {"imports": ["link.helper"]},
}


@pytest.mark.parametrize("named", NAMES)
def test_a_program_in_a_run_is_not_executed(exported, tiny_run, tmp_path, named):
    (tmp_path / "link").symlink_to("myrun")
    run = tmp_path / "myrun"
    run.mkdir()
    for name in ("config.json", "tokenizer", "checkpoints", "averaged", "result.json"):
        (run / name).symlink_to(tiny_run / name)
    (run / "config.json").unlink()
    (run / "config.json").write_bytes((tiny_run / "config.json").read_bytes())
    (run / "helper.py").write_text(HELPER)
    name_modules(run, **NAMES[named])
    with pytest.raises(UserError, match="lies in the run itself .*no file of a run is"):
        transformer_jax.load("myrun", allow_imports=True)
    assert not (tmp_path / "EXECUTED").exists()


@pytest.mark.system
def test_a_program_in_a_run_is_not_executed_by_a_command(exported, tmp_path):
    (exported / bundle.MANIFEST).unlink()
    (exported / bundle.WEIGHTS).unlink()  # then it is a run
    (exported / "tokenizer" / "helper.py").write_text(HELPER)
    name_modules(exported, imports=["mybundle.tokenizer.helper"])
    for words in ((), ("--allow_imports",)):
        code, said = predict("--workdir=mybundle", *words)
        assert code == 2 and "lies in the run itself" in said
    assert not (tmp_path / "EXECUTED").exists()


@pytest.mark.parametrize("key", ["imports", "model__name", "task"])
def test_a_dotted_name_does_not_import_what_is_before_the_dot(exported, tmp_path, key):
    (tmp_path / "cleanup.py").write_text(HELPER)
    named = "cleanup.x"
    name_modules(exported, **{key: [named] if key == "imports" else named})
    for allowed, why in ((False, "executed: cleanup.x"), (True, "no module cleanup.x")):
        with pytest.raises(UserError, match=why):
            transformer_jax.load(exported, allow_imports=allowed)
    assert not (tmp_path / "EXECUTED").exists()
    assert "cleanup" not in sys.modules


@pytest.mark.system
def test_a_module_is_imported_with_consent_only(exported, tmp_path, monkeypatch):
    package = tmp_path / "theirs" / "inner"  # packages without an __init__.py
    package.mkdir(parents=True)
    (package / "more.py").write_text(HELPER)
    name_modules(exported, imports=["theirs.inner.more"])
    with pytest.raises(UserError) as caught:
        transformer_jax.load(exported)
    assert str(caught.value) == (
        f"{exported / 'config.json'} names modules of other packages, and their code "
        "would be executed: theirs.inner.more. If you trust it, consent with "
        "--allow_imports, or in Python load(…, allow_imports=True)"
    )
    assert predict("--workdir=mybundle")[0] == 2
    assert not (tmp_path / "EXECUTED").exists()
    code, said = predict("--workdir=mybundle", "--allow_imports")
    assert code == 0, said
    (tmp_path / "EXECUTED").unlink()
    transformer_jax.load(exported, allow_imports=True)
    assert (tmp_path / "EXECUTED").exists()
    transformer_jax.load(exported)  # it is there already


def test_a_config_of_the_user_is_consent(exported, tmp_path):
    (tmp_path / "mine.py").write_text(HELPER)
    name_modules(exported, imports=["mine"])
    config.load("quickstart", {"imports": "mine"})
    assert (tmp_path / "EXECUTED").exists()
    transformer_jax.load(exported)


@pytest.mark.parametrize("name", ["", ".", "a..b", "..x", "os.path.x", "sys", "a b"])
def test_what_is_no_module_of_another_package_is_refused(name):
    with pytest.raises(UserError, match="cannot be imported"):
        extensions.load(name, "imports:")
