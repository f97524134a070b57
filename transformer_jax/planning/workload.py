"""Predict which batch shapes a training run compiles, and how often it uses each.

With the data at hand these are the shapes of the real batch plan. Without, a task is
opened with a vocabulary of the config's size, and all batches have the largest shape.
"""

import collections
import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from transformer_jax import sharding, tasks
from transformer_jax.base.errors import UserError
from transformer_jax.config import checks
from transformer_jax.data.batches import Shape, limits, nothing
from transformer_jax.runs.folder import Folder
from transformer_jax.tasks.parts.streams import CHARACTERS
from transformer_jax.tasks.protocols import Task
from transformer_jax.training import teacher
from transformer_jax.training.prepare import make_plan, prepare

CHARACTERS_PER_PIECE = 4  # in running text, to convert a window in characters


@dataclasses.dataclass(frozen=True)
class Workload:
    """A task, the shapes of its batches, and the number of batches of each shape."""

    task: Task
    columns: Mapping[str, Any]  # the columns of a store, without examples
    batches: Mapping[Shape, int]
    padding: float | None = None  # as a share of an epoch's positions; None if unknown

    def abstract(self, shape: Shape, mesh: Mesh) -> dict[str, Any]:
        """Return the shapes and shardings of a batch's arrays, to compile for."""
        arrays = self.task.data.collate(self.columns, nothing(shape))
        config = self.task.config
        lent = teacher.abstract(config, mesh) if config.train.teacher else {}
        return sharding.abstract_global(arrays, mesh, shape.rows) | lent

    @property
    def largest(self) -> Shape:
        """The shape with the most tokens."""
        return max(self.batches, key=lambda shape: shape.tokens)

    def mean(self, of: Callable[[Shape], float]) -> float:
        """Average a number over the batches of an epoch."""
        total = sum(of(shape) * times for shape, times in self.batches.items())
        return total / sum(self.batches.values())


def from_data(config: ConfigDict, say: Callable[[str], None]) -> Workload:
    """Plan the batches of the config's data as a training run would."""
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(config, Folder(folder), say)
        store = prepared.train.store
        planned = make_plan(config, prepared.task, prepared.train)
    plan = planned.plan
    times = collections.Counter(batch.shape for batch in plan.epoch(0))
    batches = {shape: times[shape] for shape in plan.shapes}
    columns = store.take(np.zeros(0, np.int64))
    return Workload(prepared.task, columns, batches, planned.padding)


def without_data(
    config: ConfigDict, rows: int = 0, length: int = 0, vocabulary: int = 0
) -> Workload:
    """Open a task without data; arguments of 0 are replaced by the config's values."""
    task = open_empty(config, vocabulary)
    found = task.data.columns_for(_NoRecords())
    columns = {name: column.empty() for name, column in found.items()}
    shape = _largest(config, task, rows, length)
    return Workload(task, columns, {shape: 1})


def open_empty(config: ConfigDict, vocabulary: int = 0) -> Task:
    """Open the config's task before there is data, or refuse it."""
    if not opens_without_data(config):
        raise UserError(
            f"the task {config.task!r} cannot be planned without its data: leave "
            "--no_data out"
        )
    open_task = tasks.find(config.task).open_empty
    assert open_task is not None
    return open_task(config, vocabulary)


def opens_without_data(config: ConfigDict) -> bool:
    """Return whether the config's task can be opened before there is data."""
    return tasks.find(config.task).open_empty is not None


def _largest(config: ConfigDict, task: Task, rows: int, length: int) -> Shape:
    """Return the largest shape that the config allows."""
    data, packed = config.data, config.data.batching == "packed"
    if not length:
        length = checks.longest_row(config)
        counted = "tokenizer" in config and config.tokenizer.kind in CHARACTERS
        if "window" in data and not counted and not packed:
            length = data.window // CHARACTERS_PER_PIECE
        multiple = limits(data)[1]
        length = -(-max(length, 1) // multiple) * multiple
    lengths = task.data.sides_of(length)
    if not rows:
        rows = max(data.batch_tokens // max(lengths) // data.row_multiple, 1)
        rows *= data.row_multiple
    return Shape(rows, lengths, packed)


class _NoRecords(list):
    context = 0
