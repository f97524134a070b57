"""Translation: a sentence in, a sentence out (the task of the paper).

It is composed of parts that other tasks share: pairs of texts, an encoder-decoder model
trained with teacher forcing, and a search. Its own parts score replies by BLEU and
split long lines at the ends of sentences.
"""

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Sequence

from ml_collections import ConfigDict

from transformer_jax import scores
from transformer_jax.base.schema import option
from transformer_jax.data.reading import sources
from transformer_jax.data.reading.sources import FIELDS, Source, find_generated
from transformer_jax.data.text.tokenizer import Tokenizer
from transformer_jax.decoding import Reply
from transformer_jax.tasks.parts import seq2seq
from transformer_jax.tasks.parts.pairs import (
    PairData,
    learn_tokenizers,
    open_tokenizers,
)
from transformer_jax.tasks.parts.scoring import BleuScoring
from transformer_jax.tasks.parts.writing import Seq2SeqInference
from transformer_jax.tasks.protocols import Pairs, Record, Task, TaskDefinition

# Closing quotes and brackets may follow; no space does in Chinese and Japanese.
SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[”’」』）]*")


@dataclasses.dataclass(frozen=True)
class LanguageOptions:
    """The languages: options of `config.data`."""

    target_language: str = option(
        "",
        "The target language, such as de, whose Moses rules split words for tokenised "
        "BLEU; empty: English. Training ignores it.",
    )


def source(config: ConfigDict) -> Source:
    """Read the phrasebook, or files of pairs."""
    return Source(config.data, FIELDS, find_generated("translation", config.data))


def open_run(config: ConfigDict, folder: pathlib.Path) -> Task:
    """Open the task with the tokenizers that a run has learned."""
    return compose_translation(config, *open_tokenizers(config, folder))


def compose_translation(
    config: ConfigDict, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer
) -> Task:
    """Compose the task from its parts."""
    data = PairData(config, source_tokenizer, target_tokenizer)
    scoring = TranslationScoring(config, target_tokenizer.lowercase)
    return seq2seq.compose(data, SentenceInference, scoring)


class SentenceInference(Seq2SeqInference):
    """A source in, the target out; a long line is translated sentence by sentence."""

    advice = "split it into sentences (--on_long=split), or raise --max_input"

    def split(self, line: str, max_length: int) -> list[str]:
        """Split a line that is too long into sentences, each after the line's tag."""
        line = self.tag(line)
        if len(self.data.source_tokenizer.encode(line)) <= max_length:
            return [line]
        tags = sources.read_tags(self.data.config.data, "train")
        tag = next((tag for tag in tags if tag and line.startswith(f"{tag} ")), "")
        line = line.removeprefix(tag)
        ends = [0, *(found.end() for found in SENTENCE_END.finditer(line)), len(line)]
        parts = (line[a:b].strip() for a, b in itertools.pairwise(ends))
        return [f"{tag} {part}".lstrip() for part in parts if part]

    def join(self, replies: Sequence[Reply]) -> Reply:
        """Join the replies to a line's sentences and sum their scores."""
        text = " ".join(reply.text for reply in replies)
        score = sum(reply.score or 0.0 for reply in replies)
        return Reply("", text, score, details={"score": score})


class TranslationScoring(BleuScoring):
    """BLEU and chrF, also by the protocols of published figures."""

    def __init__(self, config: ConfigDict, lowercase: bool):
        super().__init__(lowercase)
        self.language = config.data.target_language

    def readings(
        self, answers: Sequence[str], records: Sequence[Record]
    ) -> list[scores.Score]:
        """Score the same answers by each protocol that published figures use."""
        sources = [record["source"] for record in records]
        references = [self.reference(record) for record in records]
        texts = (list(answers), references)
        found = scores.panel(*texts, self.language, self.lowercase)
        return found + scores.of_several(sources, *texts, self.lowercase)


TASK = TaskDefinition(
    defaults={
        "checkpoint.best": "bleu",
    },
    source=source,
    learn=learn_tokenizers,
    open=open_run,
    open_empty=seq2seq.open_empty,
    metrics=("bleu", "chrf"),
    options={
        "data": (
            sources.declare(FIELDS, "phrasebook", task="translation"),
            LanguageOptions,
        )
    },
    pairs=Pairs(parallel=True),
)
