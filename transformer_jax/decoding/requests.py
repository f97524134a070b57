"""Define what goes into inference and what comes out: one request, one reply a line."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jax.sharding import Mesh

from transformer_jax.decoding.options import Options
from transformer_jax.sharding import Params


@dataclasses.dataclass(frozen=True)
class DecodeRequest:
    """A line made ready for a model."""

    source: Any = ()  # what the model reads: pieces with their end, or pixels
    prefix: Sequence[int] = ()  # pieces that the answer begins with
    seed: int = 0  # of the draws, if answers are sampled
    line: Any = ""  # the line itself
    limit: int = 0  # tokens of its answer at most; 0: as the options say
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


@runtime_checkable
class Inference(Protocol):
    """Answer lines."""

    def parse(
        self,
        line: Any,
        max_length: int = 0,
        prefix: str = "",
        number: int = 0,
        options: Options | None = None,
    ) -> DecodeRequest:
        """Make a request of a line, or raise `Refused` with the reason.

        A line may have `max_length` pieces (0: any number). The answer begins with
        `prefix`. The line's number decides what is drawn by chance.
        """
        ...

    def question(self, record: Mapping[str, Any]) -> Any:
        """Return the line that an example asks."""
        ...

    def answers(
        self,
        params: Params,
        requests: Sequence[DecodeRequest],
        mesh: Mesh,
        options: Options,
    ) -> Iterator[tuple[int, Reply]]:
        """Yield (number of a request, its reply), in any order."""
        ...


@runtime_checkable
class SplitsLines(Protocol):
    """Inference that can answer a long line part by part."""

    def split(self, line: str, max_length: int) -> list[str]:
        """Divide a line that has more pieces than allowed."""
        ...

    def join(self, replies: Sequence[Reply]) -> Reply:
        """Join the replies to the parts of one line."""
        ...


def one_line(text: str) -> str:
    """Replace the line ends of a text by spaces."""
    return text.replace("\r", " ").replace("\n", " ")
