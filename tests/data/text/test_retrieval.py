"""Retrieval: the nearest of many texts, their ranks, and TF-IDF."""

import numpy as np
import pytest

from transformer_jax.base.errors import UserError
from transformer_jax.data.text import retrieval

TEXTS = ["The cat sleeps.", "A dog and a cat", "The dog, the dog!", "Nobody"]


def test_the_nearest_texts_come_first_whatever_the_lengths_of_vectors(monkeypatch):
    monkeypatch.setattr(retrieval, "BLOCK", 2)  # of three queries
    vectors = np.array([[3, 0], [1, 1], [0, 5], [-2, 0]], float)
    index = retrieval.Index(TEXTS, vectors)
    found = index.nearest(np.array([[9.0, 1], [1, 9], [-7, 1]]), 2)
    assert [[m.text for m in matches] for matches in found] == [
        [TEXTS[0], TEXTS[1]], [TEXTS[2], TEXTS[1]], [TEXTS[3], TEXTS[2]],
    ]  # fmt: skip
    assert found[0][0].cosine == pytest.approx(9 / 82**0.5)


def test_a_file_is_indexed_without_its_blank_lines(tmp_path):
    (tmp_path / "lines").write_text("one\n\n  \nthree\n")
    (tmp_path / "blank").write_text("\n \n")

    def encode(lines):
        return np.array([[len(line), 1.0] for line in lines])

    index = retrieval.open_index(str(tmp_path / "lines"), encode)
    assert index is not None and index.texts == ["one", "three"]
    assert retrieval.open_index("", encode) is None
    with pytest.raises(UserError, match="blank has no text: give a file of lines"):
        retrieval.open_index(str(tmp_path / "blank"), encode)


def test_ranks_count_ties_but_not_equally_right_texts():
    queries, texts = ["q", "r", "q", "s"], ["a", "b", "c", "a"]
    cosines = np.array([
        [0.1, 0.9, 0.8, 0.1],  # a and c are right: b ranks before
        [0.2, 0.5, 0.5, 0.2],  # b is right: c ties, and ranks before
        [0.3, 0.1, 0.2, 0.3],  # a is also right, and counts once
        [0.9, 0.1, 0.2, 0.9],
    ])  # fmt: skip
    found = retrieval.places(queries, texts, cosines)
    assert found.tolist() == [2, 2, 1, 1]
    scores = retrieval.score(found)
    assert scores == {"recall": 0.5, "mrr": pytest.approx(0.75)}
    assert retrieval.score(np.zeros(0, int)) == {"recall": 0.0, "mrr": 0.0}


def test_tf_idf_equals_that_of_scikit_learn():
    text = pytest.importorskip("sklearn.feature_extraction.text")
    queries = [*TEXTS, "the CAT the dog sleeps", "unknown words", ""]
    theirs = text.TfidfVectorizer(token_pattern=r"\w+").fit(TEXTS)
    wanted = theirs.transform(queries) @ theirs.transform(TEXTS).T
    np.testing.assert_allclose(retrieval.tfidf(queries, TEXTS), wanted.toarray())


def test_shared_words_are_a_share_of_all_words_of_both():
    pairs = [("The cat.", "the dog"), ("a", "A!"), ("", "")]
    assert retrieval.share_words(pairs) == pytest.approx((1 / 3 + 1 + 0) / 3)
