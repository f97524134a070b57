"""Where examples come from: each source is a random-access sequence of records.

A record is a dict, {"source": str, "target": str} for parallel text. A line ends at
a newline only; a trailing carriage return is dropped. Nothing is skipped: whatever
cannot be used is reported with its file and line.
"""

import functools
import gzip
import hashlib
import pathlib
import zlib
from collections.abc import Callable, Iterator, Sequence

from ml_collections import ConfigDict

from transformer_jax.data import phrasebook
from transformer_jax.errors import UserError

SOURCES = ("phrasebook", "text")


class Records(Sequence):
    """The records of one split, with a fingerprint of all that determines them.

    They are made when first looked at: a store that has the fingerprint needs none.
    """

    def __init__(self, make: Callable[[], Sequence[dict[str, str]]], fingerprint: str):
        self._make = make
        self.fingerprint = fingerprint

    @functools.cached_property
    def _records(self) -> Sequence[dict[str, str]]:
        return self._make()

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index):
        return self._records[index]


class Source:
    """What a config's `data` section names: its splits, read when asked for."""

    def __init__(self, data: ConfigDict):
        self.data = data

    @functools.cached_property
    def splits(self) -> tuple[str, ...]:
        if self.data.source == "phrasebook":
            return phrasebook.SPLITS
        given = ("train", "validation", "test")
        return tuple(s for s in given if self.data[f"{s}_source"])

    def read(self, split: str) -> Records:
        if split not in self.splits:
            raise UserError(
                f"there is no split {split!r}: this run's data has "
                f"{', '.join(self.splits)}"
            )
        if self.data.source == "phrasebook":
            return _generate(self.data, split)
        return parallel_text(self.data[f"{split}_source"], self.data[f"{split}_target"])


def find_problems(data: ConfigDict) -> list[str]:
    """What is missing on disk, said before anything is read."""
    if data.source != "text":
        return []
    problems = []
    for split in ("train", "validation", "test"):
        for side in ("source", "target"):
            key, path = f"data.{split}_{side}", data[f"{split}_{side}"]
            if path and not pathlib.Path(path).is_file():
                problems.append(f"{key}: there is no file {path}")
            if not path and (split != "test" or data.test_source or data.test_target):
                problems.append(f"{key} is empty: name a file with one sentence a line")
    return problems


def parallel_text(source: str, target: str) -> Records:
    """Two files of equally many lines; line i of one translates line i of the other."""
    sides = {"source": read_lines(source), "target": read_lines(target)}
    counts = {side: len(lines) for side, lines in sides.items()}
    if counts["source"] != counts["target"]:
        raise UserError(
            f"{source} has {counts['source']} lines, but {target} has "
            f"{counts['target']}: parallel files pair line by line"
        )
    if not counts["source"]:
        raise UserError(f"{source} is empty: there is nothing to read")
    digest = hashlib.sha256()
    for path in (source, target):
        digest.update(hashlib.sha256(pathlib.Path(path).read_bytes()).digest())

    def make():
        pairs = zip(sides["source"], sides["target"], strict=True)
        return [{"source": s, "target": t} for s, t in pairs]

    return Records(make, digest.hexdigest())


def read_lines(path: str) -> list[str]:
    """All lines of a UTF-8 text file, plain or .gz."""
    lines = []
    for number, raw in enumerate(_raw_lines(path), start=1):
        try:
            lines.append(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}, line {number}: byte {error.object[error.start]:#04x} at "
                f"column {error.start + 1} is not UTF-8: convert the file to UTF-8"
            ) from None
    return lines


def _raw_lines(path: str) -> Iterator[bytes]:
    opener = gzip.open if path.endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            for raw in file:
                yield raw.removesuffix(b"\n").removesuffix(b"\r")
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _generate(data: ConfigDict, split: str) -> Records:
    kind = "test" if split.startswith("test") else split
    size = data[f"{kind}_size"]

    def make():
        pairs = phrasebook.generate(split, size)
        return [{"source": p.source, "target": p.target} for p in pairs]

    return Records(make, f"phrasebook-{phrasebook.VERSION}-{split}-{size}")
