"""What the compiled steps ask of the machine."""

import subprocess
import sys

import pytest

FREED_OFTEN = """
import resource, sys
import numpy as np
from transformer_jax.programs import keep_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        np.ones(1 << 23)  # 64 MB, beyond what malloc keeps by default
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

given_back = faults()
if not keep_memory():
    sys.exit(3)
faults()
print(given_back, faults())
"""


def test_memory_that_a_step_has_used_is_kept_for_the_next():
    """In a process of its own: it cannot be taken back."""
    done = subprocess.run(
        [sys.executable, "-c", FREED_OFTEN], capture_output=True, text=True
    )
    if done.returncode == 3:
        pytest.skip("this malloc has no such settings")
    given_back, kept = map(int, done.stdout.split())
    assert kept < given_back / 10, done.stderr
