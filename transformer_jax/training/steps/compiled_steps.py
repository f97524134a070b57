"""Compile the training step for every shape of the plan before it is needed.

Compiling takes several seconds per shape. The largest shape comes first, so that a run
that does not fit in memory fails at once; threads compile the others while training
begins. On GPUs and TPUs, where memory is scarce, `rehearse` waits for all of them to
find the one that needs the most.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import jax
from jax.sharding import Mesh

from transformer_jax.base.programs import Program
from transformer_jax.data.batches import Shape
from transformer_jax.training.steps import programs

logger = logging.getLogger(__name__)

REDRAWN = 0.5  # seconds between two looks at the compilations, while one is awaited


class CompiledSteps:
    """A step `update(state, batch)`, compiled for each batch shape.

    `state` and `abstract_batch(shape)` are the abstract arguments to compile for.
    """

    def __init__(
        self,
        update: Program,
        state: Any,
        abstract_batch: Callable[[Shape], Any],
        shapes: Sequence[Shape],
        mesh: Mesh,
        show: Callable[[int, int, str], None] = lambda done, total, text: None,
    ):
        self.update, self.state, self.abstract_batch = update, state, abstract_batch
        self.show = show  # draws a progress bar
        self.shapes, self.mesh = list(dict.fromkeys(shapes)), mesh
        # Several processes must compile in the same order, because they make collective
        # choices while they compile.
        alone = jax.process_count() == 1
        self._threads = ThreadPoolExecutor(os.cpu_count() if alone else 1, "compile")
        self._ready: dict[Shape, Future] = {}
        self._waited = 0.0  # seconds, since `pop_wait_seconds`

    def start(self, first: jax.stages.Lowered | None) -> None:
        """Begin to compile all shapes in order; the caller has traced the first.

        So the traceback of an error in a model starts at the command, not in a thread.
        A program that is kept from an earlier run needs no trace: then it is None.
        """
        for i, shape in enumerate(self.shapes):
            if shape not in self._ready:
                traced = None if i else first
                self._ready[shape] = self._threads.submit(self._compile, shape, traced)

    def _compile(self, shape: Shape, traced: jax.stages.Lowered | None) -> Callable:
        began = time.monotonic()
        with jax.set_mesh(self.mesh):
            batch = self.abstract_batch(shape)
            program = self.update.compile(self.state, batch, lowered=traced)
        seconds, lengths = time.monotonic() - began, "/".join(map(str, shape.lengths))
        logger.debug("compiled   %d×%s in %.1f s", shape.rows, lengths, seconds)
        return program

    def get(self, shape: Shape) -> Callable:
        """Return the compiled step for a shape, waiting for it if necessary."""
        began = time.monotonic()
        future, total = self._ready[shape], len(self._ready)
        while not wait([future], REDRAWN).done:
            done = sum(other.done() for other in self._ready.values())
            self.show(done, total, f"compiling shape {done + 1} of {total}")
        self._waited += time.monotonic() - began
        return future.result()

    def needs_most(self) -> Shape:
        """Compile all shapes, and return the one whose step takes the most memory.

        It need not have the most tokens, because a source token and a target token may
        need different amounts.
        """
        most: dict[Shape, int] = {}
        for shape in self.shapes:
            memory = programs.read_memory(self.get(shape))
            most[shape] = memory.total if memory else shape.tokens
        return max(self.shapes, key=lambda shape: (most[shape], shape))

    def pop_wait_seconds(self) -> float:
        """Return how long `get` has waited since this was last called."""
        waited, self._waited = self._waited, 0.0
        return waited

    def close(self) -> None:
        """Cancel the compilations that have not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)
