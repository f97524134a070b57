"""Store all examples of a split, encoded once into memory-mapped columns.

A column is ragged (any number of values, or of vectors, per example) or has a fixed
shape; `Column` gives its shape and dtype. A store is keyed by the fingerprints of its
records and of everything that encodes them. It is written in chunks, so memory use does
not grow with it. Every example that is left out is counted in the ledger.
"""

import abc
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.base.errors import UserError
from transformer_jax.data import cache
from transformer_jax.data.reading.records import Records

FORMAT = 3  # version of the files; part of the fingerprint
SHOWN = 3  # examples per reason in a ledger
CHUNK = 20_000  # most records encoded together,
CHUNK_CHARACTERS = 4_000_000  # and most text, but at least one record
RECORD = "record"  # a column of every store: the index of the record


@dataclasses.dataclass(frozen=True)
class Column:
    """The type of a column: the dtype and the shape of an example's values.

    A shape of None is ragged, and (None, 40) is any number of vectors of 40.
    """

    dtype: str
    shape: tuple[int | None, ...] | None = None

    @property
    def ragged(self) -> bool:
        """Return whether examples may differ in length."""
        return self.shape is None or self.shape[:1] == (None,)

    @property
    def inner(self) -> tuple[int, ...]:
        """Return the shape of an example, or of one value of a ragged column."""
        shape = self.shape or ()
        return tuple(n for n in shape if n is not None)

    def empty(self) -> Any:
        """Return the column of no examples, as `Store.take` does."""
        values = np.zeros((0, *self.inner), self.dtype)
        return Ragged(values, np.zeros(0, np.int64)) if self.ragged else values


class Ragged(NamedTuple):
    """Examples of a ragged column: their values [total, …] and lengths [examples]."""

    values: np.ndarray
    lengths: np.ndarray

    def rows(self) -> list[np.ndarray]:
        """Split the values into one array per example."""
        return np.split(self.values, np.cumsum(self.lengths)[:-1])


class Store(abc.ABC):
    """The encoded examples of one split, wherever they lie."""

    name: str  # identifies its content
    size: int
    ledger: dict[str, Any]  # of the examples that were left out

    def __len__(self) -> int:
        return self.size

    @abc.abstractmethod
    def row(self, column: str, index: int) -> np.ndarray:
        """Return the values of one example."""

    @abc.abstractmethod
    def take(self, examples: np.ndarray) -> dict[str, Any]:
        """Return all columns of these examples: `Ragged`, or arrays [examples, …]."""

    @abc.abstractmethod
    def lengths(self, column: str) -> np.ndarray:
        """Return the lengths [examples] of a ragged column."""

    @abc.abstractmethod
    def column(self, name: str) -> np.ndarray:
        """Return all values: [examples, …], or [total, …] of a ragged column."""


class MappedStore(Store):
    """A store in a folder of the cache, mapped into memory."""

    def __init__(self, folder: pathlib.Path):
        """Read the description of the store, and map its columns into memory."""
        self.folder, self.name = folder, folder.name
        about = json.loads((folder / "store.json").read_text(encoding="utf-8"))
        self.size, self.ledger = about["size"], about["ledger"]
        self._columns: dict[str, np.ndarray] = {}
        self._ends: dict[str, np.ndarray] = {}
        for name, (dtype, shape) in about["columns"].items():
            column = Column(dtype, shape if shape is None else tuple(shape))
            if column.ragged:
                self._ends[name] = map_file(folder / f"{name}.ends", "int64")
            total = int(self.lengths(name).sum()) if column.ragged else self.size
            values = map_file(folder / f"{name}.values", dtype)
            self._columns[name] = values.reshape(total, *column.inner)

    def row(self, column: str, index: int) -> np.ndarray:
        """Return the values of one example."""
        if column not in self._ends:
            return self._columns[column][index]
        ends = self._ends[column]
        return self._columns[column][ends[index - 1] if index else 0 : ends[index]]

    def take(self, examples: np.ndarray) -> dict[str, Any]:
        """Return all columns of these examples."""
        return {name: self._take(name, examples) for name in self._columns}

    def lengths(self, column: str) -> np.ndarray:
        """Return the lengths [examples] of a ragged column."""
        return np.diff(self._ends[column], prepend=0)

    def column(self, name: str) -> np.ndarray:
        """Return all values of a column."""
        return self._columns[name]

    def _take(self, name: str, examples: np.ndarray) -> Any:
        if name not in self._ends:
            return self._columns[name][examples]
        ends = self._ends[name]
        begins = np.where(examples > 0, ends[examples - 1], 0)
        lengths = ends[examples] - begins
        shift = begins - (np.cumsum(lengths) - lengths)
        indices = np.repeat(shift, lengths) + np.arange(lengths.sum())
        return Ragged(self._columns[name][indices], lengths)


def build(
    root: pathlib.Path,
    records: Records,
    columns: Mapping[str, Column],
    encode: Callable[[Sequence[Any]], Iterable[Mapping[str, Any]]],
    fingerprint: str,
    make_filter: Callable[[], Callable[[Any, Any], str | None]] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> MappedStore:
    """Open the store of these records, building it unless a sound one exists.

    `encode` turns a list of records into rows of columns; `make_filter` returns a
    function (record, row) → the reason for leaving an example out, or None.
    """
    key = fingerprint_of(f"{FORMAT}:{columns}:{fingerprint}")
    write = functools.partial(
        _write, records, columns, encode, make_filter or _keep_all, progress
    )
    return MappedStore(cache.build_once(root / key, write, records.content))


def summary(ledger: dict[str, Any]) -> str:
    """Describe the examples left out: "12 with an empty side"; empty if none."""
    return ", ".join(f"{entry['count']:,} {why}" for why, entry in ledger.items())


def _keep_all():
    return lambda record, columns: None


def kept(
    records: Records,
    encode: Callable[[Sequence[Any]], Iterable[Mapping[str, Any]]],
    find_fault: Callable[[Any, Any], str | None],
    ledger: dict[str, Any],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[list[dict[str, Any]]]:
    """Yield the encoded examples chunk by chunk; count in the ledger those left out.

    Their column `RECORD` is the index of their record.
    """
    number = 0
    for chunk in _chunks(records):
        rows = []
        encoded = _encoded(encode, chunk, records, number)
        for record, row in zip(chunk, encoded, strict=True):
            reason = find_fault(record, row)
            if reason:
                _note(ledger, reason, records.where(number), record)
            else:
                rows.append({**row, RECORD: number})
            number += 1
        yield rows
        progress(number, len(records))


def join(column: Column, rows: Sequence[Any]) -> Any:
    """Join the values of examples: `Ragged`, or an array [examples, …]."""
    dtype = np.dtype(column.dtype)
    if not column.ragged:
        return np.asarray(rows, dtype).reshape(len(rows), *column.inner)
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    if column.inner:
        empty = column.empty().values
        return Ragged(np.concatenate([empty, *rows], dtype=dtype), lengths)
    flat = itertools.chain.from_iterable(rows)
    values = np.fromiter(flat, np.int64, int(lengths.sum()))
    if len(values) and values.max() > np.iinfo(dtype).max:
        raise OverflowError(f"{values.max()} does not fit a {dtype}")
    return Ragged(values.astype(dtype), lengths)


def _write(records, columns, encode, make_filter, progress, folder) -> None:
    columns = {**columns, RECORD: Column("int64", ())}
    ledger: dict[str, Any] = {}
    size = 0
    with contextlib.ExitStack() as files:
        writers = {n: _Writer(files, folder, n, c) for n, c in columns.items()}
        for rows in kept(records, encode, make_filter(), ledger, progress):
            for name, writer in writers.items():
                writer.add([row[name] for row in rows])
            size += len(rows)
    about = {
        "size": size,
        "columns": {name: (c.dtype, c.shape) for name, c in columns.items()},
        "ledger": ledger,
    }
    text = json.dumps(about, indent=1, ensure_ascii=False)
    (folder / "store.json").write_text(text, encoding="utf-8")


def _encoded(encode, chunk: list, records, first: int) -> list:
    """Encode a chunk; if that fails, name the line of the faulty example."""
    try:
        return encode(chunk)
    except UserError:
        for number, record in enumerate(chunk, first):
            try:
                encode([record])
            except UserError as error:
                raise UserError(f"{records.where(number)}: {error}") from None
        raise


def _note(dropped: dict, reason: str, where: str, record: dict) -> None:
    entry = dropped.setdefault(reason, {"count": 0, "examples": []})
    entry["count"] += 1
    if entry["count"] <= SHOWN:
        shown = {name: _shorten(value) for name, value in record.items()}
        entry["examples"].append({"where": where, **shown})


class _Writer:
    """The files of a column, written in order."""

    def __init__(self, files: contextlib.ExitStack, folder, name, column: Column):
        self.column, self._end, self._ends = column, 0, None
        self._values = files.enter_context((folder / f"{name}.values").open("wb"))
        if column.ragged:
            self._ends = files.enter_context((folder / f"{name}.ends").open("wb"))

    def add(self, rows: list[Any]) -> None:
        joined = join(self.column, rows)
        if self._ends is not None:
            joined, lengths = joined
            self._ends.write((self._end + np.cumsum(lengths)).tobytes())
            self._end += len(joined)
        self._values.write(joined.tobytes())


def _chunks(records: Iterable[dict]) -> Iterator[list[dict]]:
    chunk, characters = [], 0
    for record in records:
        size = sum(map(_size, record.values()))
        if chunk and (len(chunk) == CHUNK or characters + size > CHUNK_CHARACTERS):
            yield chunk
            chunk, characters = [], 0
        chunk.append(record)
        characters += size
    if chunk:
        yield chunk


def _size(value: Any) -> int:
    """Count the characters of a text, the numbers of an array."""
    if isinstance(value, np.ndarray):
        return value.size
    return len(value) if isinstance(value, str) else 0


def _shorten(value: Any) -> Any:
    if not isinstance(value, str):
        return repr(value)[:300]
    if len(value) <= 300:
        return value
    return f"{value[:300]}… ({len(value):,} characters)"


def fingerprint_of(content: bytes | str) -> str:
    """Return the hash, of 24 digits, of a text or bytes that determine a store."""
    content = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(content).hexdigest()[:24]


def map_file(path: pathlib.Path, dtype: str) -> np.ndarray:
    """Map a file of numbers into memory, to be read only."""
    if not path.stat().st_size:
        return np.empty(0, dtype)
    return np.memmap(path, dtype, mode="r")
