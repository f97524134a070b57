"""Cut the files of a corpus into shards of whole lines, of about equal size in bytes.

    line i belongs to the shard in whose range [begin, end) its first byte lies

So the files need not be read to be cut, and a shard can be read alone. A gzip file
cannot be read from its middle: it is never cut.
"""

import dataclasses
import functools
import io
import os
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple

from transformer_jax.base.errors import UserError
from transformer_jax.shards.storage import Storage

GZIP = b"\x1f\x8b"
READ = 1 << 16  # bytes


class Part(NamedTuple):
    """The lines of a file that begin in [begin, end); all of a file that is packed."""

    file: str
    begin: int
    end: int


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The files of a corpus, in the order of their names."""

    storage: Storage
    files: tuple[tuple[str, dict[str, Any]], ...]  # (name, size and version)
    single: bool = False  # whether a file was named, and not a folder

    @classmethod
    def find(cls, address: str) -> "Corpus":
        """Find the files of a folder, at any depth, or a single file."""
        folder = Storage(address)
        single = folder.system.isfile(folder.root)
        if single:
            above, slash, name = folder.address.rpartition("/")
            folder, names = Storage(above + slash or "."), [name]
        else:
            names = folder.names(deep=True)
        if not names:
            raise UserError(
                f"{address} holds no file: name a file, or a folder with files"
            )
        for place in map(folder.path, names if folder.is_local else ()):
            if not os.path.isfile(place):  # a pipe would wait for a writer
                raise UserError(
                    f"{place} is no file that can be cut, and links to folders are "
                    "not followed: remove it from the corpus"
                )
        found = [(name, folder.about(name)) for name in names]
        if not any(about["size"] for _, about in found):
            raise UserError(f"{address} is empty: there is nothing to read")
        return cls(folder, tuple(found), single)

    def refuse_inside(self, output: str) -> None:
        """Refuse an output in the folder of the corpus, which would become input."""
        mine, other = self.storage, Storage(output)
        roots = [mine.root, other.root]
        if mine.is_local and other.is_local:
            roots = list(map(os.path.realpath, roots))
        above, below = (f"{root.rstrip('/')}/" for root in roots)
        same_system = type(mine.system) is type(other.system)
        if same_system and not self.single and below.startswith(above):
            raise UserError(
                f"--output={output} lies in {mine.address}, all of whose files are "
                "read: name a folder outside of it"
            )

    def cut(self, shards: int) -> list[list[Part]]:
        """Cut the corpus into shards; each holds parts of files, in order.

        There are fewer shards if the corpus has fewer bytes.
        """
        sizes = [(name, about["size"]) for name, about in self.files]
        return divide(sizes, shards, self._is_packed)

    @functools.cached_property
    def _about(self) -> dict[str, dict[str, Any]]:
        return dict(self.files)

    def _is_packed(self, name: str) -> bool:
        with self.storage.open(name) as file:
            return file.read(2) == GZIP

    def open(self, part: Part) -> io.BufferedReader:
        """Open a part like a file of its own, with the same lines."""
        about = self._about[part.file]
        if self.storage.about(part.file) != about:
            raise UserError(
                f"{self.storage.path(part.file)} has changed since the corpus was cut: "
                "restore it, or start with another --output"
            )
        file, size = self.storage.open(part.file), about["size"]
        if (part.begin, part.end) == (0, size):
            return io.BufferedReader(_Range(file, 0, size), READ)
        begin = _next_line(file, part.begin, size)
        end = _next_line(file, part.end, size)
        return io.BufferedReader(_Range(file, begin, end), READ)


def divide(
    sizes: Sequence[tuple[str, int]],
    shards: int,
    is_whole: Callable[[str], bool] = lambda name: False,
) -> list[list[Part]]:
    """Divide named pieces in order into shards of about equal size.

    Those that are whole are not cut: they belong to the shard of their beginning.
    """
    total = sum(size for _, size in sizes)
    edges = [total * i // shards for i in range(shards + 1)]
    cut: list[list[Part]] = [[] for _ in range(shards)]
    before, shard = 0, 0
    for name, size in sizes:
        begin, whole = 0, size > 0 and is_whole(name)
        while begin < size:
            while edges[shard + 1] <= before + begin:
                shard += 1
            end = size if whole else min(size, edges[shard + 1] - before)
            cut[shard].append(Part(name, begin, end))
            begin = end
        before += size
    return [parts for parts in cut if parts]


class _Range(io.RawIOBase):
    """The bytes [begin, end) of an open file."""

    def __init__(self, file: IO[bytes], begin: int, end: int):
        self._file, self._left = file, end - begin
        file.seek(begin)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), self._left))
        self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def _next_line(file: IO[bytes], place: int, size: int) -> int:
    """Return where the first line begins that does not begin before a place."""
    if place in (0, size):
        return place
    file.seek(place - 1)
    for block in _blocks(file):
        found = block.find(b"\n")
        if found >= 0:
            return place + found
        place += len(block)
    return size


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(READ):
        yield block
