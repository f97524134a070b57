"""The files for containers: what they name exists, and what they build is whole."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
from absl import flags

from transformer_jax.serve import __main__ as serve

ROOT = pathlib.Path(__file__).parents[2]
SERVICE = ROOT / "launch" / "service"


def instructions(name):
    text = (SERVICE / "Dockerfile").read_text(encoding="utf-8")
    return re.findall(rf"^{name} (.+)$", text, re.MULTILINE)


def check_flags(words):
    """Parse words as the command does."""
    known = flags.FlagValues()
    defined = {}
    for kind in ("string", "multi_string", "integer", "float", "bool"):
        name = f"DEFINE_{kind}"
        defined[name] = getattr(flags, name)
    with pytest.MonkeyPatch.context() as patch:
        for name, define in defined.items():
            patch.setattr(
                flags,
                name,
                lambda *a, define=define, **k: define(*a, flag_values=known, **k),
            )
        serve.define_flags()
    known(["serve", *words])
    return known


def test_the_dockerfile_starts_the_service_with_flags_that_exist():
    [entry] = map(json.loads, instructions("ENTRYPOINT"))
    [usual] = map(json.loads, instructions("CMD"))
    assert entry[:3] == ["python", "-m", "transformer_jax.serve"]
    given = check_flags([*entry[3:], *usual])
    assert given.host == "0.0.0.0" and given.workdir == ["/model"]
    assert instructions("USER") == ["65534:65534"]


@pytest.mark.parametrize("name", ["compose.yaml", "kubernetes.yaml"])
def test_the_manifests_give_flags_that_exist(name):
    text = (SERVICE / name).read_text(encoding="utf-8")
    [words] = re.findall(r"(?:command|args): (\[.+\])", text)
    given = check_flags(json.loads(words))
    assert given.workdir == ["/model"] and given.token_file
    for path in re.findall(r"path: (/\w+z)", text):
        assert path in ("/readyz", "/healthz")
    seconds = re.search(r"(?:grace_period|PeriodSeconds): (\d+)", text).group(1)
    assert int(seconds) > given.timeout  # a stop finishes what it has


@pytest.mark.system
def test_what_the_dockerfile_copies_installs_with_its_page(tmp_path):
    for line in instructions("COPY"):
        *names, _ = line.split()
        for name in names:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, tmp_path / "build" / name, ignore=ignored)
            else:
                (tmp_path / "build").mkdir(exist_ok=True)
                shutil.copy(ROOT / name, tmp_path / "build" / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet"]
    command += ["--no-build-isolation", "-w", str(tmp_path / "out"), "."]
    subprocess.run(command, check=True, cwd=tmp_path / "build", timeout=300)
    [wheel] = (tmp_path / "out").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for needed in ("serve/page.html", "serve/page.js", "serve/page.css"):
        assert f"transformer_jax/{needed}" in names
    assert any(name.endswith("weights.safetensors") for name in names)
