"""Running text for language models: what is generated, and its windows."""

import functools

from ml_collections import ConfigDict

from transformer_jax.corpora import phrasebook, stories
from transformer_jax.data.reading import canaries
from transformer_jax.data.reading.records import Records
from transformer_jax.data.reading.sources import GeneratedSource, Source
from transformer_jax.data.reading.windows import Windows

CHARACTERS = ("char", "byte")  # kinds of tokenizer without whole words


def _phrases(split: str, size: int) -> list[dict[str, str]]:
    return [{"text": p.target} for p in phrasebook.generate(split, size)]


PHRASES = GeneratedSource(
    "phrasebook", phrasebook.VERSION, phrasebook.SPLITS, _phrases, ("en",)
)


def _stories(split: str, size: int) -> list[dict[str, str]]:
    return [{"text": story} for story in stories.generate(split, size)]


STORIES = GeneratedSource("stories", stories.VERSION, stories.SPLITS, _stories)
EMBEDDED = {source.name: source for source in (PHRASES, STORIES)}


class Stream(Source):
    """Splits whose lines are one running text, in windows."""

    def __init__(
        self,
        config: ConfigDict,
        embedded: GeneratedSource | None = None,
        flat: bool = False,
    ):
        generated = EMBEDDED.get(config.data.source, PHRASES)
        super().__init__(config.data, ("text",), embedded or generated)
        self.whole_words = config.tokenizer.kind not in CHARACTERS
        self.flat = flat
        self.context = 0 if flat else config.eval.context

    @functools.cache  # noqa: B019  (a source lives as long as its run)
    def read(self, split: str) -> Windows:
        """Read the windows of a split; only held-out ones have a context."""
        data, lines = self.data, self._plant(split, self.lines(split))
        stride, context = (data.stride, 0) if split == "train" else (0, self.context)
        return Windows(lines, data.window, stride, self.whole_words, self.flat, context)

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
