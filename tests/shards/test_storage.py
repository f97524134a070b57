"""Files are written whole or not at all, on a disk and in a store of objects."""

import errno
import os
import pathlib

import fsspec
import pytest

from transformer_jax.base import files
from transformer_jax.base.errors import UserError
from transformer_jax.shards.storage import Storage


@pytest.fixture(params=["disk", "file", "memory"])
def storage(request, tmp_path):
    address = f"{tmp_path}/a folder"
    address = {"disk": address, "file": f"file://{address}"}.get(
        request.param, f"memory:/{address}"
    )
    yield Storage(f"{address}/")
    system, root = fsspec.core.url_to_fs(address)
    if system.exists(root):
        system.rm(root, recursive=True)


@pytest.fixture
def disk(tmp_path):
    return Storage(tmp_path / "folder")


def hidden(folder):
    return [path for path in pathlib.Path(folder.root).rglob(".*")]


def test_files_are_written_read_and_listed(storage):
    assert storage.read("x/ä b") is storage.size("x/ä b") is None
    assert storage.names() == storage.names(deep=True) == []
    for name in ("x/ä b", "c", ".hidden", "x/y/.z/d"):
        storage.write(name, b"old")
        storage.write(name, b"content")
    assert storage.read("x/ä b") == b"content" and storage.size("x/ä b") == 7
    assert storage.names() == ["c"]
    assert storage.names("x") == ["x/ä b"]
    assert storage.names(deep=True) == ["c", "x/ä b"]


def test_an_address_of_a_disk_is_a_disk(tmp_path):
    assert Storage(f"file://{tmp_path}").is_local
    strange = Storage(tmp_path / "a::b [1]*#?")
    strange.write("c", b"d")
    assert (tmp_path / "a::b [1]*#?" / "c").read_bytes() == b"d"
    assert strange.names() == ["c"]


def test_a_file_in_place_of_the_folder_holds_no_files(disk, tmp_path):
    (tmp_path / "folder").write_text("a file")
    assert disk.read("shards.json") is None


def test_versions_of_a_file_of_the_same_size_are_told_apart(storage):
    storage.write("a", b"one")
    first = storage.about("a")
    assert first == storage.about("a") and first["size"] == 3
    storage.write("a", b"two")
    if storage.is_local:  # whose clock may stand still for some milliseconds
        os.utime(storage.path("a"), (0, 0))
    assert storage.about("a") != first


def test_a_write_that_fails_leaves_what_was_there(disk, monkeypatch):
    disk.write("a", b"old")

    def fail(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        disk.write("a", b"new")
    assert disk.read("a") == b"old" and not hidden(disk)


def test_a_write_goes_on_when_another_process_clears_the_folder(disk, monkeypatch):
    replace = pathlib.Path.replace

    def clear_first(file, place):
        monkeypatch.undo()
        file.unlink()
        replace(file, place)

    monkeypatch.setattr(pathlib.Path, "replace", clear_first)
    disk.write("a", b"content")
    assert disk.read("a") == b"content"


def test_a_finished_file_is_moved_into_the_folder(storage, tmp_path):
    for content in (b"old", b"new"):
        (tmp_path / "made").write_bytes(content)
        storage.adopt(tmp_path / "made", "x/a")
        assert storage.read("x/a") == content
        assert not (tmp_path / "made").exists()


def test_a_file_on_the_same_disk_is_not_copied(disk, tmp_path):
    (tmp_path / "made").write_bytes(b"content")
    (tmp_path / "made").chmod(0o600)  # as by libraries that write temporary files
    number = (tmp_path / "made").stat().st_ino
    disk.adopt(tmp_path / "made", "a")
    status = os.stat(disk.path("a"))
    mask = os.umask(0)
    os.umask(mask)
    assert status.st_ino == number and status.st_mode & 0o777 == 0o666 & ~mask


@pytest.fixture
def refuse_moves(monkeypatch):
    """A function: lets files move with this error, unless they are temporary."""
    replace = pathlib.Path.replace

    def set_error(number):
        def refuse(file, place):
            if not file.name.startswith("."):
                raise OSError(number, os.strerror(number))
            return replace(file, place)

        monkeypatch.setattr(pathlib.Path, "replace", refuse)

    return set_error


@pytest.fixture
def other_disk(refuse_moves):
    refuse_moves(errno.EXDEV)


def test_a_file_of_another_disk_is_moved(disk, other_disk, tmp_path):
    (tmp_path / "made").write_bytes(b"content")
    disk.adopt(tmp_path / "made", "a")
    assert disk.read("a") == b"content"
    assert not (tmp_path / "made").exists() and not hidden(disk)


def test_a_move_that_fails_leaves_the_file_and_no_half(
    disk, other_disk, tmp_path, monkeypatch
):
    (tmp_path / "made").write_bytes(b"content")

    def flush(path):
        if path.name.startswith("."):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "flush", flush)
    with pytest.raises(OSError, match="Input/output"):
        disk.adopt(tmp_path / "made", "a")
    assert disk.read("a") is None and not hidden(disk)
    assert (tmp_path / "made").exists()


def test_other_errors_of_a_move_are_no_reason_to_copy(disk, refuse_moves, tmp_path):
    (tmp_path / "made").write_bytes(b"content")
    refuse_moves(errno.EACCES)
    with pytest.raises(OSError, match="Permission denied"):
        disk.adopt(tmp_path / "made", "a")
    assert disk.names() == []


def test_a_file_is_copied_to_this_machine(storage, tmp_path):
    storage.write("a", b"content")
    storage.fetch("a", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"content"
    with pytest.raises(FileExistsError):
        storage.fetch("a", tmp_path / "copy")


def test_an_address_that_cannot_be_opened_is_refused(monkeypatch):
    with pytest.raises(UserError, match="zz://a cannot be opened: .*: use a folder"):
        Storage("zz://a")

    def lack(address):
        raise ImportError("Install gcsfs to access Google Storage")

    monkeypatch.setattr(fsspec.core, "url_to_fs", lack)
    with pytest.raises(UserError, match="Install gcsfs .*install what its address"):
        Storage("gs://bucket/a")
