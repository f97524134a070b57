"""Things made once on a host and found again: text indexes, tokenizers, stores.

What is made appears under its name whole or not at all: it is built under a temporary
name and renamed, while a lock makes other processes of the host wait instead of doing
the same work. A lock dies with its process. The cache may be deleted at any time.
"""

import contextlib
import fcntl
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator


def folder() -> pathlib.Path:
    given = os.environ.get("TRANSFORMER_JAX_CACHE")
    return pathlib.Path(given or pathlib.Path.home() / ".cache" / "transformer_jax")


def build_once(
    place: pathlib.Path, make: Callable[[pathlib.Path], None]
) -> pathlib.Path:
    """The folder `place`, which `make` fills unless it was made before."""
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with _locked(place.with_name(f".{place.name}.lock")):
        if place.is_dir():  # another process made it while this one waited
            return place
        _clear_debris(place)
        temporary = pathlib.Path(
            tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent)
        )
        try:
            make(temporary)
            os.rename(temporary, place)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return place


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting    another process prepares the same data", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _clear_debris(place: pathlib.Path) -> None:
    """What a killed process left of the same work; the lock says that nobody is at it.

    A lock file stays: if it were removed, two processes could lock two files.
    """
    for old in place.parent.glob(f".{place.name}.*"):
        if old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
