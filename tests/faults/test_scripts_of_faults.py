"""Kills, failing file operations and damaged files: a few at random, more by hand."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]
MORE = pytest.mark.slow  # a quarter of an hour each


def run(script, *options):
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / script, *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_NUM_CPU_DEVICES": "1"},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "0 failures" in done.stdout
    return done.stdout


@pytest.mark.parametrize("kills", [2, pytest.param(200, marks=MORE)])
def test_killed_runs_end_in_the_same_bits(kills):
    assert " × kills" in run("faults.py", f"--kills={kills}", "--minutes=15")


@MORE
@pytest.mark.parametrize("every", [97, 1])
def test_a_file_operation_that_fails_is_one_line(every):
    options = ["--errors=ENOSPC,EROFS,EIO", f"--every={every}", "--minutes=15"]
    assert " × exit code 2" in run("faults.py", *options)


@pytest.mark.parametrize(
    "cells", [pytest.param(4, marks=pytest.mark.slow), pytest.param(10**9, marks=MORE)]
)
def test_damaged_files_change_nothing_in_silence(cells):
    assert " × cells" in run("damage_grid.py", f"--cells={cells}", "--minutes=15")
