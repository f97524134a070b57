"""Files of words with tags, and tags of trees."""

import pytest

from transformer_jax.base.errors import UserError


def test_a_sentence_with_tags_ends_at_an_empty_line(read_files):
    text = "-DOCSTART- O\n\nEU B-ORG\nsaid O\n\n \nno O"
    records = read_files("tagging", "conll", train=text, validation="a O")
    assert list(records) == [
        {"text": "EU said", "tags": "B-ORG O"},
        {"text": "no", "tags": "O"},
    ]
    assert records.where(0).endswith("line 3") and records.where(1).endswith("line 7")


def test_the_tags_of_trees_are_those_that_the_config_names(read_files):
    tree = "(S (NP-SBJ (PRP it)) (VP (VBZ is) (NP (-NONE- *))))\n"
    [record] = read_files("tagging", "trees", train=tree, validation=tree)
    assert record == {"text": "it is", "tags": "B-NP O"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n\na X\n\nb Y\nc\nd X\n", "line 6: 'c' has 1 columns"),
        ("a X\nb Y\n\nc\n", "line 4: 'c' has 1 columns, and must "),
        ("a\tX\nb\t\n\n", "line 2: 'b ' .*one of which is empty"),
        ("a\tX\n\tY\n\n", "line 2: ' Y' .*one of which is emp"),
    ],
)
def test_a_malformed_line_is_named(read_files, text, words):
    with pytest.raises(UserError, match=words):
        read_files("tagging", "conll", train=text, validation="another line")
