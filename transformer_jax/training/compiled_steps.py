"""The training step, compiled for every shape of the plan before it is needed.

Compiling takes seconds a shape. The largest comes first, so that what does not fit in
memory fails at once; the others are compiled by threads while training has begun.
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from transformer_jax.data.batches import Shape


class CompiledSteps:
    """`get(shape)` is the compiled step of a shape; it waits if it must."""

    def __init__(self, step: Any, state: Any, shapes: Sequence[Shape], mesh: Any):
        """`step(state, batch)` is a jitted function, `state` an abstract one."""
        self.step, self.state, self.shapes, self.mesh = step, state, shapes, mesh
        # Several processes must compile in one order: they agree on choices by it.
        alone = jax.process_count() == 1
        self._threads = ThreadPoolExecutor(os.cpu_count() if alone else 1, "compile")
        self._ready: dict[Shape, Future] = {}
        self.waited = 0.0  # seconds, since `pop_wait_seconds`

    def compile(self, abstract_batch: Callable[[Shape], Any]) -> None:
        """Begins to compile all shapes, in their order."""

        def work(shape):
            with jax.set_mesh(self.mesh):
                return self.step.lower(self.state, abstract_batch(shape)).compile()

        for shape in self.shapes:
            if shape not in self._ready:
                self._ready[shape] = self._threads.submit(work, shape)

    def get(self, shape: Shape) -> Callable:
        began = time.monotonic()
        program = self._ready[shape].result()
        self.waited += time.monotonic() - began
        return program

    def pop_wait_seconds(self) -> float:
        waited, self.waited = self.waited, 0.0
        return waited

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
