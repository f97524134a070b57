"""Windows of running text, for language models.

The lines of a split are joined again, newlines kept, and cut: anywhere for models of
characters, before a space for others (only a word longer than a window is cut).
Held-out windows follow each other, so each character is predicted once, from those
before it in its own window; with a context, from text before its window as well. In
flat windows all white space between two words is one space. The text and the ends of
its windows are on disk, in the cache, so that a text need not fit in memory.
"""

import array
import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from transformer_jax.data import cache
from transformer_jax.data.records import Record, Records
from transformer_jax.data.running import RunningText
from transformer_jax.keys import key

FORMAT = 1  # of the files
SPANS = "spans"
WRITTEN = 1 << 10  # numbers that are written, and windows that are read, together


@dataclasses.dataclass(frozen=True)
class WindowKeys:
    """Cut running text: keys of `config.data`."""

    window: int = key(256, "Characters that are read together.", least=2)
    stride: int = key(0, "Characters between training windows; 0: a window.", least=0)


class Windows(Records):
    """Records {"text": window} of the text whose lines are records {"text": line}.

    With a context they also have {"before": …}, the text before the window.
    """

    def __init__(
        self,
        lines: Any,
        size: int,
        stride: int = 0,
        whole_words: bool = True,
        flat: bool = False,
        context: int = 0,
    ):
        """Windows begin `stride` characters apart; 0: where the one before ends.

        Those of whole words begin at the last space within the stride. With a
        `context`, all but the first are smaller by that many characters (but not
        smaller than a word), and the text before them fills them up to `size`.
        """
        self.lines, self.size, self.stride = lines, size, stride
        self.whole_words, self.flat, self.notes = whole_words, flat, lines.notes
        self.fingerprint = f"{lines.fingerprint}-{size}-{stride}-{whole_words}"
        self.fingerprint += "-flat" * flat
        self.fingerprint += "-begun" * bool(stride and whole_words)
        self.context, self.content = context, lines.content
        self.fingerprint += f"-context-{context}" * bool(context)

    @property
    def source_fingerprint(self) -> str:
        """Return the fingerprint of the lines."""
        return self.lines.fingerprint

    @functools.cached_property
    def text(self) -> RunningText:
        """Return the running text of all lines."""
        return RunningText(self.lines, self.flat)

    @functools.cached_property
    def _spans(self) -> np.ndarray:
        """Return where windows begin and end, [windows, 2], mapped from the cache."""
        key = hashlib.sha256(f"{FORMAT}:{self.fingerprint}".encode()).hexdigest()[:24]
        place = cache.build_once(
            cache.folder() / "windows" / key, self._write_spans, self.content
        )
        if not (place / SPANS).stat().st_size:
            return np.empty((0, 2), np.int64)
        mapped = np.memmap(place / SPANS, "int64", "r").reshape(-1, 2)
        return mapped.view(np.ndarray)  # whose rows are found sooner

    def _write_spans(self, place: pathlib.Path) -> None:
        numbers = array.array("q")
        with (place / SPANS).open("wb") as file:
            for span in self._cut_all():
                numbers.extend(span)
                if len(numbers) >= WRITTEN:
                    numbers.tofile(file)
                    del numbers[:]
            numbers.tofile(file)

    def _cut_all(self) -> Iterator[tuple[int, int]]:
        length = len(self.text)
        if self.stride and not self.whole_words:
            last = max(length - self.size, 0)
            for start in (*range(0, last, self.stride), last):
                yield start, min(start + self.size, length)
            return
        start = end = 0
        while max(start, end) < length:
            end = self._cut(start, self.size - (self.context if end else 0))
            yield start, end
            start = self._cut(start, self.stride) if self.stride else end

    def _cut(self, start: int, length: int) -> int:
        """Return the end of `length` characters from here, or of the words in them."""
        end = start + length
        if end >= len(self.text) or not self.whole_words:
            return min(end, len(self.text))
        inside = self.text[start + 1 : end + 1]
        space = max(inside.rfind(mark) for mark in " \n")
        if space >= 0:
            return start + 1 + space
        if not self.context:
            return end
        return end + _first_space(self.text[end : start + self.size + 1], 0)

    def __len__(self) -> int:
        return len(self._spans)

    def __iter__(self) -> Iterator[Record]:
        for first in range(0, len(self), WRITTEN):
            for start, end in self._spans[first : first + WRITTEN].tolist():
                yield self._window(start, end)

    def __getitem__(self, index: int) -> Record:
        return self._window(*self._spans[index].tolist())

    def _window(self, start: int, end: int) -> Record:
        text = self.text[start:end]
        if self.context:
            return {"text": text, "before": self.text[self._begin(start, end) : start]}
        return {"text": text.strip() if self.flat else text}

    def _begin(self, start: int, end: int) -> int:
        """Return where the text before a window begins."""
        first = max(end - self.size, 0)
        if not first or not self.whole_words:
            return first
        return first + _first_space(self.text[first:start], start - first)

    def where(self, index: int) -> str:
        """Name the characters of a window."""
        start, end = self._spans[index].tolist()
        return f"characters {start + 1:,} to {end:,} of the text"

    def repeats_of(self, numbers: Any) -> None:
        """Return None: every window comes once an epoch."""


def _first_space(text: str, default: int) -> int:
    """Return the place of the first space or newline."""
    places = (text.find(mark) for mark in " \n")
    return min((place for place in places if place >= 0), default=default)


def remove_keys(config: ConfigDict) -> None:
    """Remove the keys of pairs and of examples, which running text has not."""
    data = config.data
    tags = [name for name in data if name.endswith("_tags")]
    for name in (*tags, "train_weights", "max_length"):
        del data[name]
    del config.tokenizer.sampling, config.tokenizer.shared, config.filter
