"""The command for nearest neighbours and analogies, of a file and of a run."""

import numpy as np
import pytest

import transformer_jax
from transformer_jax.base.errors import UserError
from transformer_jax.visualize import neighbours

GLOVE = "man 1 0 0\nwoman 0 1 0\nking 1 0 2\nqueen 0 1 2\nstone -1 -1 0.5\n"


@pytest.fixture
def call(run_main):
    """A function: run the command with these flags, and return what it prints."""

    def with_flags(**given):
        return run_main(neighbours, *(f"--{k}={v}" for k, v in given.items()))

    return with_flags


@pytest.fixture
def glove(tmp_path):
    path = tmp_path / "v.txt"
    path.write_text(GLOVE)
    return path


def test_a_file_answers_words_analogies_and_questions(call, glove, tmp_path):
    questions = tmp_path / "q.txt"
    questions.write_text(": royal\nman king woman queen\nman king woman bishop\n")
    out = call(
        vectors=glove, word="king", analogy="man king woman", questions=questions,
        count=2,
    )  # fmt: skip
    assert out.startswith("5 vectors of 3 numbers")
    assert "like king\n 0.800  queen\n 0.447  man\n" in out
    assert "man is to king as woman to\n 1.000  queen\n" not in out  # of unit vectors
    assert "man is to king as woman to\n" in out and "  queen\n" in out
    assert "100.0% of 1 questions are right; 50.0% of 2 are covered" in out


def test_no_more_vectors_are_read_than_wanted(call, glove):
    assert call(vectors=glove, most=3, word="man").startswith("3 vectors")


def test_a_run_has_its_pieces_as_words(tiny_run):
    run = transformer_jax.load(tiny_run)
    known = neighbours.of_run(str(tiny_run))
    (name, tokenizer), *_ = run.task.data.vocabularies.items()
    ids = tokenizer.encode(" o")
    table = np.asarray(run.params[name]["embedding"])
    shown = tokenizer.pieces(ids)[-1]
    word = shown.removeprefix("▁") if shown[0] == "▁" else f"…{shown}"
    row = table[ids[-1]] / np.linalg.norm(table[ids[-1]])
    np.testing.assert_allclose(known.table[known.rows[word]], row, rtol=1e-5)
    assert not {"<pad>", "<s>", "</s>", ""} & set(known.words)
    with pytest.raises(UserError, match="--table=other: choose"):
        neighbours.of_run(str(tiny_run), table="other")


def test_what_is_not_said_is_asked_for(call, glove):
    for given, words in (
        ({"word": "a"}, "name the vectors: --workdir=RUN or --vectors=FILE"),
        ({"vectors": glove, "workdir": "r", "word": "a"}, "name the vectors"),
        ({"vectors": glove}, "name the question: --word, --analogy or --questions"),
        ({"vectors": glove, "analogy": "a b"}, "give three words"),
    ):
        with pytest.raises(UserError, match=words):
            call(**given)
