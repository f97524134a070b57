"""Running text for language models: what is generated, and its windows."""

import functools

from ml_collections import ConfigDict

from transformer_jax.base.errors import UserError
from transformer_jax.data.reading import canaries
from transformer_jax.data.reading.records import Records
from transformer_jax.data.reading.sources import Source, find_generated
from transformer_jax.data.reading.windows import HeldWindows, Windows

CHARACTERS = ("char", "byte")  # kinds of tokenizer without whole words


class Stream(Source):
    """Splits whose lines are one running text, in windows."""

    def __init__(self, config: ConfigDict, task: str = "language", flat: bool = False):
        """Open the text of `config.data`; `task` names the generated data.

        If `flat`, join all words with single spaces, and give held-out windows no
        context.
        """
        super().__init__(config.data, ("text",), find_generated(task, config.data))
        self.whole_words = config.tokenizer.kind not in CHARACTERS
        self.flat = flat
        self.context = 0 if flat else config.eval.context

    @functools.cache  # noqa: B019  (a source lives as long as its run)
    def read(self, split: str) -> Windows:
        """Read the windows of a split; only held-out ones have a context."""
        data, lines = self.data, self._plant(split, self.lines(split))
        stride, context = (data.stride, 0) if split == "train" else (0, self.context)
        return Windows(lines, data.window, stride, self.whole_words, self.flat, context)

    def examples(self, records: Records) -> Records:
        """Cut some lines into training windows, which do not go beyond them."""
        data = self.data
        if not self.flat and data.canaries:
            raise UserError(
                "data.canaries are planted into the whole text: leave them out of a "
                "corpus in shards"
            )
        words = self.whole_words
        return HeldWindows(records, data.window, data.stride, words, self.flat)

    def lines(self, split: str) -> Records:
        """Read the lines of a split, without canaries."""
        return super().read(split)

    def _plant(self, split: str, lines: Records) -> Records:
        """Plant the canaries that the config asks for into the training text."""
        times = () if self.flat or split != "train" else self.data.canaries
        if not times:
            return lines
        seed = self.data.canary_seed
        return canaries.Planted(lines, canaries.draw(times, seed), seed)
