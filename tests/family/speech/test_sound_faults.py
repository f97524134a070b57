"""Damaged sound files: read, or refused in one line."""

import io
import wave

import pytest
from damage import QUICK, SLOW, attack

from transformer_jax.family.speech import wav


def sounds():
    """A short sound of one channel, and one of two at another rate."""
    found = []
    for channels, width, rate in ((1, 2, 16_000), (2, 3, 44_100)):
        with io.BytesIO() as file:
            with wave.open(file, "wb") as sound:
                sound.setparams((channels, width, rate, 0, "NONE", ""))
                sound.writeframes(bytes(range(120)))
            found.append(file.getvalue())
    return found


@pytest.mark.parametrize(
    ("times", "seed"), [(QUICK, 0), pytest.param(SLOW, 1, marks=pytest.mark.slow)]
)
def test_damaged_bytes_are_read_or_refused_in_one_line(times, seed, tmp_path):
    read, refused = attack(wav.read, tmp_path / "a.wav", sounds(), times, seed)
    assert read + refused == times and refused
