"""Read the lines of text files with random access and little memory.

A first pass validates a file (UTF-8 errors are reported by line and column), hashes
its text and indexes its lines; the result is cached by path, size, times and inode.
Only a newline ends a line. A carriage return before it, and a byte order mark before
the first line, are dropped with a note. A gzip file, which is recognised by its
content, is unpacked once. Memory use depends only on the longest line, whose length is
limited.
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

from transformer_jax.base import files
from transformer_jax.base.errors import UserError
from transformer_jax.data import cache

FORMAT = 2  # version of the index files
BLOCK = 1 << 24  # bytes read at a time
LONGEST_LINE = 1 << 28  # bytes, because a line is held in memory
# Real text compresses to between a third and a tenth of its size. A file that unpacks
# to over 200 times its size, and to over 2 GiB, is a mistake or an attack.
PACKED, UNPACKED = 200, 1 << 31
BOM = b"\xef\xbb\xbf"
SPREADSHEETS = (".xlsx", ".xls", ".ods")
GZIP = b"\x1f\x8b"  # the bytes with which a gzip file begins


class Lines(Sequence[str]):
    """The lines of a UTF-8 text file, plain or packed by gzip."""

    def __init__(self, path: str | os.PathLike):
        self.path = str(path)
        if self.path.lower().endswith(SPREADSHEETS):
            raise UserError(
                f"{self.path} is a spreadsheet: save it as CSV (UTF-8), and set "
                "data.source = 'csv'"
            )
        with refuse_unreadable(self.path):
            self._identity = files.identify(self.path)
        place = cache.place("text", json.dumps([FORMAT, *self._identity]))
        entry = cache.build_once(place, functools.partial(_index, self.path))
        about = json.loads((entry / "about.json").read_text(encoding="utf-8"))
        self.fingerprint: str = about["sha256"]
        self.notes: tuple[str, ...] = tuple(f"{self.path}: {n}" for n in about["notes"])
        self._starts = np.memmap(entry / "starts", "int64", "r").view(np.ndarray)
        unpacked = entry / "text"
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

    def place(self, index: int, problem: str) -> str:
        """Put the place of a problem first.

        A parser of several lines counts them from 1: its "line N: " is moved to the
        file's.
        """

        def shift(found: re.Match) -> str:
            return f"in line {index + int(found[1])}"

        if own := re.match(r"line (\d+): ", problem):
            problem = re.sub(r"\bin line (\d+)", shift, problem[own.end() :])
            index += int(own[1]) - 1
        return f"{self.where(index)}: {problem}"

    def _refuse_changes(self, status: os.stat_result) -> None:
        """Raise if the file was edited in place since it was opened.

        If it was replaced, the open descriptor still reads the old content.
        """
        _, size, changed, _, inode = self._identity
        found = status.st_size, status.st_mtime_ns, status.st_ino
        if self._text == self.path and found != (size, changed, inode):
            raise UserError(
                f"{self.path} has changed while being read ({size:,} bytes before, "
                f"{status.st_size:,} now): restore it and start again"
            )

    @functools.cached_property
    def _descriptor(self) -> int:
        descriptor = os.open(self._text, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        return descriptor


@contextlib.contextmanager
def refuse_unreadable(path: str | os.PathLike) -> Iterator[None]:
    """Raise `UserError` with the reason if a file cannot be read."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path} cannot be read: {reason}") from None


@contextlib.contextmanager
def open_binary(path: str) -> Iterator[io.BufferedIOBase]:
    """Open a file, plain or packed by gzip."""
    packed = is_packed(path)
    with refuse_unreadable(path), (gzip.open if packed else open)(path, "rb") as file:
        yield file


def is_packed(path: str) -> bool:
    """Return whether a file is packed by gzip, going by its content, not its name."""
    with refuse_unreadable(path), open(path, "rb") as file:
        return file.read(len(GZIP)) == GZIP


def find_files(entry: str, folder: str = "") -> list[str]:
    """List the files that a path or a pattern with * ? [ ] matches, sorted by name.

    A relative path starts at `folder`, if given, whose name is no pattern.
    """
    path = os.path.join(folder, entry)
    if not _is_pattern(entry, folder):
        return [path] if os.path.isfile(path) else []
    found = glob.glob(os.path.join(glob.escape(folder), entry), recursive=True)
    return sorted(filter(os.path.isfile, found))


def _is_pattern(entry: str, folder: str) -> bool:
    """Return whether an entry is a pattern, and not the name of a file."""
    return glob.has_magic(entry) and not os.path.isfile(os.path.join(folder, entry))


def require_files(entry: str, folder: str = "") -> list[str]:
    """Find files as `find_files` does; raise if there are none."""
    if not (found := find_files(entry, folder)):
        raise UserError(files.describe_missing(os.path.join(folder, entry)))
    return found


def match_files(entries: Sequence[str], folder: str = "") -> list[tuple[str, ...]]:
    """List the groups of files that belong together, one file per entry.

    Files that match patterns belong together if their wildcards match the same text.
    """
    found = {entry: require_files(entry, folder) for entry in entries}
    if not any(_is_pattern(entry, folder) for entry in entries):
        return [tuple(found[entry][0] for entry in entries)]
    by_part = [{_wild(e, folder, path): path for path in found[e]} for e in entries]
    for entry, side in zip(entries, by_part, strict=True):
        if odd := sorted({*by_part[0]} ^ {*side}):
            unpaired = by_part[0].get(odd[0]) or side[odd[0]]
            raise UserError(
                f"{entries[0]} names {len(by_part[0])} files and {entry} names "
                f"{len(side)}: {unpaired} has no counterpart"
            )
    return [tuple(side[part] for side in by_part) for part in sorted(by_part[0])]


def _wild(entry: str, folder: str, path: str) -> tuple[str, ...]:
    """Return the parts of a path that the wildcards of a pattern match."""
    before = os.path.join(folder, entry).removesuffix(entry)
    pattern = re.escape(entry)
    for wild, group in ((r"\*\*/", "(.*/)?"), (r"\*", "([^/]*)"), (r"\?", "([^/])")):
        pattern = pattern.replace(wild, group)
    pattern = re.sub(r"\\\[(.*?)\\\]", r"([\1])", pattern).replace(r"\-", "-")
    match = re.fullmatch(re.escape(before) + pattern, path)
    return match.groups() if match else (path,)


def _decode(raw: bytes) -> str:
    return raw.removesuffix(b"\r").decode("utf-8")


def _index(path: str, folder: pathlib.Path) -> None:
    """Read a file once, and write its line offsets, its hash and notes on oddities."""
    digest, size, lines, returns, first_return = hashlib.sha256(), 0, 0, 0, 0
    copy = str(folder / "text") if is_packed(path) else os.devnull
    with open(copy, "wb") as unpacked, (folder / "starts").open("wb") as starts:
        for block in _blocks(path):
            if not size:
                marked = block.startswith(BOM)
                starts.write(np.int64(len(BOM) if marked else 0).tobytes())
            _check(path, block, lines)
            digest.update(block)
            unpacked.write(block)
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
            crlf = block.count(b"\r\n")
            if crlf and not returns:
                first_return = lines + block.count(b"\n", 0, block.find(b"\r\n")) + 1
            starts.write((ends.astype(np.int64) + size + 1).tobytes())
            returns, lines, size = returns + crlf, lines + len(ends), size + len(block)
        if not size:
            raise UserError(f"{path} is empty: there is nothing to read")
        if not block.endswith(b"\n") and size != len(BOM) * marked:
            # The final newline is missing: treat it as present.
            starts.write(np.int64(size + 1).tobytes())
    notes = []
    if marked:
        notes.append("line 1 begins with a byte order mark, which is left out")
    if returns:
        notes.append(
            f"{returns} lines, the first of them line {first_return}, end in CR LF: "
            "the carriage return is left out"
        )
    about = {"path": path, "sha256": digest.hexdigest(), "notes": notes}
    (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")


def _blocks(path: str) -> Iterator[bytes]:
    """Yield a file in blocks of complete lines."""
    begun: list[bytes] = []  # parts of a line whose end has not been read
    held = lines = total = 0
    limit = max(
        UNPACKED, PACKED * os.path.getsize(path)
    )  # never reached by a plain one
    with open_binary(path) as file:
        while data := file.read(BLOCK):
            total += len(data)
            if total > limit:
                raise UserError(
                    f"{path} unpacks to more than {limit:,} bytes, {PACKED} times its "
                    "size: unpack it yourself, and check that it is text"
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
                    f"{path}, line {lines + 1} has more than {LONGEST_LINE:,} bytes, "
                    "the limit for a line: break it between sentences or documents"
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
            "is not UTF-8: convert the file, such as by iconv -f latin1 -t utf-8"
        ) from None
