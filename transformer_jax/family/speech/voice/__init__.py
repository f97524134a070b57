"""Commands, spoken by a synthesizer: sentences, voices and samples.

The sentence, the voice and everything random about a sound are functions of the seed,
the split and the number of the example. Held-out splits have sentences and voices that
training does not have; `test_noise` has those of `test` in louder noise.
"""

import functools
from zlib import crc32

import numpy as np
from jaxtyping import Float

from transformer_jax.family.speech.voice import grammar
from transformer_jax.family.speech.voice.phonemes import LEXICON
from transformer_jax.family.speech.voice.synthesizer import (
    RATE,
    Voice,
    add_noise,
    draw_voice,
    say,
)

__all__ = ["LEXICON", "RATE", "SPLITS", "VERSION", "sentences", "speak", "voice_of"]

VERSION = 1  # part of the data fingerprint: raise when the sound changes
SPLITS = grammar.SPLITS
VOICES = {"train": 60, "validation": 10, "test": 15}
RATIOS = {"test_noise": (3.0, 10.0)}  # dB from noise to speech
RATIO = (15.0, 40.0)  # of the other splits

sentences = grammar.generate


def speak(
    sentence: str, split: str, index: int, seed: int = 0
) -> Float[np.ndarray, "samples"]:
    """Speak sentence number `index` of a split: samples of ±0.5, 16,000 a second."""
    kind = split.partition("_")[0]  # the two tests differ in their noise only
    random = _random(f"{seed} {kind} {index}")
    voice = voice_of(kind, random.randint(VOICES[kind]), seed)
    samples = say(sentence.split(), voice, random)
    return add_noise(samples, random.uniform(*RATIOS.get(split, RATIO)), random)


@functools.cache
def voice_of(kind: str, number: int, seed: int = 0) -> Voice:
    """Return a speaker of a split."""
    return draw_voice(_random(f"{seed} {kind} voice {number}"))


def _random(name: str) -> np.random.RandomState:
    # The older generator, since no version of NumPy may change what it draws.
    return np.random.RandomState(crc32(f"speech {name}".encode()))
