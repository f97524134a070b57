"""Translation: a sentence in, a sentence out (the task of the paper).

It is composed of parts that other tasks share: pairs of texts, an encoder-decoder model
trained by teacher forcing, a search that writes. Its own are the BLEU of the replies
and lines that are split where sentences end.
"""

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Sequence

from ml_collections import ConfigDict

from transformer_jax import scores
from transformer_jax.data import sources
from transformer_jax.data.sources import FIELDS, PHRASEBOOK, Source
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding import Reply
from transformer_jax.keys import key
from transformer_jax.tasks.parts import seq2seq
from transformer_jax.tasks.parts.pairs import (
    PairData,
    learn_tokenizers,
    open_tokenizers,
)
from transformer_jax.tasks.parts.scoring import BleuScoring
from transformer_jax.tasks.parts.writing import Seq2SeqInference
from transformer_jax.tasks.protocols import Pairs, Record, Task, TaskDefinition

# What closes a quotation may follow; in Chinese and Japanese no space does.
SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[”’」』）]*")


@dataclasses.dataclass(frozen=True)
class LanguageKeys:
    """Name the languages: keys of `config.data`."""

    target_language: str = key("", "Such as de: whose tokens some scores are of.")


def configure(config: ConfigDict) -> None:
    """Set what a good translation is measured by."""
    config.checkpoint.best = "bleu"


def open_run(config: ConfigDict, folder: pathlib.Path) -> Task:
    """Open the task with the tokenizers that a run has learned."""
    return compose(config, *open_tokenizers(config, folder))


def compose(config: ConfigDict, source: Tokenizer, target: Tokenizer) -> Task:
    """Compose the task of its parts."""
    data = PairData(config, source, target)
    scoring = TranslationScoring(config, target.lowercase)
    return seq2seq.compose(data, SentenceInference, scoring)


class SentenceInference(Seq2SeqInference):
    """A source in, the target out; a long line sentence by sentence."""

    too_long = "split it into sentences (--on_long=split), or raise --max_input"

    def split(self, line: str, max_length: int) -> list[str]:
        """Divide a line that is too long into sentences, each behind the line's tag."""
        pieces = self.data.source_tokenizer.encode(line)
        if len(pieces) <= max_length:
            return [line]
        tags = map(str.strip, self.data.config.data.train_tags.split(","))
        tag = next((tag for tag in tags if tag and line.startswith(f"{tag} ")), "")
        line = line.removeprefix(tag)
        ends = [0, *(found.end() for found in SENTENCE_END.finditer(line)), len(line)]
        parts = (line[a:b].strip() for a, b in itertools.pairwise(ends))
        return [f"{tag} {part}".lstrip() for part in parts if part]

    def join(self, replies: Sequence[Reply]) -> Reply:
        """Join the replies to a line's sentences; their scores add up."""
        text = " ".join(reply.text for reply in replies)
        score = sum(reply.score or 0.0 for reply in replies)
        return Reply("", text, score, details={"score": score})


class TranslationScoring(BleuScoring):
    """BLEU and chrF, with the readings that published figures compare with."""

    def __init__(self, config: ConfigDict, lowercase: bool):
        super().__init__(lowercase)
        self.language = config.data.target_language

    def readings(
        self, answers: Sequence[str], records: Sequence[Record]
    ) -> list[scores.Score]:
        """Score the same answers by every protocol that published figures use."""
        sources = [record["source"] for record in records]
        references = [self.reference(record) for record in records]
        texts = (list(answers), references)
        found = scores.panel(*texts, self.language, self.lowercase)
        return found + scores.of_several(sources, *texts, self.lowercase)


TASK = TaskDefinition(
    configure=configure,
    source=lambda config: Source(config.data),
    learn=learn_tokenizers,
    open=open_run,
    metrics=("bleu", "chrf"),
    keys={"data": (sources.declare(FIELDS, PHRASEBOOK.name), LanguageKeys)},
    pairs=Pairs(),
)
