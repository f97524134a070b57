"""Folders with one subfolder per class: list their files, hold some out."""

import abc
import os
import pathlib
from collections.abc import Sequence
from zlib import crc32

from transformer_jax.base.errors import UserError
from transformer_jax.data.reading.records import Record, Records
from transformer_jax.data.reading.sources import SPLITS, Splits


class ClassFiles(Records, abc.ABC):
    """Files, each read on demand and labelled by the folder that it lies in."""

    unreadable: type[UserError]  # what `_read` raises about a file's content

    def __init__(self, files: Sequence[pathlib.Path], notes: Sequence[str]):
        """List files in the order of records; `notes` are oddities, for the log."""
        self.files, self.notes = files, tuple(notes)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Record:
        file = self.files[index]
        try:
            return {**self._read(file), "label": file.parent.name}
        except self.unreadable as error:
            raise UserError(
                f"{error.problems[0]}: replace the file, or remove it from the folder"
            ) from None

    @abc.abstractmethod
    def _read(self, file: pathlib.Path) -> Record:
        """Read a file into the fields of its record, all but `label`.

        Raise `unreadable` for bad content; `__getitem__` adds the way out.
        """

    def where(self, index: int) -> str:
        """Name a file."""
        return str(self.files[index])


class ClassFolders(Splits, abc.ABC):
    """A folder for each split, with a folder of files for each class."""

    what: str  # the word for a file
    suffixes: Sequence[str]

    @property
    def splits(self) -> tuple[str, ...]:
        """The available splits; the test split is optional."""
        return SPLITS if os.path.isdir(self._place("test")) else SPLITS[:2]

    def classes(self) -> tuple[str, ...]:
        """List the classes by their folders, without reading a file."""
        files, _ = self._list("train")
        return tuple(sorted({file.parent.name for file in files}))

    def find_problems(self) -> list[str]:
        """Report a missing folder of training files."""
        train = self._place("train")
        if os.path.isdir(train):
            return []
        example = train / "CLASS" / f"{self.what.upper()}{self.suffixes[0]}"
        return [
            f"data.folder: there is no file {example}: make a folder {train} with a "
            f"folder of {self.what}s for each class"
        ]

    def _open(self, split: str) -> Records:
        if split == "test" or os.path.isdir(self._place("validation")):
            return self._make(*self._list(split))
        files, notes = self._list("train")
        parts = draw_held_out(files, self.data.validation_size, self.what)
        return self._make(parts[split == "validation"], notes)

    @abc.abstractmethod
    def _make(self, files: Sequence[pathlib.Path], notes: Sequence[str]) -> Records:
        """Make the records of files."""

    def _list(self, split: str) -> tuple[list[pathlib.Path], list[str]]:
        return list_files(self._place(split), self.suffixes, self.what)

    def _place(self, split: str) -> pathlib.Path:
        return pathlib.Path(self.data.folder, split)


def list_files(
    folder: pathlib.Path, suffixes: Sequence[str], what: str
) -> tuple[list[pathlib.Path], list[str]]:
    """List the files of a split by class, and notes about other files.

    Each subfolder is a class, and must contain a file; `what` is the word for a file.
    """
    files, others = [], 0
    for subfolder in sorted(folder.iterdir()):
        if not subfolder.is_dir():
            others += 1
            continue
        contents = sorted(subfolder.iterdir())
        chosen = [
            f
            for f in contents
            if f.suffix.lower() in suffixes and f.is_file()  # opening a FIFO would hang
        ]
        if not chosen:
            raise UserError(
                f"{subfolder} holds no {what} ({', '.join(suffixes)}): put {what}s of "
                "its class there, or remove the folder"
            )
        files += chosen
        others += len(contents) - len(chosen)
    if not files:
        raise UserError(
            f"{folder} holds no folder of {what}s: make one for each class, such as "
            f"{folder / 'cat'}"
        )
    notes = [f"{folder}: {others:,} files that are not {what}s are left out"]
    return files, notes if others else []


def draw_held_out(
    files: Sequence[pathlib.Path], validation: int, what: str
) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """Split files into training and validation, by a hash of their names."""
    if not 0 < validation < len(files):
        raise UserError(
            f"{validation} of {len(files)} {what}s cannot be held out for validation: "
            f"set data.validation_size to 1 to {len(files) - 1}, or make a folder "
            "validation next to train"
        )
    names = [f"{file.parent.name}/{file.name}" for file in files]
    order = sorted(
        range(len(files)), key=lambda i: (crc32(names[i].encode()), names[i])
    )
    chosen = set(order[:validation])
    return (
        [file for i, file in enumerate(files) if i not in chosen],
        [files[i] for i in sorted(chosen)],
    )
