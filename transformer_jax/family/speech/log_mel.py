"""Log-mel spectrograms, the input of models of sound.

    S = |DFT(window · samples)|²    x = log(filters · S)

    normalised   x ← (x - mean) / deviation
    whisper      x ← (max(log₁₀, its maximum - 8) + 4) / 4

A frame is 25 ms of sound, and the next one begins 10 ms later. The filters are
triangles, evenly spaced in mel = 2595 log₁₀(1 + Hz / 700). Each band is brought to mean
0 and deviation 1 over an utterance, so neither loudness nor the microphone matters.
`whisper` has the frames of Whisper: each has its 25 ms around it, sound is mirrored at
its ends, and mel is Slaney's, linear up to 1000 Hz.
Pitfall: the mean is over the real frames, so it is taken before anything is padded.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

RATE = 16_000
WINDOW, HOP = 400, 160  # samples: 25 ms, 10 ms
SIZE = 512  # of the transform
LOWEST, HIGHEST = 20.0, 8000.0  # Hz
RANGE = 1e-8  # of the loudest band: the floor of the power
DTYPE = np.float16  # of frames: halves a store, rounds by 0.05 % at most


def frames_of(samples: int) -> int:
    """Count the frames of a sound: at least one."""
    return max(1 + (samples - WINDOW) // HOP, 1)


def centred_frames_of(samples: int) -> int:
    """Count the frames of a sound for Whisper: at least two."""
    return max(samples, WINDOW) // HOP


def log_mel(
    samples: Float[np.ndarray, "samples"], bands: int
) -> Float[np.ndarray, "frames bands"]:
    """Return the normalised log-mel spectrogram of a sound."""
    power = spectrogram(samples) @ filters(bands)
    power = np.maximum(power, max(RANGE * power.max(), 1e-30))
    logs = np.log(power)
    logs -= logs.mean(axis=0)
    return (logs / (logs.std(axis=0) + 1e-3)).astype(DTYPE)


def spectrogram(
    samples: Float[np.ndarray, "samples"],
) -> Float[np.ndarray, "frames bins"]:
    """Return the power of each frame's frequencies."""
    return _power(_at_least_a_window(samples), SIZE)


def whisper(
    samples: Float[np.ndarray, "samples"], bands: int
) -> Float[np.ndarray, "frames bands"]:
    """Return the log-mel spectrogram that Whisper reads."""
    samples = np.pad(_at_least_a_window(samples), WINDOW // 2, mode="reflect")
    power = _power(samples, WINDOW)[:-1] @ slaney_filters(bands)
    logs = np.log10(np.maximum(power, 1e-10))
    logs = np.maximum(logs, logs.max() - 8)
    return ((logs + 4) / 4).astype(np.float32)


def _at_least_a_window(samples: np.ndarray) -> np.ndarray:
    samples = np.asarray(samples, np.float64)
    return np.pad(samples, (0, max(WINDOW - len(samples), 0)))


def _power(samples: np.ndarray, size: int) -> np.ndarray:
    views = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::HOP]
    spectrum = np.fft.rfft(views * _window(), size)
    return np.square(spectrum.real) + np.square(spectrum.imag)


@functools.cache
def filters(bands: int) -> Float[np.ndarray, "bins bands"]:
    """Return the triangles: each rises from the middle of the one before it."""
    return _triangles(_hertz(np.linspace(_mel(LOWEST), _mel(HIGHEST), bands + 2)), SIZE)


@functools.cache
def slaney_filters(bands: int) -> Float[np.ndarray, "bins bands"]:
    """Return the triangles of Whisper: from 0 Hz, each of the same area.

    In Slaney's mel, 1000 Hz are 15 mel; from there on, 27 mel multiply by 6.4.
    """
    mel = np.linspace(0, 15 + 27 * np.log(HIGHEST / 1000) / np.log(6.4), bands + 2)
    edges = np.where(mel < 15, mel * 200 / 3, 1000 * 6.4 ** ((mel - 15) / 27))
    return _triangles(edges, WINDOW) * 2 / (edges[2:] - edges[:-2])


def _triangles(edges: np.ndarray, size: int) -> np.ndarray:
    bins = np.arange(size // 2 + 1)[:, None] * RATE / size
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return np.maximum(np.minimum(rising, falling), 0)


@functools.cache
def _window() -> Float[np.ndarray, "window"]:
    return np.hanning(WINDOW + 1)[:-1]


def _mel(hertz):
    return 2595 * np.log10(1 + hertz / 700)


def _hertz(mel):
    return 700 * (10 ** (mel / 2595) - 1)


class Features(NamedTuple):
    """A kind of spectrogram: a value of `data.features`."""

    count: Callable[[int], int]  # samples → frames
    samples: Callable[[int], int]  # frames → the fewest samples that have them
    compute: Callable[[np.ndarray, int], np.ndarray]  # (samples, bands) → frames
    filters: Callable[[int], np.ndarray]

    def count_empty(self, bands: int) -> int:
        """Count the bands that lie between two frequencies of the transform."""
        return int((self.filters(bands).sum(axis=0) == 0).sum())


FEATURES = {
    "normalised": Features(
        frames_of, lambda frames: WINDOW + HOP * (frames - 1), log_mel, filters
    ),
    "whisper": Features(
        centred_frames_of, lambda frames: HOP * frames, whisper, slaney_filters
    ),
}
