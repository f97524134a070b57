"""Sets of numbers, each labelled with its largest: the order says nothing, or too much.

They are given in ascending order, so a model that sees positions can answer with the
last number, and need not compare any. `test_permuted` has the sets of `test` in another
order: who compared is right there, too (Zaheer et al. 2017; Lee et al. 2019).
"""

from collections.abc import Sequence
from random import Random

from transformer_jax.data.generated.draws import Drawer, check_split, split_of

VERSION = 1  # part of the data fingerprint: raise when the generated text changes
SPLITS = ("train", "validation", "test", "test_permuted")
LARGEST = range(12, 50)  # all are equally likely, and so all occur in training
OTHERS = range(2, 12)  # so many smaller numbers


def generate(split: str, size: int, seed: int = 0) -> list[dict[str, str]]:
    """Return the first `size` sets of a split, always the same for a seed.

    A hash of the set assigns it to its split, so no two splits share one, but for the
    two of the test.
    """
    check_split(split, SPLITS)
    kind = split.partition("_")[0]
    drawer = Drawer(Random(f"sets {kind} {seed}").random)
    found: dict[str, dict[str, str]] = {}
    while len(found) < size:
        largest = drawer.pick(LARGEST)
        others = _shuffle(drawer, range(largest))[: drawer.pick(OTHERS)]
        numbers = [*sorted(others), largest]
        text = plain = _write(numbers)
        if split_of(plain) != kind:
            continue
        if split == "test_permuted":
            text = _write(_shuffle(Drawer(Random(plain).random), numbers))
        found[plain] = {"text": text, "label": str(numbers[-1])}
    return [*found.values()]


def _shuffle(drawer: Drawer, numbers: Sequence[int]) -> list[int]:
    left = [*numbers]
    return [left.pop(drawer.pick(range(len(left)))) for _ in numbers]


def _write(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))
