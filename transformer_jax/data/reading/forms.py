"""Forms of data: one class for each way in which a config's examples can be stored.

A form declares its options of the config's `data` section, finds missing files, and
opens the corpora of a split. `data.source` names it, by its name in `sources.FORMS` or
by its entry point. An option may name several corpora, separated by commas; a pattern
with * and ? is one corpus of several files. All files can be plain or .gz.
"""

import abc
import os
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.base import files
from transformer_jax.base.errors import UserError
from transformer_jax.base.schema import option
from transformer_jax.data.reading.records import (
    JsonTable,
    Parallel,
    ParsedFile,
    Reading,
    Records,
    TsvTable,
)
from transformer_jax.data.text import text
from transformer_jax.data.text.numerals import is_whole


class Form(abc.ABC):
    """Base of all forms: reads the `data` section into records with these fields."""

    advice: str  # ends the message about an empty option: "name a file …"
    names_files = True  # whether the options of a split name files

    def __init__(self, data: ConfigDict, fields: tuple[str, ...]):
        self.data, self.fields = data, fields

    @classmethod
    @abc.abstractmethod
    def split_options(cls, split: str, fields: tuple[str, ...]) -> dict[str, Any]:
        """Declare the options that name the files or the data of a split."""

    @classmethod
    def shared_options(cls, fields: tuple[str, ...]) -> dict[str, Any]:
        """Declare the options that all splits share."""
        return {}

    @abc.abstractmethod
    def corpora(self, split: str) -> list[list[Records]]:
        """Open the corpora of a split, each a list of sequences of records."""

    def groups(self, split: str) -> list[list[tuple[str, ...]]] | None:
        """List the files of a split, corpus by corpus, without opening them.

        A group of files is opened together, by `open_group`. Return None if the data
        are not in files.
        """
        return None

    def open_group(self, paths: tuple[str, ...], split: str) -> Records:
        """Open the files of a group."""
        raise NotImplementedError

    def has(self, split: str) -> bool:
        """Return whether the config names anything for a split."""
        return any(self.data[name] for name in self.split_options(split, self.fields))

    def find_missing(self, split: str) -> list[str]:
        """List the empty options of a split, and its files that do not exist."""
        problems = []
        for name in self.split_options(split, self.fields):
            if not self.data[name]:
                problems.append(f"data.{name} is empty: {self.advice}")
            problems += [
                f"data.{name}: "
                + files.describe_missing(os.path.join(self.data.folder, entry))
                for entry in entries(self.data[name] if self.names_files else "")
                if not self.find_files(entry)
            ]
        return problems

    def find_files(self, entry: str) -> list[str]:
        """List the files that an entry of an option names."""
        return text.find_files(entry, self.data.folder)

    def find_problems(self) -> list[str]:
        """List the mistakes in the options that all splits share."""
        return []


class TextFiles(Form):
    """One file per field of a record; line i of each makes up record i.

    `data.train_source = "train.de.gz"`, `data.train_target = "train.en.gz"`.
    """

    advice = "name a file with one sentence per line"

    @classmethod
    def split_options(cls, split, fields):
        """Declare an option for each field."""
        meaning = "A path; the files are paired line by line."
        return {f"{split}_{field}": option("", meaning) for field in fields}

    def corpora(self, split):
        """Pair the files of the fields, corpus by corpus."""
        return _open_groups(self, split)

    def groups(self, split):
        """Return the files of the fields that belong together."""
        names = list(self.split_options(split, self.fields))
        sides = [entries(self.data[name]) for name in names]
        if len({len(side) for side in sides}) > 1:
            raise UserError(
                f"data.{names[0]} names {len(sides[0])} corpora, but data.{names[1]} "
                f"names {len(sides[1])}: they are paired in order"
            )
        return [
            text.match_files(corpus, self.data.folder)
            for corpus in zip(*sides, strict=True)
        ]

    def open_group(self, paths, split):
        """Pair the lines of the files."""
        return Parallel(dict(zip(self.fields, paths, strict=True)))


class LineFiles(Form):
    """Base of the forms with one or more records per line: `data.train_files`."""

    advice = "name a file with one record per line"

    @classmethod
    def split_options(cls, split, fields):
        """Declare the one option that names the files."""
        return {f"{split}_files": option("", "A path, with one record per line.")}

    def corpora(self, split):
        """Open each file, corpus by corpus."""
        return _open_groups(self, split)

    def groups(self, split):
        """Return each file alone."""
        return [
            [(path,) for path in self._paths(corpus)]
            for corpus in entries(self.data[f"{split}_files"])
        ]

    def open_group(self, paths, split):
        """Open the one file of a group."""
        [path] = paths
        return self.open(path, split)

    @abc.abstractmethod
    def open(self, path: str, split: str) -> Records:
        """Open one file of a split as a sequence of records."""

    def _paths(self, corpus: str) -> list[str]:
        return text.require_files(corpus, self.data.folder)


class Columns(Form):
    """Base of the forms in which `data.<field>_column` names where a field is found."""

    kind = "key"  # the word for a column in messages
    meaning = "A key, such as de, or translation.de for a nested one."

    @classmethod
    def shared_options(cls, fields):
        """Declare an option for each field's column."""
        return {f"{field}_column": option("", cls.meaning) for field in fields}

    @property
    def columns(self) -> dict[str, str]:
        """The column of each field."""
        return {field: self.data[f"{field}_column"] for field in self.fields}

    def find_problems(self):
        """List the fields without a column."""
        return [
            f"data.{field}_column is empty: name the {self.kind} that holds the "
            f"{field}, such as 'de' or 'translation.de'"
            for field, column in self.columns.items()
            if not column
        ]


class Tsv(Columns, LineFiles):
    """Tab-separated columns, numbered from 1: `data.source_column = "2"`."""

    meaning = "A number, from 1; empty means in the order of the fields."

    @property
    def columns(self):
        """The column of each field; by default the columns are in the fields' order."""
        given = super().columns
        return {f: given[f] or str(i) for i, f in enumerate(self.fields, 1)}

    def find_problems(self):
        """List the columns that are not numbers from 1."""
        return [
            f"data.{field}_column = {column[:60]!r}: a column's number, from 1"
            for field, column in self.columns.items()
            if not (is_whole(column) and int(column))
        ]

    def open(self, path, split):
        """Open a file of tab-separated columns."""
        return TsvTable(path, self.columns)


class JsonLines(Columns, LineFiles):
    """One JSON object per line; `data.source_column = "translation.de"` is a key."""

    def open(self, path, split):
        """Open a file of JSON objects."""
        return JsonTable(path, self.columns)


class Csv(Columns, LineFiles):
    """Comma-separated columns below a header: `data.source_column = "german"`."""

    kind = "column"
    meaning = "A column's name in the header, or its number if there is no header."

    def open(self, path, split):
        """Open a file of comma-separated columns."""
        from transformer_jax.data.reading.tables import CsvTable

        return CsvTable(path, self.columns)


class Arrow(Columns, LineFiles):
    """Parquet and Arrow files, and folders that `datasets` wrote with `save_to_disk`.

    `data.folder = "saved"`, `data.train_files = "train"`, `data.text_column = "text"`.
    """

    advice = "name a Parquet or Arrow file, or a folder saved by datasets"
    kind, meaning = "column", "A column's name, such as text, or translation.de."

    def open(self, path, split):
        """Open a file of named columns."""
        from transformer_jax.data.reading.tables import ArrowTable

        return ArrowTable(path, self.columns)

    def find_files(self, entry):
        """List the files of a saved folder, or those that a path names."""
        return self._saved_files(entry) or super().find_files(entry)

    def _paths(self, corpus):
        return self._saved_files(corpus) or super()._paths(corpus)

    def _saved_files(self, entry: str) -> list[str] | None:
        from transformer_jax.data.reading.tables import saved_files

        return saved_files(os.path.join(self.data.folder, entry))


class ParsedFiles(LineFiles):
    """Lines that a task parses in its own way, such as bracketed trees."""

    def __init__(
        self, data: ConfigDict, fields: tuple[str, ...], name: str, reading: Reading
    ):
        """Parse by `reading`; `name` is its format, for the fingerprint of the data."""
        super().__init__(data, fields)
        self.name, self.reading = name, reading

    def open(self, path, split):
        """Parse a file; a training split may have fewer or more records than lines."""
        held_out = None
        if self.reading.once and split == "train":
            named = entries(f"{self.data.validation_files},{self.data.test_files}")
            held_out = [path for corpus in named for path in self._paths(corpus)]
        found = ParsedFile(path, self.name, self.reading, held_out)
        more = self.reading.more if split == "train" else None
        return more(found) if more else found


class Tfds(Columns):
    """A data set of TensorFlow Datasets, prepared as ArrayRecord in `data.folder`.

    `data.tfds_name = "wmt14_translate/de-en"`, `data.train_split = "train[:90%]"`,
    `data.source_column = "de"`.
    """

    advice = "name a data set and its splits, such as wmt14_translate/de-en"
    kind, meaning = "feature", "A feature, such as de."
    names_files = False

    @classmethod
    def split_options(cls, split, fields):
        """Declare the option that names the split of the data set."""
        return {
            f"{split}_split": option(
                split, "Such as train[:90%]; empty means no such split."
            )
        }

    @classmethod
    def shared_options(cls, fields):
        """Declare the options of the columns and of the data sets."""
        meaning = "Such as wmt14_translate/de-en, or the folder of a prepared version."
        return {**super().shared_options(fields), "tfds_name": option("", meaning)}

    def find_problems(self):
        """List missing columns and a missing name."""
        problems = super().find_problems()
        if not self.data.tfds_name:
            problems.append(f"data.tfds_name is empty: {self.advice}")
        return problems

    def corpora(self, split):
        """Open the split of each data set."""
        from transformer_jax.data import tfds

        part, folder = self.data[f"{split}_split"], self.data.folder
        return [
            [tfds.Split(name, part, folder, self.columns, texts=True)]
            for name in entries(self.data.tfds_name)
        ]


def _open_groups(form: Form, split: str) -> list[list[Records]]:
    return [
        [form.open_group(paths, split) for paths in corpus]
        for corpus in form.groups(split) or ()
    ]


def entries(value: str) -> list[str]:
    """Split the value of an option at its commas."""
    return [part.strip() for part in value.split(",") if part.strip()]
