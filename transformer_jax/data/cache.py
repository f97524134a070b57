"""A cache on the host's disk: text indexes, tokenizers and stores, each built once.

An entry is built under a temporary name and renamed, so it is never seen incomplete. A
lock makes other processes of the host wait instead of doing the same work; it ends with
its process. The cache may be deleted at any time.
"""

import contextlib
import fcntl
import logging
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)


def folder() -> pathlib.Path:
    """Return TRANSFORMER_JAX_CACHE, or a folder in the user's home."""
    given = os.environ.get("TRANSFORMER_JAX_CACHE")
    return pathlib.Path(given or pathlib.Path.home() / ".cache" / "transformer_jax")


def build_once(
    place: pathlib.Path, make: Callable[[pathlib.Path], None]
) -> pathlib.Path:
    """Return the folder `place`, after `make` has filled it unless it was there."""
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
            logger.info("waiting    another process builds the same data")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _clear_debris(place: pathlib.Path) -> None:
    """Remove what a killed process left of the same entry, while its lock is held.

    The lock file stays: if it were removed, two processes could lock two files.
    """
    for old in place.parent.glob(f".{place.name}.*"):
        if old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
