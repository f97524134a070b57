"""The cache of a text read so far, against its formula token by token."""

import math

import numpy as np
import pytest

from transformer_jax.decoding import neural_cache
from transformer_jax.decoding.neural_cache import NeuralCache

WORDS, WIDTH = 5, 7


@pytest.fixture(scope="module")
def text():
    """Hidden states, tokens and the model's distributions [N, WORDS] of a text."""
    random = np.random.default_rng(3)
    tokens = np.tile(random.integers(0, WORDS, 11), 3)[:29]
    kinds = random.normal(size=(WORDS, WIDTH))
    hidden = kinds[tokens] + 0.3 * random.normal(size=(len(tokens), WIDTH))
    logits = random.normal(size=(len(tokens), WORDS))
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return hidden.astype(np.float32), tokens, chances


def losses(text):
    hidden, tokens, chances = text
    return -np.log(chances[np.arange(len(tokens)), tokens])


def plain(text, size):
    """Return the losses by each pair and by the model alone [pairs + 1, N]."""
    hidden, tokens, chances = text
    hidden = hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
    found = []
    for sharpness, share in [*neural_cache.PAIRS, (1.0, 0.0)]:
        row = []
        for t, token in enumerate(tokens):
            before = range(max(t - size, 0), t)
            weight = {i: math.exp(sharpness * hidden[t] @ hidden[i]) for i in before}
            p = chances[t, token]
            if weight:
                right = sum(weight[i] for i in before if tokens[i] == token)
                p = (1 - share) * p + share * right / sum(weight.values())
            row.append(-math.log(p))
        found.append(row)
    return np.array(found)


@pytest.mark.parametrize("size", [1, 4, 13, 100])
@pytest.mark.parametrize("queries", [3, 256])
def test_a_token_is_predicted_by_all_pairs_as_well_as_they_predicted_before(
    text, size, queries, monkeypatch
):
    monkeypatch.setattr(neural_cache, "QUERIES", queries)
    each = plain(text, size)
    trust = np.exp(-(np.cumsum(each, axis=1) - each))
    wanted = -np.log((trust * np.exp(-each)).sum(axis=0) / trust.sum(axis=0))
    found = NeuralCache(size).read(text[0], text[1], losses(text))
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    # So the whole text costs at most the logarithm of their number more than the best.
    assert found.sum() <= each.sum(axis=1).min() + math.log(len(each)) + 1e-4


def test_the_chances_of_all_words_add_up_to_1(text):
    hidden, tokens, chances = text
    total = 0.0
    for word in range(WORDS):
        changed = np.append(tokens[:-1], word)
        loss = NeuralCache(9).read(hidden, changed, losses((hidden, changed, chances)))
        total += math.exp(-loss[-1])
    assert total == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("cut", [0, 1, 5, 28, 29])
def test_a_text_that_is_read_in_parts_is_the_same_text(text, cut):
    hidden, tokens, nll = text[0], text[1], losses(text)
    whole, parts = NeuralCache(6).read(hidden, tokens, nll), NeuralCache(6)
    found = [
        parts.read(hidden[p], tokens[p], nll[p]) for p in np.split(range(29), [cut])
    ]
    np.testing.assert_allclose(np.concatenate(found), whole, rtol=1e-5)


def test_what_comes_later_changes_nothing(text):
    hidden, tokens, nll = text[0], text[1], losses(text)
    whole = NeuralCache(6).read(hidden, tokens, nll)
    changed = np.append(hidden[:20], -hidden[20:], axis=0)
    other = NeuralCache(6).read(changed, tokens, nll)
    np.testing.assert_array_equal(whole[:20], other[:20])
    assert (whole[20:] != other[20:]).all()


def test_a_text_that_repeats_itself_becomes_likely():
    random = np.random.default_rng(5)
    hidden = np.tile(random.normal(size=(40, 64)), (3, 1)).astype(np.float32)
    tokens = np.tile(random.integers(0, 1000, 40), 3)
    nll = np.full(120, math.log(1000))
    found = NeuralCache(60).read(hidden, tokens, nll)
    np.testing.assert_allclose(found[0], nll[0])  # nothing is cached
    assert found[80:].mean() < 1.2 < found[:40].mean()
    forgotten = NeuralCache(20).read(hidden, tokens, nll)  # less than comes again
    assert forgotten[80:].mean() > 6
