"""Ctrl-C, a terminal that is closed: saved like SIGTERM; a second Ctrl-C ends."""

import signal
import subprocess
import sys

import pytest

from transformer_jax.training.preemption import Preemption

PROGRAM = """
import os, signal, time
from transformer_jax.training.preemption import Preemption
{before}
with Preemption() as preemption:
    {then}
print("left in good order", preemption.requested(1))
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP", "SIGTERM"])
def test_the_first_signal_asks_for_a_stop_and_its_handler_is_given_back(
    name, hear, one_device
):
    number = hear(name)
    before = signal.getsignal(number)
    with Preemption() as preemption:
        assert not preemption.requested(1)
        signal.raise_signal(number)
        assert preemption.requested(2)
    assert signal.getsignal(number) is before


def test_what_is_ignored_stays_ignored(one_device):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    try:
        with Preemption() as preemption:
            signal.raise_signal(signal.SIGHUP)
            assert not preemption.requested(1)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.system
def test_a_second_interrupt_ends_a_training_that_hangs():
    then = """
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
    time.sleep(1000)"""
    heard = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = PROGRAM.format(before=heard, then=then)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 130 and done.stdout == ""
    assert "Ctrl-C again ends at once" in done.stderr
    assert done.stderr.strip().split("\n")[-1].startswith("interrupted: nothing more")
