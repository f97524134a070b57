"""Turn a signal into a request to stop, which the training loop checks after each step.

SIGTERM comes from a cluster, SIGINT from Ctrl-C and SIGHUP from a closed terminal. In a
run of several processes the runtime makes all of them agree on the step after which
they save. A thread also reads the signals, because the loop may hang: SIGTERM always
ends a process, and so does a second Ctrl-C.
"""

import logging
import os
import select
import signal
import threading
import time

import jax

from transformer_jax import hosts

logger = logging.getLogger(__name__)

LOOK_EVERY = 16  # calls of `requested_meanwhile` per exchange between processes
INTERRUPTED = 130  # the exit code of a process ended by Ctrl-C
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Preempted(Exception):
    """Raised when training stops on request; the message says what was saved."""


class Preemption:
    """Notice a signal to stop, in a run of several processes that of any process."""

    def __init__(self, patience: float = 0.0):
        """End a process that has not saved after `patience` seconds; 0 means wait."""
        self._patience = patience

    def __enter__(self) -> "Preemption":
        """Install the signal handlers, and start the thread that watches them."""
        self._asked, self._looks = False, 0
        self._alone = jax.process_count() == 1
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        # Ignored signals stay ignored: under `nohup`, or in a script's background job.
        self._old = {
            number: signal.signal(number, self._notice)
            for number in SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        # Python's handlers run in the main thread, but not while it waits for a step.
        self._old_pipe = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        """Restore the earlier signal handlers, and end the thread."""
        signal.set_wakeup_fd(self._old_pipe)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        os.close(self._pipe[1])
        self._thread.join()
        os.close(self._pipe[0])

    def _notice(self, *_) -> None:
        self._asked = True

    def _listen(self) -> None:
        """Wait for a signal, pass it to the runtime, and make sure the process ends."""
        first, until = None, None
        while True:
            left = None if until is None else max(until - time.monotonic(), 0)
            if not select.select([self._pipe[0]], [], [], left)[0]:
                return self._end(first)
            if not (numbers := os.read(self._pipe[0], 64)):  # closed
                return
            for number in filter(self._old.__contains__, numbers):
                if first is not None and number == signal.SIGINT:
                    hosts.end_at_once(
                        INTERRUPTED,
                        "interrupted: nothing more is saved. The run continues from "
                        "its last checkpoint when the same command is started again",
                    )
                if first is None:
                    first = number
                    until = (
                        time.monotonic() + self._patience if self._patience else None
                    )
                    self._announce_stop(number)

    def _announce_stop(self, number: int) -> None:
        """Tell the runtime of the request to stop, and the user after Ctrl-C."""
        hosts.pass_on_sigterm()
        if number == signal.SIGINT:
            logger.warning(
                "stopping   after this step is saved; Ctrl-C again ends at once"
            )

    def _end(self, number: int | None) -> None:
        name = signal.Signals(number or signal.SIGTERM).name
        hosts.end_at_once(
            hosts.RESTART,
            f"error: {name} came {self._patience:.0f} s ago, but the state is not "
            "saved yet (timeout.preemption). The run continues from its last "
            "checkpoint when the same command is started again",
        )

    def requested(self, step: int) -> bool:
        """Return whether to save and stop after this step; all processes agree."""
        if self._alone:
            return self._asked
        return hosts.stops_at(step)

    def requested_meanwhile(self) -> bool:
        """Return whether to leave work between two steps, such as an evaluation.

        All processes call this equally often, and agree. Because this takes an exchange
        between them, they do so only at every LOOK_EVERY-th call.
        """
        if self._alone:
            return self._asked
        self._looks += 1
        wish = "stop" if self._asked else ""
        return self._looks % LOOK_EVERY == 0 and any(hosts.gather(wish))
