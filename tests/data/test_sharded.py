"""A store in shards holds what the unsharded store holds, wherever its files lie."""

import dataclasses
import json
import pathlib

import fsspec
import numpy as np
import pytest

from transformer_jax.base.errors import UserError
from transformer_jax.data import cache, sharded
from transformer_jax.data import store as stores
from transformer_jax.data.reading.filters import Filter
from transformer_jax.data.reading.records import Generated, Stretch
from transformer_jax.data.sharded import ShardedStore
from transformer_jax.data.store import RECORD, Column
from transformer_jax.shards import cut
from transformer_jax.shards.work import Work

COLUMNS = {"x": Column("uint16"), "y": Column("float32", (2,)), "z": Column("int32")}
REPEATS = "that repeat another"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(tmp_path / "cache"))


@pytest.fixture(params=["local", "memory"])
def address(request, tmp_path):
    """A folder on the disk, and one in an object store."""
    if request.param == "local":
        return str(tmp_path / "store")
    return f"memory://{tmp_path.name}/store"


def records_of(*numbers):
    return Generated(lambda: [{"n": n} for n in numbers], str(numbers))


CORPORA = [records_of(*range(20)), records_of(3, 30, 3, 31, 32), records_of(40, 7, 41)]


def encode(records):
    return [
        {"x": list(range(r["n"])), "y": [r["n"], 0.5], "z": [-r["n"]]} for r in records
    ]


def make_filter():
    def find_fault(record, row):
        return "divisible by 11" if record["n"] % 11 == 0 else None

    return Filter(find_fault, {REPEATS: lambda r: [b"%16d" % r["n"]]})


def write(address, shards):
    sizes = [(f"c{i}", len(records)) for i, records in enumerate(CORPORA)]
    parts = cut.divide(sizes, shards)
    work = Work.begin(address, "test", parts, {}, {}, ".safetensors")

    def make(parts, file):
        found = [Stretch(CORPORA[int(p.file[1])], p.begin, p.end) for p in parts]
        return sharded.write_shard(file, found, COLUMNS, encode, make_filter())

    for shard in range(len(work)):
        work.do(shard, {}, make)
    corpora = {name: i for i, (name, _) in enumerate(sizes)}
    about = {"task": "numbers", "encoding": "e"}
    sharded.settle(work, work.markers(), COLUMNS, [REPEATS], corpora, about)
    return work


def plain(tmp_path):
    numbers = [record["n"] for records in CORPORA for record in records]
    joined = records_of(*numbers)
    return stores.build(tmp_path / "plain", joined, COLUMNS, encode, "f", make_filter)


@pytest.mark.parametrize("shards", [1, 3, 7])
def test_it_holds_what_the_unsharded_store_holds(address, tmp_path, shards):
    write(address, shards)
    found, wanted = ShardedStore(address), plain(tmp_path)
    assert len(found) == len(wanted) == 23  # 28, without 0, 11 and three repeats
    order = np.random.default_rng(0).permutation(23)
    taken, expected = found.take(order), wanted.take(order)
    for name in ("x", "z"):
        assert np.array_equal(taken[name].values, expected[name].values)
        assert np.array_equal(taken[name].lengths, expected[name].lengths)
        assert taken[name].values.dtype == COLUMNS[name].dtype
        assert np.array_equal(found.lengths(name), wanted.lengths(name))
        assert np.array_equal(found.column(name), wanted.column(name))
        assert np.array_equal(found.row(name, 11), wanted.row(name, 11))
    for name in ("y", RECORD):
        assert np.array_equal(taken[name], expected[name])
        assert np.array_equal(found.column(name), wanted.column(name))
    assert found.row("y", 3).tolist() == wanted.row("y", 3).tolist()
    empty = found.take(np.zeros(0, np.int64))
    assert empty["x"].values.shape == (0,) and empty["y"].shape == (0, 2)
    for why, entry in wanted.ledger.items():
        assert found.ledger[why]["count"] == entry["count"]


def test_the_keys_of_a_large_store_are_compared_in_passes(address, monkeypatch):
    monkeypatch.setattr(sharded, "SORTED", 4)
    write(address, 5)
    assert len(ShardedStore(address)) == 23
    entry = ShardedStore(address).ledger[REPEATS]
    assert entry["count"] == 3
    assert sorted(e["where"] for e in entry["examples"])[0].startswith("shard ")


def test_records_have_their_places_corpora_and_weights(address):
    write(address, 4)
    records = ShardedStore(address).records
    assert (len(records), records.sizes()) == (28, [20, 5, 3])
    places = [records.where(i) for i in (0, 19, 20, 24, 27)]
    assert places == [
        "c0, example 1",
        "c0, example 20",
        "c1, example 1",
        "c1, example 5",
        "c2, example 3",
    ]
    numbers = np.array([0, 21, 27])
    assert records.mixture.repeats(numbers) is None
    records.weigh([1.0, 2.0, 4.0])
    assert records.mixture.repeats(numbers).tolist() == [1, 2, 4]
    assert records.mixture.corpora_of(numbers).tolist() == [0, 1, 2]
    with pytest.raises(UserError, match="holds the pieces of its examples, and not"):
        records[0]


def test_a_shard_is_opened_when_an_example_is_needed(address, monkeypatch):
    write(address, 7)
    ShardedStore(address).lengths("x")  # the index is in the cache from here on
    opened = []
    real = ShardedStore._open_shard
    monkeypatch.setattr(
        ShardedStore, "_open_shard", lambda self, i: opened.append(i) or real(self, i)
    )
    found = ShardedStore(address)
    assert found.lengths("x").sum() and len(found.column(RECORD)) == 23
    assert opened == []
    found.take(np.array([0, 1, 22]))
    found.take(np.array([1]))
    assert opened == [0, 6]


def test_shards_of_an_object_store_are_copied_once(tmp_path):
    address = f"memory://{tmp_path.name}/copied"
    work = write(address, 2)
    wanted = ShardedStore(address).take(np.arange(23))["x"].values
    copies = list((cache.folder() / "shards").glob("*/*.safetensors"))
    assert len(copies) == 2
    for shard in range(2):  # as if the object store could not be reached any more
        fsspec.filesystem("memory").rm(work.folder.path(work.name(shard)))
    found = ShardedStore(address).take(np.arange(23))["x"].values
    assert np.array_equal(found, wanted)


def test_what_is_missing_or_damaged_is_refused_by_name(tmp_path):
    folder = tmp_path / "store"
    with pytest.raises(UserError, match=r"has no store\.json: give the --output of"):
        ShardedStore(str(folder))
    work = write(str(folder), 3)
    about = json.loads((folder / "store.json").read_text())
    shard = folder / work.name(1)
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    count = len(content)
    with pytest.raises(UserError, match=f"{count - 1:,} bytes, but had {count:,} when"):
        ShardedStore(str(folder)).lengths("x")
    shard.unlink()
    with pytest.raises(UserError, match=r"00001.safetensors is missing, but had"):
        ShardedStore(str(folder)).lengths("x")
    shard.write_bytes(content)
    (folder / "repeats.safetensors").unlink()
    with pytest.raises(UserError, match=r"repeats.safetensors is missing: restore it"):
        ShardedStore(str(folder)).lengths("x")
    (folder / "store.json").write_text(json.dumps({**about, "format": 0}))
    with pytest.raises(UserError, match="was written by another version: prepare it"):
        ShardedStore(str(folder))


def test_a_store_is_the_same_however_often_it_is_settled(tmp_path):
    folder = tmp_path / "store"
    write(str(folder), 3)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    write(str(folder), 3)
    assert before == {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_names_of_files_may_be_in_any_encoding(tmp_path):
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    parts = cut.divide([(name, 4)], 2)
    work = Work.begin(str(tmp_path), "t", parts, {}, {}, ".safetensors")
    records = records_of(1, 2, 3, 4)

    def make(parts, file):
        found = [Stretch(records, p.begin, p.end) for p in parts]
        keep = Filter(lambda record, row: name if record["n"] == 2 else None)
        return sharded.write_shard(file, found, COLUMNS, encode, keep)

    for shard in range(2):
        work.do(shard, {}, make)
    about = {"task": "t", "encoding": "e"}
    sharded.settle(work, work.markers(), COLUMNS, [], {name: 0}, about)
    assert ShardedStore(str(tmp_path)).records.where(2) == f"{name}, example 3"


def test_two_bytes_a_piece(tmp_path):
    write(str(tmp_path / "store"), 1)
    file = pathlib.Path(tmp_path / "store" / "00000.safetensors").read_bytes()
    header = json.loads(file[8 : 8 + int.from_bytes(file[:8], "little")])
    begin, end = header["x"]["data_offsets"]
    kept = [n for records in CORPORA for n in (r["n"] for r in records) if n % 11]
    assert end - begin == 2 * sum(kept)


def test_a_column_may_be_vectors_of_examples_without_any(tmp_path):
    column = dataclasses.replace(COLUMNS["x"], dtype="float16", shape=(None, 3))

    def encode(records):
        return [{"v": np.arange(3.0 * r["n"]).reshape(-1, 3)} for r in records]

    parts = cut.divide([("c", 4)], 2)
    work = Work.begin(str(tmp_path), "v", parts, {}, {}, ".safetensors")
    records = records_of(0, 2, 0, 1)

    def make(parts, file):
        found = [Stretch(records, p.begin, p.end) for p in parts]
        keep = Filter(lambda record, row: None)
        return sharded.write_shard(file, found, {"v": column}, encode, keep)

    for shard in range(2):
        work.do(shard, {}, make)
    about = {"task": "t", "encoding": "e"}
    sharded.settle(work, work.markers(), {"v": column}, [], {"c": 0}, about)
    found = ShardedStore(str(tmp_path))
    assert found.lengths("v").tolist() == [0, 2, 0, 1]
    assert found.row("v", 1).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found.take(np.array([0, 3]))["v"].values.tolist() == [[0, 1, 2]]
