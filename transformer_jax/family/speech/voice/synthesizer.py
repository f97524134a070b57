"""A formant synthesizer: phonemes in, samples out.

    spectrum = (voice · tilt + breath) / Π resonances + noise · its band

Every 8 ms a frame of pulses and white noise is filtered by the shape of the vocal tract
at that moment, and the frames are overlapped and added. (Klatt 1980 filters sample by
sample, which is far slower in NumPy.) The targets of segments are smoothed over time,
which gives the formant transitions that tell consonants apart.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Complex, Float

from transformer_jax.family.speech.voice.phonemes import LEXICON, PHONEMES, Segment

RATE = 16_000
HOP = 128  # samples, 8 ms
WINDOW = 2 * HOP
SIZE = 512  # of the transform: leaves 16 ms for a filter to ring
HIGHER = (3500.0, 4500.0)  # resonances that no phoneme moves
WIDTHS = (70.0, 90.0, 130.0, 200.0, 280.0)
TRANSITION = 7  # frames over which the tract moves
ATTACK = 3  # frames over which a source gets louder


class Voice(NamedTuple):
    """A speaker."""

    pitch: float  # Hz
    range: float  # of the pitch, as a share
    tract: float  # factor of all resonances: above 1 for a short vocal tract
    speed: float
    breath: float  # mixed into voiced sounds
    tilt: float  # Hz, from where on the voice falls off
    habits: Float[np.ndarray, "segments 3"]  # factors of each segment's resonances


PLACES: dict[Segment, int] = {  # of a segment's row in `Voice.habits`
    segment: i
    for i, segment in enumerate(dict.fromkeys(s for p in PHONEMES.values() for s in p))
}


def draw_voice(random: np.random.RandomState) -> Voice:
    """Draw a speaker, from a deep man to a child."""
    high = random.uniform()
    return Voice(
        pitch=95 * 2.6 ** (0.85 * high + 0.15 * random.uniform()),
        range=random.uniform(0.05, 0.2),
        tract=0.9 + 0.28 * high + random.uniform(-0.04, 0.04),
        speed=random.uniform(0.85, 1.3),
        breath=random.uniform(0.01, 0.08),
        tilt=random.uniform(500, 1500),
        habits=np.exp(0.035 * random.standard_normal((len(PLACES), 3))),
    )


def say(
    words: Sequence[str], voice: Voice, random: np.random.RandomState
) -> Float[np.ndarray, "samples"]:
    """Speak words; pauses, pitch and the length of each sound differ every time."""
    tracks, lengths = [], []
    for word in words:
        for phoneme in LEXICON[word]:
            for segment in PHONEMES[phoneme]:
                lengths.append(segment.duration)
                tracks.append(_track_of(segment, voice))
        if random.uniform() < 0.3:
            lengths.append(random.uniform(20, 110))
            tracks.append((*tracks[-1][:3], 0.0, 0.0, 0.0, *tracks[-1][6:]))
    rest = (500.0, 1500.0, 2500.0, 0.0, 0.0, 0.0, 4000.0, 1000.0)
    steps = np.asarray([rest, *tracks, rest])
    stretch = np.exp(0.12 * random.standard_normal(len(lengths))) / voice.speed
    ends = random.uniform(40, 200, 2)
    durations = np.concatenate([ends[:1], np.asarray(lengths) * stretch, ends[1:]])
    marks = np.rint(np.cumsum(durations) * RATE / 1000 / HOP).astype(int)
    frames = np.repeat(steps, np.diff(marks, prepend=0), axis=0)
    frames[:, :3] = _smooth(frames[:, :3], TRANSITION)
    frames[:, 3:6] = _smooth(frames[:, 3:6], ATTACK)
    return _filter(frames, _pulses(len(frames), voice, random), voice, random)


def add_noise(
    samples: Float[np.ndarray, "samples"], ratio: float, random: np.random.RandomState
) -> Float[np.ndarray, "samples"]:
    """Add noise, from white to pink, so far below the speech in dB; scale to ±0.5."""
    spectrum = np.fft.rfft(random.standard_normal(_even(len(samples))))
    spectrum /= np.maximum(np.arange(len(spectrum)), 50) ** random.uniform(0, 0.7)
    noise = np.fft.irfft(spectrum)[: len(samples)]
    noise *= samples.std() / noise.std() * 10 ** (-ratio / 20)
    mixed = samples + noise
    return mixed * (0.5 / np.abs(mixed).max())


def _track_of(segment: Segment, voice: Voice) -> tuple[float, ...]:
    """Return a segment's eight values as a speaker says it.

    They are three resonances, how loud the voice, breath and noise are, and the centre
    and the width of the noise's spectrum.
    """
    habits, tract = voice.habits[PLACES[segment]], voice.tract
    formants = np.asarray(segment[1:4]) * habits * tract
    centre = min(segment.centre * (0.7 + 0.3 * tract), 7200.0)
    return *formants, *segment[4:7], centre, segment.width


def _smooth(
    tracks: Float[np.ndarray, "frames tracks"], width: int
) -> Float[np.ndarray, "frames tracks"]:
    """Average over frames, by a window that is widest in the middle."""
    window = np.hanning(width + 2)[1:-1]
    padded = np.pad(tracks, ((width // 2, width // 2), (0, 0)), "edge")
    views = np.lib.stride_tricks.sliding_window_view(padded, width, axis=0)
    return views @ (window / window.sum())


def _pulses(
    frames: int, voice: Voice, random: np.random.RandomState
) -> Float[np.ndarray, "samples"]:
    """Make the pulses of the glottis: pitch falls over a sentence, and wavers."""
    time = np.linspace(0, 1, frames + 1)
    waves = np.sin(2 * np.pi * (random.uniform(1, 4) * time + random.uniform()))
    pitch = voice.pitch * (1.1 - 0.25 * time) * (1 + voice.range * waves)
    pitch *= 1 + 0.01 * random.standard_normal(len(time))
    count = (frames + 1) * HOP
    phase = np.cumsum(np.interp(np.arange(count), HOP * np.arange(len(time)), pitch))
    phase = phase / RATE
    at = np.flatnonzero(np.diff(np.floor(phase), prepend=0))
    after = phase[at] % 1 / np.diff(phase, prepend=0)[at]  # how long ago, in samples
    pulses = np.zeros(count + 1)
    height = 1 + 0.05 * random.standard_normal(len(at))
    pulses[at] += height * (1 - after)
    pulses[at - 1] += height * after
    return pulses[:count] * np.sqrt(RATE / voice.pitch)


def _filter(
    frames: Float[np.ndarray, "frames 8"],
    pulses: Float[np.ndarray, "samples"],
    voice: Voice,
    random: np.random.RandomState,
) -> Float[np.ndarray, "samples"]:
    """Filter the sources frame by frame, then overlap and add."""
    count, window = len(frames), np.hanning(WINDOW + 1)[:-1]
    white = random.standard_normal(len(pulses))

    def transform(samples):
        view = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::HOP][:count]
        return np.fft.rfft(view * window, SIZE)

    formants, (av, ab, an) = frames[:, :3], frames[:, 3:6].T[..., None]
    centre, width = frames[:, 6:].T[..., None]
    hiss, spectrum = transform(white), transform(pulses)
    spectrum *= _radiation() / (1 + 1j * _hertz() / voice.tilt)
    spectrum *= av
    spectrum += hiss * ((ab + voice.breath * av) * _radiation())
    spectrum *= _tract(formants, voice)
    noisy = an[:, 0] > 0
    band = np.exp(-np.square((_hertz() - centre[noisy]) / width[noisy]))
    spectrum[noisy] += hiss[noisy] * (2 * an[noisy] * band)
    parts = np.fft.irfft(spectrum, SIZE)
    out = np.zeros((count + SIZE // HOP, HOP))
    for i in range(SIZE // HOP):
        out[i : i + count] += parts[:, i * HOP : (i + 1) * HOP]
    return out.reshape(-1)[: count * HOP]


def _tract(
    formants: Float[np.ndarray, "frames 3"], voice: Voice
) -> Complex[np.ndarray, "frames bins"]:
    """Return the response of the resonances, one after another."""
    higher = np.tile(np.asarray(HIGHER) * voice.tract, (len(formants), 1))
    hertz = np.minimum(np.concatenate([formants, higher], axis=1), 7500.0)
    radius = np.exp(-np.pi * np.asarray(WIDTHS) / RATE)
    middle = -2 * radius * np.cos(2 * np.pi * hertz / RATE)
    outer = np.broadcast_to(np.square(radius), middle.shape)
    product = np.ones((len(formants), 1))
    for b, c in zip(middle.T[..., None], outer.T[..., None], strict=True):
        longer = np.pad(product, ((0, 0), (0, 2)))
        longer[:, 1:-1] += b * product
        longer[:, 2:] += c * product
        product = longer
    # Each resonance passes 0 Hz as it is.
    product /= product.sum(axis=1, keepdims=True)
    cosines, sines = _waves(product.shape[1])
    return 1 / (product @ cosines - 1j * (product @ sines))


@functools.cache
def _hertz() -> Float[np.ndarray, "bins"]:
    return np.fft.rfftfreq(SIZE, 1 / RATE)


@functools.cache
def _radiation() -> Float[np.ndarray, "bins"]:
    """Return the high-pass filter of the lips."""
    return _hertz() / (_hertz() + 150)


@functools.cache
def _waves(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and sines [powers, bins] of the powers of a delay."""
    turns = 2 * np.pi / RATE * np.outer(np.arange(count), _hertz())
    return np.cos(turns), np.sin(turns)


def _even(length: int) -> int:
    """Return a length that is fast to transform: the next multiple of 2048."""
    return -(-length // 2048) * 2048
