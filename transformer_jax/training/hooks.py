"""Call a package's code at the log entries and the checkpoints of a training run.

A hook is a class with an entry point in the group `transformer_jax.hooks`. The options
that it declares join `config.log`; the first has the hook's name and switches it on:

    [transformer_jax.hooks]
    tensorboard = transformer_jax.training.hooks:TensorBoard

    config.log.tensorboard = True

Pitfall: a process of several that waits in a hook holds up all others.
"""

import dataclasses
import pathlib
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.base import entry_points
from transformer_jax.base.schema import option


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


def make(config: ConfigDict, workdir: pathlib.Path) -> list[Hook]:
    """Make the hooks that `config.log` switches on."""
    return [hook(config, workdir) for name, hook in find().items() if config.log[name]]


@dataclasses.dataclass(frozen=True)
class TensorBoardOptions:
    """The switch of TensorBoard."""

    tensorboard: bool = option(
        True, "Also write TensorBoard events, if TensorBoard is installed."
    )


class TensorBoard(Hook):
    """Write the numbers of all entries as TensorBoard events."""

    options = TensorBoardOptions
    _board: Any = None

    def record(self, step: int, kind: str, values: dict[str, Any]) -> None:
        """Add the numbers of an entry to the curves, named kind/name."""
        try:
            from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]
        except ImportError:
            return
        if self._board is None:
            self._board = SummaryWriter(str(self.workdir / "tensorboard"))
        for name, value in values.items():
            if isinstance(value, int | float):
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Close the file of events."""
        if self._board is not None:
            self._board.close()
