"""Conversation: the last turns of a dialogue in, the reply out (a seq2seq chatbot).

The encoder reads the last `data.turns` turns, oldest first, with a separator between
them; earlier turns are forgotten.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from transformer_jax import scores
from transformer_jax.base.errors import UserError
from transformer_jax.base.schema import option
from transformer_jax.data.reading import sources
from transformer_jax.data.reading.records import Reading
from transformer_jax.data.reading.sources import (
    FIELDS,
    GeneratedSource,
    Source,
    find_generated,
)
from transformer_jax.decoding import Reply
from transformer_jax.family.conversation import smalltalk
from transformer_jax.family.conversation.smalltalk import FIXED, SEPARATOR
from transformer_jax.tasks.parts import seq2seq
from transformer_jax.tasks.parts.pairs import (
    PairData,
    learn_tokenizers,
    open_tokenizers,
)
from transformer_jax.tasks.parts.scoring import BleuScoring, texts_of
from transformer_jax.tasks.parts.writing import Seq2SeqInference
from transformer_jax.tasks.protocols import Pairs, Task, TaskDefinition

END_OF_TURN = "__eou__"


@dataclasses.dataclass(frozen=True)
class TurnOptions:
    """Dialogues, whose `source` is a context: options of `config.data`."""

    turns: int = option(3, "Turns of a dialogue that are read.", least=1)
    topics: str = option(
        "few",
        "Generated small talk; many: more topics, and lines that are not understood.",
        choices=smalltalk.TOPICS,
    )


def source(config: ConfigDict) -> Source:
    """Read the generated dialogues, or files of them."""
    turns = config.data.turns
    read = functools.partial(_read_dialogue, turns)
    readings = {"dialogues": Reading(read, str(turns), once=True)}
    generated = find_generated("conversation", config.data)
    return Source(config.data, FIELDS, generated, readings)


def dialogues(data: ConfigDict) -> GeneratedSource:
    """Return contexts and replies of small talk."""
    turns, topics = data.turns, data.topics
    splits = smalltalk.WIDE_SPLITS if topics == "many" else smalltalk.SPLITS

    def generate(split: str, size: int) -> list[dict[str, str]]:
        found = smalltalk.generate(split, size, turns=turns, topics=topics)
        pairs = [(r["context"], r["reply"]) for r in found]
        if split == "train":  # each example occurs once, but people greet often
            pairs += [FIXED] * (size // 200)
        return [{"source": context, "target": reply} for context, reply in pairs]

    about = ("smalltalk", smalltalk.VERSION, splits, generate)
    return GeneratedSource(*about, (str(turns), *["many"] * (topics == "many")))


def open_run(config: ConfigDict, folder: pathlib.Path) -> Task:
    """Open the task with the tokenizers that a run has learned."""
    data = PairData(config, *open_tokenizers(config, folder))
    scoring = DialogueScoring(data.target_tokenizer.lowercase)
    return seq2seq.compose(data, DialogueInference, scoring)


class DialogueInference(Seq2SeqInference):
    """A context in, its reply out."""

    def context(self, turns: Sequence[str]) -> tuple[str, int]:
        """Return the text to read of a dialogue, and the number of turns left out."""
        kept = turns[-self.data.config.data.turns :]
        return SEPARATOR.join(kept), len(turns) - len(kept)


class DialogueScoring(BleuScoring):
    """BLEU, the share of exactly right replies, and their diversity."""

    def score(self, replies: Sequence[Reply], references: Sequence[str]) -> dict:
        """Score replies; `distinct_2` is the share of distinct pairs of words."""
        answers = texts_of(replies)
        if self.lowercase:
            references = [reference.lower() for reference in references]
        right = sum(a == r for a, r in zip(answers, references, strict=True))
        return {
            **scores.headline(answers, references, self.lowercase),
            "exact": 100 * right / max(len(references), 1),
            "distinct_2": 100 * scores.distinct(answers, 2),
        }

    def summary(self, scores: Mapping[str, Any]) -> str:
        """Format the scores."""
        return (
            f"{super().summary(scores)}  exact {scores['exact']:.1f}%  "
            f"distinct-2 {scores['distinct_2']:.1f}%"
        )

    def measures(self, scores: Mapping[str, Any]) -> dict[str, float]:
        """Return BLEU, chrF and both shares, in percent."""
        return super().measures(scores) | {
            "exact (%)": scores["exact"],
            "distinct-2 (%)": scores["distinct_2"],
        }


def _read_dialogue(turns: int, line: str) -> list[dict[str, str]]:
    """Read a dialogue with turns separated by __eou__; each but the first replies."""
    said = [turn.strip() for turn in line.split(END_OF_TURN) if turn.strip()]
    if len(said) < 2:
        raise UserError(
            f"a dialogue has at least two turns, separated by {END_OF_TURN}, "
            f"not {len(said)}"
        )
    return [
        {"source": SEPARATOR.join(said[max(0, i - turns) : i]), "target": said[i]}
        for i in range(1, len(said))
    ]


TASK = TaskDefinition(
    defaults={
        "tokenizer.user_symbols": (SEPARATOR.strip(),),
        "checkpoint.best": "loss",
    },
    source=source,
    learn=learn_tokenizers,
    open=open_run,
    open_empty=seq2seq.open_empty,
    metrics=("bleu", "exact", "distinct_2"),
    options={
        "data": (
            sources.declare(FIELDS, "smalltalk", "dialogues", task="conversation"),
            TurnOptions,
        )
    },
    pairs=Pairs(),
)
