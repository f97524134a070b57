"""Join the processes of a run for JAX, and end them together.

Pitfall: after `jax.distributed.initialize` the runtime catches every SIGTERM and, when
a peer is lost, aborts with pages of C++ output. Here SIGTERM ends a process unless
training handles it, and the last line of a process names the lost peer.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import jax

from transformer_jax.base.errors import UserError
from transformer_jax.hosts import agreement, ending
from transformer_jax.hosts.clusters import find_place
from transformer_jax.hosts.ending import RESTART

if TYPE_CHECKING:
    from transformer_jax.hosts.peers import Peers

HEARTBEAT = 30  # seconds without a heartbeat after which JAX considers a process lost
SHUTDOWN = 60  # seconds that a finished process waits for the others

_peers: "Peers | None" = None
_runtime_sigterm: Callable[[int], None] | None = None
_kept: list = []  # C callbacks, which must outlive their use


def connect(timeout: int = 300, say: Callable[[str], None] = print) -> None:
    """Join the other processes of this run, if the environment knows of any."""
    global _peers
    if _peers is not None:
        return
    place = find_place(timeout)
    if place is None:
        return
    from transformer_jax.hosts import peers

    try:
        found = peers.meet(place, timeout, say)
    except peers.Absent as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(RESTART)
    _keep_stdout()
    jax.distributed.initialize(
        place.address,
        place.count,
        place.index,
        local_device_ids=place.devices,
        cluster_detection_method="deactivate",  # it would use one GPU of several
        initialization_timeout=timeout,
        heartbeat_timeout_seconds=HEARTBEAT,
        shutdown_timeout_seconds=SHUTDOWN,
    )
    _peers = found
    _take_sigterm()
    _explain_aborts(found)
    # With Gloo, processes must reach the first synchronisation within 30 s of each
    # other, but not later ones: process 0 may take an hour to prepare the data.
    agreement.meet("connected")
    if place.index == 0:
        hosts = list(dict.fromkeys(found.hosts))
        shown = ", ".join(hosts[:8]) + ", …" * (len(hosts) > 8)
        say(
            f"cluster    {place.count} processes ({place.found_by}) on {len(hosts)} "
            f"host{'s' * (len(hosts) > 1)}: {shown}; process 0 at {place.address}"
        )


def name_of(index: int | None = None) -> str:
    """Name a process of this run, by default this one."""
    if _peers is None:
        return f"process {os.getpid()}"
    return _peers.name(_peers.index if index is None else index)


def end_at_once(code: int, line: str) -> None:
    """Write a last line, tell the other processes, and end this one."""
    if _peers is not None and code != RESTART:  # peers cannot learn anything from 75
        _peers.announce(code)
    ending.end_at_once(code, line)


@contextlib.contextmanager
def end_together() -> Iterator[None]:
    """Tell the other processes how the body ends, so that all end together.

    With JAX alone, a process that has failed would wait minutes at its exit for the
    others, which are waiting for it.
    """
    try:
        yield
    except BaseException as error:
        if _peers is None:
            raise
        if isinstance(error, Exception) and not isinstance(error, UserError):
            _wait_for_a_reason(_peers)
        code = _report(error)
        _peers.leave(code)
        os._exit(code)
    if _peers is not None:
        _peers.announce(0)


def pass_on_sigterm() -> None:
    """Pass a SIGTERM to the runtime, so that all processes agree where to stop."""
    if _runtime_sigterm is not None:
        _runtime_sigterm(signal.SIGTERM)


def _keep_stdout() -> None:
    """Reserve stdout for Python, because Gloo prints its connections there."""
    if sys.stdout is not sys.__stdout__:  # in a notebook
        return
    sys.stdout.flush()
    python, encoding = os.dup(1), sys.stdout.encoding
    os.dup2(2, 1)
    sys.stdout = os.fdopen(python, "w", buffering=1, encoding=encoding)


def _take_sigterm() -> None:
    """Let SIGTERM end this process again, and keep the runtime's own handler."""
    global _runtime_sigterm
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    handler = libc.signal(signal.SIGTERM, None)  # 0 is SIG_DFL
    if handler is not None and handler > 1:  # 1 is SIG_IGN
        _runtime_sigterm = ctypes.CFUNCTYPE(None, ctypes.c_int)(handler)


def _explain_aborts(peers: "Peers") -> None:
    """Print the reason when the runtime aborts because a process is silent."""

    def explain(_: int) -> None:
        if lost := peers.silent():
            peers.end_by_loss(lost, "is lost: stopped, stuck, or its host is gone")

    libc = ctypes.CDLL(None)
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(explain)
    _kept.append(handler)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal.restype = ctypes.c_void_p
    libc.signal(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))


def _wait_for_a_reason(peers: "Peers") -> None:
    """Wait a moment, because an error may be the first sign of a lost process."""
    time.sleep(2.0)
    if lost := peers.silent():
        peers.end_by_loss(lost, "is lost: stopped, stuck, or its host is gone")


def _report(error: BaseException) -> int:
    """Print an error as the command line does; return its exit code."""
    code = 1
    if isinstance(error, UserError):
        sys.stderr.writelines(f"error: {problem}\n" for problem in error.problems)
        code = 2
    elif isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
    elif isinstance(error, KeyboardInterrupt):
        code = 130
    else:
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    return code
