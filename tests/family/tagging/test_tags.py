"""Tags: the spans that they encode, and the formats that they are read from."""

import random

import pytest

from transformer_jax.base.errors import UserError
from transformer_jax.corpora import phrasebook
from transformer_jax.data.reading import trees
from transformer_jax.family.tagging import tags
from transformer_jax.family.tagging.tags import (
    Lexicon,
    Span,
    find_spans,
    read_sentence,
    score_tags,
)


@pytest.mark.parametrize(
    ("line", "spans"),
    [
        ("O O", []),
        ("B-X I-X O B-X", [("X", 0, 2), ("X", 3, 4)]),
        ("B-X B-X I-X", [("X", 0, 1), ("X", 1, 3)]),
        ("I-X I-X B-X I-Y O", [("X", 0, 2), ("X", 2, 3), ("Y", 3, 4)]),  # IOB 1
        ("O I-X", [("X", 1, 2)]),
        ("N V -LRB- N", [("N", 0, 1), ("V", 1, 2), ("-LRB-", 2, 3), ("N", 3, 4)]),
        ("N I-N", [("N", 0, 1), ("N", 1, 2)]),
        ("B-A-B I-A-B", [("A-B", 0, 2)]),
        ("", []),
    ],
)
def test_spans_are_those_of_conlleval(line, spans):
    assert find_spans(line.split()) == [Span(*span) for span in spans]


def random_bio(draw, words):
    found = ["O"]
    for _ in range(words):
        options = ["O", "B-X", "B-Y"]
        if found[-1] != "O":
            options += [f"I-{found[-1][2:]}"] * 3
        found.append(draw.choice(options))
    return found[1:]


def test_f1_is_that_of_nltk():
    nltk = pytest.importorskip("nltk.chunk.util")
    draw, score = random.Random(0), nltk.ChunkScore(chunk_label=".*")
    answers, references = [], []
    for length in range(1, 60):
        references.append(random_bio(draw, length))
        other = random_bio(draw, length)
        kept = [draw.random() < 0.7 for _ in range(length)]
        mixed = [
            r if k else o for r, o, k in zip(references[-1], other, kept, strict=True)
        ]
        # NLTK refuses an I that continues nothing; here it begins a span.
        for i, tag in enumerate(mixed):
            before = mixed[i - 1][2:] if i else ""
            if tag[0] == "I" and tag[2:] != before:
                mixed[i] = f"B-{tag[2:]}"
        answers.append(mixed)
        sides = (
            nltk.conlltags2tree([(f"w{i}", "N", t) for i, t in enumerate(side)])
            for side in (references[-1], mixed)
        )
        score.score(*sides)
    found = score_tags(answers, references)
    assert 0.2 < found["f1"] < 0.9
    assert found["precision"] == pytest.approx(score.precision())
    assert found["recall"] == pytest.approx(score.recall())
    assert found["f1"] == pytest.approx(score.f_measure())


def test_a_span_counts_once_and_missing_tags_are_wrong():
    found = score_tags(
        [["B-X", "I-X", "O"], [], ["B-X"]], [["B-X", "I-X", "I-X"], ["B-X"], ["B-X"]]
    )
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["precision"] == pytest.approx(1 / 2)
    assert found["recall"] == pytest.approx(1 / 3)
    assert found["f1"] == pytest.approx(2 / 5)
    of_words = score_tags([["N", "V", "N"]], [["N", "N", "N"]])
    assert of_words["f1"] == of_words["accuracy"] == pytest.approx(2 / 3)


def test_outermost_phrases_of_a_tree():
    [tree] = trees.read(
        "(TOP (S (NP (NP (DET The) (N girl)) (SBAR (REL who) (S (VP (V sings)))))"
        " (VP (V gave) (CL him) (PP (NP (DET a) (N book))) (ADVP (ADV today)))) (. .))"
    )
    assert " ".join(tags.outermost_phrases(tree)) == (
        "B-NP I-NP I-NP I-NP O B-NP B-NP I-NP B-ADVP O"
    )
    assert " ".join(trees.tags(tree)) == "DET N REL V V CL DET N ADV ."


@pytest.mark.parametrize("tagset", tags.TAGSETS)
def test_each_word_of_the_phrasebook_has_a_tag(tagset):
    for pair in phrasebook.generate("train", 200):
        [record] = tags.read_trees(pair.target_tree, tagset)
        words, found = tags.split(record)
        assert words == list(pair.target_words) and len(found) == len(words)
        spans = find_spans(found)
        assert all(tag[:2] in ("B-", "I-") or tag.isupper() or not tag.isalpha()
                   for tag in found)  # fmt: skip
        assert spans if tagset == "phrases" else len(spans) == len(words)


CONLL_2003 = "EU NNP I-NP I-ORG\nrejects VBZ I-VP O\n. . O O"
CONLL_U = (
    "# sent_id = 1\n# text = a b c d\n"
    "1-2\tvámonos\t_\t_\n1\tvamos\tir\tVERB\n2\tnos\tnosotros\tPRON\n"
    "2.1\tya\tya\tADV\n3\t10 000\t10 000\tNUM"
)


@pytest.mark.parametrize(
    ("block", "columns", "text", "found"),
    [
        (CONLL_2003, (), "EU rejects .", "I-ORG O O"),
        (CONLL_2003, (1, 2), "EU rejects .", "NNP VBZ ."),
        (CONLL_U, (2, 4), "vamos nos 10_000", "VERB PRON NUM"),
        ("# # B-NP\n1 CD I-NP", (), "# 1", "B-NP I-NP"),  # the sign of a pound
        ("1-2 B-X\n3 O", (), "1-2 3", "B-X O"),  # a score
    ],
)
def test_a_sentence_of_conll_is_read_by_its_columns(block, columns, text, found):
    assert read_sentence(block, *columns) == [{"text": text, "tags": found}]


def test_lines_without_words_are_left_out_and_short_ones_are_refused():
    assert read_sentence("-DOCSTART- -X- O O") == []
    with pytest.raises(UserError, match="line 1: .* but the sentence's last line"):
        read_sentence("a N\nb")
    for block, columns in (("a\nb", ()), ("a N\nb V", (1, 3))):
        with pytest.raises(UserError, match="columns, and must have [23] or more: "):
            read_sentence(block, *columns)


@pytest.mark.parametrize("records", [[], [{"text": "a b", "tags": "X X"}]])
def test_fewer_than_two_tags_lead_to_the_files_and_columns(records):
    with pytest.raises(UserError, match="at least two. Check the files and columns"):
        Lexicon.count(records)


def test_a_lexicon_has_the_most_frequent_tag_of_each_word():
    lines = [("a b a", "X Y X"), ("a b c d", "Y Y Z Z"), ("e", "X")]
    lexicon = Lexicon.count({"text": t, "tags": n} for t, n in lines)
    assert lexicon.tags == ("X", "Y", "Z")
    assert lexicon.look_up("a b c unknown".split()) == ["X", "Y", "Z", "Z"]
    with pytest.raises(UserError, match="'a b' has 2 words, but 1 tags: 'X'"):
        Lexicon.count([{"text": "a b", "tags": "X"}])
    with pytest.raises(UserError, match=r"has the tags \['X'\]"):
        Lexicon.count([{"text": "a b", "tags": "X X"}])
