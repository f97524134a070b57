"""The store: built once, mapped from disk, nothing dropped without a word."""

import os

import numpy as np
import pytest

from transformer_jax.data import store

RECORDS = [{"n": n} for n in (3, 0, 7, 1)]


def encode(record):
    return {"x": list(range(record["n"])), "y": [record["n"]] * 2}


def test_rows_come_back_as_they_were_encoded(tmp_path):
    built = store.build(tmp_path, RECORDS, encode, "a")
    assert len(built) == 4
    assert [list(r["x"]) for r in built.rows(range(4))] == [
        [0, 1, 2], [], list(range(7)), [0]
    ]  # fmt: skip
    assert list(built.lengths("x")) == [3, 0, 7, 1]
    assert isinstance(built.row("x", 0).base, np.memmap | np.ndarray)


def test_a_second_build_encodes_nothing(tmp_path):
    store.build(tmp_path, RECORDS, encode, "a")

    def refuse(record):
        raise AssertionError("encoded again")

    assert len(store.build(tmp_path, RECORDS, refuse, "a")) == 4


def test_another_fingerprint_is_another_store(tmp_path):
    store.build(tmp_path, RECORDS, encode, "a")
    assert len(store.build(tmp_path, RECORDS[:2], encode, "b")) == 2


def test_what_is_left_out_is_counted_by_reason_with_examples(tmp_path):
    def reject(columns):
        return "empty" if not columns["x"] else None

    built = store.build(tmp_path, RECORDS, encode, "a", reject)
    assert len(built) == 3
    assert built.ledger == {"empty": {"count": 1, "records": [{"number": 2, "n": 0}]}}
    assert [list(r["y"]) for r in built.rows(range(3))] == [[3, 3], [7, 7], [1, 1]]


def test_a_build_that_dies_leaves_nothing_behind(tmp_path):
    def fail(record):
        if record["n"] == 7:
            raise KeyboardInterrupt
        return encode(record)

    with pytest.raises(KeyboardInterrupt):
        store.build(tmp_path, RECORDS, fail, "a")
    assert os.listdir(tmp_path) == []
    assert len(store.build(tmp_path, RECORDS, encode, "a")) == 4


def test_a_store_of_nothing_can_be_opened(tmp_path):
    built = store.build(tmp_path, RECORDS, encode, "a", lambda columns: "all")
    assert len(built) == 0
    assert len(store.Store(built.folder)) == 0
