"""Read word vectors from a text file of GloVe, word2vec or fastText, plain or .gz.

    2000000 300         word2vec and fastText: number of words, numbers per word
    word 0.1 -0.2 …     one line per word

The file is streamed, and only the requested vectors are kept; in other lines only the
fields are counted.
"""

import dataclasses
import itertools
from collections.abc import Container, Iterator

import numpy as np

from transformer_jax.base.errors import UserError
from transformer_jax.base.schema import option
from transformer_jax.data.text.text import open_binary

LARGEST = 1 << 16  # numbers per vector
LONGEST = 1 << 21  # bytes per line


@dataclasses.dataclass(frozen=True)
class VectorOptions:
    """Start from given word vectors: options of `config.model`, for any model."""

    word_vectors: str = option("", "A text file of word vectors to start from.")
    train_word_vectors: bool = option(
        True, "Train them further; False freezes the embeddings."
    )


def dimension(path: str) -> int:
    """Return the dimension of the vectors."""
    return _read_header(path)[1]


def read(
    path: str, words: Container[str] | None = None, most: int = 0
) -> dict[str, np.ndarray]:
    """Read the vectors of those `words` that the file has; the first copy counts.

    Without `words`, read all vectors, or only the first `most`.
    """
    expected, size = _read_header(path)
    header = expected is not None
    vectors: dict[str, np.ndarray] = {}
    number = 0
    for number, line in _lines(path):
        if header and number == 1:
            continue
        name = _word(path, number, line, size)
        if (words is None or name in words) and name not in vectors:
            vectors[name] = _vector(path, number, line, size)
            if len(vectors) == most:
                return vectors
    if header and number - 1 != expected:
        raise UserError(
            f"{path} has {number - 1:,} vectors, but its first line promises "
            f"{expected:,}: it was cut short"
        )
    return vectors


def _read_header(path: str) -> tuple[int | None, int]:
    """Read the first line; return (number of vectors or None, dimension)."""
    _, first = next(_lines(path), (0, b""))
    fields = first.split(b" ")
    if len(fields) == 2 and all(f.isdigit() and len(f) < 16 for f in fields):
        count, size = map(int, fields)
        if size > LARGEST:
            raise UserError(
                f"{path}, line 1: {size:,} numbers per vector, more than {LARGEST:,}: "
                "is this a file of word vectors?"
            )
        if size:
            return count, size
    if len(fields) < 2:
        raise UserError(
            f"{path}, line 1: expected a word and its numbers, separated by spaces"
        )
    return None, len(fields) - 1


def _word(path: str, number: int, line: bytes, size: int) -> str:
    fields = line.count(b" ")
    word = line.partition(b" ")[0]
    if fields > size:  # a few of GloVe's words have spaces inside
        word = line.rsplit(b" ", size)[0]
    if fields < size or not word or (fields > size and _are_finite(word.split()[-1:])):
        raise UserError(
            f"{path}, line {number}: {fields} numbers after a word, not {size}"
        )
    return word.decode("utf-8", "replace")


def _vector(path: str, number: int, line: bytes, size: int) -> np.ndarray:
    fields = line.rsplit(b" ", size)[1:]
    if not _are_finite(fields):
        raise UserError(f"{path}, line {number}: a field is not a number")
    return np.array(fields).astype(np.float32)


def _are_finite(fields: list[bytes]) -> bool:
    try:
        return bool(np.isfinite(np.array(fields).astype(np.float32)).all())
    except ValueError:
        return False


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, line) without its newline and trailing spaces."""
    with open_binary(path) as file:
        for number in itertools.count(1):
            if not (line := file.readline(LONGEST + 1)):
                return
            if len(line) > LONGEST:
                raise UserError(
                    f"{path}, line {number} has more than {LONGEST:,} bytes: is this a "
                    "file of word vectors, with one word per line?"
                )
            yield number, line.rstrip(b" \r\n")
