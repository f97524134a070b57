"""The cache on disk: each entry is built once, by any process."""

import fcntl
import logging
import threading

import pytest

from transformer_jax.data import cache


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
