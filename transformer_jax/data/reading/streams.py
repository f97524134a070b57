"""Read lines that a user names: from a file, a pipe or standard input.

Only a newline ends a line. A byte order mark before the first line and a carriage
return at the end of a line are left out. A gzip file is recognised by its content and
unpacked. Bytes that are not text in the named encoding become halves of surrogate
pairs, which `decoding.requests.check_text` refuses line by line.
"""

import codecs
import gzip
import hashlib
import io
import os
import select
import stat
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

from transformer_jax.base.errors import UserError
from transformer_jax.data.text.text import BOM, GZIP, Lines, refuse_unreadable

CHUNK = 2000  # lines read, sorted and answered together
LONGEST = 1 << 24  # the most bytes in a line
HELD = 1 << 30  # the most bytes of a pipe that is held in memory
UTF8 = "utf-8"
# The marks with which these encodings begin; that of utf-32 begins with utf-16's.
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
PROBED = 8  # the fewest bytes that are examined for UTF-16 without a mark


def check_encoding(name: str) -> str:
    """Return the usual name of an encoding of text; refuse any other name."""
    try:
        "".encode(name)
        known = codecs.lookup(name).name
    except (LookupError, ValueError):
        raise UserError(
            f"--encoding={name}: there is no such encoding of text: use utf-8, utf-16, "
            "latin-1 or another name that Python knows"
        ) from None
    return UTF8 if known == "utf-8-sig" else known


def read_chunks(
    source: io.BufferedIOBase, encoding: str = UTF8, name: str = "the input"
) -> Iterator[list[str]]:
    """Yield chunks of lines, none of them empty.

    A chunk also ends where reading would block, so a pipe that is written line by line
    is answered line by line. An error is raised after the lines before it.
    """
    lines: list[bytes] = []
    rest: list[bytes] = []  # parts of a line whose end has not been read
    count, size = 0, 0
    problem: UserError | None = None
    blocks = _blocks(source, encoding, name)
    while True:
        try:
            if (data := next(blocks, None)) is None:
                break
        except UserError as error:
            problem = error
            break
        *ended, begun = data.split(b"\n")
        if ended:
            ended[0], rest, size = b"".join([*rest, ended[0]]), [], 0
        rest.append(begun)
        lines, count, size = lines + ended, count + len(ended), size + len(begun)
        if size > LONGEST:
            rest = []
            problem = UserError(
                f"line {count + 1} has more than {LONGEST:,} bytes and no end: is this "
                "a text file, to be answered line by line?"
            )
            break
        while len(lines) >= CHUNK or (lines and not _would_not_block(source)):
            yield [_decode(line, encoding) for line in lines[:CHUNK]]
            lines = lines[CHUNK:]
    lines += [b"".join(rest)] if any(rest) else []
    for i in range(0, len(lines), CHUNK):
        yield [_decode(line, encoding) for line in lines[i : i + CHUNK]]
    if problem:
        raise problem


def _blocks(source: io.BufferedIOBase, encoding: str, name: str) -> Iterator[bytes]:
    """Yield a source's unpacked bytes, in an encoding whose newline is one byte."""
    decoder = None if is_by_line(encoding) else codecs.getincrementaldecoder(encoding)()
    stream, began = source, False
    try:
        if _peek(source).startswith(GZIP):
            stream = cast(io.BufferedIOBase, gzip.GzipFile(fileobj=cast(Any, source)))
        while data := stream.read1(1 << 16):
            if not began and encoding == UTF8:
                _refuse_wide(data, name)
                data = data.removeprefix(BOM)
            if decoder:
                text = decoder.decode(data)
                text = text if began else text.removeprefix("\ufeff")
                data = text.encode(UTF8, "surrogatepass")
            began = began or bool(data)
            yield data
        if decoder:
            decoder.decode(b"", final=True)
    except UnicodeError as error:
        raise UserError(
            f"{name} is not text in {encoding} ({error}): name its encoding with "
            "--encoding"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{name} cannot be read: {reason}") from None


def is_by_line(encoding: str) -> bool:
    """Return whether a newline is one byte, as in UTF-8, so that lines are decoded."""
    return "\n".encode(encoding) == b"\n"


def _decode(line: bytes, encoding: str) -> str:
    kind = encoding if is_by_line(encoding) else UTF8
    try:
        return line.removesuffix(b"\r").decode(kind, "surrogateescape")
    except UnicodeDecodeError:  # the codec cannot mark what it cannot read
        return line.decode(UTF8, "surrogateescape") + "\udcff"


def _refuse_wide(data: bytes, name: str) -> None:
    """Refuse a beginning in UTF-16 or UTF-32, whose every other byte is 0."""
    kind = next((k for mark, k in MARKS.items() if data.startswith(mark)), "")
    halves = data[::2], data[1::2]
    zeros = [half.count(0) for half in halves]
    many, few = 0.5 * len(halves[1]), 0.1 * len(halves[1])
    if not kind and len(data) >= PROBED and max(zeros) > many and min(zeros) < few:
        kind = "utf-16-le" if zeros[1] > zeros[0] else "utf-16-be"
    if kind:
        raise UserError(
            f"{name} is text in {kind}, not UTF-8: name it with --encoding={kind}, or "
            f"convert it, such as by iconv -f {kind} -t utf-8"
        )


def _peek(source: Any) -> bytes:
    """Return the first bytes of a source without taking them, if it can do so."""
    return source.peek(2)[:2] if hasattr(source, "peek") else b""


def _would_not_block(source: io.BufferedIOBase) -> bool:
    """Return whether a read would return at once, as it always does for a file."""
    try:
        return bool(select.select([source], [], [], 0)[0])
    except (OSError, ValueError):  # no file descriptor: a buffer in memory
        return True


class HeldLines(Sequence[str]):
    """The lines of a pipe, which can be read once, or of another encoding than UTF-8.

    They are held in memory. It has the interface of `Lines`.
    """

    def __init__(self, path: str, encoding: str = UTF8):
        """Read all lines at once; refuse more than `HELD` characters."""
        self.path, self.notes = path, ()
        self._lines: list[str] = []
        size = 0
        with refuse_unreadable(path), open(path, "rb") as file:
            for chunk in read_chunks(cast(Any, file), encoding, path):
                self._lines += chunk
                size += sum(map(len, chunk))
                if size > HELD:
                    raise UserError(
                        f"{path} has more than {HELD:,} characters, too many to be "
                        "held in memory: write them to a file in UTF-8"
                    )
        if not self._lines:
            raise UserError(f"{path} is empty: there is nothing to read")
        digest = hashlib.sha256()
        for i, line in enumerate(self._lines):
            try:
                digest.update(line.encode() + b"\n")
            except UnicodeEncodeError as error:
                raise UserError(
                    f"{self.where(i)}: character {error.start + 1} is not text in "
                    f"{encoding}: convert the file, or name its encoding (--encoding)"
                ) from None
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: Any) -> Any:
        return self._lines[index]

    def where(self, index: int) -> str:
        """Name a line: "corpus.de, line 7"."""
        return f"{self.path}, line {index + 1}"


def open_lines(path: str, encoding: str = UTF8) -> Lines | HeldLines:
    """Open the lines of a file; those of a pipe, or in another encoding, are held."""
    with refuse_unreadable(path):
        regular = stat.S_ISREG(os.stat(path).st_mode)
    return Lines(path) if regular and encoding == UTF8 else HeldLines(path, encoding)
