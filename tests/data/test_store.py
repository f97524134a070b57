"""The store: built once, mapped from disk, nothing dropped silently."""

import os
import subprocess
import sys

import numpy as np
import pytest

from transformer_jax.data import store
from transformer_jax.data.reading.records import Generated
from transformer_jax.data.store import RECORD, Column

RECORDS = Generated(lambda: [{"n": n} for n in (3, 0, 7, 1)], "")
COLUMNS = {"x": Column("uint16"), "y": Column("float32", (2,))}


def encode(records):
    return [{"x": list(range(r["n"])), "y": [r["n"], 0.5]} for r in records]


def build(root, records=RECORDS, fingerprint="a", encode=encode, **options):
    return store.build(root, records, COLUMNS, encode, fingerprint, **options)


def rows(built, examples):
    return [list(row) for row in built.take(np.asarray(examples))["x"].rows()]


def test_examples_come_back_as_they_were_encoded_in_any_order(tmp_path):
    built = build(tmp_path)
    assert len(built) == 4
    assert rows(built, range(4)) == [[0, 1, 2], [], list(range(7)), [0]]
    assert rows(built, [2, 0, 2]) == [list(range(7)), [0, 1, 2], list(range(7))]
    assert [list(built.row("x", i)) for i in (0, 3)] == [[0, 1, 2], [0]]
    assert list(built.lengths("x")) == [3, 0, 7, 1]


def test_columns_of_a_fixed_shape_and_any_dtype(tmp_path):
    built = build(tmp_path)
    taken = built.take(np.array([2, 3]))
    assert taken["y"].dtype == np.float32
    assert taken["y"].tolist() == [[7, 0.5], [1, 0.5]]
    assert taken["x"].values.dtype == np.uint16
    assert built.row("y", 0).tolist() == [3, 0.5]
    assert isinstance(built.column("y").base, np.memmap)


def test_examples_may_be_any_number_of_vectors(tmp_path):
    def encode(records):
        return [{"x": np.arange(3.0 * r["n"]).reshape(-1, 3)} for r in records]

    columns = {"x": Column("float16", (None, 3))}
    built = store.build(tmp_path, RECORDS, columns, encode, "vectors")
    assert list(built.lengths("x")) == [3, 0, 7, 1]
    taken = built.take(np.array([2, 1, 3]))["x"]
    assert taken.values.dtype == np.float16 and taken.values.shape == (8, 3)
    assert [row.tolist() for row in taken.rows()[1:]] == [[], [[0, 1, 2]]]
    assert built.row("x", 0).tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    empty = columns["x"].empty()
    assert empty.values.shape == (0, 3) and not len(empty.lengths)


def test_arrays_count_for_the_size_of_a_chunk(tmp_path, monkeypatch):
    sounds = Generated(lambda: [{"samples": np.zeros(40)} for _ in range(5)], "")
    seen = []

    def encode(records):
        seen.append(len(records))
        return [{"x": [1]} for _ in records]

    monkeypatch.setattr(store, "CHUNK_CHARACTERS", 100)
    store.build(tmp_path, sounds, {"x": Column("uint16")}, encode, "arrays")
    assert seen == [2, 2, 1]


def test_every_example_knows_its_record(tmp_path):
    def keep_odd():
        return lambda record, columns: None if record["n"] % 2 else "even"

    built = build(tmp_path, make_filter=keep_odd)
    assert built.column(RECORD).tolist() == [0, 2, 3]


def test_a_value_too_large_for_its_dtype_is_never_wrapped_around(tmp_path):
    def large(records):
        return [{"x": [1 << 16], "y": [0, 0]} for _ in records]

    with pytest.raises(OverflowError, match="65536 does not fit a uint16"):
        build(tmp_path, encode=large)


def test_a_second_build_encodes_nothing(tmp_path):
    build(tmp_path)
    assert len(build(tmp_path, encode=lambda r: pytest.fail("encoded again"))) == 4


def test_another_fingerprint_or_other_columns_are_another_store(tmp_path):
    build(tmp_path)
    assert len(build(tmp_path, Generated(lambda: RECORDS[:2], ""), "b")) == 2
    other = {**COLUMNS, "x": Column("int32")}
    assert store.build(tmp_path, RECORDS, other, encode, "a").row("x", 0).dtype == "i4"


def test_chunks_change_nothing_but_memory(tmp_path, monkeypatch):
    whole, sizes = rows(build(tmp_path / "a"), range(4)), []
    monkeypatch.setattr(store, "CHUNK", 3)

    def count(records):
        sizes.append(len(records))
        return encode(records)

    assert rows(build(tmp_path / "b", encode=count), range(4)) == whole
    assert sizes == [3, 1]


def test_long_texts_are_encoded_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "CHUNK_CHARACTERS", 10)
    texts = Generated(
        lambda: [{"n": 1, "t": "x" * size} for size in (4, 4, 4, 99, 1)], ""
    )
    sizes = []

    def count(records):
        sizes.append(len(records))
        return encode(records)

    assert len(build(tmp_path, texts, encode=count)) == 5
    assert sizes == [2, 1, 1, 1]


def test_progress_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "CHUNK", 3)
    told = []
    build(tmp_path, progress=lambda *counts: told.append(counts))
    assert told == [(3, 4), (4, 4)]


def test_dropped_records_are_counted_by_reason_with_examples(tmp_path):
    def make_filter():
        return lambda record, columns: None if columns["x"] else "empty"

    built = build(tmp_path, make_filter=make_filter)
    example = {"where": "generated example 2", "n": "0"}
    assert built.ledger == {"empty": {"count": 1, "examples": [example]}}
    assert rows(built, range(3)) == [[0, 1, 2], list(range(7)), [0]]
    assert store.summary(built.ledger) == "1 empty"


def test_a_long_text_is_shortened_in_the_ledger_and_says_so(tmp_path):
    records = Generated(lambda: [{"n": 0, "t": "é" * 1_000_000}], "")
    built = build(tmp_path, records, make_filter=lambda: lambda r, c: "too long")
    (example,) = built.ledger["too long"]["examples"]
    assert example["t"] == "é" * 300 + "… (1,000,000 characters)"


def test_an_interrupted_build_leaves_no_entry(tmp_path):
    def fail(records):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, encode=fail)
    assert not any(p.is_dir() for p in tmp_path.iterdir())
    assert len(build(tmp_path)) == 4


def test_leftovers_of_a_killed_build_are_removed(tmp_path):
    key = build(tmp_path).folder.name
    for place in (tmp_path / key, tmp_path / f".{key}.abc"):
        os.makedirs(place, exist_ok=True)
    for file in (tmp_path / key).iterdir():
        file.unlink()
    (tmp_path / key).rmdir()
    assert len(build(tmp_path)) == 4
    assert not (tmp_path / f".{key}.abc").exists()


@pytest.mark.system
def test_two_processes_build_a_store_once(tmp_path):
    code = f"""
import sys, time
from transformer_jax.data import store
from transformer_jax.data.reading.records import Generated
def encode(records):
    print("encoding", flush=True)
    time.sleep(1)
    return [{{"x": [1]}} for _ in records]
records = Generated(lambda: [{{"n": 1}}] * 5, "")
built = store.build(__import__("pathlib").Path({str(tmp_path)!r}), records,
                    {{"x": store.Column("int32")}}, encode, "a")
print(len(built))
"""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    words = [process.communicate(timeout=60)[0].split() for process in started]
    assert sorted(words) == [["5"], ["encoding", "5"]]


def test_an_empty_store_can_be_opened(tmp_path):
    built = build(tmp_path, make_filter=lambda: lambda record, columns: "all")
    assert len(built) == 0
    assert len(store.MappedStore(built.folder).take(np.zeros(0, int))["x"].values) == 0


def test_a_store_of_generated_records_is_rebuilt_when_they_change(tmp_path):
    build(tmp_path)
    other = Generated(lambda: [{"n": 2}], "")
    assert rows(build(tmp_path, other), range(1)) == [[0, 1]]
    assert len(build(tmp_path)) == 4


def test_a_damaged_column_is_never_trained_on(tmp_path, monkeypatch):
    folder = build(tmp_path).folder
    values = (folder / "x.values").read_bytes()
    (folder / "x.values").write_bytes(values[:-1] + b"\x07")
    monkeypatch.setattr(store.cache, "_sound", {})
    assert rows(build(tmp_path), range(4))[3] == [0]
