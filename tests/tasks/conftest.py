"""Runs for tests of what a task answers."""

import pytest


@pytest.fixture(scope="session")
def quick_run_of(tiny_run_of):
    """A function: the directory of a tiny run that is saved and scored seldom."""
    few = {
        "eval.answers": "1", "eval.batch_rows": "8", "eval.every": "12",
        "checkpoint.every": "6",
    }  # fmt: skip
    return lambda spec, **changes: tiny_run_of(spec, **few | changes)
