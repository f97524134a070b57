"""Find texts that nearly repeat others, without comparing all of them (MinHash).

    similarity(A, B) = |A ∩ B| / |A ∪ B|     of the sets of all five-byte strings

An example may have several texts, such as a source and a target: its set tells apart in
which of them a string stands, so that a pair is unlike the same pair turned round.
The smallest hash of a set is that of another with the probability of their similarity.
Keys are digests of `rows` such minima each, so two texts share one of `bands` keys with
the probability 1 - (1 - similarity^rows)^bands: a step at (1/bands)^(1/rows).
"""

import functools
import hashlib
import re
from collections.abc import Sequence

import numpy as np

KEY = 16  # bytes of a key
HASHES = 64  # minima of a text
WIDTH = 5  # bytes of the strings
DROPPED = re.compile(r"[\W\d_]+")  # neither numbers nor punctuation count


def keys(texts: Sequence[str], threshold: float) -> list[bytes]:
    """Return the keys of an example, of which a similar one shares at least one."""
    bands, rows = bands_of(threshold)
    minima = smallest_hashes(texts)[: bands * rows].reshape(bands, rows)
    return [
        hashlib.blake2b(b"%d " % i + band.tobytes(), digest_size=KEY).digest()
        for i, band in enumerate(minima)
    ]


def smallest_hashes(texts: Sequence[str]) -> np.ndarray:
    """Return the smallest value of each hash over the strings of texts [HASHES]."""
    strings = np.concatenate([_strings(text, i) for i, text in enumerate(texts)])
    factors, shifts = _hashes()
    hashed = np.unique(strings)[:, None] * factors + shifts
    return (hashed >> np.uint64(32)).astype(np.uint32).min(axis=0)


def _strings(text: str, number: int) -> np.ndarray:
    """Return the strings of a text as integers that begin with its number."""
    content = DROPPED.sub(" ", text.casefold()).strip().encode().ljust(WIDTH)
    codes = np.frombuffer(content, np.uint8).astype(np.uint64)
    count = len(codes) - WIDTH + 1
    strings = np.full(count, number, np.uint64)
    for i in range(WIDTH):
        strings = strings << np.uint64(8) | codes[i : i + count]
    return strings


@functools.cache
def bands_of(threshold: float) -> tuple[int, int]:
    """Return the numbers of keys, and of minima in each, that fit a threshold."""
    shapes = [(HASHES // rows, rows) for rows in range(1, HASHES + 1)]
    return min(shapes, key=lambda s: abs((1 / s[0]) ** (1 / s[1]) - threshold))


@functools.cache
def _hashes() -> tuple[np.ndarray, np.ndarray]:
    """Draw the factors, which are odd, and the shifts of the hashes."""
    random = np.random.Generator(np.random.Philox(key=[0, HASHES]))
    factors, shifts = random.integers(0, 2**63, (2, HASHES), np.uint64)
    return factors * np.uint64(2) + np.uint64(1), shifts
