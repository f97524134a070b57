"""Running text: the joined lines of a split, on disk, with random access by character.

The text is written to the cache once, as UTF-8, with the byte offset of each block of
characters, so memory use does not grow with the text.
"""

import functools
import os
import pathlib
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from transformer_jax.data import cache

FORMAT = 1  # version of the files
BLOCK = 1 << 16  # characters
HELD = 4  # blocks kept in memory


class RunningText:
    """The text of records {"text": line}, with `len` and slices like a string."""

    def __init__(self, lines: Any, flat: bool = False):
        """Join the lines with newlines or, if `flat`, all words with single spaces."""
        name = f"{FORMAT}:{BLOCK}:{flat}:{lines.fingerprint}"
        write = functools.partial(_write, lines, flat)
        entry = cache.build_once(cache.place("running", name), write, lines.content)
        self._offsets = np.load(entry / "places.npy")
        self._length = int((entry / "length").read_text(encoding="utf-8"))
        self._file = os.open(entry / "text", os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self._block = functools.lru_cache(HELD)(self._read_block)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> str:
        """Return the characters of a slice; its step is ignored."""
        begin, end, _ = part.indices(self._length)
        end = max(begin, end)
        first, last = begin // BLOCK, max(end - 1, begin) // BLOCK
        if first == last:
            text = self._block(first)
        else:
            text = "".join(map(self._block, range(first, last + 1)))
        return text[begin - first * BLOCK : end - first * BLOCK]

    def _read_block(self, block: int) -> str:
        if block >= len(self._offsets) - 1:
            return ""
        begin, end = (int(offset) for offset in self._offsets[block : block + 2])
        return os.pread(self._file, end - begin, begin).decode("utf-8", "surrogatepass")


def _write(lines: Any, flat: bool, folder: pathlib.Path) -> None:
    """Write the text block by block, and the byte offset of each block."""
    offsets, length = [0], 0
    with (folder / "text").open("wb") as file:
        for block in _blocks(pieces(lines, flat)):
            length += len(block)
            offsets.append(offsets[-1] + file.write(_encode(block)))
    np.save(folder / "places.npy", np.array(offsets))
    (folder / "length").write_text(str(length), encoding="utf-8")


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


def pieces(lines: Any, flat: bool) -> Iterator[str]:
    """Yield the running text of records piece by piece."""
    if not flat:
        yield from (record["text"] + "\n" for record in lines)
        return
    space = ""
    for record in lines:
        if words := " ".join(record["text"].split()):
            yield space + words
            space = " "
