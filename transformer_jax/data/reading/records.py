"""Sequences of records, with random access and little memory.

A record is a dict, {"source": str, "target": str} for parallel text. `Records` is the
base of all sequences. Records are never skipped: a faulty one raises with its location.
"""

import abc
import dataclasses
import functools
import hashlib
import itertools
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.base import files
from transformer_jax.base.errors import UserError, nearest
from transformer_jax.data import cache
from transformer_jax.data.reading.streams import HeldLines
from transformer_jax.data.text.text import Lines

Record = dict[str, Any]
ABOUT = "about.json"  # of generated records: their number and hash
SCALARS = (int, float, np.generic)  # allowed types of a label, besides text


class Records(Sequence[Record]):
    """Base of all sequences of records, which a store is built from."""

    fingerprint: str  # of everything that determines the records
    notes: tuple[str, ...] = ()  # oddities of the files
    tags: tuple[str, ...] = ("",)  # one per part, such as a file
    content: str = ""  # hash of generated records, whose fingerprint is only a version
    store: Any = None  # of their examples, if these are encoded already

    @property
    def source_fingerprint(self) -> str:
        """The fingerprint of the underlying text, however it is cut into records."""
        return self.fingerprint

    @property
    def mixture(self) -> "Mixture | None":
        """Return the parts of a mixture; None if each record occurs once per epoch."""
        return None

    def __iter__(self) -> Iterator[Record]:
        return (self[index] for index in range(len(self)))

    @abc.abstractmethod
    def where(self, index: int) -> str:
        """Name the location of a record, for messages: "corpus.tsv, line 7"."""

    def where_field(self, index: int, field: str) -> str:
        """Name the location of a field, which may be in a file of its own."""
        return self.where(index)


class Mixture(NamedTuple):
    """The parts of mixed records: the end, the weight and the corpus of each."""

    ends: np.ndarray
    weights: Sequence[float]
    corpora: Sequence[int]

    def repeats(self, indices: np.ndarray) -> np.ndarray | None:
        """Return how often records occur per epoch; None if all occur once."""
        if len(set(self.weights)) == 1:
            return None
        return whole_numbers(self.weights)[self._parts_of(indices)]

    def corpora_of(self, indices: np.ndarray) -> np.ndarray:
        """Return the numbers of the corpora of records."""
        return np.asarray(self.corpora)[self._parts_of(indices)]

    def _parts_of(self, indices: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.ends, indices, side="right")


class Generated(Records):
    """Records that a function makes on first use; a cached store may need none."""

    def __init__(
        self, make: Callable[[], Sequence[Record]], fingerprint: str, code: str = ""
    ):
        """Call `make` only when a record is read.

        `fingerprint` identifies the records without making them. `code` is the digest
        of the source that makes them, if it is known.
        """
        self._make = make
        self.fingerprint, self.code = fingerprint, code

    @functools.cached_property
    def _records(self) -> Sequence[Record]:
        return self._make()

    @functools.cached_property
    def content(self) -> str:
        """The hash of the records, which differs after a change of their generator."""
        return self._about["sha256"]

    def __len__(self) -> int:
        return self._about["count"] if self.code else len(self._records)

    @functools.cached_property
    def _about(self) -> dict[str, Any]:
        """The number and the hash of the records.

        They are kept for the same code, because to make all records takes seconds.
        """
        if not self.code:
            return self._describe()
        entry = cache.place("contents", f"{self.fingerprint} {self.code}")

        def make(folder: pathlib.Path) -> None:
            files.write(folder / ABOUT, json.dumps(self._describe()))

        return files.read_object(cache.build_once(entry, make) / ABOUT)

    def _describe(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for record in self._records:
            digest.update(json.dumps(record, default=_as_plain).encode())
        return {"count": len(self._records), "sha256": digest.hexdigest()}

    def __getitem__(self, index):
        return self._records[index]

    def where(self, index: int) -> str:
        """Name an example by its number, from 1."""
        return f"generated example {index + 1}"


class Parallel(Records):
    """Files with the same number of lines; line i of each makes up record i."""

    def __init__(self, paths: Mapping[str, str | Lines | HeldLines]):
        """Open the sides; they may have been opened already, as pipes are."""
        self.sides = {
            side: Lines(file) if isinstance(file, str) else file
            for side, file in paths.items()
        }
        counts = {lines.path: len(lines) for lines in self.sides.values()}
        if len(set(counts.values())) > 1:
            first, *others = counts.items()
            other = next(o for o in others if o[1] != first[1])
            raise UserError(
                f"{first[0]} has {first[1]} lines, but {other[0]} has {other[1]}: "
                "parallel files pair line by line"
            )
        self.fingerprint = fingerprint_of(
            {side: lines.fingerprint for side, lines in self.sides.items()}
        )
        self.notes = tuple(n for lines in self.sides.values() for n in lines.notes)

    def __len__(self) -> int:
        return len(next(iter(self.sides.values())))

    def __getitem__(self, index: int) -> Record:
        return {side: lines[index] for side, lines in self.sides.items()}

    def __iter__(self) -> Iterator[Record]:
        for row in zip(*self.sides.values(), strict=True):
            yield dict(zip(self.sides, row, strict=True))

    def where(self, index: int) -> str:
        """Name the line in the file of the first side."""
        return next(iter(self.sides.values())).where(index)

    def where_field(self, index: int, field: str) -> str:
        """Name the line in the file of a side."""
        return self.sides[field].where(index) if field else self.where(index)


class Table(Records):
    """A file with one record per line, which a subclass parses.

    `columns` maps each field of a record to the column that holds it.
    """

    form: str  # part of the fingerprint

    def __init__(self, path: str, columns: dict[str, str]):
        self.lines, self.columns = Lines(path), columns
        self.fingerprint = fingerprint_of([self.form, columns, self.lines.fingerprint])
        self.notes = self.lines.notes

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> Record:
        return self.parse(index, self.lines[index])

    def __iter__(self) -> Iterator[Record]:
        return (self.parse(i, line) for i, line in enumerate(self.lines))

    def where(self, index: int) -> str:
        """Name the line of a record."""
        return self.lines.where(index)

    @abc.abstractmethod
    def parse(self, index: int, line: str) -> Record:
        """Parse line `index`, counted from 0."""


# Names of columns, by which the header of a table is told from an example.
HEADERS = frozenset(
    "id text sentence review comment question answer input output source target src "
    "tgt label labels class category sentiment score rating polarity stars".split()
)


class TsvTable(Table):
    """Tab-separated columns; a column is a number, from 1."""

    form = "tsv"

    def __init__(self, path: str, columns: dict[str, str]):
        super().__init__(path, columns)
        cells = [cell.strip().lower() for cell in self.lines[0].split("\t")]
        if len(cells) > 1 and len({*cells} & HEADERS) == len(cells):
            raise UserError(
                f"{self.where(0)} is a header ({', '.join(cells)}), but each line is "
                "an example: remove it with `tail -n +2`"
            )

    def parse(self, index: int, line: str) -> Record:
        """Split a line at its tabs."""
        cells = line.split("\t")
        record = {}
        for field, column in self.columns.items():
            if int(column) > len(cells):
                found = f"{len(cells)} tab-separated column{'s' * (len(cells) > 1)}"
                raise UserError(
                    f"{self.where(index)} has {found}, but the {field} is column "
                    f"{column} (data.{field}_column)"
                )
            record[field] = cells[int(column) - 1]
        return record


class JsonTable(Table):
    """JSON objects; a column is a key, such as "translation.de" for a nested one."""

    form = "jsonl"

    def parse(self, index: int, line: str) -> Record:
        """Decode a line and look up its fields."""
        try:
            content = files.parse_json(line)
            return {
                f: as_text(self._find(index, content, c), f, c, self.where(index))
                for f, c in self.columns.items()
            }
        except UserError:  # a subclass of ValueError
            raise
        except ValueError as error:
            raise UserError(f"{self.where(index)} is not valid JSON: {error}") from None
        except RecursionError:
            raise UserError(
                f"{self.where(index)} is JSON nested too deeply to be read: give a "
                "record its fields at the top or a few levels down"
            ) from None

    def _find(self, index: int, content: Any, column: str) -> Any:
        value = content
        for key in column.split("."):
            if not isinstance(value, dict) or key not in value:
                known = list(value) if isinstance(value, dict) else []
                hint = nearest(key, known) or f" It has: {', '.join(known)}."
                raise UserError(f"{self.where(index)} has no key {column!r}.{hint}")
            value = value[key]
        return value


@dataclasses.dataclass(frozen=True)
class Reading:
    """A task's own parser for the lines of a file, such as bracketed trees."""

    read: Callable[[str], list[Record]]  # a line's records: a dialogue has several
    key: str = ""  # the options of `read`, as part of the fingerprint
    once: bool = False  # skip training lines that repeat or are held out
    blocks: bool = False  # `read` gets all lines up to an empty one at once
    more: Callable[["ParsedFile"], Records] | None = None  # adds to the training split


class ParsedFile(Records):
    """The records that a task's own parser makes from a file, held in memory."""

    def __init__(
        self,
        path: str,
        form: str,
        reading: Reading,
        held_out: Sequence[str] | None = None,
    ):
        """Skip lines that repeat or are in the `held_out` files; None skips nothing.

        `form` names the file format in the fingerprint.
        """
        self.lines = Lines(path)
        content = [form, reading.key, self.lines.fingerprint]
        once, others = held_out is not None, [Lines(other) for other in held_out or ()]
        content += [once, *(other.fingerprint for other in others)]
        self.fingerprint = fingerprint_of(content)
        parts = _blocks if reading.blocks else enumerate
        known = {line for other in others for _, line in parts(other)}
        self._records: list[Record] = []
        self._numbers: list[int] = []
        left_out = 0
        for number, line in parts(self.lines):
            if once and line in known:
                left_out += 1
                continue
            if once:
                known.add(line)
            try:
                parsed = reading.read(line)
            except UserError as error:
                raise UserError(self.lines.place(number, str(error))) from None
            self._records += parsed
            self._numbers += [number] * len(parsed)
        note = f"{path}: {left_out:,} lines are skipped: they repeat or are held out"
        self.notes = (*self.lines.notes, *([note] if left_out else []))

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Record:
        return self._records[index]

    def where(self, index: int) -> str:
        """Name the line that a record was parsed from."""
        return self.lines.where(self._numbers[index])


class Tagged(str):
    """A source text with its tag in front; `plain` is the text alone."""

    plain: str
    tag: str

    def __new__(cls, plain: str, tag: str) -> "Tagged":
        """Put a tag before a text."""
        made = super().__new__(cls, f"{tag} {plain}")
        made.plain, made.tag = plain, tag
        return made

    def __getnewargs__(self) -> tuple[str, str]:  # for copying and pickling
        return self.plain, self.tag


class Concatenation(Records):
    """Several corpora in sequence, each with a weight and perhaps a tag.

    The tag is put before each source, and tells the model which language to write.
    """

    def __init__(
        self,
        parts: Sequence[Records],
        weights: Sequence[float] = (),
        tags: Sequence[str] = (),
        corpora: Sequence[int] = (),
    ):
        """Join parts; each of the other arguments has one entry per part.

        Without `weights` all parts weigh 1, without `tags` none is put before a source,
        and without `corpora` all parts belong to corpus 0.
        """
        self.parts = list(parts)
        self._weights = tuple(weights) or (1.0,) * len(self.parts)
        self._corpora = tuple(corpora) or (0,) * len(self.parts)
        self.tags = tuple(tags) or ("",) * len(self.parts)
        self.notes = tuple(n for part in self.parts for n in part.notes)
        self.fingerprint = fingerprint_of(
            [
                [p.fingerprint for p in self.parts],
                self.tags,
                *["plain"] * any(self.tags),  # filters see sources without their tags
            ]
        )

    @functools.cached_property
    def content(self) -> str:
        """The hashes of the parts that are generated."""
        return "-".join(part.content for part in self.parts if part.content)

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([len(part) for part in self.parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def untagged(self) -> "Concatenation":
        """The same records, without tags."""
        return Concatenation(self.parts, self._weights, corpora=self._corpora)

    def __getitem__(self, index: int) -> Record:
        part, offset = self._locate(index)
        return _tagged(self.parts[part][offset], self.tags[part])

    def __iter__(self) -> Iterator[Record]:
        for part, tag in zip(self.parts, self.tags, strict=True):
            for record in part:
                yield _tagged(record, tag)

    def where(self, index: int) -> str:
        """Name the location of a record in its corpus."""
        part, offset = self._locate(index)
        return self.parts[part].where(offset)

    def where_field(self, index: int, field: str) -> str:
        """Name the location of a field in its corpus."""
        part, offset = self._locate(index)
        return self.parts[part].where_field(offset, field)

    @property
    def mixture(self) -> Mixture:
        """Return the parts, with their weights."""
        return Mixture(self._ends, self._weights, self._corpora)

    def _locate(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        part = int(np.searchsorted(self._ends, index, side="right"))
        return part, index - (int(self._ends[part - 1]) if part else 0)


class Stretch(Records):
    """Some consecutive records of others."""

    def __init__(self, records: Records, begin: int, end: int):
        """Take the records from `begin` up to, but without, `end`."""
        self._records, self._begin, self._end = records, begin, end
        self.fingerprint = fingerprint_of([records.fingerprint, begin, end])
        self.notes = records.notes

    def __len__(self) -> int:
        return self._end - self._begin

    def __getitem__(self, index: int) -> Record:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._records[self._begin + index]

    def where(self, index: int) -> str:
        """Name the place among all records."""
        return self._records.where(self._begin + index)

    def where_field(self, index: int, field: str) -> str:
        """Name the place of a field among all records."""
        return self._records.where_field(self._begin + index, field)


def _blocks(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield (index of the first line, text) of each block between empty lines."""
    begin, block = 0, []
    for number, line in enumerate(itertools.chain(lines, [""])):
        if line.strip():
            block.append(line)
        elif block:
            yield begin, "\n".join(block)
        if not line.strip():
            begin, block = number + 1, []


def whole_numbers(weights: Sequence[float]) -> np.ndarray:
    """Approximate the ratio of the weights by small whole numbers.

    An epoch repeats each corpus a whole number of times. The error is less than 2 % if
    multiples up to 20 allow it.
    """
    parts = np.asarray(weights) / min(weights)

    def error(multiple):
        whole = np.rint(parts * multiple)
        return np.abs(whole / multiple / parts - 1).max()

    multiples = range(1, 21)
    close = [m for m in multiples if error(m) < 0.02] or [min(multiples, key=error)]
    return np.rint(parts * close[0]).astype(int)


def as_text(value: Any, field: str, column: str, where: str) -> str:
    """Check that a field's value is text; write a label that is a number as text."""
    if field == "label" and isinstance(value, SCALARS):
        return str(value)
    if isinstance(value, str):
        try:
            value.encode()
            return value
        except UnicodeEncodeError as error:
            problem = (
                f"has {value[error.start]!r} at character {error.start + 1}: half of a "
                "surrogate pair is not text"
            )
    else:
        kind = type(value).__name__
        problem = f"is {repr(value)[:60]} of type {kind}: it must be text"
    raise UserError(f"{where}: the {field} ({column!r}, data.{field}_column) {problem}")


def _tagged(record: Record, tag: str) -> Record:
    """Put a tag before the source of a record, unless it begins with this one."""
    if not tag:
        return record
    return {**record, "source": Tagged(record["source"].removeprefix(f"{tag} "), tag)}


def _as_plain(value: Any) -> Any:
    """Describe a value that JSON cannot represent."""
    if isinstance(value, np.ndarray | np.generic):
        return [str(value.dtype), value.shape, value.tobytes().hex()]
    return type(value).__name__


def fingerprint_of(content: Any) -> str:
    """Return the hash of a JSON value that determines records."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
