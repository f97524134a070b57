"""Edits, counted by a table, against every way to align two short texts."""

import functools
import random

import pytest

from transformer_jax.decoding import Reply
from transformer_jax.family.speech.word_errors import (
    Edits,
    WordErrorScoring,
    count_edits,
)


def by_brute_force(answer, reference):
    """The fewest edits, and of those the most substitutions: try everything."""

    @functools.cache
    def best(i, j):
        if i == len(reference) and j == len(answer):
            return (0, 0, 0)
        ways = []
        if i < len(reference) and j < len(answer):
            s, d, n = best(i + 1, j + 1)
            ways.append((s + (reference[i] != answer[j]), d, n))
        if i < len(reference):
            s, d, n = best(i + 1, j)
            ways.append((s, d + 1, n))
        if j < len(answer):
            s, d, n = best(i, j + 1)
            ways.append((s, d, n + 1))
        return min(ways, key=lambda way: (sum(way), -way[0]))

    return Edits(*best(0, 0), len(reference))


def test_the_counts_are_those_of_the_best_alignment_of_all():
    draw = random.Random(5)
    for _ in range(300):
        answer, reference = (draw.choices("abc", k=draw.randrange(7)) for _ in range(2))
        found = count_edits(answer, reference)
        wanted = by_brute_force(tuple(answer), tuple(reference))
        assert sum(found[:3]) == sum(wanted[:3]) and found.length == wanted.length
        # Deletions less insertions are the difference of the lengths, always.
        assert found.deletions - found.insertions == len(reference) - len(answer)


def test_each_kind_of_edit_is_counted_as_such():
    reference = "put the red cup here".split()
    assert count_edits("put the cup here".split(), reference) == (0, 1, 0, 5)
    assert count_edits("put the red red cup here".split(), reference) == (0, 0, 1, 5)
    assert count_edits("put the bed cup here".split(), reference) == (1, 0, 0, 5)
    assert count_edits([], reference) == (0, 5, 0, 5)
    assert count_edits(reference, []) == (0, 0, 5, 0)


def test_rates_are_of_all_words_together_and_case_does_not_matter():
    scoring = WordErrorScoring()
    replies = [Reply(text="a b"), Reply(text="C d e x")]
    scores = scoring.score(replies, ["A b", "c D f"])
    assert scores["wer"] == pytest.approx(2 / 5)
    assert scores["exact"] == 0.5
    assert (scores["substitutions"], scores["insertions"], scores["words"]) == (1, 1, 5)
    assert scoring.summary(scores).startswith(
        "WER = 40.00% of 5 words (1 substituted, 0 deleted, 1 inserted)  CER = 37.50%"
    )
    judged = scoring.judge(scoring.measure(["a b", "C d e x"], ["A b", "c D f"]))
    assert judged["word accuracy (%)"] == pytest.approx(60)
