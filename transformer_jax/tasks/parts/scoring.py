"""Scoring that several tasks share."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax import scores
from transformer_jax.base.errors import UserError
from transformer_jax.data.text.numerals import read_number
from transformer_jax.decoding import Reply
from transformer_jax.tasks.protocols import Record, Scoring


class BleuScoring(Scoring):
    """BLEU and chrF of targets, each with its signature."""

    def __init__(self, lowercase: bool):
        self.lowercase = lowercase  # whether the system writes no capitals

    def reference(self, record: Record) -> str:
        """Return the target of an example."""
        return record["target"]

    def score(self, replies: Sequence[Reply], references: Sequence[str]) -> dict:
        """Score by BLEU and chrF, ignoring case if the system writes no capitals."""
        return scores.headline(texts_of(replies), references, self.lowercase)

    def summary(self, scores: Mapping[str, Any]) -> str:
        """Format BLEU and chrF."""
        return (
            f"BLEU = {scores['bleu']:.2f}  chrF = {scores['chrf']:.2f}  "
            f"({scores['bleu_signature']})"
        )

    def measures(self, scores: Mapping[str, Any]) -> dict[str, float]:
        """Return BLEU and chrF."""
        return {"BLEU": scores["bleu"], "chrF": scores["chrf"]}

    def groups(self, records: Sequence[Record]) -> dict[str, list[int]]:
        """Group examples by their direction tag, if there are several."""
        return group_by_tag(records)

    def compare(
        self, other: Any, systems: Mapping[str, list[str]], references: list[str]
    ) -> list[scores.Comparison]:
        """Compare by BLEU and chrF, ignoring case if neither system writes capitals."""
        lowercase = self.lowercase and other.lowercase
        return scores.compare(systems, references, lowercase=lowercase)


class ResampledScoring(Scoring):
    """Scoring whose metrics are compared by resampling the examples."""

    shares: tuple[str, ...]  # the scores by which groups of runs are compared

    def measures(self, scores: Mapping[str, Any]) -> dict[str, float]:
        """Return the shares, in percent."""
        return in_percent(scores, *self.shares)

    def measure(
        self, answers: Sequence[str], references: Sequence[str]
    ) -> Sequence[Any]:
        """Measure each answer once for all samples; by default, pair the texts."""
        return list(zip(answers, references, strict=True))

    def judge(self, measured: Sequence[Any]) -> dict[str, float]:
        """Return the metrics of a sample; higher is better for each."""
        raise NotImplementedError

    def compare(
        self, other: Any, systems: Mapping[str, list[str]], references: list[str]
    ) -> list[scores.Comparison]:
        """Compare by each metric."""
        return scores.resample(self.measure, self.judge, systems, references)


class LabelScoring(ResampledScoring):
    """Accuracy and F1 of labels."""

    shares = ("accuracy", "f1")

    def judge(self, measured: Sequence[Any]) -> dict[str, float]:
        """Return both in percent."""
        return in_percent(score_labels(*zip(*measured, strict=True)), *self.shares)

    def reference(self, record: Record) -> str:
        """Return the label of an example."""
        return str(record["label"]).strip()

    def score(self, replies: Sequence[Reply], references: Sequence[str]) -> dict:
        """Score labels by name."""
        return score_labels(texts_of(replies), references)

    def summary(self, scores: Mapping[str, Any]) -> str:
        """Format the scores."""
        return f"accuracy = {scores['accuracy']:.2%}  F1 = {scores['f1']:.2%}"


class NumberScoring(LabelScoring):
    """Correlation and error of numbers."""

    shares = ("r",)

    def measure(
        self, answers: Sequence[str], references: Sequence[str]
    ) -> Sequence[Any]:
        """Read numbers."""
        numbers = [[*map(parse_number, texts)] for texts in (answers, references)]
        return list(zip(*numbers, strict=True))

    def judge(self, measured: Sequence[Any]) -> dict[str, float]:
        """Return the correlation, in percent of 1."""
        return in_percent(score_numbers(*zip(*measured, strict=True)), *self.shares)

    def score(self, replies: Sequence[Reply], references: Sequence[str]) -> dict:
        """Score numbers."""
        answers = [parse_number(text) for text in texts_of(replies)]
        return score_numbers(answers, [parse_number(text) for text in references])

    def summary(self, scores: Mapping[str, Any]) -> str:
        """Format the scores."""
        return f"r = {scores['r']:.4f}  RMSE = {scores['rmse']:.4f}"


def in_percent(found: Mapping[str, Any], *names: str) -> dict[str, float]:
    """Return the shares with these names, in percent."""
    return {f"{name} (%)": 100 * found[name] for name in names}


def texts_of(replies: Sequence[Reply]) -> list[str]:
    """Return the text of each reply."""
    return [reply.text for reply in replies]


def group_by_tag(records: Sequence[Record]) -> dict[str, list[int]]:
    """Group the numbers of records by source tag; return {} if there is only one."""
    groups: dict[str, list[int]] = {}
    for i, record in enumerate(records):
        groups.setdefault(getattr(record["source"], "tag", ""), []).append(i)
    if len(groups) < 2:
        return {}
    return {tag or "no tag": members for tag, members in sorted(groups.items())}


def score_labels(answers: Sequence[str], references: Sequence[str]) -> dict:
    """Return accuracy, and F1 averaged over the labels of answers and references.

    A label that occurs in answers but in no reference counts with an F1 of 0.
    """
    pairs = list(zip(answers, references, strict=True))
    f1s = []
    for label in sorted({*answers, *references}):
        both = sum(a == r == label for a, r in pairs)
        either = sum((a == label) + (r == label) for a, r in pairs)
        f1s.append(2 * both / either)
    right = sum(a == r for a, r in pairs)
    return {"accuracy": right / max(len(pairs), 1), "f1": float(np.mean(f1s))}


def score_numbers(answers: Sequence[float], references: Sequence[float]) -> dict:
    """Return Pearson's r (0 if a side is constant) and the root mean squared error."""
    a, r = np.asarray(answers), np.asarray(references)
    varies = len(a) > 1 and a.std() > 0 and r.std() > 0
    correlation = float(np.corrcoef(a, r)[0, 1]) if varies else 0.0
    return {"r": correlation, "rmse": float(np.sqrt(np.mean((a - r) ** 2)))}


def parse_number(text: str) -> float:
    """Parse a text as a finite number."""
    try:
        return read_number(text)
    except ValueError:
        raise UserError(
            f"the label {text.strip()[:60]!r} is not a number: use data.answers = "
            "'labels' for names"
        ) from None
