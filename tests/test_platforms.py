"""The machines of users: interpreters that do not start, names that libraries drop."""

import os
import subprocess
import sys


def test_a_flag_that_jaxlib_does_not_know_is_said_in_words():
    environment = {k: v for k, v in os.environ.items() if "PYTEST" not in k}
    environment["XLA_FLAGS"] = "--xla_no_such_flag=1"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__]
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    said = run.stdout + run.stderr
    assert run.returncode == 3
    assert "no test can run" in said and "xla_no_such_flag" in said
    assert "node down" not in said


def test_windows_is_refused_in_words():
    script = "import sys; sys.platform = 'win32'; import transformer_jax"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 1
    assert "does not run on Windows itself: install it in WSL2" in run.stderr
