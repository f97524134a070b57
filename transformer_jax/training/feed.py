"""Planned batches as arrays on the mesh."""

from collections.abc import Callable
from typing import Any

import jax

from transformer_jax import sharding
from transformer_jax.data.batches import Batch, Shape, nothing


def assemble(
    task: Any,
    store: Any,
    batch: Batch,
    mesh: Any,
    resample: Callable = lambda columns, batch: (columns, 0),
) -> tuple[dict[str, jax.Array], int]:
    """A planned batch as arrays on the mesh, and what `resample` has counted.

    Each process reads only the rows that its devices need.
    """
    own = sharding.process_rows(mesh, batch.shape.rows)
    part = Batch(batch.shape, batch.examples[own])
    columns, count = resample(store.take(part.real), part)
    arrays = task.data.collate(columns, part)
    return sharding.to_global(arrays, mesh, batch.shape.rows), count


def abstract(task: Any, store: Any, shape: Shape, mesh: Any) -> dict[str, Any]:
    """What a batch of this shape looks like, for compiling."""
    batch = nothing(shape)
    arrays = task.data.collate(store.take(batch.real), batch)
    return sharding.abstract_global(arrays, mesh, shape.rows)
