"""Labelled sounds: generated, or a folder of WAV files for each class.

FOLDER/train/bell/17.wav    FOLDER/validation/rain/3.wav    FOLDER/test/…
"""

import dataclasses
import functools
import hashlib
import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from transformer_jax.base.errors import UserError
from transformer_jax.base.schema import option
from transformer_jax.data import cache
from transformer_jax.data.images import class_folders
from transformer_jax.data.reading.records import Concatenation, Record, Records
from transformer_jax.data.reading.sources import SPLITS
from transformer_jax.family.speech import generated as sounds
from transformer_jax.family.speech import wav

PROBED = 10  # generated sounds that are hashed: one of each kind


@dataclasses.dataclass(frozen=True)
class SoundOptions:
    """Find labelled sounds: options of `config.data`."""

    source: str = option(
        "sounds", "Generated, or a folder of WAV by class.", choices=lambda: SOURCES
    )
    folder: str = option("", "Relative paths begin here.")
    train_size: int = option(2000, "Generated: examples.", least=1, most=10**8)
    validation_size: int = option(
        200, "Generated, or held out of a folder without validation.", least=1
    )
    test_size: int = option(500, "Generated: examples.", least=1, most=10**8)


class Made(Records):
    """Sounds that are generated on demand."""

    def __init__(self, split: str, size: int):
        self.split, self.size = split, size
        self.fingerprint = f"sounds-{sounds.VERSION}-{split}-{size}"

    @functools.cached_property
    def content(self) -> str:
        """The hash of a few sounds: it changes with their generator."""
        digest = hashlib.sha256()
        for i in range(min(PROBED, self.size)):
            samples = np.rint(1000 * self[i]["samples"]).astype("<i2")
            digest.update(samples.tobytes())
        return digest.hexdigest()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Record:
        samples, label = sounds.generate(self.split, index)
        name = self.where(index)
        return {"samples": samples.astype(np.float32), "name": name, "label": label}

    def where(self, index: int) -> str:
        """Name a sound by its number, from 1."""
        return f"generated {self.split} sound {index + 1}"


class ClassFiles(Records):
    """WAV files, labelled by the folders that they lie in."""

    def __init__(self, files: Sequence[pathlib.Path], notes: Sequence[str] = ()):
        self.files, self.notes = files, tuple(notes)
        self.fingerprint = f"wav by class {cache.digest(files)}"

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Record:
        file = self.files[index]
        try:
            samples = wav.read(file)
        except wav.NoSound as error:
            raise UserError(
                f"{error.problems[0]}: replace the file, or take it out of the folder"
            ) from None
        return {"samples": samples, "name": str(file), "label": file.parent.name}

    def where(self, index: int) -> str:
        """Name the file of a sound."""
        return str(self.files[index])


class Sounds:
    """The splits of a data set of labelled sounds: here, of generated ones."""

    known_splits = SPLITS

    def __init__(self, data: ConfigDict):
        self.data, self.folder = data, pathlib.Path(data.folder)

    @property
    def splits(self) -> tuple[str, ...]:
        """List the splits that there are."""
        return SPLITS

    @functools.cache  # noqa: B019  (a source lives as long as its run)
    def read(self, split: str) -> Concatenation:
        """Open a split."""
        if split not in self.splits:
            raise UserError(
                f"there is no split {split!r}: this run's data has "
                f"{', '.join(self.splits)}"
            )
        return Concatenation([self._open(split)])

    def classes(self) -> tuple[str, ...]:
        """List the labels of the training sounds."""
        return tuple(sorted(sounds.KINDS))

    def find_problems(self) -> list[str]:
        """List missing files, before anything is read."""
        return []

    def _open(self, split: str) -> Records:
        return Made(split, self.data[f"{split}_size"])


class ClassFolders(Sounds):
    """A folder for each split, with a folder of WAV files for each class."""

    @property
    def splits(self) -> tuple[str, ...]:
        """List the splits that there are: a test may be there."""
        return SPLITS if os.path.isdir(self.folder / "test") else SPLITS[:2]

    def classes(self) -> tuple[str, ...]:
        """List the classes by their folders: no sound is read."""
        files, _ = self._list("train")
        return tuple(sorted({file.parent.name for file in files}))

    def find_problems(self) -> list[str]:
        """Look for the folder of the training sounds."""
        place = self.folder / "train"
        if os.path.isdir(place):
            return []
        return [
            f"data.folder: there is no file {place / 'CLASS' / 'SOUND.wav'}: make a "
            f"folder {place} with a folder of sounds for each class"
        ]

    def _open(self, split: str) -> Records:
        if split == "test" or os.path.isdir(self.folder / "validation"):
            return ClassFiles(*self._list(split))
        files, notes = self._list("train")
        parts = class_folders.draw_held_out(files, self.data.validation_size, "sound")
        return ClassFiles(parts[split == "validation"], notes)

    def _list(self, split: str) -> tuple[list[pathlib.Path], list[str]]:
        return class_folders.list_files(self.folder / split, (".wav",), "sound")


SOURCES: Mapping[str, type[Sounds]] = {"sounds": Sounds, "folder": ClassFolders}


def open_sounds(data: ConfigDict) -> Sounds:
    """Open the source that a config names; its option refuses any other."""
    return SOURCES.get(data.source, Sounds)(data)
