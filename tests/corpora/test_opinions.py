"""The embedded opinions: scored by rule, not by a list of good and bad words."""

import math
import re
from collections import Counter
from functools import cache

import pytest

from transformer_jax.corpora import opinions
from transformer_jax.corpora.opinions import ADJECTIVES, SPLITS, generate

CLAUSE = r"the (\w+) (?:was|were) (\w+)"


@cache
def sample(split="train"):
    return generate(split, 8000 if split == "train" else 500)


def found(pattern):
    """The groups that a pattern matches in many sentences, and their scores."""
    matches = [(re.fullmatch(pattern, words), score) for words, score in sentences()]
    return [(match.groups(), score) for match, score in matches if match]


@cache
def sentences():
    critic = opinions.Critic(opinions.Random("sentences"))
    return [critic.sentence() for _ in range(40_000)]


def valence(noun, adjective):
    """The valence of an adjective for a noun, from the lexicon."""
    kinds = {n.kind for topic in opinions.TOPICS for n in topic if n.word == noun}
    values = {s for kind in kinds for w, s in ADJECTIVES[kind] if w == adjective}
    return values.pop() if len(values) == 1 else None


def valued(pattern):
    """The valences of two nouns with adjectives in a pattern, and the scores."""
    values = [
        (valence(*groups[:2]), valence(*groups[2:]), score)
        for groups, score in found(pattern)
    ]
    return [value for value in values if None not in value]


def test_the_text_is_the_same_each_time_and_smaller_sizes_are_a_prefix():
    assert generate("train", 51) == sample()[:51]


def test_no_text_is_in_two_splits_or_twice_in_one():
    texts = [record["text"] for split in SPLITS for record in sample(split)]
    assert len(texts) == len(set(texts)) == 9000


def test_labels_are_balanced_and_are_the_signs_of_scores_far_from_zero():
    for split in SPLITS:
        labels = Counter(record["label"] for record in sample(split))
        assert labels["positive"] == labels["negative"]
        for record in sample(split):
            score = float(record["score"])
            assert 0.1 <= abs(score) <= 1
            assert record["label"] == ("positive" if score > 0 else "negative")


def test_the_corpus_is_rich_and_its_texts_neither_short_nor_long():
    words = [record["text"].split() for record in sample()]
    assert len({w for text in words for w in text if w[0].isalpha()}) >= 400
    assert all(4 <= len(text) <= 25 and text[-1] == "." for text in words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("good", 0.6),
        ("very good", 0.75),
        ("rather good", 0.45),
        ("not good", -0.3),
        ("hardly good", -0.3),
        ("far from good", -0.6),
        ("bad", -0.6),
        ("not bad", 0.3),
        ("never bad", 0.3),
        ("not very bad", 0.38),
        ("anything but bad", 0.6),
        ("truly superb", 1.0),
        ("too long", -0.5),
        ("not too long", 0.25),
        ("long enough", 0.5),
        ("not long enough", -0.25),
    ],
)
def test_predicates_are_scored_by_the_rule(words, expected):
    scores = {said.score for said in drawn("_quality") if said.words == words}
    assert len(scores) == 1
    assert scores.pop() == pytest.approx(expected, abs=0.006)


@cache
def drawn(part):
    """Many draws of one part of a sentence, about a film."""
    critic = opinions.Critic(opinions.Random(part))
    film = opinions.TOPICS[0][0]
    return [getattr(critic, part)(film) for _ in range(20_000)]


@pytest.mark.parametrize(
    ("frame", "factor"),
    [
        ("I think that ", 1),
        ("nobody doubts that ", 1),
        ("I would not say that ", -0.5),
        ("I doubt that ", -0.5),
    ],
)
def test_frames_keep_or_invert_the_score_of_their_clause(frame, factor):
    plain = dict(drawn("_clause"))
    framed = [said for said in drawn("_part") if said.words.startswith(frame)]
    held = [(plain.get(words.removeprefix(frame)), s) for words, s in framed]
    known = [(inner, score) for inner, score in held if inner is not None]
    assert len(known) > 5
    assert all(math.isclose(score, factor * inner) for inner, score in known)


def test_negation_is_limited_to_its_clause():
    clauses = valued(rf"the (\w+) (?:was|were) not (\w+) (?:, )?and {CLAUSE} \.")
    assert len(clauses) >= 3
    for denied, plain, score in clauses:
        assert score == pytest.approx((-denied / 2 + plain) / 2, abs=0.006)


def test_a_denial_also_covers_or_that():
    clauses = valued(rf"I would not say that {CLAUSE} or that {CLAUSE} \.")
    assert len(clauses) >= 3
    for one, other, score in clauses:
        assert score == pytest.approx(-(one + other) / 4, abs=0.006)


@pytest.mark.parametrize(
    ("link", "between", "weights"),
    [
        ("", "(?:, )?(?:but|yet)", (0.4, 0.6)),
        ("(?:even )?(?:though|although) ", ",", (0.4, 0.6)),
        ("", ", (?:though|although|while)", (0.6, 0.4)),
        ("", "(?:, )?and", (0.5, 0.5)),
    ],
)
def test_the_parts_of_a_sentence_are_weighted_by_the_rule(link, between, weights):
    clauses = valued(f"{link}{CLAUSE} {between} {CLAUSE} \\.")
    assert len(clauses) >= 5
    for one, other, score in clauses:
        expected = weights[0] * one + weights[1] * other
        assert score == pytest.approx(expected, abs=0.006)


def test_better_than_awful_scores_less_than_better_than_good():
    steps = {"better": 0.5, "much better": 0.625, "no better": -0.25, "no worse": 0.25}
    checked = Counter()
    for (noun, step, other), score in found(
        r"the (\w+) w\w+ ((?:much |no )?(?:better|worse)) than .* , which w\w+ (\w+) \."
    ):
        value = valence(noun, other)
        if step in steps and value is not None:
            assert score == pytest.approx(steps[step] + value / 4, abs=0.006)
            checked[step] += 1
    assert checked.keys() == steps.keys()


def test_the_same_words_in_another_order_have_the_other_label():
    """Bad but good is good, and good but bad is bad."""
    clauses = valued(rf"{CLAUSE} (?:, )?(?:but|yet) {CLAUSE} \.")
    labels = {(one > 0, score > 0) for one, other, score in clauses if one == -other}
    assert labels == {(True, False), (False, True)}


@pytest.mark.parametrize(
    ("one", "other", "adjective"),
    [
        ("beer", "soup", "cold"),
        ("plot", "phone", "unpredictable"),
        ("bedroom", "concert", "quiet"),
    ],
)
def test_a_word_praises_one_noun_and_blames_another(one, other, adjective):
    assert valence(one, adjective) > 0 > valence(other, adjective)


def test_a_list_of_words_cannot_decide_the_label():
    """Naive Bayes, which adds up the evidence of each word, is often wrong."""
    counts = {"positive": Counter(), "negative": Counter()}
    for record in sample():
        counts[record["label"]].update(set(record["text"].split()))
    good, bad = counts["positive"], counts["negative"]
    right = 0
    for record in sample("test"):
        words = set(record["text"].split())
        vote = sum(math.log((good[w] + 1) / (bad[w] + 1)) for w in words)
        right += (vote > 0) == (record["label"] == "positive")
    assert 0.6 < right / len(sample("test")) < 0.9


def test_unknown_splits_and_impossible_sizes_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="dev.*train, validation, test"):
        generate("dev", 5)
    only = opinions.Said("the film was good .", 0.6)
    monkeypatch.setattr(opinions.Critic, "sentence", lambda self: only)
    with pytest.raises(ValueError, match="'train' has about 1 opinions: 5 were"):
        generate("train", 5)
