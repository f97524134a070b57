"""Files of dialogues."""

import pytest

from transformer_jax import config as configs
from transformer_jax.base.errors import UserError

DIALOGUES = (
    "Hi . __eou__ Hello . __eou__ How are you ? __eou__ Fine . __eou__\n"
    "Bye . __eou__ See you . __eou__\n"
    "Bye . __eou__ See you . __eou__\n"
    "Is it late ? __eou__ Yes . __eou__\n"
)


def test_every_turn_but_the_first_is_a_reply_to_those_before(read_files):
    records = read_files(
        "conversation", "dialogues", train=DIALOGUES, validation="a __eou__ b"
    )
    assert records[2] == {
        "source": "Hi . __eou__ Hello . __eou__ How are you ?",
        "target": "Fine .",
    }
    assert records.where(2).endswith("line 1") and records.where(3).endswith("line 2")


def test_a_dialogue_is_learned_once_and_never_if_it_is_held_out(read_files):
    held_out = "Is it late ? __eou__ Yes . __eou__\n" * 2
    texts = {"train": DIALOGUES, "validation": held_out}
    train = read_files("conversation", "dialogues", **texts)
    assert [r["target"] for r in train] == ["Hello .", "How are you ?", "Fine .",
                                            "See you ."]  # fmt: skip
    assert "2 lines are skipped: they repeat or are held out" in train.notes[0]
    validation = read_files("conversation", "dialogues", "validation", **texts)
    assert len(validation) == 2, "what a model is judged by is never left out"
    other = read_files(
        "conversation", "dialogues", train=DIALOGUES, validation="a __eou__ b"
    )
    assert other.fingerprint != train.fingerprint


def test_a_dialogue_of_one_turn_is_named(read_files):
    text = "a __eou__ b\nalone\n"
    with pytest.raises(UserError, match="line 2: .*two turns"):
        read_files("conversation", "dialogues", train=text, validation="another line")


def test_a_missing_file_is_reported_before_anything_is_read():
    with pytest.raises(UserError, match=r"data.train_files: there is no file"):
        configs.load("dailydialog")
