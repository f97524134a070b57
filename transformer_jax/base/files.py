"""Write files atomically, read untrusted JSON, and lock files."""

import fcntl
import itertools
import json
import os
import pathlib
import secrets
import shutil
import stat
from typing import IO, Any

from transformer_jax.base.errors import nearest

LARGEST = 1 << 26  # bytes; a larger JSON file is refused
PROPOSED = 1000  # entries of a folder among which a misspelt name is looked for


def write(path: pathlib.Path, text: str) -> None:
    """Write a file atomically: after a kill or power cut it is either old or new.

    The encoding is UTF-8 under any locale.
    """
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: pathlib.Path, content: bytes) -> None:
    """Write a file atomically; of several writers at a time, the last one wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # No two writers share a temporary file. `open` gives it the mode of the umask.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush(path.parent)


def read_object(path: Any) -> dict[str, Any]:
    """Read a JSON file that holds an object, or raise OSError or ValueError."""
    if isinstance(path, pathlib.Path):
        _check_plain(path)
    try:
        found = parse_json(path.read_bytes().decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it does not hold a JSON object")
    return found


def parse_json(text: str) -> Any:
    """Parse JSON; refuse an object that has a key twice, of which one would be lost."""
    return json.loads(text, object_pairs_hook=_make_object)


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"it has the key {twice!r} twice"[:200])
    return made


def _check_plain(path: pathlib.Path) -> None:
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):  # opening a FIFO would wait for a writer
        raise ValueError("it is not a regular file")
    if about.st_size > LARGEST:
        raise ValueError(f"it has {about.st_size:,} bytes")


def identify(path: str | os.PathLike[str]) -> list[Any]:
    """Return an identity of a file that changes whenever its content does.

    Size and modification time alone can be those of another file that took its place.
    The time of the last change of the inode cannot be set.
    """
    status = os.stat(path)
    times = status.st_mtime_ns, status.st_ctime_ns
    return [os.path.abspath(path), status.st_size, *times, status.st_ino]


def describe_missing(path: str | os.PathLike[str]) -> str:
    """Say why a path is no regular file: a folder, a pipe or nothing is there."""
    if os.path.isdir(path):
        return f"{path} is a folder: name the files in it"
    if os.path.exists(path):
        return f"{path} is no regular file: write what it yields to one first"
    folder, name = os.path.split(os.fspath(path))
    try:
        with os.scandir(folder or ".") as entries:
            names = [entry.name for entry in itertools.islice(entries, PROPOSED)]
        near = nearest(name, sorted(names))
    except (OSError, ValueError):
        near = ""
    return f"there is no file {path}{near and '.'}{near}"


def move_aside(path: pathlib.Path, folder: pathlib.Path, name: str) -> pathlib.Path:
    """Move a file or folder into another folder; number it if the name is taken."""
    folder.mkdir(parents=True, exist_ok=True)
    place, number = folder / name, 2
    while os.path.lexists(place):
        place, number = folder / f"{name}.{number}", number + 1
    shutil.move(path, place)  # the folder may be on another disk
    return place


def open_mode(path: pathlib.Path) -> None:
    """Give a file or folder the mode that the umask gives to new ones.

    Temporary files and some libraries' files are private to their user.
    """
    mask = os.umask(0)
    os.umask(mask)
    path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)


def flush(path: pathlib.Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(file: IO[Any], wait: bool = False) -> None:
    """Lock an open file until it is closed or its process ends.

    Raise `BlockingIOError` if another process holds the lock, unless `wait` is set.
    """
    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
