"""Turn SIGTERM into a wish to stop, which the training loop reads after each step.

In a run of several processes the runtime makes all of them agree on the step after
which they save. A thread reads the signal too, because the loop may hang: SIGTERM
always ends a process.
"""

import os
import signal
import threading

import jax
from jax.experimental import multihost_utils

from transformer_jax import hosts


class Preemption:
    """Notice SIGTERM, and in a run of several processes everyone's SIGTERM."""

    def __init__(self, patience: float = 0.0):
        """End the process if it has not saved after `patience` seconds; 0: wait."""
        self._patience = patience

    def __enter__(self) -> "Preemption":
        self._asked = False
        self._alone = jax.process_count() == 1
        self._over = threading.Event()
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._old = signal.signal(signal.SIGTERM, self._notice)
        # Python's handlers run in the main thread, but not while that waits for a step.
        self._old_pipe = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        signal.set_wakeup_fd(self._old_pipe)
        signal.signal(signal.SIGTERM, self._old)
        self._over.set()
        os.close(self._pipe[1])
        self._thread.join()
        os.close(self._pipe[0])

    def _notice(self, *_) -> None:
        self._asked = True

    def _listen(self) -> None:
        """Wait for SIGTERM, tell the runtime of it, and see that the process ends."""
        while signal.SIGTERM not in (numbers := os.read(self._pipe[0], 64)):
            if not numbers:  # closed
                return
        hosts.pass_on_sigterm()
        if not self._over.wait(self._patience or None):
            hosts.end_at_once(
                hosts.RESTART,
                f"error: SIGTERM came {self._patience:.0f} s ago, and the state is not "
                "saved yet (timeout.preemption). The run continues from its last "
                "checkpoint when the same command is started again",
            )

    def requested(self, step: int) -> bool:
        """Return whether to save and stop after this step; all processes agree."""
        if self._alone:
            return self._asked
        return multihost_utils.reached_preemption_sync_point(step)
