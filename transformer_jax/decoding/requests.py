"""Input and output of inference: one request and one reply per line."""

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jax.sharding import Mesh

from transformer_jax.base.errors import Refused
from transformer_jax.decoding.options import Options
from transformer_jax.sharding import Params

SHOWN, MOST = 8, 20  # unknown characters that a warning names, and such warnings


@dataclasses.dataclass(frozen=True)
class DecodeRequest:
    """A line prepared for a model."""

    source: Any = ()  # the model's input: pieces with their end, or pixels
    prefix: Sequence[int] = ()  # pieces with which the answer begins
    seed: int = 0  # of the draws, if answers are sampled
    line: Any = ""  # the line itself
    limit: int = 0  # tokens of its answer at most; 0: as the options say
    # Arrays [W] that the engine's constraint reads, such as the words of a tree.
    constraint: Mapping[str, np.ndarray] | None = None
    joined: Sequence["DecodeRequest"] = ()  # the line as each partner reads it


@dataclasses.dataclass(frozen=True)
class Reply:
    """The answer to a line, or the reason why there is none."""

    line: Any = ""
    text: str = ""  # one line
    score: float | None = None  # length-penalised log-probability, or mean chrF (mbr)
    others: tuple["Reply", ...] = ()  # the next best answers, with `n_best`
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # for jsonl
    pieces: int = 0  # that were written, with their end
    error: str = ""
    # Characters or words of the line that are not in the model's vocabulary.
    unknown: tuple[str, ...] = ()


@runtime_checkable
class Inference(Protocol):
    """Answer lines."""

    def parse(
        self,
        line: Any,
        max_length: int = 0,
        prefix: str = "",
        draw_seed: int = 0,
        options: Options | None = None,
    ) -> DecodeRequest:
        """Make a request from a line, or raise `Refused` with the reason.

        A line may have at most `max_length` pieces (0 means any number). The answer
        begins with `prefix`. `draw_seed` seeds its random draws.
        """
        ...

    def question(self, record: Mapping[str, Any]) -> Any:
        """Return the line to answer for an example."""
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
class Includes(Protocol):
    """Inference whose answers can be made to include given phrases."""

    def include(
        self, request: DecodeRequest, phrases: Sequence[str], options: Options
    ) -> DecodeRequest:
        """Return the request with the phrases, or raise `Refused` with the reason."""
        ...


@runtime_checkable
class ReadsText(Protocol):
    """Inference whose lines are text that a tokenizer encodes."""

    @property
    def reads(self) -> Any:
        """The tokenizer of the lines."""
        ...


@runtime_checkable
class SplitsLines(Protocol):
    """Inference that can answer a long line part by part."""

    def split(self, line: str, max_length: int) -> list[str]:
        """Split a line that has more pieces than allowed."""
        ...

    def join(self, replies: Sequence[Reply]) -> Reply:
        """Join the replies to the parts of one line."""
        ...


def check_text(*texts: Any) -> None:
    """Refuse a text with half of a surrogate pair, which no encoding has.

    Python reads bytes that it cannot decode as such halves (surrogateescape).
    """
    for text in texts:
        try:
            text.encode() if isinstance(text, str) else None
        except UnicodeEncodeError as error:
            code, place = ord(text[error.start]), error.start + 1
            if 0xDC80 <= code <= 0xDCFF:
                raise Refused(
                    f"byte {code - 0xDC00:#04x} at character {place} is not text in "
                    "UTF-8, or in the encoding that was named: convert the file, such "
                    "as by iconv -f latin1 -t utf-8, or name another (--encoding)"
                ) from None
            raise Refused(
                f"{text[error.start]!r} at character {place}: half of a surrogate pair "
                "is not text"
            ) from None


class UnknownParts:
    """Warn of the characters or words of lines that the model does not know.

    Each of them is named once, for the first line that has it, so that a file in
    another alphabet does not give a warning for every line.
    """

    def __init__(self, logger: logging.Logger):
        self.logger, self.lines = logger, 0  # lines that have any
        self._named: set[str] = set()
        self._warnings = 0

    def note(self, where: str, unknown: Sequence[str]) -> None:
        """Warn of what is new in a line: `where` is "line 7"."""
        self.lines += bool(unknown)
        new = [part for part in unknown if part not in self._named]
        if not new or self._warnings > MOST:
            return
        self._named.update(new)
        self._warnings += 1
        if self._warnings > MOST:
            self.logger.warning("more lines have unknown characters: not shown")
            return
        shown = " ".join(p if p.isprintable() else ascii(p)[1:-1] for p in new[:SHOWN])
        more = f" and {len(new) - SHOWN} more" if len(new) > SHOWN else ""
        self.logger.warning(
            "%s: the model does not know %s%s: the answer may be invented",
            where,
            shown,
            more,
        )


def one_line(text: str) -> str:
    """Replace the line breaks of a text with spaces."""
    return text.replace("\r", " ").replace("\n", " ")
