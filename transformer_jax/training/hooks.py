"""Call a package's code at the log entries and the checkpoints of a training run.

A hook is a class with an entry point in the group `transformer_jax.hooks`. The options
that it declares join `config.log`; the first has the hook's name and switches it on:

    [transformer_jax.hooks]
    tensorboard = transformer_jax.training.writers:TensorBoard

    config.log.tensorboard = True

A program that trains with `fit` or `train` passes classes of its own instead:

    transformer_jax.fit("sst2", frame, workdir="a", hooks=[Mine])

Pitfall: a process of several that waits in a hook holds up all others.
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.base import entry_points


class Hook:
    """Base of all hooks; each method does nothing unless a hook has its own."""

    options: type  # the dataclass of the options that it adds to `config.log`

    def __init__(self, config: ConfigDict, workdir: pathlib.Path):
        self.config, self.workdir = config, workdir

    def record(self, step: int, kind: str, values: dict[str, Any]) -> None:
        """Take an entry of metrics.jsonl; called in the first process alone."""

    def save(self, step: int, state: Any) -> None:
        """Take the `TrainState` of a regular checkpoint; called in all processes.

        Its buffers are given to the next step: copy an array that is kept.
        """

    def close(self) -> None:
        """Release what the hook holds, also if the run has failed."""


def find() -> dict[str, type[Hook]]:
    """Find the hooks of all packages that are installed, by name."""
    names = entry_points.names("hooks")
    return {name: entry_points.require("hooks", name) for name in names}


def make(
    config: ConfigDict,
    workdir: pathlib.Path,
    more: Sequence[Callable[[ConfigDict, pathlib.Path], Hook]] = (),
) -> list[Hook]:
    """Make the hooks that `config.log` switches on, and `more` of a program's own."""
    chosen = [hook for name, hook in find().items() if config.log[name]]
    return [hook(config, workdir) for hook in [*chosen, *more]]
