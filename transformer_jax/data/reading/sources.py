"""Open the `data` section of a config, split by split.

`data.source` names either generated data, a form of storage, or files whose lines a
task parses in its own way (a `Reading`). Generated data are found by the name of their
entry point, such as translation.phrasebook; forms are those of FORMS and of the entry
points of other packages.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.base import entry_points, programs, schema
from transformer_jax.base.errors import UserError, nearest
from transformer_jax.base.schema import option
from transformer_jax.data.reading.forms import (
    Arrow,
    Csv,
    Form,
    JsonLines,
    ParsedFiles,
    TextFiles,
    Tfds,
    Tsv,
)
from transformer_jax.data.reading.records import (
    Concatenation,
    Generated,
    Parallel,
    Reading,
    Records,
)
from transformer_jax.data.reading.streams import UTF8, open_lines

FORMS: dict[str, type[Form]] = {
    "text": TextFiles,
    "tsv": Tsv,
    "jsonl": JsonLines,
    "csv": Csv,
    "arrow": Arrow,
    "tfds": Tfds,
}


def forms() -> dict[str, type[Form]]:
    """Return the forms of storage by name: ours, then those of other packages."""
    names = entry_points.names("forms")
    return FORMS | {name: entry_points.require("forms", name) for name in names}


SPLITS = ("train", "validation", "test")
FIELDS = ("source", "target")  # of a record of parallel text


@dataclasses.dataclass(frozen=True)
class GeneratedSource:
    """Generated data: a generator and the splits that it offers."""

    name: str
    version: int
    splits: tuple[str, ...]
    generate: Callable[[str, int], list[dict[str, str]]]  # (split, size) → records
    key: tuple[str, ...] = ()  # whatever else determines the records

    def read(self, data: ConfigDict, split: str) -> Generated:
        """Return a split of the configured size, without generating it yet."""
        size = data[f"{'test' if split.startswith('test') else split}_size"]
        return Generated(
            functools.partial(self.generate, split, size),
            "-".join(map(str, (self.name, self.version, split, size, *self.key))),
            programs.digest_source(self.generate.__module__.partition(".")[0]),
        )


@dataclasses.dataclass(frozen=True)
class Piece:
    """Files that are opened together, such as the two sides of a text."""

    name: str  # of the first file
    size: int  # in bytes, or in records if they are generated
    version: str  # differs after a change of a file
    corpus: int  # its number
    tag: str  # before each source
    read: Callable[[], Records]

    @classmethod
    def of_files(
        cls, paths: Sequence[str], corpus: int, tag: str, make: Callable[[], Records]
    ) -> "Piece":
        """Describe files by their sizes and times, without reading them."""
        found = [os.stat(path) for path in paths]
        version = "-".join(f"{about.st_size}.{about.st_mtime_ns}" for about in found)
        return cls(paths[0], found[0].st_size, version, corpus, tag, make)


class Splits:
    """Base of all sources: the splits of a data set, each opened once, on demand."""

    known_splits: Any = SPLITS  # all that configs of the task may have

    def __init__(self, data: ConfigDict):
        self.data = data

    @property
    def splits(self) -> tuple[str, ...]:
        """The available splits."""
        return self.known_splits

    @functools.cache  # noqa: B019  (a source lives as long as its run)
    def read(self, split: str) -> Concatenation:
        """Open a split."""
        if split not in self.splits:
            raise UserError(
                f"there is no split {split!r}: this run's data has "
                f"{', '.join(self.splits)}"
            )
        found = self._open(split)
        return found if isinstance(found, Concatenation) else Concatenation([found])

    def _open(self, split: str) -> Records:
        raise NotImplementedError

    def find_problems(self) -> list[str]:
        """List missing options and files before reading anything."""
        return []


class Source(Splits):
    """The splits that a config's `data` section names.

    Records have the given fields. `generated` are the generated data, if any are named,
    and `readings` parse the file formats that only this task knows.
    """

    def __init__(
        self,
        data: ConfigDict,
        fields: tuple[str, ...] = FIELDS,
        generated: GeneratedSource | None = None,
        readings: dict[str, Reading] | None = None,
    ):
        super().__init__(data)
        self.fields = fields
        self.generated = generated
        self.readings = readings or {}

    @property
    @functools.cache  # noqa: B019  (a source lives as long as its run)
    def splits(self) -> tuple[str, ...]:
        """The available splits."""
        if self.generated:
            return self.generated.splits
        return tuple(split for split in SPLITS if self._form.has(split))

    @property
    def known_splits(self) -> tuple[str, ...]:
        """All splits that the data of this task can have."""
        own = self.generated.splits if self.generated else ()
        return tuple(dict.fromkeys((*SPLITS, *own)))

    def _open(self, split: str) -> Records:
        """Open the corpora of a split, with their weights and tags."""
        if self.generated:
            return self.generated.read(self.data, split)
        corpora = self._form.corpora(split)
        tags = self._tags_of(split, len(corpora))
        weights = [1.0] * len(corpora)
        if split == "train":
            weights = mix(self.data, [sum(map(len, corpus)) for corpus in corpora])
        numbers = [i for i, corpus in enumerate(corpora) for _ in corpus]
        return Concatenation(
            [part for corpus in corpora for part in corpus],
            [weights[i] for i in numbers],
            [tags[i] if tags else "" for i in numbers],
            numbers,
        )

    def pieces(self, split: str) -> list[Piece]:
        """List the pieces of a split, such as its files, without opening any."""
        if self.generated:
            records = self.generated.read(self.data, split)
            return [
                Piece(records.fingerprint, len(records), "", 0, "", lambda: records)
            ]
        found, groups = [], self._form.groups(split)
        if groups is None:
            raise UserError(
                f"data.source = {self.data.source!r} has no files that could be cut "
                "into shards: write the examples to files, such as JSON lines"
            )
        tags = self._tags_of(split, len(groups))
        for corpus, files in enumerate(groups):
            tag = tags[corpus] if tags else ""
            for paths in files:
                make = functools.partial(self._form.open_group, paths, split)
                found.append(Piece.of_files(paths, corpus, tag, make))
        return found

    def examples(self, records: Records) -> Records:
        """Return the examples in some consecutive records of a piece."""
        return records

    def _tags_of(self, split: str, corpora: int) -> list[str]:
        """Return the tag of each corpus; without own ones, that of all training."""
        if tags := read_tags(self.data, split):
            _check_count(f"{split}_tags", tags, corpora)
            return tags
        if problems := self._find_missing_tags(split):
            raise UserError(*problems)
        return needed_tags(self.data) * corpora

    def _find_missing_tags(self, split: str) -> list[str]:
        needed = needed_tags(self.data)
        if len(needed) < 2 or read_tags(self.data, split):
            return []
        return [
            f"data.{split}_tags is not set, but each training source begins with one "
            f"of {', '.join(needed)} (data.train_tags): set data.{split}_tags, with a "
            "tag for each of its corpora"
        ]

    def find_problems(self) -> list[str]:
        """List missing options and files before reading anything."""
        if self.data.source not in (*forms(), *self.readings):
            return []
        needed = [s for s in SPLITS if s != "test" or s in self.splits]
        needed = needed[bool(self.data.get("store", "")) :]  # in place of the training
        found = [problem for s in needed for problem in self._form.find_missing(s)]
        found += [problem for s in needed for problem in self._find_missing_tags(s)]
        return found + self._form.find_problems()

    @functools.cached_property
    def _form(self) -> Form:
        name = self.data.source
        if name in self.readings:
            return ParsedFiles(self.data, self.fields, name, self.readings[name])
        if name not in forms():
            known = (*self.readings, *forms())
            raise UserError(
                f"data.source = {name!r}: choose {' | '.join(known)}."
                f"{nearest(name, known)}"
            )
        return forms()[name](self.data, self.fields)


def mix(data: ConfigDict, sizes: Sequence[int]) -> list[float]:
    """Return how often each training corpus is repeated, in proportion.

    A temperature of T draws from a corpus of n records in proportion to n ** (1/T).
    """
    weights = data.get("train_weights", ())  # only some tasks have this option
    if weights:
        _check_count("train_weights", weights, len(sizes))
    flatter = 1 / data.get("temperature", 1.0) - 1
    return [
        (float(weights[i]) if weights else 1.0) * max(size, 1) ** flatter
        for i, size in enumerate(sizes)
    ]


def _check_count(name: str, values: Sequence[Any], corpora: int) -> None:
    if len(values) != corpora:
        raise UserError(
            f"data.{name} has {len(values)} entries for {corpora} corpora: give one "
            "per corpus, in the same order"
        )


def read_tags(data: ConfigDict, split: str) -> list[str]:
    """Return the tag of each corpus of a split; ",<t>" leaves the first without one."""
    value = data.get(f"{split}_tags", "").strip()
    return [tag.strip() for tag in value.split(",")] if value else []


def needed_tags(data: ConfigDict) -> list[str]:
    """Return the tags of which one began each training source; [] if some had none."""
    tags = read_tags(data, "train")
    return [*dict.fromkeys(tags)] if all(tags) else []


def parallel_text(
    source: str, target: str, encoding: str = UTF8, tags: Sequence[str] = ()
) -> Concatenation:
    """Open the two files, or pipes, of `evaluate --source F --reference G`.

    If a model needs one of several `tags`, the sources must have them.
    """
    paths = {"source": source, "target": target}
    sides = {side: open_lines(path, encoding) for side, path in paths.items()}
    return Concatenation([Parallel(sides)], tags=tags if len(tags) == 1 else ())


def find_generated(task: str, data: ConfigDict) -> GeneratedSource | None:
    """Find the generated data that `data.source` names; None if it names files."""
    make = entry_points.find("corpora", f"{task}.{data.source}")
    return make(data) if make else None


def list_generated(task: str) -> list[str]:
    """List the generated data of a task."""
    found = (name.rpartition(".") for name in entry_points.names("corpora"))
    return [name for owner, _, name in found if owner == task]


def splits_of_generated(task: str, data: ConfigDict) -> list[str]:
    """List the splits of all generated data of a task."""
    found = []
    for name in list_generated(task):
        make = entry_points.find("corpora", f"{task}.{name}")
        found += make(data).splits
    return found


def declare(fields: tuple[str, ...], *names: str, task: str = "") -> type:
    """Declare the options of a source whose records have these fields.

    `names` lists the generated data and the readings; the first is the default. The
    generated data of entry points of the task are added. Several forms may declare the
    same option, such as `{split}_files`.
    """
    declared = {
        "source": option(
            names[0],
            "The name of generated data, or a storage format.",
            choices=lambda: dict.fromkeys((*names, *list_generated(task), *forms())),
        ),
        "folder": option(
            "", "Relative paths start here; for tfds, its data directory."
        ),
        "train_size": _size(20_000, "Number of generated examples."),
        "validation_size": _size(500, "Number of generated examples."),
        "test_size": _size(500, "Number of generated examples per test split."),
    }
    for split in SPLITS:
        for form in forms().values():
            declared |= form.split_options(split, fields)
        meaning = "Tags before the sources, one per corpus; may be empty: ,<t>."
        declared[f"{split}_tags"] = option("", meaning, of="tags")
    meaning = "How often to repeat each corpus, in proportion; () means once."
    declared["train_weights"] = option((), meaning, of="weights")
    meaning = "Above 1, small corpora are repeated: size ** (1/temperature) of each."
    declared["temperature"] = option(1.0, meaning, least=1, of="weights")
    meaning = "Train on a folder that `prepare` wrote, not on the training files."
    declared["store"] = option("", meaning)
    for form in forms().values():
        declared |= form.shared_options(fields)
    return schema.collect("SourceOptions", declared)


def _size(default: int, meaning: str) -> Any:
    return option(default, meaning, least=1, most=10**8)
