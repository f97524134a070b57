"""What the training text says about sentences: frequent words, and the nearest pairs.

Pairs are compared by the character 4-grams of their sources, as sets (Dice):

    overlap = 2 |A ∩ B| / (|A| + |B|)
"""

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from transformer_jax.report.analysis.words import Names, tokens

SIZE = 4  # characters of an n-gram
BLOCK = 20_000  # pairs compared at once
MIX = np.uint32(0x9E3779B1)  # a large odd number, which spreads n-grams over 32 bits

Pair = tuple[str, str]


def plain(source: str) -> str:
    """Return a source without its direction tag."""
    return getattr(source, "plain", source)


class TrainingText:
    """The pairs of a training split, and how often their words occur."""

    def __init__(
        self,
        records: Sequence[Mapping[str, str]],
        names: Names,
        lowercase: bool = False,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ):
        """Read all pairs once; `names` is shown them."""
        self.records = records
        self.counts = collections.Counter(), collections.Counter()  # source, target
        fold = str.lower if lowercase else str
        for done, pair in enumerate(self.pairs(), start=1):
            for count, text in zip(self.counts, pair, strict=True):
                count.update(tokens(fold(text)))
            names.add(*pair)
            progress(done, len(records)) if done % BLOCK == 0 else None

    def pairs(self) -> Iterator[Pair]:
        """Yield (source, target) of each pair."""
        return ((plain(one["source"]), one["target"]) for one in self.records)

    def nearest(self, sources: Sequence[str]) -> list[tuple[float, Pair]]:
        """Return, for each source, the greatest overlap and the first such pair."""
        grams = [np.unique(_grams([source])) for source in sources]
        union = np.unique(np.concatenate(grams)) if grams else np.zeros(0, np.uint64)
        if not len(union):
            return [(0.0, ("", ""))] * len(sources)
        has = np.stack([np.isin(union, g) for g in grams], axis=1).astype(np.int32)
        sizes, best = np.array([len(g) for g in grams]), [(-1.0, ("", ""))] * len(grams)
        pairs = self.pairs()
        while block := [*itertools.islice(pairs, BLOCK)]:
            found = np.unique(_grams([source for source, _ in block]))
            owners, hashes = found >> np.uint64(32), found & np.uint64(0xFFFFFFFF)
            places = np.minimum(np.searchsorted(union, hashes), len(union) - 1)
            hit = union[places] == hashes
            shared = np.zeros((len(block), len(grams)), np.int32)
            np.add.at(shared, owners[hit].astype(int), has[places[hit]])
            counts = np.bincount(owners.astype(int), minlength=len(block))
            overlap = 2 * shared / np.maximum(counts[:, None] + sizes, 1)
            for i, row in enumerate(overlap.argmax(axis=0)):
                if overlap[row, i] > best[i][0]:
                    best[i] = float(overlap[row, i]), block[row]
        return best


def _grams(texts: Iterable[str]) -> np.ndarray:
    """Return the n-grams of texts as numbers: that of the text << 32 | a hash."""
    padded = [f" {text.casefold().strip()} " for text in texts]
    codes = np.frombuffer("".join(padded).encode("utf-32-le", "replace"), np.uint32)
    owners = np.repeat(np.arange(len(padded), dtype=np.uint64), [*map(len, padded)])
    count = max(len(codes) - SIZE + 1, 0)
    hashes = np.zeros(count, np.uint32)
    for i in range(SIZE):
        hashes = (hashes ^ codes[i : i + count]) * MIX
    inside = owners[:count] == owners[len(owners) - count :]
    return (owners[:count] << np.uint64(32) | hashes)[inside]
