"""Trace some steps of a training with jax.profiler, to see where the time goes."""

import os
import pathlib
import re

import jax

from transformer_jax.errors import UserError


class Profile:
    """The steps first to last of "first:last", traced into RUN/profile; or none."""

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
        """Begin to trace if this step, which comes next, is the first of those asked.

        A resumed run may begin within them.
        """
        if not self._tracing and 0 < self.first <= step <= self.last:
            jax.profiler.start_trace(self.folder)
            self._tracing = True

    def ends_with(self, step: int) -> bool:
        """Return whether this step is the last one that is traced."""
        return self._tracing and step >= self.last

    def close(self) -> pathlib.Path:
        """End the trace, if there is one; return the folder that it is in."""
        if self._tracing:
            self._tracing = False
            jax.profiler.stop_trace()
        return self.folder
