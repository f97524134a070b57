"""Sources: parallel files are read line by line, and every fault has its place."""

import gzip

import pytest

from transformer_jax import config
from transformer_jax.data import phrasebook
from transformer_jax.data.sources import Source, parallel_text, read_lines
from transformer_jax.errors import UserError


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        (tmp_path / name).write_bytes(content)
        return str(tmp_path / name)

    return write


def test_a_line_ends_at_a_newline_only(write):
    text = "a\r\nb\u2028c\x0bd\x85e\n\nlast".encode()
    assert read_lines(write("t", text)) == ["a", "b\u2028c\x0bd\x85e", "", "last"]


def test_gz_files_read_like_plain_ones(write):
    content = b"um\ndois\n"
    assert read_lines(write("t.gz", gzip.compress(content))) == ["um", "dois"]


def test_invalid_utf8_is_named_by_file_line_and_byte(write):
    path = write("bad", b"good\nb\xffd\n")
    with pytest.raises(UserError, match=r"bad, line 2: byte 0xff at column 2"):
        read_lines(path)


def test_a_damaged_gz_is_a_plain_error(write):
    path = write("t.gz", gzip.compress(b"text\n" * 100)[:-9])
    with pytest.raises(UserError, match="cannot be read"):
        read_lines(path)


def test_unequal_files_are_refused_with_both_counts(write):
    with pytest.raises(UserError, match=r"has 2 lines.*has 3"):
        parallel_text(write("a", b"1\n2\n"), write("b", b"1\n2\n3\n"))


def test_empty_files_are_refused(write):
    with pytest.raises(UserError, match="empty"):
        parallel_text(write("a", b""), write("b", b""))


def test_records_pair_line_by_line_and_their_fingerprint_is_their_content(write):
    first = parallel_text(write("a", b"um\ndois\n"), write("b", b"one\ntwo\n"))
    assert list(first) == [
        {"source": "um", "target": "one"},
        {"source": "dois", "target": "two"},
    ]
    same = parallel_text(write("c", b"um\ndois\n"), write("d", b"one\ntwo\n"))
    other = parallel_text(write("c", b"um\ndois\n"), write("d", b"one\nTwo\n"))
    assert first.fingerprint == same.fingerprint != other.fingerprint


def test_the_phrasebook_is_a_source_with_a_split_of_unseen_combinations():
    data = config.base().data
    with data.unlocked():
        data.test_size = 3
        data.train_size = 10**9
    source = Source(data)
    assert source.read("train").fingerprint  # known without generating a billion pairs
    assert source.splits == phrasebook.SPLITS
    assert len(source.read("test_combinations")) == 3
    with pytest.raises(UserError, match="test_combinations"):
        source.read("tests")
