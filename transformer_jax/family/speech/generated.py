"""Sounds of ten kinds, between one and two seconds, in noise.

Pitch, speed, length and noise are drawn for each, so neither one frequency nor the
loudness gives a kind away: a siren and a whistle, or rain and wind, differ in how they
change over time.
"""

from collections.abc import Callable
from zlib import crc32

import numpy as np
from jaxtyping import Float

from transformer_jax.data.draws import check_split
from transformer_jax.family.speech.voice.synthesizer import RATE, add_noise

VERSION = 1  # part of the data fingerprint: raise when the sounds change
SPLITS = ("train", "validation", "test")
RATIO = (0.0, 20.0)  # dB from noise to sound
SECONDS = (0.9, 2.0)

Wave = Float[np.ndarray, "samples"]
Random = np.random.RandomState


def generate(split: str, index: int, seed: int = 0) -> tuple[Wave, str]:
    """Make sound number `index` of a split: samples of ±0.5, and its kind."""
    check_split(split, SPLITS)
    random = Random(crc32(f"sounds {seed} {split} {index}".encode()))
    kind = list(KINDS)[index % len(KINDS)]
    time = np.arange(int(random.uniform(*SECONDS) * RATE)) / RATE
    return add_noise(KINDS[kind](time, random), random.uniform(*RATIO), random), kind


def _bell(time: Wave, random: Random) -> Wave:
    base, begin = random.uniform(300, 900), random.uniform(0, 0.3)
    since = time - begin
    ratios = np.array([[0.5], [1], [1.2], [1.5], [2], [2.7]])
    partials = np.sin(2 * np.pi * base * ratios * time)
    partials *= np.exp(-since * (2 + ratios))
    return np.where(since > 0, partials.sum(axis=0), 0)


def _whistle(time: Wave, random: Random) -> Wave:
    base, depth = random.uniform(900, 2500), random.uniform(20, 60)
    return _tone(base + depth * np.sin(2 * np.pi * random.uniform(4, 8) * time))


def _siren(time: Wave, random: Random) -> Wave:
    sweep = np.sin(2 * np.pi * (random.uniform(0.5, 1.2) * time + random.uniform()))
    return _tone(random.uniform(600, 1400) * 2 ** (0.6 * sweep))


def _chirps(time: Wave, random: Random) -> Wave:
    phase = time * random.uniform(3, 7) % 1
    pitch = random.uniform(2000, 3500) * 2 ** (phase * random.uniform(0.8, 1.5))
    return _tone(pitch) * np.sin(np.pi * np.minimum(2 * phase, 1)) ** 2


def _alarm(time: Wave, random: Random) -> Wave:
    on = time * random.uniform(2, 5) % 1 < 0.5
    return np.sign(_tone(np.full_like(time, random.uniform(500, 1500)))) * on


def _knocks(time: Wave, random: Random) -> Wave:
    since = time % random.uniform(0.15, 0.4)
    return np.exp(-30 * since) * np.sin(2 * np.pi * random.uniform(120, 350) * since)


def _clock(time: Wave, random: Random) -> Wave:
    since = time % random.uniform(0.2, 0.5)
    return np.exp(-400 * since) * random.standard_normal(len(time))


def _motor(time: Wave, random: Random) -> Wave:
    base = random.uniform(50, 130) * (1 + random.uniform(-0.2, 0.2) * time)
    phase = 2 * np.pi * np.cumsum(base) / RATE
    harmonics = np.arange(1, 16)[:, None]
    return (np.sin(harmonics * (phase + harmonics)) / harmonics).sum(axis=0)


def _rain(time: Wave, random: Random) -> Wave:
    drops = random.uniform(size=len(time)) < random.uniform(0.003, 0.02)
    return np.convolve(
        drops * random.standard_normal(len(time)),
        np.exp(-np.arange(64) / 6) * (-1) ** np.arange(64),
        "same",
    )


def _wind(time: Wave, random: Random) -> Wave:
    spectrum = np.fft.rfft(random.standard_normal(len(time)))
    hertz = np.fft.rfftfreq(len(time), 1 / RATE)
    spectrum /= 1 + np.square(hertz / random.uniform(200, 600))
    swell = 1 + 0.8 * np.sin(2 * np.pi * (random.uniform(0.3, 1) * time))
    return np.fft.irfft(spectrum, len(time)) * swell


def _tone(pitch: Wave) -> Wave:
    return np.sin(2 * np.pi * np.cumsum(pitch) / RATE)


KINDS: dict[str, Callable[[Wave, Random], Wave]] = {
    "bell": _bell,
    "whistle": _whistle,
    "siren": _siren,
    "chirps": _chirps,
    "alarm": _alarm,
    "knocks": _knocks,
    "clock": _clock,
    "motor": _motor,
    "rain": _rain,
    "wind": _wind,
}
