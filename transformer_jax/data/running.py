"""Running text: the lines of a split joined, on disk, at random access by character.

The text is written once into the cache, as UTF-8, with the byte at which each block of
characters begins: memory stays flat whatever its size.
"""

import functools
import hashlib
import os
import pathlib
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from transformer_jax.data import cache

FORMAT = 1  # of the files
BLOCK = 1 << 16  # characters
HELD = 4  # blocks in memory


class RunningText:
    """The text of records {"text": line}: `len` and slices, as of a string."""

    def __init__(self, lines: Any, flat: bool = False):
        """Keep the ends of lines; flat: one space between two words, and no more."""
        name = f"{FORMAT}:{BLOCK}:{flat}:{lines.fingerprint}"
        place = cache.build_once(
            cache.folder() / "running" / hashlib.sha256(name.encode()).hexdigest()[:24],
            functools.partial(_write, lines, flat),
            lines.content,
        )
        self._places = np.load(place / "places.npy")
        self._length = int((place / "length").read_text(encoding="utf-8"))
        self._file = os.open(place / "text", os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self._block = functools.lru_cache(HELD)(self._read)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> str:
        begin, end, _ = part.indices(self._length)
        end = max(begin, end)
        first, last = begin // BLOCK, max(end - 1, begin) // BLOCK
        if first == last:
            text = self._block(first)
        else:
            text = "".join(map(self._block, range(first, last + 1)))
        return text[begin - first * BLOCK : end - first * BLOCK]

    def _read(self, block: int) -> str:
        if block >= len(self._places) - 1:
            return ""
        begin, end = (int(place) for place in self._places[block : block + 2])
        return os.pread(self._file, end - begin, begin).decode("utf-8", "surrogatepass")


def _write(lines: Any, flat: bool, place: pathlib.Path) -> None:
    """Write the text block by block, and where in the file each block begins."""
    places, length = [0], 0
    with (place / "text").open("wb") as file:
        for block in _blocks(_pieces(lines, flat)):
            length += len(block)
            places.append(places[-1] + file.write(_encode(block)))
    np.save(place / "places.npy", np.array(places))
    (place / "length").write_text(str(length), encoding="utf-8")


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _blocks(pieces: Iterator[str]) -> Iterator[str]:
    """Yield text in blocks of BLOCK characters; the last one may have fewer."""
    waiting, held = [], 0
    for piece in pieces:
        waiting.append(piece)
        held += len(piece)
        if held >= BLOCK:
            text = "".join(waiting)
            full = held - held % BLOCK
            for begin in range(0, full, BLOCK):
                yield text[begin : begin + BLOCK]
            waiting, held = [text[full:]], held - full
    if held:
        yield "".join(waiting)


def _pieces(lines: Any, flat: bool) -> Iterator[str]:
    if not flat:
        yield from (record["text"] + "\n" for record in lines)
        return
    space = ""
    for record in lines:
        if words := " ".join(record["text"].split()):
            yield space + words
            space = " "
