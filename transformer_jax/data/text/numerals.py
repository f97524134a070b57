"""Read numbers as people write them: Python also takes 5_0, ٥٠ and True for numbers."""

import math
import re
from typing import Any

LONGEST = 18  # digits of a whole number
_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")


def read_number(value: Any) -> float:
    """Return a finite number, or one that a text writes; raise ValueError."""
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value):
            raise ValueError(f"{value[:60]!r} is not a number")
    elif isinstance(value, bool):
        raise ValueError(f"{value} is not a number")
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(f"{str(value)[:60]} is not finite")
    return found


def is_whole(text: str) -> bool:
    """Return whether a text is a whole number from 0, of a size that can be meant."""
    return text.isascii() and text.isdecimal() and len(text) <= LONGEST
