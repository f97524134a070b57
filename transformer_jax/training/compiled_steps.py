"""Compile the training step for every shape of the plan before it is needed.

Compiling takes seconds a shape. The largest comes first, so that what does not fit in
memory fails at once; threads compile the others while training has begun. On GPUs and
TPUs, where memory is short, `rehearse` waits for all to find the one that needs most.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
from jax.sharding import Mesh

from transformer_jax.data.batches import Shape
from transformer_jax.planning import compiled

logger = logging.getLogger(__name__)


class CompiledSteps:
    """A jitted step `update(state, batch)`, compiled for each shape of batch.

    `state` and `abstract_batch(shape)` are the abstract arguments to compile for.
    """

    def __init__(
        self,
        update: Any,
        state: Any,
        abstract_batch: Callable[[Shape], Any],
        shapes: Sequence[Shape],
        mesh: Mesh,
    ):
        self.update, self.state, self.abstract_batch = update, state, abstract_batch
        self.shapes, self.mesh = list(dict.fromkeys(shapes)), mesh
        # Several processes must compile in one order: they agree on choices by it.
        alone = jax.process_count() == 1
        self._threads = ThreadPoolExecutor(os.cpu_count() if alone else 1, "compile")
        self._ready: dict[Shape, Future] = {}
        self._waited = 0.0  # seconds, since `pop_wait_seconds`

    def start(self, first: jax.stages.Lowered) -> None:
        """Begin to compile all shapes in their order; the caller has traced the first.

        So the traceback of an error in a model begins at the command, not in a thread.
        """
        for i, shape in enumerate(self.shapes):
            if shape not in self._ready:
                traced = None if i else first
                self._ready[shape] = self._threads.submit(self._compile, shape, traced)

    def _compile(self, shape: Shape, traced: jax.stages.Lowered | None) -> Callable:
        began = time.monotonic()
        with jax.set_mesh(self.mesh):
            lowered = traced or self.update.lower(
                self.state, self.abstract_batch(shape)
            )
            program = lowered.compile()
        seconds, lengths = time.monotonic() - began, "/".join(map(str, shape.lengths))
        logger.debug("compiled   %d×%s in %.1f s", shape.rows, lengths, seconds)
        return program

    def get(self, shape: Shape) -> Callable:
        """Return the compiled step of a shape, when there is one."""
        began = time.monotonic()
        program = self._ready[shape].result()
        self._waited += time.monotonic() - began
        return program

    def needs_most(self) -> Shape:
        """Wait until all are compiled; return the shape whose step takes most memory.

        It need not have the most tokens: of a batch's sides, one may be the dearer.
        """
        most: dict[Shape, int] = {}
        for shape in self.shapes:
            memory = compiled.read_memory(self.get(shape))
            most[shape] = memory.total if memory else shape.tokens
        return max(self.shapes, key=lambda shape: (most[shape], shape))

    def pop_wait_seconds(self) -> float:
        """Return how long `get` has waited since this was last called."""
        waited, self._waited = self._waited, 0.0
        return waited

    def close(self) -> None:
        """Drop what is not yet being compiled."""
        self._threads.shutdown(wait=False, cancel_futures=True)
