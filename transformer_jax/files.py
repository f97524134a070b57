"""Write files atomically, read untrusted JSON, and lock files."""

import itertools
import json
import os
import pathlib
import shutil
import stat
import sys
from typing import IO, Any

from transformer_jax.errors import nearest

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LARGEST = 1 << 26  # bytes; a larger JSON file is refused
PROPOSED = 1000  # entries of a folder among which a misspelt name is looked for
LOCKED = 1 << 30  # the byte to lock on Windows, after the text, which stays readable


def write(path: pathlib.Path, text: str) -> None:
    """Write a file atomically: after a kill or power cut it is either old or new.

    The encoding is UTF-8 under any locale.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
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
        found = json.loads(path.read_bytes().decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it does not hold a JSON object")
    return found


def _check_plain(path: pathlib.Path) -> None:
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):  # opening a FIFO would wait for a writer
        raise ValueError("it is not a regular file")
    if about.st_size > LARGEST:
        raise ValueError(f"it has {about.st_size:,} bytes")


def describe_missing(path: str | os.PathLike[str]) -> str:
    """Say why a path cannot be read as a file, as a folder or a pipe is there."""
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


def flush(path: pathlib.Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    if sys.platform == "win32" and path.is_dir():  # Windows cannot flush a folder
        return
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(file: IO[Any], wait: bool = False) -> None:
    """Lock an open file until it is closed or its process ends.

    Raise `BlockingIOError` if another process holds the lock, unless `wait` is set.
    """
    if sys.platform != "win32":
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return
    file.seek(LOCKED)
    while True:
        try:
            return msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if not wait:
                raise BlockingIOError(error.errno, error.strerror) from None
