"""Where examples come from: what a config's `data` section names, split by split.

`text` is two files a split, `tsv` and `jsonl` one; each key may name several, separated
by commas, and patterns with *. All that can be plain or .gz. `tfds` is a data set that
TensorFlow Datasets has prepared; and a task has data of its own, which it generates.
"""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.data import text, tfds
from transformer_jax.data.generated import phrasebook
from transformer_jax.data.records import (
    Concatenation,
    Generated,
    Parallel,
    ParsedFile,
    Reading,
    Table,
)
from transformer_jax.errors import UserError

FORMS = ("text", "tsv", "jsonl", "tfds")
SPLITS = ("train", "validation", "test")
FIELDS = ("source", "target")  # of a record of parallel text


@dataclasses.dataclass(frozen=True)
class GeneratedSource:
    """Data that are generated: a grammar, and the splits it has."""

    name: str
    version: int
    splits: tuple[str, ...]
    generate: Callable[[str, int], list[dict[str, str]]]  # (split, size) → records
    key: tuple[str, ...] = ()  # what else decides the records

    def read(self, data: ConfigDict, split: str) -> Generated:
        size = data[f"{'test' if split.startswith('test') else split}_size"]
        return Generated(
            functools.partial(self.generate, split, size),
            "-".join(map(str, (self.name, self.version, split, size, *self.key))),
        )


class Source:
    """What a config's `data` section names: its splits, read when asked for.

    Records have the given fields; `embedded` is what a task can generate itself,
    `readings` are the forms of file that it alone knows.
    """

    def __init__(
        self,
        data: ConfigDict,
        fields: tuple[str, ...] = FIELDS,
        embedded: GeneratedSource | None = None,
        readings: dict[str, Reading] | None = None,
    ):
        self.data, self.fields = data, fields
        self.embedded = embedded or PHRASEBOOK
        self.readings = readings or {}

    @functools.cached_property
    def splits(self) -> tuple[str, ...]:
        if self.data.source == self.embedded.name:
            return self.embedded.splits
        return tuple(s for s in SPLITS if any(self.data[k] for k in self._keys(s)))

    @property
    def known_splits(self) -> tuple[str, ...]:
        """Those that data of this task can have, whatever these have."""
        return tuple(dict.fromkeys((*SPLITS, *self.embedded.splits)))

    @functools.cache  # noqa: B019  (a source lives as long as its run)
    def read(self, split: str) -> Concatenation:
        if split not in self.splits:
            raise UserError(
                f"there is no split {split!r}: this run's data has "
                f"{', '.join(self.splits)}"
            )
        if self.data.source == self.embedded.name:
            return Concatenation([self.embedded.read(self.data, split)])
        groups = self._corpora(split)
        # Not every task has them.
        weights = self.data.get("train_weights", ()) if split == "train" else ()
        tags = _entries(self.data.get(f"{split}_tags", ""))
        for key, values in ((f"{split}_weights", weights), (f"{split}_tags", tags)):
            if values and len(values) != len(groups):
                raise UserError(
                    f"data.{key} has {len(values)} entries for {len(groups)} corpora: "
                    "give one for each, in the same order"
                )
        parts, part_weights, part_tags = [], [], []
        for i, group in enumerate(groups):
            parts += group
            part_weights += [float(weights[i]) if weights else 1.0] * len(group)
            part_tags += [tags[i] if tags else ""] * len(group)
        joined = Concatenation(parts, part_weights, part_tags)
        if self.data.get("train_tags") and not tags:
            joined.notes += (
                f"data.train_tags is set, but data.{split}_tags is not: the sources of "
                f"{split} are read without a tag",
            )
        return joined

    def find_problems(self) -> list[str]:
        """What is missing on disk, said before anything is read."""
        if self.data.source not in (*FORMS, *self.readings):
            return []
        problems = []
        for split in SPLITS:
            if split == "test" and split not in self.splits:
                continue
            for key in self._keys(split):
                if not self.data[key]:
                    meaning = _MEANING.get(self._form, _MEANING["tsv"])
                    problems.append(f"data.{key} is empty: {meaning}")
                elif self._form != "tfds":
                    problems += _missing(f"data.{key}", self.data)
        if self._form in ("tsv", "jsonl", "tfds"):
            problems += self._bad_columns()
        if self._form == "tfds" and not self.data.tfds_name:
            problems.append(f"data.tfds_name is empty: {_MEANING['tfds']}")
        return problems

    @property
    def _form(self) -> str:
        return self.data.source

    def _keys(self, split: str) -> tuple[str, ...]:
        """The keys that name what a split is read from."""
        if self._form == "text":
            return tuple(f"{split}_{field}" for field in self.fields)
        return (f"{split}_split" if self._form == "tfds" else f"{split}_files",)

    def _columns(self) -> dict[str, str]:
        numbers = {f: str(i) for i, f in enumerate(self.fields, 1)}
        return {
            f: self.data[f"{f}_column"] or (numbers[f] if self._form == "tsv" else "")
            for f in self.fields
        }

    def _bad_columns(self) -> list[str]:
        problems = []
        for field, column in self._columns().items():
            if not column:
                problems.append(
                    f"data.{field}_column is empty: name the "
                    f"{'feature' if self._form == 'tfds' else 'key'} that holds the "
                    f"{field}, such as 'de' or 'translation.de'"
                )
            elif self._form == "tsv" and not (column.isdecimal() and int(column)):
                problems.append(
                    f"data.{field}_column = {column!r}: a column's number, from 1"
                )
        return problems

    def _corpora(self, split: str) -> list[list[Any]]:
        """The corpora of a split; a pattern is one corpus, of several files."""
        data = self.data
        if self._form == "text":
            keys = self._keys(split)
            sides = [_entries(data[key]) for key in keys]
            if len({len(side) for side in sides}) > 1:
                raise UserError(
                    f"data.{keys[0]} names {len(sides[0])} corpora, but data.{keys[1]} "
                    f"{len(sides[1])}: they go together in pairs"
                )
            return [
                [
                    Parallel(dict(zip(self.fields, pair, strict=True)))
                    for pair in text.match_files(entry, data.folder)
                ]
                for entry in zip(*sides, strict=True)
            ]
        if self._form in self.readings:
            reading = self.readings[self._form]
            once = reading.once and split == "train"
            held_out = self._held_out() if once else None
            return [
                [
                    ParsedFile(path, self._form, reading, held_out)
                    for path in _files(entry, data.folder)
                ]
                for entry in _entries(data[f"{split}_files"])
            ]
        columns = self._columns()
        if self._form == "tfds":
            names = _entries(data.tfds_name)
            part = data[f"{split}_split"]
            return [[tfds.Split(n, part, data.folder, columns, True)] for n in names]
        return [
            [Table(path, self._form, columns) for path in _files(entry, data.folder)]
            for entry in _entries(data[f"{split}_files"])
        ]

    def _held_out(self) -> list[str]:
        """The files that a model is judged by."""
        data = self.data
        entries = _entries(data.validation_files) + _entries(data.test_files)
        return [path for entry in entries for path in _files(entry, data.folder)]


_MEANING = {
    "text": "name a file with one sentence a line",
    "tsv": "name a file with a record a line",
    "jsonl": "name a file with a record a line",
    "tfds": "name a data set and its splits, such as wmt14_translate/de-en",
}


def parallel_text(source: str, target: str) -> Concatenation:
    """Two files, as `evaluate --source F --reference G` gives them."""
    return Concatenation([Parallel({"source": source, "target": target})])


def _entries(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def _files(entry: str, folder: str) -> list[str]:
    found = text.find_files(entry, folder)
    if not found:
        raise UserError(f"there is no file {os.path.join(folder, entry)}")
    return found


def _missing(key: str, data: ConfigDict) -> list[str]:
    return [
        f"{key}: there is no file {os.path.join(data.folder, entry)}"
        for entry in _entries(data[key.removeprefix("data.")])
        if not text.find_files(entry, data.folder)
    ]


def _phrases(split: str, size: int) -> list[dict[str, str]]:
    pairs = phrasebook.generate(split, size)
    return [{"source": p.source, "target": p.target} for p in pairs]


PHRASEBOOK = GeneratedSource(
    "phrasebook", phrasebook.VERSION, phrasebook.SPLITS, _phrases
)


def add_keys(data: ConfigDict, embedded: str, fields: tuple[str, ...]) -> None:
    """The keys of text whose records have these fields; see `data/sources.py`."""
    data.source = embedded  # generated by that name | text | tsv | jsonl | tfds
    data.folder = ""  # relative paths begin here; tfds: its data directory
    data.train_size = 20_000  # generated: examples
    data.validation_size = 500  # generated: examples
    data.test_size = 500  # generated: examples, of each test split
    for split in ("train", "validation", "test"):
        # Several corpora go in one key, separated by commas; * and ? stand for more.
        for field in fields:  # text: a path, an example a line, .gz too; line by line
            data[f"{split}_{field}"] = ""
        data[f"{split}_files"] = ""  # tsv, jsonl: a path, an example a line, .gz too
        data[f"{split}_split"] = split  # tfds: such as train[:90%]; empty: none
        data[f"{split}_tags"] = ""  # put before each source, one for each corpus
    data.train_weights = ()  # how often each corpus comes, by proportion; (): once
    for field in fields:  # tsv: a number, from 1; jsonl: a key (a.b); tfds: a feature
        data[f"{field}_column"] = ""
    data.tfds_name = ""  # tfds: such as wmt14_translate/de-en, or a prepared folder
