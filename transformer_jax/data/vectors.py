"""Read word vectors from a text file of GloVe, word2vec or fastText, plain or .gz.

    2000000 300         word2vec and fastText: how many words, how many numbers each
    word 0.1 -0.2 …     a line for each word

The file is read as a stream, and only the vectors that are asked for are kept; in other
lines the fields are counted.
"""

import dataclasses
import itertools
from collections.abc import Container, Iterator

import numpy as np

from transformer_jax.data.text import open_binary
from transformer_jax.errors import UserError
from transformer_jax.keys import key

LARGEST = 1 << 16  # numbers of a vector
LONGEST = 1 << 21  # bytes of a line


@dataclasses.dataclass(frozen=True)
class VectorKeys:
    """Begin with vectors of words: keys of `config.model`, whichever model it is."""

    word_vectors: str = key("", "A text file: its words' vectors to begin with.")
    train_word_vectors: bool = key(True, "False: the embeddings stay as they begin.")


def dimension(path: str) -> int:
    """Return how many numbers a vector has."""
    return _begin(path)[1]


def read(
    path: str, words: Container[str] | None = None, most: int = 0
) -> dict[str, np.ndarray]:
    """Read the vectors of those `words` that the file has; of two, keep the first.

    Without `words`, read all vectors, or the first `most` that the file has.
    """
    expected, size = _begin(path)
    header = expected is not None
    found: dict[str, np.ndarray] = {}
    number = 0
    for number, line in _lines(path):
        if header and number == 1:
            continue
        name = _word(path, number, line, size)
        if (words is None or name in words) and name not in found:
            found[name] = _vector(path, number, line, size)
            if len(found) == most:
                return found
    if header and number - 1 != expected:
        raise UserError(
            f"{path} has {number - 1:,} vectors, but its first line promises "
            f"{expected:,}: it was cut short"
        )
    return found


def _begin(path: str) -> tuple[int | None, int]:
    """Read the first line: return (number of vectors or None, numbers of a vector)."""
    _, first = next(_lines(path), (0, b""))
    fields = first.split(b" ")
    if len(fields) == 2 and all(f.isdigit() and len(f) < 16 for f in fields):
        count, size = map(int, fields)
        if size > LARGEST:
            raise UserError(
                f"{path}, line 1: {size:,} numbers a vector, more than {LARGEST:,}: is "
                "this a file of word vectors?"
            )
        if size:
            return count, size
    if len(fields) < 2:
        raise UserError(f"{path}, line 1: expected a word and its numbers, with spaces")
    return None, len(fields) - 1


def _word(path: str, number: int, line: bytes, size: int) -> str:
    fields = line.count(b" ")
    word = line.partition(b" ")[0]
    if fields > size:  # a few of GloVe's words have spaces inside
        word = line.rsplit(b" ", size)[0]
    if fields < size or not word or (fields > size and _is_number(word.split()[-1:])):
        raise UserError(
            f"{path}, line {number}: {fields} numbers behind a word, not {size}"
        )
    return word.decode("utf-8", "replace")


def _vector(path: str, number: int, line: bytes, size: int) -> np.ndarray:
    fields = line.rsplit(b" ", size)[1:]
    if not _is_number(fields):
        raise UserError(f"{path}, line {number}: a field is not a number")
    return np.array(fields).astype(np.float32)


def _is_number(fields: list[bytes]) -> bool:
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
                    "file of a word and its numbers a line?"
                )
            yield number, line.rstrip(b" \r\n")
