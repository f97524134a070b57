"""What a translator loads to be trained, to answer and to be scored."""

import json
import subprocess
import sys

import pytest
from test_architecture import OPTIONAL

CODE = """
import importlib, json, sys
from absl import flags
name, out, *words = sys.argv[1:]
module = importlib.import_module(f"transformer_jax.{name}")
module.define_flags()
try:
    from transformer_jax import cli
    sys.argv = [name, *words]
    cli.run(module.main)
finally:
    with open(out, "w", encoding="utf-8") as file:
        json.dump(sorted(sys.modules), file)
"""
MOST = 141  # modules, of more than 300 that there are


@pytest.mark.system
def test_a_translator_loads_the_core_and_no_more(tmp_path):
    run, source = tmp_path / "run", tmp_path / "source"
    source.write_text("O gato dorme.\n", encoding="utf-8")
    commands = {
        "train": ["--config=quickstart", "--smoke", f"--workdir={run}"],
        "predict": [f"--workdir={run}", f"--input={source}"],
        "evaluate": [f"--workdir={run}", "--split=validation", "--alpha=0.7"],
    }
    loaded = set()
    for name, words in commands.items():
        out = tmp_path / "loaded.json"
        command = [sys.executable, "-c", CODE, name, str(out), *words]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert out.exists(), ended.stderr
        found = json.loads(out.read_text(encoding="utf-8"))
        loaded |= {name for name in found if name.startswith("transformer_jax")}
        out.unlink()
    rest = ("family", "visualize", "planning", "convert", "serve", "report")
    others = tuple(f"transformer_jax.{room}" for room in rest)
    assert not [name for name in loaded if name.startswith(others)]
    assert not loaded & OPTIONAL
    assert "transformer_jax.corpora.phrasebook" in loaded
    assert "transformer_jax.corpora.treebank" not in loaded
    assert len(loaded) <= MOST
