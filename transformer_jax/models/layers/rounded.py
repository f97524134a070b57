"""Matrices of fewer bits: linear maps whose products a processor computes sooner.

    x W ≈ s_x (x / s_x) (W / s_w) s_w      8 bits: both quotients rounded to -127 … 127
    x W ≈ x W                              bfloat16: both factors rounded to 8 digits

s_w has a factor for each output, s_x one for each row of x, found when x is known. The
sums are exact in 32 bits, or those of float32, so the result for a row does not depend
on the other rows. Processors with instructions for such products are two to three times
as fast with them.
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


class RoundedMatrix(flax.struct.PyTreeNode):
    """A rounded matrix, in place of the parameter `kernel` or `embedding`."""

    values: Any  # [D, F]; [V, D] for a table

    @classmethod
    def round(cls, matrix: Float[Array, "A B"], axis: int) -> "RoundedMatrix":
        """Round a matrix; `axis` is that of its inputs."""
        raise NotImplementedError

    def look_up(self, rows: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Return rows of a table."""
        raise NotImplementedError

    def product(self, x: Float[Array, "R D"], values: Any, axis: int) -> Any:
        """Multiply rows by the values; `axis` is that of their inputs."""
        raise NotImplementedError

    def multiply(self, x: Float[Array, "*B D"]) -> Float[Array, "..."]:
        """Compute x @ matrix in float32; the matrix may have several output axes."""
        inner, *outer = self.values.shape
        values = self.values.reshape(inner, -1)
        product = self.product(x.reshape(-1, inner), values, 0)
        return product.reshape(*x.shape[:-1], *outer)

    def score(self, x: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Compute x @ table.T in float32, without a transposed table, which is slow."""
        product = self.product(x.reshape(-1, x.shape[-1]), self.values, 1)
        return product.reshape(*x.shape[:-1], -1)


class Int8Matrix(RoundedMatrix):
    """A matrix as integers of 8 bits, and the factor of each output."""

    scale: Any  # Float [1, F]; [V, 1] for a table

    @classmethod
    def round(cls, matrix: Float[Array, "A B"], axis: int) -> "Int8Matrix":
        """Round a matrix; `axis` is that of its inputs."""
        return cls(*quantize(matrix, axis, jnp))

    def look_up(self, rows: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Return rows of a table."""
        return jnp.take(self.values, rows, axis=0) * jnp.take(self.scale, rows, axis=0)

    def product(self, x: Float[Array, "R D"], values: Any, axis: int) -> Any:
        """Multiply rows, which are rounded, by integers."""
        whole, factor = quantize(x.astype(jnp.float32), 1, jnp)
        sums = jax.lax.dot_general(
            whole, values, (((1,), (axis,)), ((), ())), preferred_element_type=jnp.int32
        )
        return sums.astype(jnp.float32) * (factor * self.scale.reshape(1, -1))


class Bfloat16Matrix(RoundedMatrix):
    """A matrix in bfloat16."""

    @classmethod
    def round(cls, matrix: Float[Array, "A B"], axis: int) -> "Bfloat16Matrix":
        """Round a matrix."""
        return cls(matrix.astype(jnp.bfloat16))

    def look_up(self, rows: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Return rows of a table."""
        return jnp.take(self.values, rows, axis=0).astype(jnp.float32)

    def product(self, x: Float[Array, "R D"], values: Any, axis: int) -> Any:
        """Multiply rows, which are rounded, and sum in float32."""
        return jax.lax.dot_general(
            x.astype(jnp.bfloat16),
            values,
            (((1,), (axis,)), ((), ())),
            preferred_element_type=jnp.float32,
        )


KINDS: dict[str, type[RoundedMatrix]] = {"int8": Int8Matrix, "bfloat16": Bfloat16Matrix}


def quantize(matrix: Any, axis: int, numpy: Any = np) -> tuple[Any, Any]:
    """Round a matrix to 8 bits, with a factor for each entry of the axes but `axis`."""
    largest = numpy.abs(matrix).max(axis=axis, keepdims=True)
    scale = numpy.where(largest != 0, largest / LARGEST, 1).astype(numpy.float32)
    return numpy.rint(matrix / scale).astype(numpy.int8), scale


def stack(matrices: list[Any]) -> Any:
    """Stack the matrices of linear maps of one size: [D, F] each → [D, maps, F]."""
    if isinstance(matrices[0], RoundedMatrix):
        return jax.tree.map(lambda *parts: jnp.stack(parts, 1), *matrices)
    return jnp.stack(matrices, 1)


def round_matrices(params: Params, kind: str = "int8") -> Params:
    """Round the matrices of the linear maps and of the tables of tokens."""
    flat: dict[str, Any] = dict(flax.traverse_util.flatten_dict(params, sep="/"))
    for name, leaf in flat.items():
        own = name.rpartition("/")[2]
        if leaf.ndim == 2 and own in ("kernel", "embedding"):
            flat[name] = KINDS[kind].round(leaf, axis=0 if own == "kernel" else 1)
    return flax.traverse_util.unflatten_dict(flat, sep="/")
