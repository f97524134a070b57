"""The parts of a training run, and the results of one step.

`train.build` makes a `Training`, and the modules of this room take it as an argument.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.struct
from jax.sharding import Mesh
from ml_collections import ConfigDict

from transformer_jax.base.programs import Program
from transformer_jax.losses import Sums
from transformer_jax.runs.checkpoint import TrainState
from transformer_jax.runs.folder import Folder
from transformer_jax.tasks.protocols import Task
from transformer_jax.training.checkpointing import Saver
from transformer_jax.training.evaluator import Evaluator
from transformer_jax.training.log import RunLog
from transformer_jax.training.prepare import Planned, Prepared
from transformer_jax.training.steps.compiled_steps import CompiledSteps
from transformer_jax.training.steps.feed import Feed
from transformer_jax.training.watchdog import Watchdog


@dataclasses.dataclass(frozen=True)
class Training:
    """Everything a training run consists of, except its state."""

    config: ConfigDict
    folder: Folder
    mesh: Mesh
    prepared: Prepared
    task: Task
    feed: Feed
    planned: Planned
    schedule: Callable  # updates applied → learning rate of the next update
    init: Program  # key → TrainState on the mesh
    update: Program  # (state, batch) → (state, StepOutcome)
    abstract: TrainState  # the shapes and shardings of a state
    compiled: CompiledSteps
    saver: Saver
    validation: Evaluator
    log: RunLog
    watchdog: Watchdog

    def close(self) -> None:
        """End the threads, and finish all saves."""
        self.compiled.close()
        self.saver.close()
        self.watchdog.close()


class StepOutcome(flax.struct.PyTreeNode):
    """The results of a step for the log, besides the new state."""

    grad_norm: Any
    squares: Any  # [parameters]: the squared norm of each gradient
    sums: Sums
    # Only if `train.on_divergence` is "skip":
    applied: Any = None  # updates applied so far
    good: Any = None  # whether the update was finite, and so applied
