"""Files that only one task can read: dialogues, bracketed trees, labelled lines."""

import pytest

from transformer_jax import config as configs
from transformer_jax import tasks
from transformer_jax.base.errors import UserError

TREES = (
    "((S (NP-SBJ (DT The) (NN cat)) (VP (VBD slept) (NP (-NONE- *T*))) (. .)))\n"
    "(NP (NN rain))\n"
)
DIALOGUES = (
    "Hi . __eou__ Hello . __eou__ How are you ? __eou__ Fine . __eou__\n"
    "Bye . __eou__ See you . __eou__\n"
    "Bye . __eou__ See you . __eou__\n"
    "Is it late ? __eou__ Yes . __eou__\n"
)


@pytest.fixture
def read(tmp_path):
    """A function: the records of a split of files that hold these texts."""

    def read(task, form, split="train", **texts):
        config = configs.base(task)
        with config.unlocked():
            config.data.source, config.data.folder = form, str(tmp_path)
            for name, text in texts.items():
                (tmp_path / f"{name}.txt").write_text(text)
                config.data[f"{name}_files"] = f"{name}.txt"
        source = tasks.find(task).source(config)
        assert source.find_problems() == []
        return source.read(split)

    return read


def test_a_tree_is_its_words_and_its_brackets(read):
    records = read("parsing", "trees", train=TREES, validation=TREES)
    assert list(records) == [
        {"source": "The cat slept .", "target": "(S (NP XX XX )NP (VP XX )VP XX )S"},
        {"source": "rain", "target": "(NP XX )NP"},
    ]
    assert records.where(1).endswith("train.txt, line 2")


def test_every_turn_but_the_first_is_a_reply_to_those_before(read):
    records = read(
        "conversation", "dialogues", train=DIALOGUES, validation="a __eou__ b"
    )
    assert records[2] == {
        "source": "Hi . __eou__ Hello . __eou__ How are you ?",
        "target": "Fine .",
    }
    assert records.where(2).endswith("line 1") and records.where(3).endswith("line 2")


def test_a_dialogue_is_learned_once_and_never_if_it_is_held_out(read):
    held_out = "Is it late ? __eou__ Yes . __eou__\n" * 2
    texts = {"train": DIALOGUES, "validation": held_out}
    train = read("conversation", "dialogues", **texts)
    assert [r["target"] for r in train] == ["Hello .", "How are you ?", "Fine .",
                                            "See you ."]  # fmt: skip
    assert "2 lines are skipped: they repeat or are held out" in train.notes[0]
    validation = read("conversation", "dialogues", "validation", **texts)
    assert len(validation) == 2, "what a model is judged by is never left out"
    other = read("conversation", "dialogues", train=DIALOGUES, validation="a __eou__ b")
    assert other.fingerprint != train.fingerprint


def test_a_label_precedes_its_text(read):
    records = read("classification", "labelled", train="1 so good\n0 bad\n",
                   validation="1 x")  # fmt: skip
    assert list(records) == [
        {"text": "so good", "label": "1"},
        {"text": "bad", "label": "0"},
    ]


@pytest.mark.parametrize(
    ("task", "form", "text", "words"),
    [
        (
            "parsing", "trees", "(NP (NN a))\n(S (NP (NN a))\n",
            "train.txt, line 2: the tree .* lacks 1",
        ),
        (
            "parsing", "trees", "(S (X a))\n(S ((X a)))\n",
            "line 2: a bracket .*: is the tree that begins in line 2 closed?",
        ),
        ("conversation", "dialogues", "a __eou__ b\nalone\n", "line 2: .*two turns"),
        ("classification", "labelled", "1 a\n1\n", "line 2: '1' is not a label"),
        ("tagging", "conll", "\n\na X\n\nb Y\nc\nd X\n", "line 6: 'c' has 1 columns"),
        ("tagging", "conll", "a X\nb Y\n\nc\n", "line 4: 'c' has 1 columns, and must "),
        ("tagging", "conll", "a\tX\nb\t\n\n", "line 2: 'b ' .*one of which is empty"),
        ("tagging", "conll", "a\tX\n\tY\n\n", "line 2: ' Y' .*one of which is emp"),
    ],
)  # fmt: skip
def test_a_malformed_line_is_named(read, task, form, text, words):
    with pytest.raises(UserError, match=words):
        read(task, form, train=text, validation="another line")


def test_a_sentence_with_tags_ends_at_an_empty_line(read):
    text = "-DOCSTART- O\n\nEU B-ORG\nsaid O\n\n \nno O"
    records = read("tagging", "conll", train=text, validation="a O")
    assert list(records) == [
        {"text": "EU said", "tags": "B-ORG O"},
        {"text": "no", "tags": "O"},
    ]
    assert records.where(0).endswith("line 3") and records.where(1).endswith("line 7")


def test_the_tags_of_trees_are_those_that_the_config_names(read):
    tree = "(S (NP-SBJ (PRP it)) (VP (VBZ is) (NP (-NONE- *))))\n"
    [record] = read("tagging", "trees", train=tree, validation=tree)
    assert record == {"text": "it is", "tags": "B-NP O"}


def test_a_missing_file_is_reported_before_anything_is_read():
    with pytest.raises(UserError, match=r"data.train_files: there is no file"):
        configs.load("dailydialog")
