"""Turn SIGTERM into a wish to stop, which the training loop reads after each step.

In a run of several processes the runtime's own notifier takes the signal, so that all
of them agree on the step after which they save.
"""

import signal

import jax
from jax.experimental import multihost_utils


class Preemption:
    """Notice SIGTERM, and in a run of several processes everyone's SIGTERM."""

    def __enter__(self) -> "Preemption":
        self._asked = False
        self._alone = jax.process_count() == 1
        if self._alone:
            self._old = signal.signal(signal.SIGTERM, self._notice)
        return self

    def __exit__(self, *_) -> None:
        if self._alone:
            signal.signal(signal.SIGTERM, self._old)

    def _notice(self, *_) -> None:
        self._asked = True

    def requested(self, step: int) -> bool:
        """Return whether to save and stop after this step; all processes agree."""
        if self._alone:
            return self._asked
        return multihost_utils.reached_preemption_sync_point(step)
