"""What tests of faults share."""

import signal

import pytest


@pytest.fixture
def hear():
    """Return a function that lets a signal be heard, though `nohup` ignores some."""
    before = {}

    def heard(name):
        number = getattr(signal, name)
        before[number] = signal.signal(number, signal.SIG_DFL)
        return number

    yield heard
    for number, handler in before.items():
        signal.signal(number, handler)
