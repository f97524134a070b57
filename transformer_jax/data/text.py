"""Read text files line by line at random access, in little memory.

A first pass checks a file (UTF-8, to the line and column), hashes its text and notes
where its lines begin; the result is cached by path, size and time of change. A line
ends at a newline only. A carriage return before it and a byte order mark before the
first line are left out, with a note. A .gz file is unpacked once. Memory depends on
the longest line alone, and a line has a limit.
"""

import contextlib
import functools
import glob
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import weakref
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from transformer_jax.data import cache
from transformer_jax.errors import UserError

FORMAT = 2  # of an index
BLOCK = 1 << 24  # bytes read at a time
LONGEST_LINE = 1 << 28  # bytes; a line is held in memory
# Text of real corpora is packed to a third or a tenth. What unpacks to so many times
# its size, and to more than so many bytes, is a mistake or an attack.
PACKED, UNPACKED = 200, 1 << 31
BOM = b"\xef\xbb\xbf"


class Lines(Sequence[str]):
    """The lines of a UTF-8 text file, plain or .gz."""

    def __init__(self, path: str | os.PathLike):
        self.path = str(path)
        self._read = _identity(self.path)
        key = hashlib.sha256(json.dumps([FORMAT, *self._read]).encode()).hexdigest()[
            :24
        ]
        place = cache.build_once(
            cache.folder() / "text" / key, functools.partial(_index, self.path)
        )
        found = json.loads((place / "about.json").read_text(encoding="utf-8"))
        self.fingerprint: str = found["sha256"]
        self.notes: tuple[str, ...] = tuple(f"{self.path}: {n}" for n in found["notes"])
        self._starts = np.memmap(place / "starts", "int64", "r").view(np.ndarray)
        unpacked = place / "text"
        self._text = str(unpacked) if unpacked.exists() else self.path

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> str:
        begin, end = self._starts[index : index + 2].tolist()
        self._refuse_changes(os.fstat(self._descriptor))
        return _decode(os.pread(self._descriptor, end - begin - 1, begin))

    def __iter__(self) -> Iterator[str]:
        with open(self._text, "rb", buffering=1 << 20) as file:
            file.seek(int(self._starts[0]))
            for raw in file:
                yield _decode(raw.removesuffix(b"\n"))
            self._refuse_changes(os.fstat(file.fileno()))

    def where(self, index: int) -> str:
        """Name a line: "corpus.de, line 7"."""
        return f"{self.path}, line {index + 1}"

    def _refuse_changes(self, status: os.stat_result) -> None:
        """Refuse a file that is edited in place while a training reads it.

        One that is replaced is still read as it was.
        """
        _, size, changed = self._read
        if self._text == self.path and (
            (size, changed) != (status.st_size, status.st_mtime_ns)
        ):
            raise UserError(
                f"{self.path} has changed while it is read ({size:,} bytes before, "
                f"{status.st_size:,} now): restore it, and start again"
            )

    @functools.cached_property
    def _descriptor(self) -> int:
        descriptor = os.open(self._text, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        return descriptor


@contextlib.contextmanager
def open_binary(path: str) -> Iterator[io.BufferedIOBase]:
    """Open a file, plain or .gz; raise `UserError` if it cannot be read."""
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def find_files(entry: str, folder: str = "") -> list[str]:
    """List the files that a path or a pattern with * ? [ ] matches, sorted by name.

    A relative path starts at `folder`, if there is one.
    """
    path = os.path.join(folder, entry)
    if not glob.has_magic(path):
        return [path] if os.path.isfile(path) else []
    return sorted(p for p in glob.glob(path, recursive=True) if os.path.isfile(p))


def require_files(entry: str, folder: str = "") -> list[str]:
    """Find files as `find_files` does; raise if there are none."""
    if not (found := find_files(entry, folder)):
        raise UserError(f"there is no file {os.path.join(folder, entry)}")
    return found


def match_files(entries: Sequence[str], folder: str = "") -> list[tuple[str, ...]]:
    """List the files that belong together, one of each entry.

    Files of patterns belong together if their wildcards match the same text.
    """
    found = {entry: require_files(entry, folder) for entry in entries}
    if not any(map(glob.has_magic, entries)):
        return [tuple(found[entry][0] for entry in entries)]
    by_part = [{_wild(e, folder, path): path for path in found[e]} for e in entries]
    for entry, side in zip(entries, by_part, strict=True):
        if odd := sorted({*by_part[0]} ^ {*side}):
            lonely = by_part[0].get(odd[0]) or side[odd[0]]
            raise UserError(
                f"{entries[0]} names {len(by_part[0])} files and {entry} {len(side)}: "
                f"{lonely} has no other side"
            )
    return [tuple(side[part] for side in by_part) for part in sorted(by_part[0])]


def _wild(entry: str, folder: str, path: str) -> tuple[str, ...]:
    """Return the parts of a path that the wildcards of a pattern match."""
    pattern = re.escape(os.path.join(folder, entry))
    for wild, group in ((r"\*\*/", "(.*/)?"), (r"\*", "([^/]*)"), (r"\?", "([^/])")):
        pattern = pattern.replace(wild, group)
    pattern = re.sub(r"\\\[(.*?)\\\]", r"([\1])", pattern).replace(r"\-", "-")
    found = re.fullmatch(pattern, path)
    return found.groups() if found else (path,)


def _decode(raw: bytes) -> str:
    return raw.removesuffix(b"\r").decode("utf-8")


def _identity(path: str) -> list:
    try:
        status = os.stat(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    # A file of this size and time of change at this path is taken to be the same.
    return [os.path.abspath(path), status.st_size, status.st_mtime_ns]


def _index(path: str, place: pathlib.Path) -> None:
    """Read a file once; write where its lines begin, its hash, and what is odd."""
    digest, size, lines, returns, first_return = hashlib.sha256(), 0, 0, 0, 0
    copy = str(place / "text") if path.endswith(".gz") else os.devnull
    with open(copy, "wb") as unpacked, (place / "starts").open("wb") as starts:
        for block in _blocks(path):
            if not size:
                marked = block.startswith(BOM)
                np.array([len(BOM) if marked else 0]).tofile(starts)
            _check(path, block, lines)
            digest.update(block)
            unpacked.write(block)
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
            found = block.count(b"\r\n")
            if found and not returns:
                first_return = lines + block.count(b"\n", 0, block.find(b"\r\n")) + 1
            (ends.astype(np.int64) + size + 1).tofile(starts)
            returns, lines, size = returns + found, lines + len(ends), size + len(block)
        if not size:
            raise UserError(f"{path} is empty: there is nothing to read")
        if not block.endswith(b"\n") and size != len(BOM) * marked:
            # The last line has no newline: as if it had one.
            np.array([size + 1]).tofile(starts)
    notes = []
    if marked:
        notes.append("line 1 begins with a byte order mark, which is left out")
    if returns:
        notes.append(
            f"{returns} lines, the first of them line {first_return}, end in CR LF: "
            "the carriage return is left out"
        )
    about = {"path": path, "sha256": digest.hexdigest(), "notes": notes}
    (place / "about.json").write_text(json.dumps(about), encoding="utf-8")


def _blocks(path: str) -> Iterator[bytes]:
    """Yield a file in blocks of whole lines."""
    begun: list[bytes] = []  # parts of a line without its end
    held = lines = read = 0
    most = max(UNPACKED, PACKED * os.path.getsize(path))
    with open_binary(path) as file:
        while data := file.read(BLOCK):
            read += len(data)
            if path.endswith(".gz") and read > most:
                raise UserError(
                    f"{path} unpacks to more than {most:,} bytes, {PACKED} times its "
                    "size: unpack it yourself, and look whether it is text"
                )
            cut = data.rfind(b"\n") + 1
            if cut:
                yield (block := b"".join([*begun, data[:cut]]))
                lines += block.count(b"\n")
                begun, held = [], 0
            begun.append(data[cut:])
            held += len(data) - cut
            if held > LONGEST_LINE:
                raise UserError(
                    f"{path}, line {lines + 1} has more than the {LONGEST_LINE:,} "
                    "bytes that a line may have: break it between sentences or "
                    "documents"
                )
    if held:
        yield b"".join(begun)


def _check(path: str, block: bytes, lines_before: int) -> None:
    try:
        block.decode("utf-8")
    except UnicodeDecodeError as error:
        line = lines_before + block.count(b"\n", 0, error.start) + 1
        column = error.start - block.rfind(b"\n", 0, error.start)
        raise UserError(
            f"{path}, line {line}: byte {block[error.start]:#04x} at column {column} "
            "is not UTF-8: convert the file to UTF-8"
        ) from None
