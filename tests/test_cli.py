"""The shell around a command: its messages, and how many of them are asked for."""

import logging
import subprocess
import sys

import pytest

from transformer_jax import cli


@pytest.fixture
def logger():
    logger = logging.getLogger("transformer_jax")
    before = logger.level, logger.propagate, logger.handlers
    yield logger
    logger.level, logger.propagate, logger.handlers = before


@pytest.mark.parametrize(("verbose", "shown"), [(False, ""), (True, "found it\n")])
def test_messages_go_to_stderr_and_debug_ones_only_if_asked(
    logger, verbose, shown, capsys
):
    cli.show_messages(verbose)
    logging.getLogger("transformer_jax.runs").debug("found it")
    logging.getLogger("transformer_jax.data").info("100 %d")
    logging.getLogger("transformer_jax").warning("odd")
    assert capsys.readouterr() == ("", f"{shown}100 %d\nodd\n")


@pytest.mark.system
def test_python_that_uses_the_package_sees_its_warnings_only():
    code = """
import logging
import transformer_jax.predict
logging.getLogger("transformer_jax.predict").info("3 lines")
logging.getLogger("transformer_jax.predict").warning("line 2: too long")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.stdout and done.stderr.count("\n") == 1
    assert done.stderr.endswith(
        "line 2: too long\n"
    )  # behind what Python's own form is


SCRIPT = """
import logging
from transformer_jax import cli
def main(overrides):
    logging.getLogger("transformer_jax.runs").debug("found it")
    print(sorted(overrides.items()))
cli.run(main)
"""


@pytest.mark.system
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["-v"], True),
        (["--verbose"], True),
        (["-v", "--config.a=1"], True),
        ([], False),
        (["-v", "0"], False),  # absl's own, of which -v is the short form
        (["-v=1"], False),
    ],
)
def test_v_shows_what_is_done_on_stderr(words, shown):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "found it\n" * shown
    assert done.stdout == f"{[('a', '1')] if '--config.a=1' in words else []}\n"
