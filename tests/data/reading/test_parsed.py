"""Files that only one task can read: labelled lines."""

import pytest

from transformer_jax import config as configs
from transformer_jax.base.errors import UserError


def test_a_label_precedes_its_text(read_files):
    records = read_files("classification", "labelled", train="1 so good\n0 bad\n",
                   validation="1 x")  # fmt: skip
    assert list(records) == [
        {"text": "so good", "label": "1"},
        {"text": "bad", "label": "0"},
    ]


def test_a_malformed_line_is_named(read_files):
    with pytest.raises(UserError, match="line 2: '1' is not a label"):
        read_files(
            "classification", "labelled", train="1 a\n1\n", validation="another line"
        )


def test_a_missing_file_is_reported_before_anything_is_read():
    files = {"data.train_files": "none.txt", "data.validation_files": "none.txt"}
    with pytest.raises(UserError, match=r"data.train_files: there is no file"):
        configs.load("opinions:label", {"data.source": "labelled", **files})
