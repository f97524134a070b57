"""Sound with its transcript: generated, in LibriSpeech's layout, or a table of files.

    SPLIT/19/198/19-198.trans.txt   lines of ID TEXT; ID.wav is in the same folder
    train.tsv                       lines of PATH, a tab and TEXT

A record is {"samples": array, "name": str, "text": str}. Its sound is synthesized or
read on demand, so a corpus need not fit into memory; only the transcripts are kept.
"""

import dataclasses
import functools
import hashlib
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from transformer_jax.base.errors import UserError
from transformer_jax.base.schema import option
from transformer_jax.data import cache
from transformer_jax.data.reading.forms import entries
from transformer_jax.data.reading.records import (
    Concatenation,
    Generated,
    Record,
    Records,
)
from transformer_jax.data.reading.sources import SPLITS, Splits
from transformer_jax.data.text.text import Lines, find_files, require_files
from transformer_jax.family.speech import voice as speech
from transformer_jax.family.speech import wav

PROBED = 3  # generated sounds that are hashed, to notice a change of the synthesizer


@dataclasses.dataclass(frozen=True)
class RecordingOptions:
    """Find sound and transcripts: options of `config.data`."""

    source: str = option(
        "commands",
        "Generated; folders as LibriSpeech's, of WAV; tables of paths and transcripts.",
        choices=lambda: SOURCES,
    )
    folder: str = option("", "Relative paths begin here.")
    train_files: str = option("", "librispeech: folders, by commas; tsv: tables.")
    validation_files: str = option("", "Likewise.")
    test_files: str = option("", "Likewise, or none.")
    train_size: int = option(6000, "Generated: examples.", least=1, most=10**8)
    validation_size: int = option(200, "Generated: examples.", least=1, most=10**8)
    test_size: int = option(500, "Generated: of each test split.", least=1, most=10**8)


class Spoken(Records):
    """Sentences that are synthesized on demand."""

    def __init__(self, split: str, size: int):
        """Take `size` sentences of a split; synthesize none before it is read."""
        self.split, self.size = split, size
        self.fingerprint = f"commands-{speech.VERSION}-{split}-{size}"
        self._kept: dict[int, np.ndarray] = {}

    @functools.cached_property
    def texts(self) -> list[str]:
        """The transcripts."""
        return speech.sentences(self.split, self.size)

    @functools.cached_property
    def content(self) -> str:
        """The hash of all transcripts and of a few sounds."""
        digest = hashlib.sha256("\n".join(self.texts).encode())
        for i in range(min(PROBED, self.size)):
            # Coarse enough to be the same on any machine.
            samples = np.rint(1000 * self[i]["samples"]).astype("<i2")
            digest.update(samples.tobytes())
        return digest.hexdigest()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Record:
        text, samples = self.texts[index], self._kept.get(index)
        if samples is None:
            samples = speech.speak(text, self.split, index).astype(np.float32)
        if self.split != "train":  # held-out sounds are read at each evaluation
            self._kept[index] = samples
        return {"samples": samples, "name": self.where(index), "text": text}

    def where(self, index: int) -> str:
        """Name a sound by its number, from 1."""
        return f"generated {self.split} example {index + 1}"


class WavFiles(Records):
    """WAV files, each with its transcript and the line that has it."""

    def __init__(
        self,
        files: Sequence[pathlib.Path],
        texts: Sequence[str],
        places: Sequence[str],
        notes: Sequence[str] = (),
    ):
        """Pair each file with its transcript.

        `places` name the lines of the transcripts, for messages; `notes` are oddities,
        for the log.
        """
        self.files, self.texts, self.places = files, list(texts), places
        self.notes = tuple(notes)
        content = "\n".join([cache.digest(files), *self.texts])
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Record:
        file = self.files[index]
        try:
            samples = wav.read(file)
        except wav.NoSound as error:
            raise UserError(f"{self.where(index)}: {error.problems[0]}") from None
        return {"samples": samples, "name": str(file), "text": self.texts[index]}

    def where(self, index: int) -> str:
        """Name the line that has the transcript."""
        return self.places[index]


class Recordings(Splits):
    """The splits of a corpus of speech."""

    known_splits = tuple(dict.fromkeys((*SPLITS, *speech.SPLITS)))

    @property
    def splits(self) -> tuple[str, ...]:
        """List the splits that there are."""
        return tuple(split for split in SPLITS if self.data[f"{split}_files"])

    def transcripts(self, split: str) -> Records:
        """Open the texts of a split alone, without reading a sound."""
        records = self.read(split)
        parts: list[Any] = records.parts
        made = [{"text": text} for part in parts for text in part.texts]
        return Generated(lambda: made, records.fingerprint)

    def find_problems(self) -> list[str]:
        """List missing files, before anything is read."""
        problems = []
        for split in ("train", "validation"):
            if not self.data[f"{split}_files"]:
                problems.append(f"data.{split}_files is empty: name {self.advice}")
        for split in self.splits:
            for entry in entries(self.data[f"{split}_files"]):
                place = pathlib.Path(self.data.folder, entry)
                if not self.exists(entry):
                    problems.append(
                        f"data.{split}_files: there is no file {place / self.inside}"
                    )
        return problems

    advice, inside = "", ""  # for messages: what an option names, and files inside

    def exists(self, entry: str) -> bool:
        """Return whether the folder has the file of an entry."""
        return os.path.isfile(os.path.join(self.data.folder, entry))


class Commands(Recordings):
    """Commands that a synthesizer speaks."""

    @property
    def splits(self) -> tuple[str, ...]:
        """List the splits that are generated."""
        return speech.SPLITS

    def find_problems(self) -> list[str]:
        """Return nothing: commands are generated, so no file can be missing."""
        return []

    def _open(self, split: str) -> Records:
        size = self.data[f"{'test' if split.startswith('test') else split}_size"]
        return Spoken(split, size)


class LibriSpeech(Recordings):
    """Folders in LibriSpeech's layout, their sound as WAV."""

    advice, inside = "a folder with *.trans.txt in it or below", "**/*.trans.txt"

    def exists(self, entry: str) -> bool:
        """Return whether a folder is there."""
        return os.path.isdir(os.path.join(self.data.folder, entry))

    def _open(self, split: str) -> Records:
        names = entries(self.data[f"{split}_files"])
        folders = [pathlib.Path(self.data.folder, name) for name in names]
        return Concatenation([*map(_read_folder, folders)])


class WavTable(Recordings):
    """Tables of a path and a transcript a line; paths begin where the table lies."""

    advice = "a file with lines of a path, a tab and a transcript"

    def exists(self, entry: str) -> bool:
        """Return whether a path or a pattern names a file."""
        return bool(find_files(entry, self.data.folder))

    def _open(self, split: str) -> Records:
        names, folder = entries(self.data[f"{split}_files"]), self.data.folder
        paths = [path for name in names for path in require_files(name, folder)]
        return Concatenation([*map(_read_table, paths)])


SOURCES: Mapping[str, type[Recordings]] = {
    "commands": Commands,
    "librispeech": LibriSpeech,
    "tsv": WavTable,
}


def open_recordings(data: ConfigDict) -> Recordings:
    """Open the source that a config names; its option refuses any other."""
    return SOURCES.get(data.source, Recordings)(data)


def _read_folder(folder: pathlib.Path) -> WavFiles:
    transcripts = sorted(folder.glob("**/*.trans.txt"))
    if not transcripts:
        raise UserError(
            f"{folder} holds no transcripts: there must be files *.trans.txt in it or "
            "below, with lines of an ID, a space and the transcript of ID.wav"
        )
    rows, notes = [], []
    for path in transcripts:
        lines = Lines(path)
        notes += lines.notes
        for number, line in enumerate(lines):
            name, _, text = line.partition(" ")
            rows.append((path.parent / f"{name}.wav", text, lines.where(number)))
    return _check(rows, notes, "an ID, a space and a transcript")


def _read_table(path: str) -> WavFiles:
    lines, folder = Lines(path), pathlib.Path(path).parent
    rows = []
    for number, line in enumerate(lines):
        name, tab, text = line.partition("\t")
        if not tab or "\t" in text:
            tabs = line.count("\t")
            raise UserError(
                f"{lines.where(number)} has {tabs} tabs, not 1: a line is "
                "the path of a WAV file, a tab and its transcript"
            )
        rows.append((folder / name, text, lines.where(number)))
    return _check(rows, lines.notes, "a path, a tab and a transcript")


def _check(
    rows: Sequence[tuple[pathlib.Path, str, str]], notes: Sequence[str], form: str
) -> WavFiles:
    """Refuse a line without a transcript, or whose file is not there."""
    for file, text, where in rows:
        if not text.strip():
            raise UserError(f"{where} has no transcript: a line is {form}")
        if os.path.isfile(file):
            continue
        other = file.parent / f"{file.stem}.flac"
        if os.path.isfile(other):
            raise UserError(
                f"{where}: there is {other}, but no {file.name}, and only WAV is read: "
                "convert all of them, such as by find FOLDER -name '*.flac' -exec sh "
                "-c 'ffmpeg -i \"$0\" \"${0%.flac}.wav\"' {} ';'"
            )
        raise UserError(f"{where}: there is no file {file}")
    files, texts, places = zip(*rows, strict=True) if rows else ((), (), ())
    return WavFiles(files, [text.strip() for text in texts], places, notes)
