"""Let rounded matrices search the answers: `predict --engine=int8`, or bfloat16.

    run = transformer_jax.load(RUN, engine="int8")

The engine is this package's own; the parameters are the run's, rounded when they are
first used (`models/layers/rounded.py`), so some answers differ. How much time their
products take on this machine beside those of floats is measured and said.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.base.errors import UserError
from transformer_jax.models.layers.rounded import KINDS, RoundedMatrix, round_matrices
from transformer_jax.runs.run import Run
from transformer_jax.sharding import Params
from transformer_jax.tasks import protocols

logger = logging.getLogger(__name__)

ROWS = 128  # of the products that are measured, as in a step of a full batch
TIMES = 15  # that each is measured
NAMES = {"int8": "8 bits", "bfloat16": "bfloat16"}  # of what matrices are rounded to
_CONTRACT = (((1,), (1,)), ((), ()))  # rows of both


def open_int8(run: Run, setting: str = "") -> None:
    """Let the run's own engine search with matrices of 8 bits; there is no setting."""
    _open_engine(run, "int8", setting)


def open_bfloat16(run: Run, setting: str = "") -> None:
    """Let the run's own engine search with matrices in bfloat16."""
    _open_engine(run, "bfloat16", setting)


def _open_engine(run: Run, kind: str, setting: str) -> None:
    if setting:
        raise UserError(
            f"engine='{kind}:{setting}': {kind} has no setting: leave it out"
        )
    if run.mesh.size > 1:
        raise UserError(
            f"engine='{kind}' answers on one device, not on {run.mesh.size}: set "
            "JAX_NUM_CPU_DEVICES or CUDA_VISIBLE_DEVICES so that there is one"
        )
    inference = run.task.inference
    assert isinstance(inference, protocols.Writes)  # see `Run.use_engine`
    inference.writer.change = Rounding(kind)


class Rounding:
    """Round parameters, once for all searches with the same ones."""

    def __init__(self, kind: str):
        """Begin without any."""
        self._round = jax.jit(functools.partial(round_matrices, kind=kind))
        self._kind = kind
        self._params: Any = None
        self._rounded: Any = None
        self._lock = threading.Lock()

    def __call__(self, params: Params) -> Params:
        """Return the rounded parameters."""
        with self._lock:
            if params is not self._params:
                self._rounded = self._round(params)
                self._params = params
                logger.info("engine     %s", describe(self._rounded, self._kind))
            return self._rounded


def describe(params: Params, kind: str) -> str:
    """Say what has been rounded, and whether products are faster for it."""
    leaves = jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, RoundedMatrix))
    matrices = [leaf for leaf in leaves if isinstance(leaf, RoundedMatrix)]
    numbers = sum(matrix.values.size for matrix in matrices)
    largest = max(matrices, key=lambda one: one.values.size)
    share = compare_speed(kind, *largest.values.shape)
    slower = ", so float32 is faster: leave --engine out" if share > 1 else ""
    return (
        f"{kind}: {len(matrices)} matrices of {numbers:,} numbers are rounded to "
        f"{NAMES[kind]}; products take {share:.2f} of the time of float32 here{slower}"
    )


def compare_speed(kind: str, outer: int, inner: int) -> float:
    """Measure the time of a rounded product as a share of one of floats."""
    floats = jnp.linspace(-1.0, 1.0, outer * inner).reshape(outer, inner)
    matrix = KINDS[kind].round(floats, axis=1)  # as of a table, whichever it is
    x = jnp.linspace(-1.0, 1.0, ROWS * inner).reshape(ROWS, inner)
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
