"""SIGTERM always ends a process: after it has saved, or when its time is over."""

import subprocess
import sys

import pytest

HANGS = """
import os, signal, time
from transformer_jax.training.preemption import Preemption
with Preemption(patience=0.5) as preemption:
    os.kill(os.getpid(), signal.SIGTERM)
    {then}
print("left in good order", preemption.requested(1))
"""


def run(then):
    command = [sys.executable, "-c", HANGS.format(then=then)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.system
def test_a_training_that_hangs_is_ended_after_its_patience():
    done = run("time.sleep(1000)")
    assert done.returncode == 75
    assert "SIGTERM came 0 s ago" in done.stderr.strip().split("\n")[-1]


@pytest.mark.system
def test_a_training_that_saves_in_time_goes_its_own_way():
    done = run("pass")
    assert (done.returncode, done.stdout) == (0, "left in good order True\n")
