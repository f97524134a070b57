"""The cache on disk: each entry is built once, by any process."""

import fcntl
import logging
import os
import pwd
import shutil
import threading

import pytest

from transformer_jax.base.errors import UserError
from transformer_jax.data import cache, store
from transformer_jax.data.reading import windows
from transformer_jax.data.reading.records import Generated
from transformer_jax.data.text import text
from transformer_jax.runs import environment


def test_a_process_that_waits_for_another_says_so_and_builds_nothing(tmp_path, caplog):
    place = tmp_path / "entry"
    waits = threading.Event()

    class Tell(logging.Handler):
        def emit(self, record):
            waits.set()

    cache.logger.addHandler(tell := Tell())
    try:
        with (tmp_path / ".entry.lock").open("a") as lock, caplog.at_level("INFO"):
            fcntl.flock(lock, fcntl.LOCK_EX)  # as another process does
            built = []
            waiter = threading.Thread(
                target=cache.build_once, args=(place, built.append)
            )
            waiter.start()
            assert waits.wait(60)
            place.mkdir()
            cache.seal(place)
            fcntl.flock(lock, fcntl.LOCK_UN)
            waiter.join(60)
    finally:
        cache.logger.removeHandler(tell)
    assert "waiting    another process is building the same data" in caplog.messages
    assert place.is_dir() and not built and not waiter.is_alive()


@pytest.fixture
def entry(tmp_path, monkeypatch):
    """A function that opens an entry as a new process does; it counts the builds."""

    def open_anew(content=""):
        monkeypatch.setattr(cache, "_sound", {})
        return cache.build_once(tmp_path / "entry", make, content)

    def make(folder):
        (folder / "a").write_bytes(b"0123456789")
        (folder / "b").write_bytes(b"")
        open_anew.built += 1

    open_anew.built = 0
    open_anew()
    return open_anew


def truncate(place):
    (place / "a").write_bytes(b"01234")


def zero(place):
    (place / "a").write_bytes(bytes(10))


def flip_a_bit(place):
    (place / "a").write_bytes(b"0123456788")


def remove(place):
    (place / "a").unlink()


def put_a_link_there(place):
    place.rename(place.parent / "moved")
    place.symlink_to("moved")


def put_a_file_there(place):
    shutil.rmtree(place)
    place.write_text("x")


def spoil_the_seal(place):
    (place / cache.SEAL).write_text("[")


def come_from_an_earlier_version(place):
    (place / cache.SEAL).unlink()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (truncate, "a has 5 bytes, not 10"),
        (zero, "a does not hold the bytes"),
        (flip_a_bit, "a does not hold the bytes"),
        (remove, "a is missing"),
        (spoil_the_seal, "cannot be read"),
        (come_from_an_earlier_version, "an earlier version made it"),
        (put_a_link_there, "it is a link"),
        (put_a_file_there, "it is a link, a file"),
    ],
)
def test_a_damaged_entry_is_rebuilt_with_a_note(entry, tmp_path, caplog, harm, said):
    harm(tmp_path / "entry")
    assert (entry() / "a").read_bytes() == b"0123456789"
    assert entry.built == 2
    (note,) = caplog.messages
    assert said in note
    assert note.startswith(f"note       {tmp_path / 'entry'} is rebuilt: ")


def test_a_sound_entry_is_opened_silently(entry, caplog):
    entry()
    assert entry.built == 1 and not caplog.messages


def test_an_entry_is_checked_once_per_process(entry, monkeypatch):
    place = entry()
    monkeypatch.setattr(cache, "_checksum", lambda *block: pytest.fail("read again"))
    assert cache.build_once(place, None) == place


def test_an_entry_with_other_content_is_rebuilt(entry, caplog):
    entry("new generator")
    entry("new generator")
    assert entry.built == 2
    assert "its generator has changed" in caplog.text


def test_a_large_entry_is_checked_by_all_sizes_and_some_blocks(entry, monkeypatch):
    monkeypatch.setattr(cache, "BLOCK", 1)
    monkeypatch.setattr(cache, "CHECKED", 3)
    entry("in blocks of one byte")
    read, checksum = [], cache._checksum

    def count(path, block):
        read.append(block)
        return checksum(path, block)

    monkeypatch.setattr(cache, "_checksum", count)
    entry("in blocks of one byte")
    assert len(set(read)) == 3


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A text of two lines, and a cache of which nothing exists yet."""
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "corpus"
    path.write_text("one\ntwo\n")
    return path


def refused(path):
    with pytest.raises(UserError) as caught:
        text.Lines(path)
    (problem,) = caught.value.problems
    assert "\n" not in problem
    return problem


@pytest.mark.parametrize("level", ["cache", "cache/text"])
def test_a_cache_that_others_can_write_is_refused(corpus, tmp_path, level):
    assert len(text.Lines(corpus)) == 2
    (tmp_path / level).chmod(0o770)
    assert refused(corpus) == (
        f"other users can write to the cache {tmp_path / level}, and so change what "
        f"this one reads: remove it; or, if nobody did, chmod -R go-w {tmp_path}/cache"
    )


def test_a_cache_of_another_user_is_refused(corpus, tmp_path, monkeypatch, caplog):
    text.Lines(corpus)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    said = f"the cache {tmp_path}/cache belongs to another user: set TRANSFORMER_JAX"
    assert refused(corpus).startswith(said)
    environment.use_compile_cache()  # what was compiled is executed
    assert f"compiled programs are not kept: {said}" in caplog.text


def test_what_the_cache_keeps_is_for_its_user_alone(corpus, tmp_path):
    before = os.umask(0)
    try:
        text.Lines(corpus)
        environment.use_compile_cache()
    finally:
        os.umask(before)
    folders = [p for p in (tmp_path / "cache").rglob("*") if p.is_dir()]
    assert len(folders) == 5
    for place in [tmp_path / "cache", *folders]:
        assert place.stat().st_mode & 0o077 == 0, place


def test_a_cache_that_is_no_folder_is_one_line(corpus, tmp_path, monkeypatch, caplog):
    (tmp_path / "cache").write_text("x")
    said = f"{tmp_path}/cache cannot be the cache: it is a file: set TRANSFORMER_JAX"
    assert refused(corpus).startswith(said)
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(tmp_path / "cache" / "below"))
    assert "below cannot be the cache: Not a directory: set" in refused(corpus)
    environment.use_compile_cache()
    assert "compiled programs are not kept: " in caplog.text


def test_a_user_without_a_home_directory_is_told_what_to_set(corpus, monkeypatch):
    monkeypatch.delenv("TRANSFORMER_JAX_CACHE")

    def no_entry(number):
        raise KeyError(number)

    for home in ("", "relative"):
        monkeypatch.setenv("HOME", home)
        monkeypatch.setattr(pwd, "getpwuid", no_entry)
        assert refused(corpus) == (
            "this user has no home directory for the cache: set TRANSFORMER_JAX_CACHE "
            "to a folder of your own"
        )


def test_the_home_directory_is_that_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", "~/kept")
    assert cache.folder() == tmp_path / "kept"
    monkeypatch.delenv("TRANSFORMER_JAX_CACHE")
    assert cache.folder() == tmp_path / ".cache" / "transformer_jax"
    own = pwd.getpwuid(os.geteuid()).pw_dir
    monkeypatch.setenv("HOME", "")
    assert cache.folder() == cache.pathlib.Path(own, ".cache", "transformer_jax")


def fill_index(corpus, folder):
    (folder / "starts").symlink_to("/dev/full")
    text._index(str(corpus), folder)


def fill_windows(corpus, folder):
    (folder / windows.SPANS).symlink_to("/dev/full")
    lines = Generated(lambda: [{"text": line} for line in text.Lines(corpus)], "lines")
    windows.Windows(lines, 2)._write_spans(folder)


def fill_columns(corpus, folder):
    (folder / "a.values").symlink_to("/dev/full")
    with store.contextlib.ExitStack() as files:
        writer = store._Writer(files, folder, "a", store.Column("int64"))
        writer.add([[1], [2, 3]])


@pytest.mark.parametrize("fill", [fill_index, fill_windows, fill_columns])
def test_a_full_disk_is_one_line(corpus, tmp_path, fill):
    with pytest.raises(UserError) as caught:
        cache.build_once(tmp_path / "entry", lambda folder: fill(corpus, folder))
    assert str(caught.value) == (
        f"{tmp_path}/entry cannot be written: No space left on device: make room, or "
        "set TRANSFORMER_JAX_CACHE to a folder of your own"
    )


def test_a_file_of_equal_size_and_time_is_read_anew(corpus, tmp_path):
    before, digest = text.Lines(corpus), cache.digest([corpus])
    status = corpus.stat()
    other = tmp_path / "other"
    other.write_text("eins 2\n\n")
    os.truncate(other, status.st_size)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(corpus)
    assert corpus.stat().st_mtime_ns == status.st_mtime_ns
    after = text.Lines(corpus)
    assert list(after) == ["eins 2", ""] and after.fingerprint != before.fingerprint
    assert cache.digest([corpus]) != digest
    with pytest.raises(UserError, match="has changed while being read"):
        list(before)


def test_the_oldest_entries_make_room(tmp_path):
    for i in range(6):
        (tmp_path / f"e{i}").mkdir()
        os.utime(tmp_path / f"e{i}", (i, i))
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "file").touch()
    cache.remove_oldest(tmp_path, 4)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".hidden", "e3", "e4", "e5", "file"]
