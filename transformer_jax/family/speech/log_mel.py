"""Log-mel spectrograms, the input of models of sound.

    S = |DFT(window · samples)|²    x = log(filters · S)    x ← (x - mean) / deviation

A frame is 25 ms of sound, and the next one begins 10 ms later. The filters are
triangles, evenly spaced in mel = 2595 log₁₀(1 + Hz / 700). Each band is brought to mean
0 and deviation 1 over an utterance, so neither loudness nor the microphone matters.
Pitfall: the mean is over the real frames, so it is taken before anything is padded.
"""

import functools

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
    samples = np.asarray(samples, np.float64)
    if len(samples) < WINDOW:
        samples = np.pad(samples, (0, WINDOW - len(samples)))
    views = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::HOP]
    spectrum = np.fft.rfft(views * _window(), SIZE)
    return np.square(spectrum.real) + np.square(spectrum.imag)


@functools.cache
def filters(bands: int) -> Float[np.ndarray, "bins bands"]:
    """Return the triangles: each rises from the middle of the one before it."""
    edges = _hertz(np.linspace(_mel(LOWEST), _mel(HIGHEST), bands + 2))
    bins = np.arange(SIZE // 2 + 1)[:, None] * RATE / SIZE
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return np.maximum(np.minimum(rising, falling), 0)


def count_empty(bands: int) -> int:
    """Count the bands that lie between two frequencies of the transform."""
    return int((filters(bands).sum(axis=0) == 0).sum())


@functools.cache
def _window() -> Float[np.ndarray, "window"]:
    return np.hanning(WINDOW + 1)[:-1]


def _mel(hertz):
    return 2595 * np.log10(1 + hertz / 700)


def _hertz(mel):
    return 700 * (10 ** (mel / 2595) - 1)
