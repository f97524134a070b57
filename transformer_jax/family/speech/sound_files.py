"""Labelled sounds: generated, or a folder of WAV files for each class.

FOLDER/train/bell/17.wav    FOLDER/validation/rain/3.wav    FOLDER/test/…
"""

import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from transformer_jax.base.schema import option
from transformer_jax.data import cache
from transformer_jax.data.images.class_folders import ClassFiles, ClassFolders
from transformer_jax.data.reading.records import Record, Records
from transformer_jax.data.reading.sources import Splits
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
        """Take `size` sounds of a split; generate none before it is read."""
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


class WavFiles(ClassFiles):
    """WAV files, labelled by the folders that they lie in."""

    unreadable = wav.NoSound

    def __init__(self, files: Sequence[pathlib.Path], notes: Sequence[str]):
        super().__init__(files, notes)
        self.fingerprint = f"wav by class {cache.digest(files)}"

    def _read(self, file: pathlib.Path) -> Record:
        return {"samples": wav.read(file), "name": str(file)}


class Sounds(Splits):
    """The splits of a data set of labelled sounds: here, of generated ones."""

    def classes(self) -> tuple[str, ...]:
        """List the labels of the training sounds."""
        return tuple(sorted(sounds.KINDS))

    def _open(self, split: str) -> Records:
        return Made(split, self.data[f"{split}_size"])


class SoundFolders(ClassFolders, Sounds):
    """A folder for each split, with a folder of WAV files for each class."""

    what, suffixes = "sound", (".wav",)

    def _make(self, files: Sequence[pathlib.Path], notes: Sequence[str]) -> Records:
        return WavFiles(files, notes)


SOURCES: Mapping[str, type[Sounds]] = {"sounds": Sounds, "folder": SoundFolders}


def open_sounds(data: ConfigDict) -> Sounds:
    """Open the source that a config names; its option refuses any other."""
    return SOURCES.get(data.source, Sounds)(data)
