"""Numbers of attention weights, against small cases worked out by hand."""

import types

import numpy as np
import pytest

from transformer_jax import config
from transformer_jax.base.errors import UserError
from transformer_jax.visualize import aligning, measures


def test_entropy_is_0_for_one_key_and_all_bits_for_an_even_look():
    weights = np.stack([np.eye(4)[:3], np.full((3, 4), 0.25)])[None]
    np.testing.assert_allclose(measures.entropy(weights), [[0.0, 2.0]], atol=1e-6)


def test_distance_is_counted_in_positions_both_ways():
    back, ahead = np.eye(5, k=-1)[1:], np.eye(5, k=2)[:3]
    assert measures.distance(np.pad(back, ((1, 0), (0, 0)))[None, None])[0, 0] == 4 / 5
    assert measures.distance(ahead[None, None])[0, 0] == 2.0


def test_rollout_multiplies_the_layers_with_their_residual():
    first, second = np.random.default_rng(0).dirichlet(np.ones(3), (2, 2, 3))
    found = measures.rollout(np.stack([first, second]))
    mixed = [(np.eye(3) + w.mean(0)) / 2 for w in (first, second)]
    np.testing.assert_allclose(found[0], mixed[0])
    np.testing.assert_allclose(found[1], mixed[1] @ mixed[0])
    np.testing.assert_allclose(found.sum(-1), 1.0)


def test_pieces_join_to_words_by_sum_over_keys_and_mean_over_queries():
    weights = np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.2, 0.2], [0, 0, 0, 1.0]])
    found = measures.by_word(weights, [0, 0, -1], [0, 1, 1, -1])
    np.testing.assert_allclose(found, [[0.3, 0.4]])


def test_error_rate_of_a_head_that_is_right_and_of_one_that_is_not():
    right = np.array([[1.0, 0, 0], [0, 0, 1], [0, 1, 0]])
    wrong = np.roll(right, 1, axis=1)
    links = [(0, 0), (2, 1), (1, 2)]  # (source, target)
    found = measures.alignment_errors([(np.stack([right, wrong])[None], links)])
    np.testing.assert_allclose(found, [[0.0, 1.0]])


def test_a_word_with_two_gold_links_can_be_half_right_and_one_without_is_not_asked():
    weights = np.array([[0.6, 0.4], [0.9, 0.1]])[None, None]
    found = measures.alignment_errors([(weights, [(0, 0), (1, 0)])])
    np.testing.assert_allclose(found, 1 - 2 * 1 / (1 + 2))
    with pytest.raises(ValueError, match="no example has a gold link"):
        measures.alignment_errors([(weights, [])])


class Letters:
    """A tokenizer of two characters a piece."""

    def decode(self, ids):
        return "Sim, eu."[: 2 * len(ids)]


def test_pieces_belong_to_the_word_that_they_end_in():
    words = ("sim", ",", "eu", ".")
    found = aligning.number_pieces(Letters(), [4, 5, 6, 7, 3], "Sim, eu.", words)
    assert found == [0, 1, 2, 3, -1]


def test_the_best_heads_come_first():
    errors = np.array([[0.5, 0.2], [0.9, 0.1]])
    assert aligning.best_heads(errors, 2) == [(1, 1, 0.1), (0, 1, 0.2)]


def test_text_without_gold_alignments_is_refused():
    run = types.SimpleNamespace(config=config.load("multi30k:de_en", data=False))
    with pytest.raises(UserError, match="only the phrasebook has gold alignments"):
        next(aligning.examples(run, "test", 1))
