"""End this process, with an exit code that says why."""

import os
import sys
import threading

RESTART = 75  # the exit code that asks a launcher for the same command again
HUNG = 124  # the exit code of a process that was ended by its watchdog

_ending = threading.Lock()


def end_at_once(code: int, line: str) -> None:
    """Write a last line and end the process, even if other threads are blocked."""
    _ending.acquire()  # never released, so that only the first reason is shown
    sys.stdout.flush()
    os.write(2, f"{line}\n".encode())
    os._exit(code)
