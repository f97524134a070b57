"""Lock a run directory against a second training; the lock dies with its process."""

import contextlib
import os
import pathlib
import socket
from collections.abc import Iterator
from typing import Any

import jax

from transformer_jax import hosts
from transformer_jax.base import files
from transformer_jax.base.errors import UserError
from transformer_jax.runs import remote

FILE = ".lock"  # never removed, otherwise two processes could lock two files


@contextlib.contextmanager
def alone(folder: Any) -> Iterator[None]:
    """Hold a run's lock in process 0; refuse all processes of a second training."""
    with contextlib.ExitStack() as stack:
        trained = ""
        if jax.process_index() == 0:
            try:
                if remote.is_remote(folder):
                    stack.enter_context(remote.hold(folder / FILE))
                else:
                    _hold(folder / FILE, stack)
            except BlockingIOError:
                holder = _read_holder(folder / FILE)
                trained = f"{folder} is being trained by {holder}"
            except OSError:  # a file system without locks
                if remote.is_remote(folder):
                    raise
        if hosts.broadcast_from_first(bool(trained)):
            raise UserError(
                f"{trained or f'{folder} is being trained by others'}: wait for it, "
                "stop it, or use another --workdir"
            )
        yield


def _hold(path: pathlib.Path, stack: contextlib.ExitStack) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = stack.enter_context(path.open("a", encoding="utf-8"))
    files.lock(file)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()


def _read_holder(path: Any) -> str:
    if remote.is_remote(path):
        return remote.read_holder(path) or "another process"
    try:
        found = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        found = ""
    return found.strip() or "another process"
