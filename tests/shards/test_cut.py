"""A corpus is cut into shards of whole lines: each line in one of them, in order."""

import gzip
import os
import random

import fsspec
import pytest

from transformer_jax.base.errors import UserError
from transformer_jax.shards import cut
from transformer_jax.shards.cut import Corpus, Part, divide


@pytest.fixture(params=["disk", "memory"])
def write(request, tmp_path):
    """A function: writes files into a new folder, and returns its address."""
    made = []

    def write(contents):
        folder = f"{tmp_path}/corpus {len(made)}"
        if request.param == "memory":
            folder = f"memory:/{folder}"
        system, root = fsspec.core.url_to_fs(folder)
        made.append((system, root))
        for name, content in contents.items():
            system.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
            system.pipe_file(f"{root}/{name}", content)
        return folder

    yield write
    for system, root in made:
        if system.exists(root):
            system.rm(root, recursive=True)


@pytest.fixture
def folder(tmp_path):
    """A function: writes files into a folder on the disk."""

    def write(**contents):
        for name, content in contents.items():
            (tmp_path / f"{name}.txt").write_bytes(content)
        return str(tmp_path)

    return write


def parts_of(corpus, shards):
    return [part for parts in corpus.cut(shards) for part in parts]


def read(corpus, part):
    with corpus.open(part) as file:
        return file.read()


def lines_by_file(corpus, shards):
    """The lines that the parts of each file give, and the number of its parts."""
    found = {}
    for part in parts_of(corpus, shards):
        found.setdefault(part.file, []).append(read(corpus, part))
    return found


def random_text(dice):
    ends = [b"\n", b"\n", b"\r\n", b"\n\n"]
    lines = [
        dice.choice([b"", b"a", "é".encode() * 9, b"x" * dice.randrange(99)])
        + dice.choice(ends)
        for _ in range(dice.randrange(12))
    ]
    return b"".join(lines) + dice.choice([b"", b"no newline"])


@pytest.mark.parametrize("seed", range(40))
def test_every_line_is_in_one_shard_and_in_order(write, seed, monkeypatch):
    dice = random.Random(seed)
    monkeypatch.setattr(cut, "READ", dice.choice([1, 3, 64]))
    contents = {f"{i}": random_text(dice) for i in range(dice.randrange(1, 6))}
    contents["last"] = b"so that there is something"
    corpus = Corpus.find(write(contents))
    shards = dice.choice([1, 2, 3, 7, 100, 10**6])
    found = lines_by_file(corpus, shards)
    assert {name: b"".join(parts) for name, parts in found.items()} == {
        name: content for name, content in contents.items() if content
    }
    for parts in found.values():  # a part ends where a line does
        assert all(part.endswith(b"\n") for part in list(filter(None, parts))[:-1])
    files = [part.file for part in parts_of(corpus, shards)]
    assert files == sorted(files)


def test_a_line_is_in_the_shard_of_its_first_byte(folder):
    corpus = Corpus.find(folder(a=b"12345\n78\n"))
    first, second, third = (
        [read(corpus, part) for part in parts] for parts in corpus.cut(3)
    )
    assert (first, second, third) == ([b"12345\n"], [b""], [b"78\n"])


def test_a_line_longer_than_a_block_and_a_shard_is_whole(folder):
    long = b"x" * (3 * cut.READ) + b"\n"
    corpus = Corpus.find(folder(a=b"short\n" + long + b"last"))
    found = [read(corpus, part) for part in parts_of(corpus, 9)]
    assert [text for text in found if text] == [b"short\n" + long, b"last"]


def test_shards_have_about_equal_sizes_across_files():
    parts = divide([("a", 10), ("b", 0), ("c", 25), ("d", 5)], 4)
    assert parts == [
        [Part("a", 0, 10)],
        [Part("c", 0, 10)],
        [Part("c", 10, 20)],
        [Part("c", 20, 25), Part("d", 0, 5)],
    ]


def test_there_are_no_more_shards_than_bytes():
    assert divide([("a", 2), ("b", 1)], 50) == [
        [Part("a", 0, 1)], [Part("a", 1, 2)], [Part("b", 0, 1)]
    ]  # fmt: skip


def test_nothing_is_cut_into_nothing():
    assert divide([("a", 0)], 3) == []


def test_a_packed_file_is_never_cut_and_looked_at_once(write, monkeypatch):
    packed = gzip.compress(random.Random(0).randbytes(500))
    contents = {"a": b"a\n" * 300, "b.gz": packed, "c": b"c\n" * 300}
    corpus = Corpus.find(write(contents))
    looked = []
    is_packed = Corpus._is_packed
    monkeypatch.setattr(
        Corpus, "_is_packed", lambda s, name: looked.append(name) or is_packed(s, name)
    )
    parts = parts_of(corpus, 50)
    assert looked == ["a", "b.gz", "c"]
    assert [p for p in parts if p.file == "b.gz"] == [Part("b.gz", 0, len(packed))]
    assert len([p for p in parts if p.file == "a"]) > 9
    with corpus.open(Part("b.gz", 0, len(packed))) as file:
        assert file.peek(2)[:2] == cut.GZIP and file.read() == packed


def test_files_are_found_at_any_depth_sorted_and_without_hidden_ones(write):
    names = ["b/c/d", "b/a", "a b\n", "ä", ".hidden", "b/.git/config", "b/c/.tmp"]
    corpus = Corpus.find(write(dict.fromkeys(names, b"x")))
    assert [name for name, _ in corpus.files] == ["a b\n", "b/a", "b/c/d", "ä"]
    assert not corpus.single


def test_a_file_is_a_corpus_of_its_own(write):
    address = write({"a.txt": b"one\n", "b.txt": b"two\n"})
    corpus = Corpus.find(f"{address}/b.txt")
    assert corpus.single and [name for name, _ in corpus.files] == ["b.txt"]
    assert lines_by_file(corpus, 2) == {"b.txt": [b"two\n", b""]}


@pytest.mark.parametrize("address", ["memory://lone.txt", "{}.txt"])
def test_a_file_at_the_root_or_in_this_folder_is_found(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    address = address.format(tmp_path.name)
    system, path = fsspec.core.url_to_fs(address)
    system.pipe_file(path, b"one\n")
    try:
        assert lines_by_file(Corpus.find(address), 1)
    finally:
        system.rm(path)


def test_a_linked_file_is_read(folder, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "a.txt")
    assert lines_by_file(Corpus.find(folder(a=b"one\n")), 1)["link"] == [b"one\n"]


@pytest.mark.parametrize("kind", ["pipe", "folder", "nothing"])
def test_what_is_no_file_is_refused_before_it_is_opened(folder, tmp_path, kind):
    address, odd = folder(a=b"one\n"), tmp_path / "odd"
    if kind == "pipe":
        os.mkfifo(odd)
    else:
        odd.symlink_to(tmp_path if kind == "folder" else tmp_path / "absent")
    with pytest.raises(UserError, match="odd is no file that can be cut.*remove it"):
        Corpus.find(address)


def test_a_corpus_without_text_is_refused(write):
    with pytest.raises(UserError, match="holds no file: name a file, or a folder"):
        Corpus.find(write({}) + "/absent")
    with pytest.raises(UserError, match="is empty: there is nothing to read"):
        Corpus.find(write({"a": b"", "b": b""}))


def test_a_file_that_changes_after_it_was_cut_is_refused(write):
    address = write({"a": b"one\n"})
    corpus = Corpus.find(address)
    (part,) = parts_of(corpus, 1)
    system, root = corpus.storage.system, corpus.storage.root
    system.pipe_file(f"{root}/a", b"one\ntwo\n")
    with pytest.raises(UserError, match="a has changed since the corpus was cut"):
        corpus.open(part)


def test_an_output_within_the_corpus_is_refused(write, tmp_path):
    address = write({"a": b"one\n"})
    corpus = Corpus.find(address)
    for inside in (address, f"{address}/out/deep"):
        with pytest.raises(UserError, match="lies in .* all of whose files are read"):
            corpus.refuse_inside(inside)
    corpus.refuse_inside(f"{address} 2")
    corpus.refuse_inside("memory://elsewhere")
    Corpus.find(f"{address}/a").refuse_inside(f"{address}/out")


def test_an_output_within_the_corpus_is_refused_by_any_name(folder, tmp_path):
    address = folder(a=b"one\n")
    link = tmp_path.with_name(f"{tmp_path.name} link")
    link.symlink_to(tmp_path)
    with pytest.raises(UserError, match="name a folder outside of it"):
        Corpus.find(address).refuse_inside(f"{link}/out")
