"""Sets of numbers, each labelled with its largest, to test models without positions.

The numbers are in ascending order, so a model that sees positions can answer with the
last number without comparing any. `test_permuted` has the sets of `test` in another
order, where only a model that compares is right (Zaheer et al. 2017; Lee et al. 2019).
"""

from collections.abc import Sequence
from random import Random

from ml_collections import ConfigDict

from transformer_jax.data.draws import Drawer, check_split, split_of
from transformer_jax.data.reading.sources import GeneratedSource

VERSION = 1  # part of the data fingerprint: raise when the generated text changes
SPLITS = ("train", "validation", "test", "test_permuted")
LARGEST = range(12, 50)  # equally likely, so that all occur in training
OTHERS = range(2, 12)  # how many smaller numbers a set may have


def generate(split: str, size: int, seed: int = 0) -> list[dict[str, str]]:
    """Return the first `size` sets of a split, always the same for a seed.

    A hash of the set assigns it to its split, so no two splits share a set, except for
    the two test splits.
    """
    check_split(split, SPLITS)
    kind = split.partition("_")[0]
    drawer = Drawer(Random(f"sets {kind} {seed}").random)
    records: dict[str, dict[str, str]] = {}
    while len(records) < size:
        largest = drawer.pick(LARGEST)
        others = _shuffle(drawer, range(largest))[: drawer.pick(OTHERS)]
        numbers = [*sorted(others), largest]
        text = plain = _write(numbers)
        if split_of(plain) != kind:
            continue
        if split == "test_permuted":
            text = _write(_shuffle(Drawer(Random(plain).random), numbers))
        records[plain] = {"text": text, "label": str(numbers[-1])}
    return [*records.values()]


def _shuffle(drawer: Drawer, numbers: Sequence[int]) -> list[int]:
    rest = [*numbers]
    return [rest.pop(drawer.pick(range(len(rest)))) for _ in numbers]


def _write(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))


def labelled(data: ConfigDict) -> GeneratedSource:
    """Return the sets with their labels as a source for classification."""
    return GeneratedSource("sets", VERSION, SPLITS, generate)
