"""Cut running text into windows, for language models.

The lines of a split are joined with their newlines and cut: anywhere for character
models, before a space for others (only a word longer than a window is cut). Held-out
windows are contiguous, so each character is predicted once, from the characters before
it in its window and, with a context, from the text before the window. In flat windows,
all white space between two words becomes one space. The text and the bounds of its
windows are cached on disk, so that a text need not fit in memory.
"""

import array
import dataclasses
import functools
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from transformer_jax.base.schema import option
from transformer_jax.data import cache
from transformer_jax.data.reading.records import Record, Records
from transformer_jax.data.reading.running import RunningText, pieces

FORMAT = 1  # version of the files
SPANS = "spans"
WRITTEN = 1 << 10  # numbers written, or windows read, at a time


@dataclasses.dataclass(frozen=True)
class WindowOptions:
    """Cut running text: options of `config.data`."""

    window: int = option(256, "Characters per window.", least=2)
    stride: int = option(
        0, "Characters from one training window to the next; 0 means `window`.", least=0
    )


class Windows(Records):
    """Records {"text": window}, cut from records {"text": line}.

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
        """Start windows `stride` characters apart, or contiguously if it is 0.

        With `whole_words`, they start at the last space within the stride. A `context`
        shortens all windows but the first by that many characters (though not below a
        word), and the text before them fills them up to `size`.
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
        """The start and end of each window [windows, 2], mapped from the cache."""
        place = cache.place("windows", f"{FORMAT}:{self.fingerprint}")
        entry = cache.build_once(place, self._write_spans, self.content)
        if not (entry / SPANS).stat().st_size:
            return np.empty((0, 2), np.int64)
        mapped = np.memmap(entry / SPANS, "int64", "r").reshape(-1, 2)
        return mapped.view(np.ndarray)  # plain arrays are indexed faster

    def _write_spans(self, folder: pathlib.Path) -> None:
        numbers = array.array("q")
        with (folder / SPANS).open("wb") as file:
            for span in self._cut_all():
                numbers.extend(span)
                if len(numbers) >= WRITTEN:
                    file.write(numbers.tobytes())
                    del numbers[:]
            file.write(numbers.tobytes())

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
        """Return the end of `length` characters, or of the complete words in them."""
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
            return {
                "text": text,
                "before": self.text[self._context_start(start, end) : start],
            }
        return {"text": text.strip() if self.flat else text}

    def _context_start(self, start: int, end: int) -> int:
        """Return where the context of a window starts."""
        first = max(end - self.size, 0)
        if not first or not self.whole_words:
            return first
        return first + _first_space(self.text[first:start], start - first)

    def where(self, index: int) -> str:
        """Name the characters of a window."""
        start, end = self._spans[index].tolist()
        return f"characters {start + 1:,} to {end:,} of the text"


class HeldWindows(Windows):
    """Windows of a text that is held in memory, such as that of a shard."""

    @functools.cached_property
    def text(self) -> Any:
        """Return the running text of all lines."""
        return "".join(pieces(self.lines, self.flat))

    @functools.cached_property
    def _spans(self) -> np.ndarray:
        return np.array(list(self._cut_all()), np.int64).reshape(-1, 2)

    def where(self, index: int) -> str:
        """Name the characters of a window, and the line where its text begins."""
        return f"{super().where(index)} that begins at {self.lines.where(0)}"


def _first_space(text: str, default: int) -> int:
    """Return the index of the first space or newline."""
    indices = (text.find(mark) for mark in " \n")
    return min((index for index in indices if index >= 0), default=default)
