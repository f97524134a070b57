"""Tables with named columns: CSV files with a header, Parquet and Arrow files.

Each file is a sequence of records with random access. CSV is read by lines, Parquet by
row groups and Arrow through a memory map, so that no file has to fit in memory.
"""

import collections
import csv
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from transformer_jax.base.errors import UserError, nearest
from transformer_jax.data.reading.records import (
    Record,
    Records,
    as_text,
    fingerprint_of,
)
from transformer_jax.data.text.numerals import is_whole
from transformer_jax.data.text.text import LONGEST_LINE, Lines

DELIMITERS = ",;\t|"
INSTALL = "pip install 'transformer_jax[arrow]'"
csv.field_size_limit(LONGEST_LINE)  # of the module; its own is 131,072 characters
LOOKED_AT = 100  # rows that show how the others are divided
TOGETHER = 1024  # rows converted to Python objects at once


class CsvTable(Records):
    """A CSV file: cells may be quoted, and then contain delimiters and line breaks.

    A column is a name in the header. If all columns are numbers, from 1, that the
    header does not have, the file has no header. The delimiter is the one that gives
    these columns.
    """

    def __init__(self, path: str, columns: dict[str, str]):
        self.lines, self.columns = Lines(path), columns
        self.notes = self.lines.notes
        starts = self._find_starts()
        header = self._text(starts, 0)
        splits = {mark: _cells(header, mark) for mark in DELIMITERS}
        named = [m for m in DELIMITERS if {*columns.values()} <= {*splits[m]}]
        some = (self._text(starts, i) for i in range(min(len(starts) - 1, LOOKED_AT)))
        self._delimiter = named[0] if named else find_delimiter(list(some))
        cells = splits[self._delimiter]
        self._width = len(cells)
        has_header = bool(named) or not all(map(is_whole, columns.values()))
        if has_header:
            places = {f: cells.index(c) for f, c in columns.items() if c in cells}
        else:
            places = {f: int(c) - 1 for f, c in columns.items()}
        for field, column in columns.items():
            if not 0 <= places.get(field, -1) < len(cells):
                raise UserError(
                    f"{path} has no column {column!r} for the {field} "
                    f"(data.{field}_column): its first line has {', '.join(cells)}."
                    f"{nearest(column, cells)}"
                )
        self._places = places
        self._starts = starts[has_header:]
        about = ["csv", self._delimiter, has_header, columns, self.lines.fingerprint]
        self.fingerprint = fingerprint_of(about)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> Record:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._parse(index, self._text(self._starts, index))

    def __iter__(self) -> Iterator[Record]:
        lines, at = iter(self.lines), 0
        for index, (begin, end) in enumerate(
            zip(self._starts[:-1], self._starts[1:], strict=True)
        ):
            held = [next(lines) for _ in range(at, end)]
            yield self._parse(index, "\n".join(held[begin - at :]))
            at = end

    def where(self, index: int) -> str:
        """Name the first line of a record."""
        return self.lines.where(int(self._starts[index]))

    def _find_starts(self) -> np.ndarray:
        """Find the first line of each record, and the end of the last one.

        A line break belongs to a cell if the quotes before it are odd in number, as
        those within a quoted cell are doubled. Empty lines between records are no
        records: they are added to the one before.
        """
        quotes, empty = [], []
        for line in self.lines:
            quotes.append(line.count('"'))
            empty.append(not line.strip("\r"))
        if not quotes or all(empty):
            raise UserError(
                f"{self.lines.path} has no line that is a record: is it the right file?"
            )
        outside = np.cumsum(quotes) % 2 == 0
        if not outside[-1]:
            odd = int(np.flatnonzero(np.array(quotes) % 2)[-1])
            raise UserError(
                f"{self.lines.where(odd)} opens a quoted cell that does not end: "
                'a quote within a cell is written twice, ""'
            )
        first = np.concatenate([[True], outside[:-1]]) & ~np.array(empty)
        return np.concatenate([np.flatnonzero(first), [len(quotes)]])

    def _text(self, starts: np.ndarray, index: int) -> str:
        begin, end = starts[index : index + 2].tolist()
        return "\n".join(self.lines[i] for i in range(begin, end))

    def _parse(self, index: int, text: str) -> Record:
        cells = _cells(text, self._delimiter)
        if len(cells) != self._width:
            raise UserError(
                f"{self.where(index)} has {len(cells)} cells, but the first line "
                f"{self._width}, divided by {self._delimiter!r}: put cells with it "
                'in quotes, and write quotes within a cell twice, ""'
            )
        return {field: cells[place] for field, place in self._places.items()}


def find_delimiter(rows: Sequence[str]) -> str:
    """Find the delimiter that divides rows into equally many cells, at least two."""

    def evenness(mark: str) -> tuple[float, int]:
        counts = collections.Counter(len(_cells(row, mark)) for row in rows)
        cells, most = counts.most_common(1)[0]
        return (most / len(rows) if cells > 1 else 0.0, cells)

    return max(DELIMITERS, key=evenness)


def _cells(text: str, delimiter: str) -> list[str]:
    lines = (line + "\n" for line in text.split("\n"))
    return next((row for row in csv.reader(lines, delimiter=delimiter) if row), [])


class ArrowTable(Records):
    """A Parquet or Arrow file; a column is a name, or "translation.de" if nested.

    Numbers of classes that `datasets` has named become these names.
    """

    def __init__(self, path: str, columns: dict[str, str]):
        self.path, self.columns = path, columns
        self._counts, self._read, schema = _open(path)
        self._ends = np.cumsum(self._counts, dtype=np.int64)
        for field, column in columns.items():
            if (top := column.partition(".")[0]) not in schema.names:
                raise UserError(
                    f"{path} has no column {top!r} for the {field} "
                    f"(data.{field}_column): it has {', '.join(schema.names)}."
                    f"{nearest(top, schema.names)}"
                )
        self._tops = sorted({c.partition(".")[0] for c in columns.values()})
        self._classes = _class_names(schema)
        self._table = functools.lru_cache(maxsize=2)(self._read_piece)
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        self.fingerprint = fingerprint_of(["arrow", columns, content])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> Record:
        if not 0 <= index < len(self):
            raise IndexError(index)
        piece = int(np.searchsorted(self._ends, index, side="right"))
        offset = index - int(self._ends[piece] - self._counts[piece])
        [row] = self._table(piece).slice(offset, 1).to_pylist()
        return self._record(index, row)

    def __iter__(self) -> Iterator[Record]:
        index = 0
        for piece in range(len(self._counts)):
            for batch in self._table(piece).to_batches(max_chunksize=TOGETHER):
                for row in batch.to_pylist():
                    yield self._record(index, row)
                    index += 1

    def where(self, index: int) -> str:
        """Name a row by its number, from 1."""
        return f"{self.path}, row {index + 1}"

    def _read_piece(self, piece: int) -> Any:
        return self._read(piece, self._tops)

    def _record(self, index: int, row: dict[str, Any]) -> Record:
        record = {}
        for field, column in self.columns.items():
            value: Any = row
            for key in column.split("."):
                if not isinstance(value, dict) or key not in value:
                    known = ", ".join(value) if isinstance(value, dict) else "no parts"
                    raise UserError(
                        f"{self.where(index)} has no {column!r} (data.{field}_column): "
                        f"{key!r} was looked for among {known}"
                    )
                value = value[key]
            names = self._classes.get(column)
            if names and isinstance(value, int) and 0 <= value < len(names):
                value = names[value]
            record[field] = as_text(value, field, column, self.where(index))
        return record


# Of a file: the rows of each piece, a function that reads some columns of a piece, and
# the schema.
Opened = tuple[list[int], Callable[[int, list[str]], Any], Any]


def _open(path: str) -> Opened:
    """Open a file of columns by its first bytes."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{path} needs pyarrow: {INSTALL}") from None
    try:
        with open(path, "rb") as file:
            start = file.read(6)
        if start.startswith(b"PAR1"):
            parquet = pyarrow.parquet.ParquetFile(path)
            groups = range(parquet.num_row_groups)
            counts = [parquet.metadata.row_group(i).num_rows for i in groups]
            schema = parquet.schema_arrow
            return counts, lambda i, names: parquet.read_row_group(i, names), schema
        mapped = pyarrow.memory_map(path)
        whole = start == b"ARROW1"
        kind = pyarrow.ipc.open_file if whole else pyarrow.ipc.open_stream
        table = kind(mapped).read_all()
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(
            f"{path} cannot be read as Parquet or Arrow: {str(error).splitlines()[0]}"
        ) from None
    return [len(table)], lambda i, names: table.select(names), table.schema


def read_rows(path: str, most: int) -> Iterator[dict[str, str]]:
    """Yield the first rows of a file of columns, as text; nested ones by their path."""
    counts, read, schema = _open(path)
    classes = _class_names(schema)
    for piece in range(len(counts)):
        for row in read(piece, schema.names).slice(0, most).to_pylist():
            named = {
                name: classes[name][value]
                if name in classes and isinstance(value, int) and value >= 0
                else value
                for name, value in row.items()
            }
            yield {
                name: value if isinstance(value, str) else str(value)
                for name, value in flatten(named)
            }
        most -= counts[piece]
        if most <= 0:
            return


def flatten(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the parts of nested records by dotted names."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _class_names(schema: Any) -> dict[str, list[str]]:
    """Return the class names by column that `datasets` writes into a schema."""
    try:
        about = json.loads((schema.metadata or {})[b"huggingface"])
        features = about["info"]["features"].items()
        return {n: f["names"] for n, f in features if f.get("_type") == "ClassLabel"}
    except (KeyError, ValueError, AttributeError, TypeError):
        return {}


def saved_files(folder: str) -> list[str] | None:
    """List the Arrow files of a folder that `save_to_disk` of `datasets` wrote.

    None if it is another folder. A folder of several splits is refused.
    """
    place = pathlib.Path(folder)
    if (place / "dataset_dict.json").is_file():
        splits = sorted(p.parent.name for p in place.glob("*/state.json"))
        raise UserError(
            f"{folder} has the splits {', '.join(splits)}: name them, such as "
            f"data.folder={folder} and data.train_files={splits[0] if splits else ''}"
        )
    try:
        about = json.loads((place / "state.json").read_text(encoding="utf-8"))
        return [os.path.join(folder, f["filename"]) for f in about["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
