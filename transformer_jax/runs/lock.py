"""Lock a run directory against a second training; the lock dies with its process."""

import contextlib
import fcntl
import os
import pathlib
import socket
from collections.abc import Iterator

import jax

from transformer_jax import hosts
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
                holder = (folder / FILE).read_text().strip() or "another process"
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
    file = stack.enter_context(path.open("a"))
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
