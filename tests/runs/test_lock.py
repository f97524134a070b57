"""The lock of a run directory: one training at a time, and none that outlives it."""

import fcntl
import os
import signal
import socket
import subprocess
import sys

import pytest

from transformer_jax import config, train
from transformer_jax.base.errors import UserError
from transformer_jax.runs import lock

HOLD = """
import pathlib, sys, time
from transformer_jax.runs import lock
with lock.alone(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.system
def test_a_second_training_is_refused_until_the_first_is_killed(tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        holder = f"process {other.pid} on {socket.gethostname()}"
        with pytest.raises(UserError, match=f"run is being trained by {holder}: wait"):
            train.train(config.load("quickstart", {"mesh.data": "-1"}), folder)
        assert not (folder / "config.json").exists()
        os.kill(other.pid, signal.SIGKILL)
    with lock.alone(folder):
        pass
    with lock.alone(folder):  # and again, when it was given back
        assert (folder / lock.FILE).read_text().startswith(f"process {os.getpid()} on")


def test_where_there_are_no_locks_nothing_is_refused(tmp_path, monkeypatch):
    asked = []

    def flock(*_):
        asked.append(len(asked))
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock.alone(tmp_path), lock.alone(tmp_path):
        asked.append("both train")
    assert asked == [0, 1, "both train"]
    assert (tmp_path / lock.FILE).read_text() == ""  # nobody is named as its holder
