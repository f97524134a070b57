"""Windows of running text, for language models.

The lines of a split are joined again, newlines kept, and cut: anywhere for models of
characters, before a space for others (only a word longer than a window is cut).
Held-out windows follow each other, so each character is predicted once, from those
before it in its own window; with a context, from text before its window as well. In
flat windows all white space between two words is one space.
"""

import dataclasses
import functools
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.data.records import Record, Records
from transformer_jax.keys import key


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
        self.context = context
        self.fingerprint += f"-context-{context}" * bool(context)

    @functools.cached_property
    def text(self) -> str:
        """The running text of all lines."""
        if self.flat:
            return " ".join(word for r in self.lines for word in r["text"].split())
        return "".join(record["text"] + "\n" for record in self.lines)

    @functools.cached_property
    def _spans(self) -> list[tuple[int, int]]:
        if self.stride and not self.whole_words:
            last = max(len(self.text) - self.size, 0)
            starts = [*range(0, last, self.stride), last]
            return [(start, self._cut(start, self.size)) for start in starts]
        spans, start, end = [], 0, 0
        while max(start, end) < len(self.text):
            end = self._cut(start, self.size - (self.context if spans else 0))
            spans.append((start, end))
            start = self._cut(start, self.stride) if self.stride else end
        return spans

    def _cut(self, start: int, length: int) -> int:
        """Return the end of `length` characters from here, or of the words in them."""
        end = start + length
        if end >= len(self.text) or not self.whole_words:
            return min(end, len(self.text))
        space = max(self.text.rfind(mark, start + 1, end + 1) for mark in " \n")
        if space > start or not self.context:
            return space if space > start else end
        found = (self.text.find(mark, end, start + self.size + 1) for mark in " \n")
        return min((place for place in found if place >= 0), default=end)

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, index: int) -> Record:
        start, end = self._spans[index]
        text = self.text[start:end]
        if self.context:
            return {"text": text, "before": self.text[self._begin(start, end) : start]}
        return {"text": text.strip() if self.flat else text}

    def _begin(self, start: int, end: int) -> int:
        """Return where the text before a window begins."""
        first = max(end - self.size, 0)
        if not first or not self.whole_words:
            return first
        places = (self.text.find(mark, first, start) for mark in " \n")
        return min((place for place in places if place >= 0), default=start)

    def where(self, index: int) -> str:
        """Name the characters of a window."""
        start, end = self._spans[index]
        return f"characters {start + 1:,} to {end:,} of the text"

    def repeats_of(self, numbers: Any) -> None:
        """Return None: every window comes once an epoch."""


def remove_keys(config: ConfigDict) -> None:
    """Remove the keys of pairs and of examples, which running text has not."""
    data = config.data
    tags = [name for name in data if name.endswith("_tags")]
    for name in (*tags, "train_weights", "max_length"):
        del data[name]
    del config.tokenizer.sampling, config.tokenizer.shared, config.filter
