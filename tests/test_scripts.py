"""Each benchmark and each sweep starts: its imports and its options are there."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
SCRIPTS = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("launch/*.py")])


@pytest.mark.system
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_says_what_its_options_are(path):
    done = subprocess.run(
        [sys.executable, path, "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    if "No module named 'torch'" in done.stderr:
        pytest.skip("PyTorch is not installed")
    assert "Traceback" not in done.stderr, done.stderr
    assert "--" in done.stdout
