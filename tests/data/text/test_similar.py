"""Similar texts share a key, others hardly do; the hashes estimate how similar."""

import random

import numpy as np
import pytest

from transformer_jax.data.text import similar

WORDS = "the quick brown fox jumps over a lazy dog while seven old cats sleep".split()


def text_of(random_words, count=40):
    return " ".join(random_words.choice(WORDS) for _ in range(count))


def strings(text):
    content = text.encode()
    return {content[i : i + 5] for i in range(len(content) - 4)}


def jaccard(a, b):
    return len(strings(a) & strings(b)) / len(strings(a) | strings(b))


def test_equal_minima_estimate_the_share_of_common_strings():
    dice, errors = random.Random(0), []
    for _ in range(60):
        words = text_of(dice).split()
        other = [w if dice.random() < 0.8 else dice.choice(WORDS) for w in words]
        a, b = " ".join(words), " ".join(other)
        same = similar.smallest_hashes([a]) == similar.smallest_hashes([b])
        errors.append(same.mean() - jaccard(a, b))
    # The mean of 64 draws has a standard deviation of at most 0.0625.
    assert np.abs(np.mean(errors)) < 0.03 and np.std(errors) < 0.09


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8, 0.95])
def test_the_step_of_the_bands_lies_at_the_threshold(threshold):
    bands, rows = similar.bands_of(threshold)
    assert bands * rows <= similar.HASHES
    step = (1 / bands) ** (1 / rows)
    assert abs(step - threshold) < 0.07
    found = {}
    for likeness in (threshold - 0.25, min(threshold + 0.2, 1)):
        found[likeness] = 1 - (1 - likeness**rows) ** bands
    assert found[threshold - 0.25] < 0.35 < 0.9 < max(found.values())


def share(a, b, threshold=0.8):
    return bool(set(similar.keys(a, threshold)) & set(similar.keys(b, threshold)))


def test_numbers_punctuation_and_case_make_no_difference():
    assert share(["On 3 May, it rained!"], ["on 12 may it RAINED"])
    assert not share(["On 3 May, it rained!"], ["On 3 May, we slept well."])


def test_a_pair_is_unlike_the_pair_turned_round():
    pair = ("Zwei Hunde spielen im Schnee.", "Two dogs play in the snow.")
    assert share(pair, pair)
    assert not share(pair, pair[::-1])


@pytest.mark.parametrize("text", ["", "?", "a", "né", "12"])
def test_the_shortest_texts_have_keys(text):
    keys = similar.keys([text], 0.8)
    assert {len(key) for key in keys} == {similar.KEY}
    assert len(keys) == similar.bands_of(0.8)[0]
