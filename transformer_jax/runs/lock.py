"""Lock a run directory against a second training; the lock dies with its process."""

import contextlib
import os
import pathlib
import socket
from collections.abc import Iterator

import jax

from transformer_jax import files, hosts
from transformer_jax.errors import UserError

FILE = ".lock"  # stays: if it were removed, two processes could lock two files


@contextlib.contextmanager
def alone(folder: pathlib.Path) -> Iterator[None]:
    """Hold a run's lock in process 0; refuse all processes of a second training."""
    with contextlib.ExitStack() as stack:
        trained = ""
        if jax.process_index() == 0:
            try:
                _hold(folder / FILE, stack)
            except BlockingIOError:
                holder = _read_holder(folder / FILE)
                trained = f"{folder} is being trained by {holder}"
            except OSError:  # a file system that knows no locks
                pass
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


def _read_holder(path: pathlib.Path) -> str:
    try:
        found = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        found = ""
    return found.strip() or "another process"
