"""The log names the process whose host works longer than others, and no other."""

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from transformer_jax.training.steps.window import find_slowest


@pytest.fixture
def slowest(monkeypatch):
    """A function: what is found of the (busy, waited) seconds of all processes."""

    def find(*seconds):
        monkeypatch.setattr(jax, "process_count", lambda: len(seconds))
        monkeypatch.setattr(
            multihost_utils, "process_allgather", lambda own: np.array(seconds)
        )
        return find_slowest(*seconds[0])

    return find


def test_a_host_that_works_longer_than_others_is_named(slowest):
    assert slowest((3.0, 7.0), (3.0, 7.0), (6.0, 4.0)) == (2, 2.0)
    assert slowest((9.0, 1.0), (4.0, 6.0)) == (0, 2.25)


def test_hosts_that_mostly_wait_for_their_devices_are_not_named(slowest):
    # Twice as busy as the others, but of little weight beside the devices' work.
    assert slowest((0.1, 9.9), (0.1, 9.9), (0.2, 9.8)) is None


def test_a_window_of_a_moment_says_nothing(slowest):
    assert slowest((0.01, 0.09), (0.09, 0.01)) is None


def test_one_process_has_none_to_be_compared_with():
    assert find_slowest(9.0, 1.0) is None
