"""A store whose examples lie in shards: a file each, on a disk or in a bucket.

    STORE/store.json          the shards, the ledger, where the records come from
    STORE/00017.safetensors   the columns of shard 17, as in `store.Store`
    STORE/repeats.safetensors the rows that an earlier shard's examples repeat
    STORE/tokenizer/          the vocabularies

The lengths of all examples are read at the start, as batches are planned from them, and
the rest of a shard when a batch needs it: from where it lies or, out of a bucket, from
a copy in the cache. Examples and their order are those of the unsharded store, except
that a window of a language model ends where its shard ends.
"""

import contextlib
import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from safetensors.numpy import load, save

from transformer_jax.base.errors import UserError
from transformer_jax.data import cache
from transformer_jax.data import store as stores
from transformer_jax.data.reading.filters import KEY, Filter
from transformer_jax.data.reading.records import Mixture, Records
from transformer_jax.data.store import RECORD, Column, Ragged, Store
from transformer_jax.shards.storage import Storage
from transformer_jax.shards.work import Marker, Work

FORMAT = 1
ABOUT, REPEATS, TOKENIZER = "store.json", "repeats.safetensors", "tokenizer"
ENDS, KEYS = ".ends", "keys."  # of the names of arrays
LEARNT = ".learnt"  # written after the last of the tokenizers' files
OPENED = 256  # shards whose files are held open
SORTED = 1 << 25  # keys that are compared in memory at once
SECTIONS = ("data", "tokenizer", "filter")  # of a config, that decide what is written
FREE = (  # options of these that do not
    *("store", "folder", "train_weights", "temperature"),
    *("batch_tokens", "batching", "shapes", "row_multiple"),
)
HELD_OUT = ("validation_", "test_")
TYPES = {"U": "uint", "I": "int", "F": "float"}  # of safetensors, before the bits


def options_of(config: ConfigDict) -> dict[str, Any]:
    """Return the options of a config that determine the content of its store."""
    if config.get("tokenizer", {}).get("sampling"):
        raise UserError(
            "tokenizer.sampling segments the text anew in every epoch, and a store "
            "holds pieces: set it to 0, or train on the files"
        )
    found = {
        f"{section}.{key}": value
        for section in SECTIONS
        for key, value in config.get(section, {}).items()
        if key not in FREE and not key.startswith(HELD_OUT)
    }
    return json.loads(json.dumps(found))


def write_shard(
    file: pathlib.Path,
    parts: Sequence[Records],
    columns: Mapping[str, Column],
    encode: Any,
    find_fault: Filter,
) -> dict[str, Any]:
    """Encode the records of a shard into a file; return its counts.

    What only other shards can tell, whether an example repeats an earlier one, is left
    to `settle`, for which the keys of the examples are written beside them.
    """
    columns = {**columns, RECORD: Column("int64", ())}
    ledger: dict[str, Any] = {}
    keys: dict[str, list[bytes]] = {why: [] for why in find_fault.make_keys}

    def find(record: Any, row: Any) -> str | None:
        why = find_fault.find_fault(record, row)
        if not why:
            for reason, keys_of in find_fault.make_keys.items():
                keys[reason].append(b"".join(keys_of(record)))
        return why

    chunks: dict[str, list[Any]] = {name: [] for name in columns}
    before = 0
    for records in parts:
        for rows in stores.kept(records, encode, find, ledger):
            for name, column in columns.items():
                values = [row[name] for row in rows]
                if name == RECORD:
                    values = [before + number for number in values]
                chunks[name].append(stores.join(column, values))
        before += len(records)
    arrays: dict[str, np.ndarray] = {}
    for name, column in columns.items():
        found = [column.empty(), *chunks.pop(name)]
        if column.ragged:
            arrays[name] = np.concatenate([part.values for part in found])
            lengths = np.concatenate([part.lengths for part in found])
            arrays[name + ENDS] = np.cumsum(lengths)
        else:
            arrays[name] = np.concatenate(found)
    count = len(arrays[RECORD])
    for i, rows in enumerate(keys.values()):
        joined = np.frombuffer(b"".join(rows), np.uint8)
        arrays[f"{KEYS}{i}"] = joined.reshape(count, -1, KEY)
    file.write_bytes(save(arrays))
    return {
        "lines": before,
        "by_part": [len(records) for records in parts],
        "examples": count,
        "ledger": ledger,
    }


def settle(
    work: Work,
    markers: Sequence[Marker],
    columns: Mapping[str, Column],
    reasons: Sequence[str],
    corpora: Mapping[str, int],
    about: Mapping[str, Any],
) -> None:
    """Complete a store, all of whose shards are done, by joining their records.

    `reasons` name the keys of the shards, and `corpora` numbers the corpus of a file.
    """
    ledger: dict[str, Any] = {}
    for marker in markers:
        for why, entry in marker.counts["ledger"].items():
            _add(ledger, why, entry["count"], entry["examples"])
    dropped = _find_repeats(work, markers, reasons, ledger)
    shards = []
    for parts, marker, rows in zip(work.shards, markers, dropped, strict=True):
        shards.append(
            {
                "name": marker.name,
                "size": marker.size,
                "sha256": marker.sha256,
                "examples": marker.counts["examples"],
                "dropped": len(rows),
                "parts": [
                    [part.file, corpora[part.file], count]
                    for part, count in zip(parts, marker.counts["by_part"], strict=True)
                ],
            }
        )
    if any(map(len, dropped)):
        names = {f"{i:05}": rows for i, rows in enumerate(dropped) if len(rows)}
        work.folder.write(REPEATS, save(names))
    content = {
        "format": FORMAT,
        **about,
        "options": work.plan["options"],
        "columns": {name: (c.dtype, c.shape) for name, c in columns.items()},
        "shards": shards,
        "ledger": ledger,
    }
    text = json.dumps(content, indent=1)
    work.folder.write(ABOUT, text.encode())


def copy_tokenizers(store: Storage, folder: pathlib.Path) -> bool:
    """Copy the tokenizers of a store into a folder; return whether it has them all."""
    if store.size(f"{TOKENIZER}/{LEARNT}") is None:
        return False
    for name in store.names(TOKENIZER, deep=True):
        file = folder / name.removeprefix(f"{TOKENIZER}/")
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            store.fetch(name, file)
    return True


def _find_repeats(
    work: Work, markers: Sequence[Marker], reasons: Sequence[str], ledger: dict
) -> list[np.ndarray]:
    """Return the rows of each shard that have a key of an earlier example."""
    counts = [marker.counts["examples"] for marker in markers]
    ends = np.cumsum(counts)
    repeated = np.zeros(sum(counts), bool)
    for i, reason in enumerate(reasons):
        found = np.zeros_like(repeated)
        passes = 1
        done = 0
        while done < passes:
            owners, keys = [], []
            for shard, marker in enumerate(markers):
                mine = _Shard(work.folder, marker.name, marker.size).read(f"{KEYS}{i}")
                if not done and not shard and len(mine):
                    passes = -(-len(repeated) * mine.shape[1] // SORTED)
                chosen = mine[..., 0] % passes == done
                rows = np.arange(ends[shard] - counts[shard], ends[shard])
                owners.append(np.broadcast_to(rows[:, None], chosen.shape)[chosen])
                keys.append(mine[chosen])
            owner = np.concatenate(owners)
            key = np.concatenate(keys).view([("a", "<u8"), ("b", "<u8")])[:, 0]
            _, first, which = np.unique(key, return_index=True, return_inverse=True)
            found[owner[owner[first][which] < owner]] = True
            done += 1
        if new := np.flatnonzero(found & ~repeated).tolist():
            places = [
                _name_row(work, markers, ends, row) for row in new[: stores.SHOWN]
            ]
            _add(ledger, reason, len(new), [{"where": place} for place in places])
        repeated |= found
    return [np.flatnonzero(r) for r in np.split(repeated, ends[:-1])]


def _name_row(work, markers, ends, row: int) -> str:
    shard = int(np.searchsorted(ends, row, side="right"))
    return f"shard {shard}, row {row - int(ends[shard - 1] if shard else 0) + 1}"


def _add(ledger: dict[str, Any], why: str, count: int, examples: list[Any]) -> None:
    entry = ledger.setdefault(why, {"count": 0, "examples": []})
    entry["count"] += count
    entry["examples"] = [*entry["examples"], *examples][: stores.SHOWN]


class _Shard:
    """The arrays of a shard's file, read where they lie."""

    def __init__(self, folder: Storage, name: str, size: int):
        self._folder, self._name = folder, name
        if (found := folder.size(name)) != size:
            has = "is missing" if found is None else f"has {found:,} bytes"
            raise UserError(
                f"{folder.path(name)} {has}, but had {size:,} when it was written: "
                "restore it, or remove its marker and prepare the store again"
            )
        length = int.from_bytes(self._bytes(0, 8), "little")
        self._first = 8 + length
        header = json.loads(self._bytes(8, 8 + length))
        self.about = {k: v for k, v in header.items() if k != "__metadata__"}

    def read(self, name: str) -> np.ndarray:
        """Read an array; only its part of a local file is mapped."""
        about = self.about[name]
        dtype = TYPES[about["dtype"][0]] + about["dtype"][1:]
        begin, end = (self._first + place for place in about["data_offsets"])
        if begin == end:
            return np.zeros(about["shape"], dtype)
        if self._folder.is_local:
            path, shape = self._folder.path(self._name), tuple(about["shape"])
            return np.memmap(path, dtype, "r", begin, shape)
        return np.frombuffer(self._bytes(begin, end), dtype).reshape(about["shape"])

    def _bytes(self, begin: int, end: int) -> bytes:
        with self._folder.open(self._name) as file:
            file.seek(begin)
            return file.read(end - begin)


class ShardedStore(Store):
    """A store in shards, of which each is opened when it is needed."""

    def __init__(self, address: str):
        """Read the description of the store at a path or an address such as gs://…."""
        self.folder = Storage(address)
        content = self.folder.read(ABOUT)
        if content is None:
            raise UserError(
                f"data.store = {address!r} has no {ABOUT}: give the --output of "
                "`transformer_jax.prepare`, once all of its shards are done"
            )
        self.about = json.loads(content)
        if self.about.get("format") != FORMAT:
            raise UserError(
                f"data.store = {address!r} was written by another version: prepare it "
                "again"
            )
        self.name = self.fingerprint = stores.fingerprint_of(content)
        self.ledger: dict[str, Any] = self.about["ledger"]
        self.columns = {
            name: Column(dtype, None if shape is None else tuple(shape))
            for name, (dtype, shape) in self.about["columns"].items()
        } | {RECORD: Column("int64", ())}
        shards = self.about["shards"]
        self._ends = np.cumsum([s["examples"] - s["dropped"] for s in shards])
        self.size = int(self._ends[-1])
        self.records = StoredRecords(self)
        counts = [sum(part[2] for part in s["parts"]) for s in shards]
        self._first_records = np.cumsum(counts) - counts
        self._open = functools.lru_cache(OPENED)(self._open_shard)

    def check(self, config: ConfigDict) -> None:
        """Refuse a config whose examples are others than those of the store."""
        if self.about["task"] != config.task:
            raise UserError(
                f"data.store = {self.folder.address!r} is for the task "
                f"{self.about['task']}, not {config.task}: prepare one with this config"
            )
        for name, value in options_of(config).items():
            if value != (stored := self.about["options"].get(name, value)):
                raise UserError(
                    f"{name} is {value!r}, but data.store = {self.folder.address!r} "
                    f"was prepared with {stored!r}: use the same, or prepare another"
                )

    def check_encoding(self, fingerprint: str) -> None:
        """Refuse a task that would encode the examples in another way."""
        if self.about["encoding"] != fingerprint:
            raise UserError(
                f"data.store = {self.folder.address!r} was encoded by other tokenizers "
                "or in another way than this run's: prepare it again with this config, "
                "or start in a new --workdir"
            )

    def row(self, column: str, index: int) -> np.ndarray:
        """Return the values of one example."""
        taken = self._take(column, np.array([index]))
        return taken.values if self.columns[column].ragged else taken[0]

    def take(self, examples: np.ndarray) -> dict[str, Any]:
        """Return all columns of these examples."""
        return {name: self._take(name, examples) for name in self.columns}

    def lengths(self, column: str) -> np.ndarray:
        """Return the lengths [examples] of a ragged column."""
        return self._index[column].astype(np.int64)

    def column(self, name: str) -> np.ndarray:
        """Return all values of a column, of all shards."""
        if name == RECORD:
            return self._index[RECORD]
        taken = self._take(name, np.arange(len(self)))
        return taken.values if self.columns[name].ragged else taken

    def _take(self, name: str, examples: np.ndarray) -> Any:
        column = self.columns[name]
        if name == RECORD:
            return self._index[RECORD][examples]
        found = [self._find(name, int(example)) for example in examples]
        if not column.ragged:
            return np.asarray(found, column.dtype).reshape(-1, *column.inner)
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        return Ragged(np.concatenate([column.empty().values, *found]), lengths)

    def _find(self, name: str, example: int) -> Any:
        shard = int(np.searchsorted(self._ends, example, side="right"))
        arrays, kept = self._open(shard)
        row = example - (int(self._ends[shard - 1]) if shard else 0)
        row = row if kept is None else int(kept[row])
        if not self.columns[name].ragged:
            return arrays[name][row]
        ends = arrays[name + ENDS]
        return arrays[name][ends[row - 1] if row else 0 : ends[row]]

    def _open_shard(self, shard: int) -> tuple[dict[str, np.ndarray], Any]:
        """Map the arrays of a shard; out of a bucket, those of a copy in the cache."""
        about, folder = self.about["shards"][shard], self.folder
        if not folder.is_local:
            name = f"{folder.address}/{about['name']}:{about['sha256']}"

            def fetch(entry: pathlib.Path) -> None:
                folder.fetch(about["name"], entry / about["name"])

            entry = cache.build_once(cache.place("shards", name), fetch)
            folder = Storage(entry)
        file = _Shard(folder, about["name"], about["size"])
        arrays = {n: file.read(n) for n in file.about if not n.startswith(KEYS)}
        return arrays, self._kept(shard)

    def _kept(self, shard: int) -> np.ndarray | None:
        """Return the rows of a shard that repeat no other; None means all."""
        about = self.about["shards"][shard]
        if not about["dropped"]:
            return None
        return np.setdiff1d(np.arange(about["examples"]), self._repeats[f"{shard:05}"])

    @functools.cached_property
    def _repeats(self) -> dict[str, np.ndarray]:
        content = self.folder.read(REPEATS)
        if content is None:
            raise UserError(f"{self.folder.path(REPEATS)} is missing: restore it")
        return load(content)

    @functools.cached_property
    def _index(self) -> dict[str, np.ndarray]:
        """The lengths and records of all examples, mapped from the cache."""
        names = [name for name, column in self.columns.items() if column.ragged]
        types = {**dict.fromkeys(names, "int32"), RECORD: "int64"}

        def write(entry: pathlib.Path) -> None:
            with contextlib.ExitStack() as stack:
                files = {n: stack.enter_context((entry / n).open("wb")) for n in types}
                for number in range(len(self.about["shards"])):
                    for name, values in self._index_of(number).items():
                        files[name].write(values.astype(types[name]).tobytes())

        place = cache.place("sharded", f"{FORMAT}:{self.fingerprint}")
        entry = cache.build_once(place, write)
        return {n: stores.map_file(entry / n, kind) for n, kind in types.items()}

    def _index_of(self, shard: int) -> dict[str, np.ndarray]:
        about, kept = self.about["shards"][shard], self._kept(shard)
        file = _Shard(self.folder, about["name"], about["size"])
        found = {RECORD: file.read(RECORD) + self._first_records[shard]}
        for name, column in self.columns.items():
            if column.ragged:
                found[name] = np.diff(file.read(name + ENDS), prepend=0)
        return {n: v if kept is None else v[kept] for n, v in found.items()}


class StoredRecords(Records):
    """The records that a store was made from, of which it holds the places only."""

    store: ShardedStore

    def __init__(self, store: ShardedStore):
        self.store, self.fingerprint = store, store.fingerprint
        self._parts = [part for s in store.about["shards"] for part in s["parts"]]
        self._ends = np.cumsum([count for _, _, count in self._parts])
        self._weights: Sequence[float] = [1.0] * len(self._parts)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Any:
        """Raise a `UserError`, because the store does not hold the text."""
        raise UserError(
            f"{self.store.folder.address} holds the pieces of its examples, and not "
            "their text: leave data.store out to read the training files"
        )

    def where(self, index: int) -> str:
        """Name the file of a record, and its number there."""
        part = int(np.searchsorted(self._ends, index, side="right"))
        name, _, count = self._parts[part]
        number = index - int(self._ends[part]) + count + 1
        number += sum(c for n, _, c in self._parts[:part] if n == name)
        return f"{name}, example {number}"

    def sizes(self) -> list[int]:
        """Return the number of records of each corpus."""
        corpora = 1 + max(corpus for _, corpus, _ in self._parts)
        sizes = [0] * corpora
        for _, corpus, count in self._parts:
            sizes[corpus] += count
        return sizes

    def weigh(self, weights: Sequence[float]) -> None:
        """Give each corpus its weight, by which its examples are repeated."""
        self._weights = [weights[corpus] for _, corpus, _ in self._parts]

    @property
    def mixture(self) -> Mixture:
        """Return the parts, with their weights."""
        corpora = [corpus for _, corpus, _ in self._parts]
        return Mixture(self._ends, self._weights, corpora)
