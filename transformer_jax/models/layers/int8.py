"""Matrices of 8 bits: linear maps that are computed with integers.

    x W ≈ s_x (x / s_x) (W / s_w) s_w      both quotients rounded to -127 … 127

s_w has a factor for each output, s_x one for each row of x, found when x is known. The
sums are exact, in 32 bits, so the result for a row does not depend on the other rows.
Processors with instructions for such products are up to three times as fast with them.
"""

from typing import Any

import flax.struct
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.sharding import Params

LARGEST = 127


class Int8Matrix(flax.struct.PyTreeNode):
    """A matrix as integers, and the factor of each output.

    It stands in place of the parameter `kernel` or `embedding` of a module.
    """

    values: Any  # Int8 [D, F]; [V, D] for a table
    scale: Any  # Float [1, F]; [V, 1] for a table

    @classmethod
    def round(cls, matrix: Float[Array, "A B"], axis: int) -> "Int8Matrix":
        """Round a matrix; `axis` is that of its inputs."""
        return cls(*quantize(matrix, axis, jnp))

    def look_up(self, rows: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Return rows of a table."""
        return jnp.take(self.values, rows, axis=0) * jnp.take(self.scale, rows, axis=0)

    def multiply(self, x: Float[Array, "*B D"]) -> Float[Array, "..."]:
        """Compute x @ matrix in float32; the matrix may have several output axes."""
        inner, *outer = self.values.shape
        values = self.values.reshape(inner, -1)
        product = _multiply(x, values, 0, self.scale.reshape(1, -1))
        return product.reshape(*x.shape[:-1], *outer)

    def score(self, x: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Compute x @ table.T in float32, without a transposed table, which is slow."""
        product = _multiply(x, self.values, 1, self.scale.reshape(1, -1))
        return product.reshape(*x.shape[:-1], -1)


def _multiply(x: Any, values: Any, axis: int, scale: Any) -> Any:
    """Multiply rows by a matrix of integers; `axis` is that of its inputs."""
    rows = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
    whole, factor = quantize(rows, 1, jnp)
    sums = jax.lax.dot_general(
        whole, values, (((1,), (axis,)), ((), ())), preferred_element_type=jnp.int32
    )
    return sums.astype(jnp.float32) * (factor * scale)


def quantize(matrix: Any, axis: int, numpy: Any = np) -> tuple[Any, Any]:
    """Round a matrix to 8 bits, with a factor for each entry of the axes but `axis`."""
    largest = numpy.abs(matrix).max(axis=axis, keepdims=True)
    scale = numpy.where(largest != 0, largest / LARGEST, 1).astype(numpy.float32)
    return numpy.rint(matrix / scale).astype(numpy.int8), scale


def stack(matrices: list[Any]) -> Any:
    """Stack the matrices of linear maps of one size: [D, F] each → [D, maps, F]."""
    if isinstance(matrices[0], Int8Matrix):
        return jax.tree.map(lambda *parts: jnp.stack(parts, 1), *matrices)
    return jnp.stack(matrices, 1)


def round_matrices(params: Params) -> Params:
    """Round the matrices of the linear maps and of the tables of tokens."""
    flat: dict[str, Any] = dict(flax.traverse_util.flatten_dict(params, sep="/"))
    for name, leaf in flat.items():
        kind = name.rpartition("/")[2]
        if leaf.ndim == 2 and kind in ("kernel", "embedding"):
            flat[name] = Int8Matrix.round(leaf, axis=0 if kind == "kernel" else 1)
    return flax.traverse_util.unflatten_dict(flat, sep="/")
