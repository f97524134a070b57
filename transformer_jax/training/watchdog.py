"""End a process that hangs in a step, a save, an evaluation or a compilation.

A step may wait for another host for ever, and no heartbeat notices, because both hosts
are alive. So a thread here watches the current phase and its time limit. When the time
is over it prints the stack of every thread and the name of the phase, and exits with
code 124. Time during which the process was stopped (Ctrl-Z) does not count.
"""

import contextlib
import dataclasses
import faulthandler
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from transformer_jax import hosts

SLOWER = 20  # a step may take this many times as long as the slowest before it
TICK = 10.0  # seconds between two looks at the clock
LATE = 5.0  # a look that is later by more seconds was held up: the process was stopped


@dataclasses.dataclass(eq=False)
class Phase:
    """A part of the work with a time limit."""

    name: str
    seconds: float  # the limit; 0 means none
    began: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def left(self) -> float | None:
        """The seconds left; None if there is no limit."""
        if not self.seconds:
            return None
        return self.began + self.seconds - time.monotonic()


class Watchdog:
    """Watch the work of one thread, phase by phase."""

    def __init__(self, end: Callable[[str], None] | None = None):
        """Call `end(line)` when a phase takes too long; by default exit."""
        self._end = end or _end_process
        self._changed = threading.Condition()
        self._phases: list[Phase] = []
        self._closed = False
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    @contextlib.contextmanager
    def phase(self, name: str, seconds: float) -> Iterator[Phase]:
        """Allow `seconds` for the body; 0 means no limit.

        The clock of an enclosing phase stops meanwhile.
        """
        phase = Phase(name, seconds)
        with self._changed:
            self._phases.append(phase)
            self._changed.notify()
        try:
            yield phase
        finally:
            with self._changed:
                self._phases.remove(phase)
                if self._phases:
                    self._phases[-1].began += time.monotonic() - phase.began
                self._changed.notify()

    def beat(self) -> None:
        """Restart the clock of the current phase, because its work makes progress."""
        with self._changed:
            if self._phases:
                self._phases[-1].began = time.monotonic()
                self._changed.notify()

    def steps(self, batches: Iterable[Any], seconds: float) -> Iterator[Any]:
        """Yield (step, batch), each in a phase that lasts until the next is requested.

        A step may take `seconds`, or SLOWER times as long as the slowest before it.
        """
        batches, slowest, number = iter(batches), 0.0, 0
        while True:
            limit = max(seconds, SLOWER * slowest) if seconds else 0.0
            name = f"the step after {number}" if number else "the first step"
            with self.phase(name, limit) as phase:
                try:
                    number, batch = next(batches)
                except StopIteration:
                    return
                phase.name = f"step {number}"
                yield number, batch
                slowest = max(slowest, time.monotonic() - phase.began)

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                phase = self._phases[-1] if self._phases else None
                left = phase.left if phase else None
                if phase and left is not None and left <= 0:
                    break
                self._wait(None if left is None else min(left, TICK))
            else:
                return
            name, seconds = phase.name, phase.seconds
        self._end(
            f"error: {name} did not end within {seconds:.0f} s on {hosts.name_of()}: "
            "it hangs. The stacks above show where; the run continues from its last "
            "checkpoint when the same command is started again"
        )

    def _wait(self, seconds: float | None) -> None:
        """Wait for a change; give all phases the time that the process was stopped."""
        began = time.monotonic()
        self._changed.wait(seconds)
        late = time.monotonic() - began - (seconds or 0.0)
        if seconds is not None and late > LATE:
            for phase in self._phases:
                phase.began += late


def _end_process(line: str) -> None:
    """Print every thread's stack and the line, and exit."""
    faulthandler.dump_traceback(file=2, all_threads=True)
    hosts.end_at_once(hosts.HUNG, line)
