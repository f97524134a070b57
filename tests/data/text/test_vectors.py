"""Word vectors: three file formats, the vectors that are kept, and faulty files."""

import gzip

import numpy as np
import pytest

from transformer_jax.base.errors import UserError
from transformer_jax.data.text import vectors

GLOVE = "the 0.5 -1.0 2e-1\n. . . 7 8 9\nthé 1 2 3 \nthe 4 4 4\n"


def write(folder, text, name="v.txt"):
    path = folder / name
    raw = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return str(path)


@pytest.mark.parametrize("name", ["v.txt", "v.txt.gz"])
@pytest.mark.parametrize("header", ["", "4 3\n"])
def test_the_words_asked_for_are_found_in_each_form(tmp_path, name, header):
    path = write(tmp_path, header + GLOVE, name)
    assert vectors.dimension(path) == 3
    found = vectors.read(path, {"the", "thé", ". . .", "absent"})
    assert sorted(found) == [". . .", "the", "thé"]  # a word may have spaces inside
    np.testing.assert_allclose(found["the"], [0.5, -1, 0.2])  # the first of two copies
    np.testing.assert_allclose(found["thé"], [1, 2, 3])
    assert found["the"].dtype == np.float32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a 1 2\nb 1\n", "v.txt, line 2: 1 numbers after a word, not 2"),
        ("a 1 2\nb 1 2 3\n", "line 2: 3 numbers after a word, not 2"),
        ("a 1 2\n\n", "line 2: 0 numbers"),
        ("a 1 2\nb 1 x\n", "line 2: a field is not a number"),
        ("a 1 2\nb 1 nan\n", "line 2: a field is not a number"),
        ("3 2\na 1 2\nb 1 2\n", "has 2 vectors, but its first line promises 3"),
        ("alone\n", "line 1: expected a word and its numbers"),
        ("", "line 1: expected a word and its numbers"),
    ],
)
def test_faults_are_reported_with_their_line(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        vectors.read(write(tmp_path, text), {"a", "b"})


def test_a_file_that_cannot_be_unpacked_is_reported(tmp_path):
    whole = gzip.compress(GLOVE.encode() * 999)
    path = tmp_path / "cut.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="cut.gz cannot be read"):
        vectors.read(str(path), {"a"})


def test_a_false_header_is_refused_at_once(tmp_path):
    with pytest.raises(UserError, match="line 1: 99,999,999 numbers per vector, more"):
        vectors.dimension(write(tmp_path, "2 99999999\na 1\n"))
    long = write(tmp_path, "a " + "1 " * (1 << 20) + "\n", "b.txt.gz")
    with pytest.raises(UserError, match="line 1 has more than 2,097,152 bytes"):
        vectors.read(long)
    digits = "9" * 5000  # more than Python turns into a number
    with pytest.raises(UserError):
        vectors.read(write(tmp_path, f"{digits} 3\na 1 2\n"))
