"""Turn planned batches into arrays on the mesh, ahead of the step that needs them.

Batch i is a function of (seed, i) alone, and each process reads only the rows that its
own devices need. So a run continues with the same batches, on other devices too.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from transformer_jax import sharding
from transformer_jax.data.batches import Batch, Shape, nothing, prefetch
from transformer_jax.tasks.protocols import Task
from transformer_jax.training.prepare import Planned


class PlacedBatch(NamedTuple):
    """A planned batch as arrays on the mesh."""

    arrays: dict[str, jax.Array]
    shape: Shape
    kept: int  # rows of this process whose drawn segmentation was too long


class Feed:
    """The batches of a training, in the order of its plan."""

    def __init__(self, task: Task, store: Any, planned: Planned, mesh: Mesh):
        self.task, self.store, self.mesh = task, store, mesh
        self.plan, self._sampler = planned.plan, planned.sampler

    def batches(self, step: int, last: int) -> Iterator[tuple[int, PlacedBatch]]:
        """Yield (k, batch) for the steps k after `step`; a thread works ahead.

        Steps count the updates applied, so step k applies the planned batch k - 1.
        """
        ahead = prefetch(self.place, range(step, last))
        yield from enumerate(ahead, start=step + 1)

    def place(self, i: int) -> PlacedBatch:
        """Place planned batch i, with the segmentations drawn for its epoch."""
        planned = self.plan.batch(i)
        sampler = self._sampler
        if sampler is None:
            arrays, kept = assemble(self.task, self.store, planned, self.mesh)
            return PlacedBatch(arrays, planned.shape, kept)
        epoch = i // self.plan.steps_per_epoch

        def resample(columns, part):
            return sampler.resample(columns, part, epoch, self.plan.room(part))

        arrays, kept = assemble(self.task, self.store, planned, self.mesh, resample)
        return PlacedBatch(arrays, planned.shape, kept)

    def empty(self, shape: Shape) -> dict[str, jax.Array]:
        """Place a batch of a shape that holds no example, to try the shape out."""
        return assemble(self.task, self.store, nothing(shape), self.mesh)[0]

    def abstract(self, shape: Shape) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes and places of a batch's arrays, to compile for."""
        batch = nothing(shape)
        arrays = self.task.data.collate(self.store.take(batch.real), batch)
        return sharding.abstract_global(arrays, self.mesh, shape.rows)


def assemble(
    task: Task,
    store: Any,
    batch: Batch,
    mesh: Mesh,
    resample: Callable = lambda columns, batch: (columns, 0),
) -> tuple[dict[str, jax.Array], int]:
    """Place a planned batch on the mesh; return it and what `resample` has counted."""
    own = sharding.process_rows(mesh, batch.shape.rows)
    part = Batch(batch.shape, batch.examples[own])
    columns, count = resample(store.take(part.real), part)
    arrays = task.data.collate(columns, part)
    return sharding.to_global(arrays, mesh, batch.shape.rows), count
