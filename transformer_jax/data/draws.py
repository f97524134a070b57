"""Random draws for the generators, and the splits of the texts that they draw."""

from collections.abc import Callable, Sequence
from typing import TypeVar
from zlib import crc32

T = TypeVar("T")


class Drawer:
    """Draws by `Random.random` alone, which is the same in all versions of Python."""

    def __init__(self, random: Callable[[], float]):
        """Draw by this function, which returns numbers x with 0 ≤ x < 1."""
        self._random = random

    def chance(self, probability: float) -> bool:
        """Return True with a given probability."""
        return self._random() < probability

    def pick(self, options: Sequence[T]) -> T:
        """Draw an option; all are equally likely."""
        return options[int(self._random() * len(options))]

    def weigh(self, options: Sequence[tuple[int, T]]) -> T:
        """Draw an option in proportion to the weight before it."""
        mark = self._random() * sum(weight for weight, _ in options)
        for weight, option in options:
            mark -= weight
            if mark < 0:
                return option
        return options[-1][1]


def check_split(split: str, splits: Sequence[str]) -> None:
    """Raise if there is no split of this name."""
    if split not in splits:
        raise ValueError(f"unknown split {split!r}: choose from {', '.join(splits)}")


def split_of(text: str) -> str:
    """Return the split of a text by its hash; validation and test get a tenth each."""
    return {0: "validation", 1: "test"}.get(crc32(text.encode()) % 10, "train")
