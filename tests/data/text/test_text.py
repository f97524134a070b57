"""Text files: read line by line from disk, with every fault reported by line."""

import gzip
import json
import os

import pytest

from transformer_jax.base import files
from transformer_jax.base.errors import UserError
from transformer_jax.data.reading.records import JsonTable
from transformer_jax.data.text import learning, text
from transformer_jax.data.text.text import Lines


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        (tmp_path / name).write_bytes(content)
        return str(tmp_path / name)

    return write


def test_a_missing_file_is_named_with_its_folder(tmp_path):
    (tmp_path / "train.de").write_text("eins\n")
    near = f"there is no file {tmp_path}/trian.de. Did you mean 'train.de'?"
    assert files.describe_missing(tmp_path / "trian.de") == near
    with pytest.raises(UserError, match=f"there is no file {tmp_path}/none.txt"):
        text.require_files("none.txt", str(tmp_path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_folder_and_a_pipe_are_named_as_what_they_are(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("", "is a folder: name the files"), ("pipe", "is no regular")):
        with pytest.raises(UserError, match=f"{tmp_path / name} {words}"):
            text.require_files(str(tmp_path / name))


def test_only_a_newline_ends_a_line_however_it_is_read(write):
    lines = Lines(write("t", "a\r\nb\u2028c\x0bd\x85e\n\nlást".encode()))
    expected = ["a", "b\u2028c\x0bd\x85e", "", "lást"]
    assert list(lines) == [lines[i] for i in range(len(lines))] == expected


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_the_last_line_needs_no_newline(write, end):
    lines = Lines(write("t", b"um\ndois" + end))
    assert list(lines) == [lines[0], lines[1]] == ["um", "dois"]


@pytest.mark.parametrize("block", [1, 3, 7, 1 << 24])
def test_blocks_of_any_size_find_the_same_lines(write, monkeypatch, block):
    monkeypatch.setattr(text, "BLOCK", block)
    content = "\ufeffé\r\n\nabcdefghijk\r\nç\n"
    lines = Lines(write(f"t{block}", content.encode()))
    assert list(lines) == ["é", "", "abcdefghijk", "ç"]
    assert [lines[i] for i in (3, 1, 0)] == ["ç", "", "é"]
    assert lines.notes[1].endswith(
        "2 lines, the first of them line 1, end in CR LF: the carriage return is left "
        "out"
    )


def test_gz_files_read_like_plain_ones_and_have_their_fingerprint(write):
    content = b"um\ndois\n"
    packed, plain = (
        Lines(write("t.gz", gzip.compress(content))),
        Lines(write("t", content)),
    )
    assert list(packed) == [packed[0], packed[1]] == ["um", "dois"]
    assert packed.fingerprint == plain.fingerprint


def test_a_byte_order_mark_is_dropped_with_a_note(write):
    lines = Lines(write("t", b"\xef\xbb\xbfum\ndois\n"))
    assert list(lines) == [lines[0], lines[1]] == ["um", "dois"]
    (note,) = lines.notes
    assert "t: line 1 begins with a byte order mark" in note


def test_carriage_returns_are_noted_with_their_first_line(write):
    (note,) = Lines(write("t", b"um\ndois\r\ntr\res\r\n")).notes
    assert "t: 2 lines, the first of them line 2, end in CR LF" in note


def test_clean_text_has_no_notes(write):
    assert Lines(write("t", b"um\ndo\ris\n")).notes == ()


def test_invalid_utf8_is_named_by_file_line_and_column(write, monkeypatch):
    path = write("bad", b"good\nb\xc3\xa9\xffd\n")
    for block in (2, 1 << 24):
        monkeypatch.setattr(text, "BLOCK", block)
        with pytest.raises(UserError, match="bad, line 2: byte 0xff at column 4 is"):
            Lines(path)


@pytest.mark.parametrize("name", ["t", "t.gz"])
def test_an_empty_file_is_refused(write, name):
    content = gzip.compress(b"") if name == "t.gz" else b""
    with pytest.raises(UserError, match=rf"{name} is empty"):
        Lines(write(name, content))


def test_a_damaged_gz_is_a_plain_error_and_leaves_nothing(write, tmp_path):
    path = write("t.gz", gzip.compress(b"text\n" * 100)[:-9])
    for _ in range(2):
        with pytest.raises(UserError, match="t.gz cannot be read"):
            Lines(path)


def test_a_missing_file_is_a_plain_error(tmp_path):
    with pytest.raises(UserError, match="nowhere cannot be read: No such file"):
        Lines(tmp_path / "nowhere")


def test_a_file_is_read_once_until_it_changes(write, monkeypatch):
    path = write("t", b"um\n")
    first = Lines(path)
    monkeypatch.setattr(text, "_blocks", lambda path: pytest.fail("read again"))
    assert Lines(path).fingerprint == first.fingerprint
    monkeypatch.undo()
    write("t", b"um\ndois\n")
    assert len(Lines(path)) == 2


def test_a_line_of_a_megabyte_is_a_line(write):
    lines = Lines(write("t", b"a\n" + b"x" * 1_000_000 + b"\nb\n"))
    assert [len(lines[i]) for i in range(3)] == [1, 1_000_000, 1]


def test_patterns_name_files_in_order_from_a_folder(write, tmp_path):
    for name in ("b.de", "a.de", "a.en"):
        write(name, b"x\n")
    names = [p.removeprefix(str(tmp_path)) for p in text.find_files("*.de", tmp_path)]
    assert names == ["/a.de", "/b.de"]
    assert text.find_files("none.de", str(tmp_path)) == []


def test_patterns_are_paired_by_what_the_star_matches(write, tmp_path):
    for name in ("news-10.de", "news-9.de", "news-9.english", "news-10.english"):
        write(name, b"x\n")
    pairs = text.match_files(["news-*.de", "news-*.english"], str(tmp_path))
    ends = [[p.rpartition("/")[2] for p in pair] for pair in pairs]
    assert ends == [["news-10.de", "news-10.english"], ["news-9.de", "news-9.english"]]


def test_an_unpaired_file_of_a_pattern_is_named(write, tmp_path):
    for name in ("1.de", "2.de", "1.en"):
        write(name, b"x\n")
    with pytest.raises(UserError, match=r"\*.en names 1: .*2.de has no counterpart"):
        text.match_files(["*.de", "*.en"], str(tmp_path))


def test_the_index_of_a_file_does_not_hold_its_text(write, tmp_path):
    """Constant memory: plain text stays in its file, and only line starts are kept."""
    lines = Lines(write("t", b"secret words\n" * 5))
    place = text.cache.folder() / "text"
    about = [json.loads(p.read_text()) for p in place.glob("*/about.json")]
    assert any(a["path"] == lines.path for a in about)
    (mine,) = [
        p.parent for p in place.glob("*/about.json")
        if json.loads(p.read_text())["path"] == lines.path
    ]  # fmt: skip
    names = sorted(f.name for f in mine.iterdir())
    assert names == ["about.json", "sealed.json", "starts"]


@pytest.mark.parametrize("name", ["t", "t.gz"])
def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    write, monkeypatch, name
):
    monkeypatch.setattr(text, "BLOCK", 64)
    monkeypatch.setattr(text, "LONGEST_LINE", 1000)
    content = b"a line\n" + b"x" * 1_000_000
    path = write(name, gzip.compress(content) if name == "t.gz" else content)
    message = rf"{name}, line 2 has more than 1,000 bytes, the limit for a line"
    with pytest.raises(UserError, match=message):
        Lines(path)
    short = b"x" * 1000 + b"\n" + b"y" * 1000
    assert [len(line) for line in Lines(write("short", short))] == [1000, 1000]


def test_a_file_that_is_edited_while_it_is_read_is_refused(write):
    path = write("t", b"um\ndois\n")
    lines = Lines(path)
    rows = iter(lines)
    assert (next(rows), lines[1]) == ("um", "dois")
    write("t", b"one\ntwo\nthree\n")
    with pytest.raises(UserError, match="t has changed while being read .8 bytes"):
        lines[1]
    with pytest.raises(UserError, match="t has changed while being read"):
        list(rows)


def test_a_file_that_is_replaced_is_read_as_it_was(write, tmp_path):
    path = write("t", b"um\ndois\n")
    lines = Lines(path)
    assert lines[0] == "um"
    write("other", b"one\ntwo\nthree\n")
    (tmp_path / "other").rename(path)
    assert lines[1] == "dois"


def test_a_file_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "UNPACKED", 1 << 20)
    monkeypatch.setattr(text, "BLOCK", 1 << 18)
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(b"a\n" * (1 << 20)))
    with pytest.raises(UserError, match="unpacks to more than 1,048,576 bytes, 200 ti"):
        text.Lines(bomb)
    honest = tmp_path / "honest.gz"
    honest.write_bytes(gzip.compress(b"a\n" * (1 << 18)))
    assert len(text.Lines(honest)) == 1 << 18


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"en": "a"}', "line 2 has no key 'de'"),
        ("{", "line 2 is not valid JSON"),
        ("[" * 100_000, "line 2 is JSON nested too deeply"),
        ('{"de": 3}', r"line 2: the source \('de', .*\) is 3 of type int"),
    ],
)
def test_a_faulty_line_is_named_while_a_tokenizer_is_learned(tmp_path, line, problem):
    file = tmp_path / "a.jsonl"
    file.write_text('{"de": "Die Katze schläft."}\n' + line + "\n", encoding="utf-8")
    table = JsonTable(str(file), {"source": "de"})
    with pytest.raises(UserError, match=problem) as caught:
        learning.train((record["source"] for record in table), "bpe", 300)
    assert "tokenizer" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_or_file_named_like_a_pattern_is_found(tmp_path):
    folder = tmp_path / "v[1]*"
    folder.mkdir()
    (tmp_path / "v1x").mkdir()
    for place in (folder, tmp_path / "v1x"):
        for name in ("a-1.de", "a-1.en", "[b].de", "[b].en"):
            (place / name).write_text("x")
    plain = [(str(folder / "a-1.de"), str(folder / "a-1.en"))]
    odd = [(str(folder / "[b].de"), str(folder / "[b].en"))]
    assert text.match_files(["a-1.de", "a-1.en"], str(folder)) == plain
    assert text.match_files(["a-*.de", "a-*.en"], str(folder)) == plain
    assert text.match_files(["[b].de", "[b].en"], str(folder)) == odd
    assert text.match_files(["*.de", "*.en"], str(folder)) == odd + plain
    assert text.find_files(f"{folder}/a-1.de") == [str(folder / "a-1.de")]
