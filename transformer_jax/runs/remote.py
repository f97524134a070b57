"""Keep a run in an object store: `--workdir gs://bucket/run`.

The small files of a run live in a mirror, a temporary folder of this process. They are
pulled when the run is opened, and pushed as complete files when they have changed.
Orbax writes checkpoints directly to the store and reads them from there.
"""

import contextlib
import json
import logging
import math
import os
import pathlib
import shutil
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import fsspec
import fsspec.config
import jax
from etils import epath

from transformer_jax import cli
from transformer_jax.base import files
from transformer_jax.base.errors import UserError

logger = logging.getLogger(__name__)

SCHEME = "gs://"  # Orbax writes to no other store
LARGE = {"checkpoints", "averaged", "preempted", "damaged"}  # never mirrored
LATE = {"tensorboard", "wandb", "profile"}  # pushed at the end, and never pulled
PAUSE = 5.0  # seconds between pushes that are not urgent
BEAT = 10.0  # seconds between two heartbeats of a lock's holder

# Otherwise gcsfs would cache listings from before Orbax or another host wrote there.
fsspec.config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)


def is_remote(path: Any) -> bool:
    """Return whether a path is the address of an object store."""
    return "://" in str(path)


def move_aside(path: Any, folder: Any, name: str) -> Any:
    """Move a file or folder like `files.move_aside`, also within an object store."""
    if not is_remote(path):
        return files.move_aside(path, folder, name)
    place, number = folder / name, 2
    while place.exists():
        place, number = folder / f"{name}.{number}", number + 1
    store, _ = fsspec.core.url_to_fs(str(path))
    store.mv(str(path), str(place), recursive=True)
    return place


class Remote:
    """A run in an object store, and its mirror on this machine.

    The mirror is deleted with this object.
    """

    def __init__(self, address: str):
        """Copy the run's small files from gs://bucket/run; refuse other stores."""
        if not address.startswith(SCHEME):
            raise UserError(
                f"{address}: a run directory on remote storage must be on Google Cloud "
                f"Storage ({SCHEME}bucket/run). Mount other stores as a folder (s3fs, "
                "rclone, …), or use a shared disk"
            )
        self.place = epath.Path(address)
        self.mirror = pathlib.Path(tempfile.mkdtemp(prefix="transformer_jax-"))
        weakref.finalize(self, shutil.rmtree, self.mirror, ignore_errors=True)
        self._states: dict[str, tuple[int, int]] = {}  # of the files when last synced
        self._pushed = -math.inf
        self.pull()

    def pull(self) -> None:
        """Copy the small files of the store into the mirror."""
        try:
            for source in _list_files(self.place, LARGE | LATE):
                name = str(source.relative_to(self.place))
                file = self.mirror / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(source.read_bytes())
                self._states[name] = _state(file)
        except ImportError:
            raise UserError(
                f"{self.place}: pip install 'transformer_jax[gcs]' to read and write "
                "Google Cloud Storage"
            ) from None
        except Exception as error:  # of the network, the bucket or the credentials
            why = str(error).strip().split("\n")[0][:200] or type(error).__name__
            raise UserError(f"{self.place} cannot be read: {why}") from None

    def is_due(self) -> bool:
        """Return whether the last push was some time ago, as a store is slow."""
        return time.monotonic() - self._pushed > PAUSE

    def push(self, everything: bool = False) -> None:
        """Copy changed files to the store, in the order of their times.

        Only process 0 does so. `everything` includes traces and TensorBoard's files.
        """
        if jax.process_index():
            return
        self._pushed = time.monotonic()
        changed = []
        for file in self.mirror.rglob("*"):
            name, late = str(file.relative_to(self.mirror)), LATE & set(file.parts)
            if file.name.startswith(".") or not file.is_file():
                continue
            if self._states.get(name) != _state(file) and (everything or not late):
                changed.append((_state(file), name, file))
        for state, name, file in sorted(changed):
            (self.place / name).write_bytes(file.read_bytes())
            self._states[name] = state


def _list_files(folder: epath.Path, but: set[str]) -> Iterator[epath.Path]:
    """List the files in a folder of a store recursively, except for some names."""
    try:
        found = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for path in found:
        if path.name in but or path.name.startswith(".") or path == folder:
            continue
        if path.is_dir():
            yield from _list_files(path, set())
        else:
            yield path


def _state(file: pathlib.Path) -> tuple[int, int]:
    """Return a file's modification time in ns and its size, to detect changes."""
    about = file.stat()
    return about.st_mtime_ns, about.st_size


@contextlib.contextmanager
def hold(path: epath.Path) -> Iterator[None]:
    """Hold a lock in a store, or raise `BlockingIOError` if its holder is alive.

    A store has no locks that end with their process. So the holder writes a heartbeat
    every few seconds, and a lock without one is taken over.
    """
    if (before := _read(path)) is not None and _beats(path, before):
        raise BlockingIOError
    holder = f"process {os.getpid()} on {socket.gethostname()}"
    nonce, ended = os.urandom(8).hex(), threading.Event()

    def beat(number: int) -> None:
        about = {"holder": holder, "nonce": nonce, "beat": number}
        path.write_text(json.dumps(about), encoding="utf-8")

    def go_on() -> None:
        number = 1
        while not ended.wait(BEAT):
            found = _read(path) or {"nonce": nonce}
            if found.get("nonce") != nonce:
                logger.error("lost       %s to %s", path.parent, found.get("holder"))
                os._exit(cli.PREEMPTED)  # or both would write the same checkpoints
            with contextlib.suppress(Exception):  # network errors may be temporary
                beat(number := number + 1)

    beat(0)
    time.sleep(BEAT / 5)
    if (_read(path) or {}).get("nonce") != nonce:  # another began at the same time
        raise BlockingIOError
    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(Exception):
            path.unlink(missing_ok=True)


def _beats(path: epath.Path, before: dict[str, Any]) -> bool:
    """Watch a lock for a while; return whether its holder is alive."""
    logger.warning("waiting    %s: is its training still alive?", path)
    until = time.monotonic() + 4 * BEAT
    while time.monotonic() < until:
        time.sleep(BEAT / 10)
        now = _read(path)
        if now is None:
            return False
        if now not in (before, {}):
            return True
    return False


def read_holder(path: epath.Path) -> str:
    """Return the holder of a lock, as recorded in it, or an empty string."""
    return str((_read(path) or {}).get("holder", ""))


def _read(path: epath.Path) -> dict[str, Any] | None:
    """Read a lock; None if it does not exist, {} if it cannot be read now."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except Exception:  # a network error, or a partly written text
        return {}
    return found if isinstance(found, dict) else {}
