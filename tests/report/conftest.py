"""Fixtures of the tests of groups and reports."""

import pytest
import seeded


@pytest.fixture
def seeds(tiny_run, tmp_path):
    """Copies of a run as if of three seeds of two configs, with scores of their own."""
    return seeded.make(tiny_run, tmp_path)
