"""Open the `data` section of a config, split by split.

`data.source` names either generated data, a form of storage, or files whose lines a
task parses in its own way (a `Reading`). Generated data are found by the name of their
entry point, such as translation.phrasebook; forms are those of FORMS and of the entry
points of other packages.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.base import entry_points, schema
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
        )


class Source:
    """The splits that a config's `data` section names, opened on demand.

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
        self.data, self.fields = data, fields
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

    @functools.cache  # noqa: B019  (a source lives as long as its run)
    def read(self, split: str) -> Concatenation:
        """Open the corpora of a split, with their weights and tags."""
        if split not in self.splits:
            raise UserError(
                f"there is no split {split!r}: this run's data has "
                f"{', '.join(self.splits)}"
            )
        if self.generated:
            return Concatenation([self.generated.read(self.data, split)])
        corpora = self._form.corpora(split)
        # Only some tasks have this option.
        weights = self.data.get("train_weights", ()) if split == "train" else ()
        tags, trained = (self._tags_of(f"{name}_tags") for name in (split, "train"))
        for name, values in ((f"{split}_weights", weights), (f"{split}_tags", tags)):
            if values and len(values) != len(corpora):
                raise UserError(
                    f"data.{name} has {len(values)} entries for {len(corpora)} "
                    "corpora: give one per corpus, in the same order"
                )
        parts, part_weights, part_tags = [], [], []
        for i, corpus in enumerate(corpora):
            parts += corpus
            part_weights += [float(weights[i]) if weights else 1.0] * len(corpus)
            part_tags += [tags[i] if tags else ""] * len(corpus)
        joined = Concatenation(parts, part_weights, part_tags)
        if trained and all(trained) and not tags:
            joined.notes += (
                f"data.train_tags is set, but data.{split}_tags is not: the sources of "
                f"{split} are read without a tag",
            )
        return joined

    def _tags_of(self, name: str) -> list[str]:
        """Return the tag of each corpus; ",<t>" leaves the first without one."""
        value = self.data.get(name, "").strip()
        return [tag.strip() for tag in value.split(",")] if value else []

    def find_problems(self) -> list[str]:
        """List missing options and files before reading anything."""
        if self.data.source not in (*forms(), *self.readings):
            return []
        needed = [s for s in SPLITS if s != "test" or s in self.splits]
        missing = [problem for s in needed for problem in self._form.find_missing(s)]
        return missing + self._form.find_problems()

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


def parallel_text(source: str, target: str, encoding: str = UTF8) -> Concatenation:
    """Open the two files, or pipes, of `evaluate --source F --reference G`."""
    paths = {"source": source, "target": target}
    sides = {side: open_lines(path, encoding) for side, path in paths.items()}
    return Concatenation([Parallel(sides)])


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
    for form in forms().values():
        declared |= form.shared_options(fields)
    return schema.collect("SourceOptions", declared)


def _size(default: int, meaning: str) -> Any:
    return option(default, meaning, least=1, most=10**8)
