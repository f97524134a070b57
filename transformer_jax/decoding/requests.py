"""What goes into a model and what comes out of it: one request and one reply a line."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class DecodeRequest:
    """A line made ready for a model."""

    source: Any = ()  # what the model reads: pieces with their end, or pixels
    prefix: Sequence[int] = ()  # pieces that the answer begins with
    seed: int = 0  # of the draws, if answers are sampled
    line: Any = ""  # the line itself
    # Arrays [W] that the engine's constraint reads, such as the words of a tree.
    constraint: Mapping[str, np.ndarray] | None = None


@dataclasses.dataclass(frozen=True)
class Reply:
    """The answer to a line, or the reason why there is none."""

    line: Any = ""
    text: str = ""  # one line
    score: float | None = None  # log-probability of what was written, length-penalised
    others: tuple["Reply", ...] = ()  # the next best, of a search for several
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # for jsonl
    error: str = ""


def one_line(text: str) -> str:
    """Replace the line ends of a text by spaces."""
    return text.replace("\r", " ").replace("\n", " ")
