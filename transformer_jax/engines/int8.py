"""Let matrices of 8 bits search the answers: `predict --engine=int8`.

    run = transformer_jax.load(RUN, engine="int8")

The engine is this package's own; the parameters are the run's, rounded when they are
first used (`models/layers/int8.py`), so some answers differ. How much time products of
integers take on this machine beside those of floats is measured and said.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.base.errors import UserError
from transformer_jax.models.layers.int8 import Int8Matrix, round_matrices
from transformer_jax.runs.run import Run
from transformer_jax.sharding import Params
from transformer_jax.tasks import protocols

logger = logging.getLogger(__name__)

ROWS = 128  # of the products that are measured, as in a step of a full batch
TIMES = 15  # that each is measured
_CONTRACT = (((1,), (1,)), ((), ()))  # rows of both


def open_engine(run: Run, setting: str = "") -> None:
    """Let the run's own engine search with rounded parameters; there is no setting."""
    if setting:
        raise UserError(f"engine='int8:{setting}': int8 has no setting: leave it out")
    if run.mesh.size > 1:
        raise UserError(
            f"engine='int8' answers on one device, not on {run.mesh.size}: set "
            "JAX_NUM_CPU_DEVICES or CUDA_VISIBLE_DEVICES so that there is one"
        )
    inference = run.task.inference
    assert isinstance(inference, protocols.Writes)  # see `Run.use_engine`
    inference.writer.change = Rounding()


class Rounding:
    """Round parameters, once for all searches with the same ones."""

    def __init__(self):
        """Begin without any."""
        self._params: Any = None
        self._rounded: Any = None
        self._lock = threading.Lock()

    def __call__(self, params: Params) -> Params:
        """Return the rounded parameters."""
        with self._lock:
            if params is not self._params:
                self._rounded = jax.jit(round_matrices)(params)
                self._params = params
                logger.info("engine     %s", describe(self._rounded))
            return self._rounded


def describe(params: Params) -> str:
    """Say what has been rounded, and whether products are faster for it."""
    leaves = jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, Int8Matrix))
    matrices = [leaf for leaf in leaves if isinstance(leaf, Int8Matrix)]
    numbers = sum(matrix.values.size for matrix in matrices)
    share = compare_speed(max(matrices, key=lambda one: one.values.size))
    slower = ", so float32 is faster: leave --engine out" if share > 1 else ""
    return (
        f"int8: {len(matrices)} matrices of {numbers:,} numbers are rounded to 8 bits; "
        f"products take {share:.2f} of the time of float32 here{slower}"
    )


def compare_speed(matrix: Int8Matrix) -> float:
    """Measure the time of a product of integers as a share of one of floats."""
    outer, inner = matrix.values.shape  # as of a table, whichever it is
    matrix = Int8Matrix(matrix.values, jnp.ones((outer, 1)))
    x = jnp.linspace(-1.0, 1.0, ROWS * inner).reshape(ROWS, inner)
    floats = matrix.values.astype(jnp.float32)
    plain = jax.jit(lambda x, floats: jax.lax.dot_general(x, floats, _CONTRACT))
    rounded = jax.jit(lambda x, matrix: matrix.score(x))
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(TIMES + 1):  # in turn; the first ones compile
        times[0].append(_time(rounded, x, matrix))
        times[1].append(_time(plain, x, floats))
    # The least time of each, because other work can only make a product slower.
    return min(times[0][1:]) / min(times[1][1:])


def _time(function: Callable, *arguments: Any) -> float:
    began = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - began
