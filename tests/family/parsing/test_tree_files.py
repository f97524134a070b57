"""Files of bracketed trees."""

import pytest

from transformer_jax.base.errors import UserError

TREES = (
    "((S (NP-SBJ (DT The) (NN cat)) (VP (VBD slept) (NP (-NONE- *T*))) (. .)))\n"
    "(NP (NN rain))\n"
)


def test_a_tree_is_its_words_and_its_brackets(read_files):
    records = read_files("parsing", "trees", train=TREES, validation=TREES)
    assert list(records) == [
        {"source": "The cat slept .", "target": "(S (NP XX XX )NP (VP XX )VP XX )S"},
        {"source": "rain", "target": "(NP XX )NP"},
    ]
    assert records.where(1).endswith("train.txt, line 2")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(NP (NN a))\n(S (NP (NN a))\n", "train.txt, line 2: the tree .* lacks 1"),
        (
            "(S (X a))\n(S ((X a)))\n",
            "line 2: a bracket .*: is the tree that begins in line 2 closed?",
        ),
    ],
)
def test_a_malformed_line_is_named(read_files, text, words):
    with pytest.raises(UserError, match=words):
        read_files("parsing", "trees", train=text, validation="another line")
