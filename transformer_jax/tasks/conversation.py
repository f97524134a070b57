"""Conversation: the last turns of a dialogue in, the reply out (a seq2seq chatbot).

The encoder reads the last `data.turns` turns, oldest first, with a mark between them;
what was said before that is forgotten. Everything else is translation.
"""

import functools
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from transformer_jax import scores
from transformer_jax.data.generated import smalltalk
from transformer_jax.data.generated.smalltalk import FIXED, SEPARATOR
from transformer_jax.data.records import Reading
from transformer_jax.data.sources import (
    FIELDS,
    FORMS,
    GeneratedSource,
    Source,
    add_keys,
)
from transformer_jax.errors import UserError
from transformer_jax.tasks import translation

END_OF_TURN = "__eou__"


class Task(translation.Task):
    """Contexts and replies; `source` is a context, `target` its reply."""

    METRICS = ("bleu", "exact", "distinct_2")
    IN_PARTS = False
    CHOICES = {"data.source": ("smalltalk", "dialogues", *FORMS)}

    @classmethod
    def configure(cls, config: ConfigDict) -> None:
        add_keys(config.data, "smalltalk", FIELDS)
        config.data.turns = 3  # turns of a dialogue that are read
        config.tokenizer.user_symbols = (SEPARATOR.strip(),)
        config.checkpoint.best = "loss"

    @classmethod
    def find_problems(cls, config: ConfigDict) -> list[str]:
        problems = super().find_problems(config)
        if config.data.turns < 1:
            problems.append(f"data.turns = {config.data.turns}: must be at least 1")
        return problems

    @classmethod
    def source(cls, config: ConfigDict) -> Source:
        turns = config.data.turns

        def generate(split: str, size: int) -> list[dict[str, str]]:
            found = smalltalk.generate(split, size, turns=turns)
            pairs = [(r["context"], r["reply"]) for r in found]
            if split == "train":  # every example is there once, but people greet often
                pairs += [FIXED] * (size // 200)
            return [{"source": context, "target": reply} for context, reply in pairs]

        about = ("smalltalk", smalltalk.VERSION, smalltalk.SPLITS, generate)
        embedded = GeneratedSource(*about, (str(turns),))
        read = functools.partial(_read_dialogue, turns)
        readings = {"dialogues": Reading(read, str(turns), once=True)}
        return Source(config.data, embedded=embedded, readings=readings)

    def context(self, turns: Sequence[str]) -> tuple[str, int]:
        """What is read of a dialogue so far, and how many turns are forgotten."""
        kept = turns[-self.config.data.turns :]
        return SEPARATOR.join(kept), len(turns) - len(kept)

    def score_texts(self, answers: Sequence[str], references: Sequence[str]) -> dict:
        """BLEU, which share is exactly right, and how varied they are."""
        lowercase = self.target_tokenizer.lowercase
        if lowercase:
            references = [reference.lower() for reference in references]
        right = sum(a == r for a, r in zip(answers, references, strict=True))
        return {
            **scores.headline(answers, references, lowercase),
            "exact": 100 * right / max(len(references), 1),
            "distinct_2": 100 * scores.distinct(answers, 2),
        }

    def summary(self, scores: dict[str, Any]) -> str:
        return (
            f"{super().summary(scores)}  exact {scores['exact']:.1f}%  "
            f"distinct-2 {scores['distinct_2']:.1f}%"
        )

    def panel(self, answers: Sequence[str], records: Any) -> list:
        return []  # readings of BLEU that published translations compare by


def _read_dialogue(turns: int, line: str) -> list[dict[str, str]]:
    """A dialogue, its turns divided by __eou__: all but the first are replies."""
    said = [turn.strip() for turn in line.split(END_OF_TURN) if turn.strip()]
    if len(said) < 2:
        raise UserError(
            f"a dialogue has at least two turns, divided by {END_OF_TURN}, "
            f"not {len(said)}"
        )
    return [
        {"source": SEPARATOR.join(said[max(0, i - turns) : i]), "target": said[i]}
        for i in range(1, len(said))
    ]
