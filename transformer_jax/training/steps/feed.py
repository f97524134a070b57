"""Turn planned batches into arrays on the mesh, ahead of the step that needs them.

Batch i is a function of (seed, i) alone, and each process reads only the rows that its
own devices need. So a run continues with the same batches, even on other devices.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from transformer_jax import sharding
from transformer_jax.data.batches import Batch, Shape, nothing, prefetch
from transformer_jax.tasks.protocols import Task
from transformer_jax.training.prepare import Planned


class PlacedBatch(NamedTuple):
    """A planned batch as arrays on the mesh."""

    arrays: dict[str, jax.Array]
    samples_too_long: int  # rows of this process with a sample that was too long
    shape: Shape  # as planned; the arrays may have more rows, which are empty


class Feed:
    """The batches of a training, in the order of its plan."""

    def __init__(
        self,
        task: Task,
        store: Any,
        planned: Planned,
        mesh: Mesh,
        lent: Mapping[str, Any] | None = None,
    ):
        """Make the feed; `lent` are entries of each batch that are no rows."""
        self.task, self.store, self.mesh = task, store, mesh
        self.plan, self._sampler = planned.plan, planned.sampler
        self._lent, self._parts = dict(lent or {}), task.config.train.accumulation
        self.multiple = sharding.row_devices(mesh) * self._parts

    def batches(self, step: int, last: int) -> Iterator[tuple[int, PlacedBatch]]:
        """Yield (k, batch) for the steps k after `step`, prepared ahead in a thread.

        Steps count the updates applied, so step k applies the planned batch k - 1.
        """
        ahead = prefetch(self.place, range(step, last))
        yield from enumerate(ahead, start=step + 1)

    def place(self, i: int) -> PlacedBatch:
        """Place planned batch i, with the segmentations sampled for its epoch."""
        planned = self.plan.batch(i)
        epoch, sampler = i // self.plan.steps_per_epoch, self._sampler

        def resample(columns, part):
            if sampler is None:
                return columns, 0
            return sampler.resample(columns, part, epoch, self.plan.room(part))

        arrays, samples_too_long = self._assemble(planned, resample)
        return PlacedBatch(arrays, samples_too_long, planned.shape)

    def empty(self, shape: Shape) -> dict[str, jax.Array]:
        """Place a batch without examples, to run a shape once."""
        return self._assemble(nothing(shape), lambda columns, part: (columns, 0))[0]

    def _assemble(self, batch: Batch, resample: Callable) -> tuple[dict, int]:
        arrays, count = assemble(
            self.task, self.store, batch, self.mesh, resample, self._parts
        )
        return arrays | self._lent, count

    def abstract(self, shape: Shape) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes and shardings of a batch's arrays, to compile for."""
        batch = fill_up(nothing(shape), self.multiple)
        arrays = self.task.data.collate(self.store.take(batch.real), batch)
        abstract = sharding.abstract_global(arrays, self.mesh, batch.shape.rows)
        return abstract | jax.tree.map(_describe, self._lent)


def _describe(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)


def assemble(
    task: Task,
    store: Any,
    batch: Batch,
    mesh: Mesh,
    resample: Callable = lambda columns, batch: (columns, 0),
    parts: int = 1,
) -> tuple[dict[str, jax.Array], int]:
    """Place a planned batch on the mesh; return it and the count from `resample`.

    Each of its `parts`, which gradient accumulation takes in turn, is on all devices.
    """
    batch = fill_up(batch, sharding.row_devices(mesh) * parts)
    own = sharding.process_rows(mesh, batch.shape.rows)
    part = batch.take(own)
    columns, count = resample(store.take(part.real), part)
    arrays = task.data.collate(columns, part)
    return sharding.to_global(arrays, mesh, batch.shape.rows), count


def fill_up(batch: Batch, multiple: int) -> Batch:
    """Add empty rows to a batch until their number is a multiple of `multiple`.

    The examples stay in the same parts of a gradient accumulation, so a run sees the
    same batches on any number of devices.
    """
    rows, slots = batch.examples.shape
    more = -rows % multiple
    if not more:
        return batch
    empty = np.full((more, slots), -1, batch.examples.dtype)
    shape = dataclasses.replace(batch.shape, rows=rows + more)
    copies = batch.copies
    if copies is not None:
        copies = np.concatenate([copies, np.zeros_like(empty)])
    return Batch(shape, np.concatenate([batch.examples, empty]), copies)
