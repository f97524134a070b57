"""Word and character error rates, from the edits between answer and reference.

WER = (substitutions + deletions + insertions) / words of all references
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.decoding import Reply
from transformer_jax.tasks.parts.scoring import ResampledScoring, texts_of
from transformer_jax.tasks.protocols import Record


class Edits(NamedTuple):
    """Edits that turn references into answers, and the length of the references."""

    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    length: int = 0

    @property
    def rate(self) -> float:
        """Return the edits for each symbol of a reference; it may be above 1."""
        return sum(self[:3]) / max(self.length, 1)


def count_edits(answer: Sequence[str], reference: Sequence[str]) -> Edits:
    """Count the fewest edits; among equally few, those with the most substitutions.

    The table is filled row by row; within a row, insertions are a running minimum.
    """
    numbers = {symbol: i for i, symbol in enumerate({*answer, *reference})}
    ours = np.array([numbers[symbol] for symbol in answer], np.int64)
    steps = np.arange(len(answer) + 1)
    table = np.empty((len(reference) + 1, len(answer) + 1), np.int64)
    table[0] = steps
    for i, symbol in enumerate(reference):
        above = table[i]
        row = above + 1  # a deletion
        row[1:] = np.minimum(row[1:], above[:-1] + (ours != numbers[symbol]))
        table[i + 1] = np.minimum.accumulate(row - steps) + steps
    return _trace(table, answer, reference)


def _trace(table: np.ndarray, answer: Sequence[str], reference: Sequence[str]) -> Edits:
    """Trace the table back from its corner, and count the edits of each kind."""
    i, j = len(reference), len(answer)
    substitutions = deletions = insertions = 0
    while i or j:
        here = table[i, j]
        if i and j:
            cost = int(reference[i - 1] != answer[j - 1])
            if here == table[i - 1, j - 1] + cost:
                i, j, substitutions = i - 1, j - 1, substitutions + cost
                continue
        if i and here == table[i - 1, j] + 1:
            i, deletions = i - 1, deletions + 1
        else:
            j, insertions = j - 1, insertions + 1
    return Edits(substitutions, deletions, insertions, len(reference))


def add_edits(edits: Sequence[Edits]) -> Edits:
    """Add up the edits of several references."""
    return Edits(*map(sum, zip(*edits, strict=True))) if edits else Edits()


class WordErrorScoring(ResampledScoring):
    """Word and character error rates of transcripts, compared without case."""

    shares = ("wer", "cer")

    def reference(self, record: Record) -> str:
        """Return the transcript of an example."""
        return record["text"]

    def measure(
        self, answers: Sequence[str], references: Sequence[str]
    ) -> Sequence[tuple[Edits, Edits]]:
        """Count the edits of words and of characters, text by text."""
        pairs = [
            (answer.lower().split(), reference.lower().split())
            for answer, reference in zip(answers, references, strict=True)
        ]
        return [
            (count_edits(a, r), count_edits(" ".join(a), " ".join(r))) for a, r in pairs
        ]

    def judge(self, measured: Sequence[tuple[Edits, Edits]]) -> dict[str, float]:
        """Return the accuracies, for which higher is better, in percent."""
        words, characters = map(add_edits, zip(*measured, strict=True))
        return {
            "word accuracy (%)": 100 * (1 - words.rate),
            "character accuracy (%)": 100 * (1 - characters.rate),
        }

    def score(self, replies: Sequence[Reply], references: Sequence[str]) -> dict:
        """Return both error rates, the edits of words, and the share without any."""
        measured = self.measure(texts_of(replies), references)
        words = add_edits([of_words for of_words, _ in measured])
        characters = add_edits([of_characters for _, of_characters in measured])
        exact = sum(not sum(of_words[:3]) for of_words, _ in measured)
        return {
            "wer": words.rate,
            "cer": characters.rate,
            "word_accuracy": 1 - words.rate,
            "exact": exact / max(len(measured), 1),
            "substitutions": words.substitutions,
            "deletions": words.deletions,
            "insertions": words.insertions,
            "words": words.length,
        }

    def summary(self, scores: Mapping[str, Any]) -> str:
        """Put the scores into words."""
        return (
            f"WER = {scores['wer']:.2%} of {scores['words']:,} words "
            f"({scores['substitutions']} substituted, {scores['deletions']} deleted, "
            f"{scores['insertions']} inserted)  CER = {scores['cer']:.2%}"
        )
