"""Trace some training steps with jax.profiler, to see where the time goes."""

import os
import pathlib
import re

import jax

from transformer_jax.base.errors import UserError


class Profile:
    """Trace the steps of a range "first:last" into RUN/profile; "" traces none."""

    def __init__(self, steps: str, workdir: str | os.PathLike):
        found = re.fullmatch(r"(\d+):(\d+)", steps or "0:0")
        self.first, self.last = map(int, found.groups()) if found else (1, 0)
        if steps and not 0 < self.first <= self.last:
            raise UserError(
                f"--profile={steps}: name the first and the last step, as in 10:20"
            )
        self.folder = pathlib.Path(workdir) / "profile"
        self._tracing = False

    def reach(self, step: int) -> None:
        """Start tracing if the step about to run is in the range.

        A resumed run may begin within it.
        """
        if not self._tracing and 0 < self.first <= step <= self.last:
            jax.profiler.start_trace(self.folder)
            self._tracing = True

    def ends_with(self, step: int) -> bool:
        """Return whether this is the last step traced."""
        return self._tracing and step >= self.last

    def close(self) -> pathlib.Path:
        """End the trace, if there is one; return its folder."""
        if self._tracing:
            self._tracing = False
            jax.profiler.stop_trace()
        return self.folder
