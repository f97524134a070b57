"""Neighbours and analogies among vectors of words."""

import numpy as np
import pytest

from transformer_jax.base.errors import UserError
from transformer_jax.visualize.similarity import Answered, WordVectors, read_questions

# Two directions: who (man, woman, boy, …) and rank (plain, royal).
VECTORS = {
    "man": [1, 0, 0], "woman": [0, 1, 0], "King": [1, 0, 2], "queen": [0, 1, 2],
    "king": [9, 9, -9], "stone": [-1, -1, 0.3], "void": [0, 0, 0],
}  # fmt: skip


@pytest.fixture(scope="module")
def known():
    return WordVectors({w: np.array(v, float) for w, v in VECTORS.items()}, "v.txt")


def test_neighbours_have_the_largest_cosines(known):
    found = known.neighbours("King", 3)
    unit = {w: np.array(v) / max(np.linalg.norm(v), 1e-9) for w, v in VECTORS.items()}
    cosines = {w: unit[w] @ unit["King"] for w in VECTORS if w != "King"}
    expected = sorted(cosines, key=cosines.get, reverse=True)[:3]
    assert [word for word, _ in found] == expected
    for word, cosine in found:
        assert cosine == pytest.approx(cosines[word], abs=1e-6)
    assert len(known.neighbours("man", 99)) == len(VECTORS) - 1  # all except itself


def test_an_analogy_excludes_its_own_words(known):
    assert known.analogy("man", "King", "woman", 1)[0].word == "queen"
    words = [word for word, _ in known.analogy("man", "King", "woman", 99)]
    assert not {"man", "King", "woman"} & set(words)


def test_a_word_is_found_in_another_case_and_an_unknown_one_is_refused(known):
    assert known.row("QUEEN") == known.row("queen")
    assert known.row("king") != known.row("King")  # as written, if that spelling exists
    with pytest.raises(UserError, match="no vector for 'quean'.*mean 'queen'"):
        known.neighbours("quean", 1)


def test_questions_are_covered_if_all_of_their_words_are_known(known, tmp_path):
    path = tmp_path / "q.txt"
    path.write_text(
        ": royal\nman king woman queen\nMan KING Woman Queen\nman king woman stone\n"
        "man king woman bishop\n\n: other\na b c d\n"
    )
    questions = read_questions(str(path))
    royal, other = known.answer(questions)
    assert royal == Answered("royal", 4, 3, 2) and other == Answered("other", 1, 0, 0)
    assert royal.accuracy == pytest.approx(2 / 3) and other.accuracy == 0


def test_many_questions_are_answered_as_one_by_one():
    draw = np.random.default_rng(0)
    words = [f"w{i}" for i in range(29)]
    known = WordVectors(dict(zip(words, draw.normal(size=(29, 7)), strict=True)), "")
    asked = [tuple(draw.permutation(words)[:4]) for _ in range(600)]
    right = sum(known.analogy(a, b, c, 1)[0].word == d for a, b, c, d in asked)
    assert known.answer({"all": asked}) == [Answered("all", 600, 600, right)]
    assert right > 5


def test_malformed_questions_are_named(tmp_path):
    path = tmp_path / "q.txt"
    path.write_text(": kind\na b c d\na b c\n")
    with pytest.raises(UserError, match="q.txt, line 3: 3 words"):
        read_questions(str(path))
    path.write_text(": kind\n")
    with pytest.raises(UserError, match="has no questions"):
        read_questions(str(path))
