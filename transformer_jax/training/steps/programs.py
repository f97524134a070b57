"""Count the operations of a training step, and read what its compiled program takes.

Only matrix products and convolutions count, with multiplications and additions counted
separately, as for the peak in a data sheet. The backward pass takes two products for
each product of the forward pass. Rematerialisation does not count, so that the share of
the peak (MFU) tells how fast a model trains, not how busy the hardware is.
The memory and the kernels are those that the compiler chose.
Pitfall: causal attention counts the whole square of scores, as einsum computes it and
as most published figures count it. A kernel that leaves the masked half out shows a
higher MFU than it has.
"""

import collections
import copy
import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
from jax.interpreters import partial_eval

from transformer_jax.models import kernels

BACKWARD = 2  # products per product of the forward pass: for the input and the weight


def count_step(objective: Any, params: Any, batch: Mapping[str, Any]) -> float:
    """Count the operations of a training step, for abstract parameters and a batch."""
    plain = copy.copy(objective)
    plain.module = kernels.with_weights(objective.module)  # kernels hide their products
    key = jax.eval_shape(lambda: jax.random.key(0))  # some losses are of training only
    return (1 + BACKWARD) * count(plain.loss, _shapes(params), _shapes(batch), key)


def count(function: Callable, *arguments: Any) -> float:
    """Count the operations of a function's products and convolutions, by tracing."""
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    # A jax without this function counts products whose results are not used as well.
    if prune := getattr(partial_eval, "dce_jaxpr", None):
        jaxpr, _ = prune(jaxpr, [True] * len(jaxpr.outvars))
    return _sum_operations(find_products(jaxpr))


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


class Product(NamedTuple):
    """A product of matrices or a convolution within a traced program."""

    path: str  # the names of the modules that it belongs to
    operations: float  # of all its turns, as are the bytes
    bytes: float  # that it reads and writes


def find_products(jaxpr: Any, path: str = "", times: int = 1) -> Iterator[Product]:
    """Yield the products of a traced program, with those of its subprograms.

    The body of a `while` counts once, and of a `cond` the most expensive branch.
    """
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        here = f"{path}/{equation.source_info.name_stack}"
        if name in _OPERATIONS:
            arrays = [v.aval for v in (*equation.invars, *equation.outvars)]
            moved = sum(x.size * x.dtype.itemsize for x in arrays)
            operations = times * _OPERATIONS[name](equation)
            yield Product(here, operations, times * moved)
            continue
        turns = times * params["length"] if name == "scan" else times
        parts = [list(find_products(one, here, turns)) for one in _inner(params)]
        if name == "cond":
            parts = [max(parts, key=_sum_operations, default=[])]
        yield from itertools.chain(*parts)


def _sum_operations(products: Iterable[Product]) -> float:
    return sum(one.operations for one in products)


def _of_product(equation: Any) -> float:
    (left, _), _ = equation.params["dimension_numbers"]
    sizes = equation.invars[0].aval.shape
    return 2 * equation.outvars[0].aval.size * math.prod(sizes[axis] for axis in left)


def _of_convolution(equation: Any) -> float:
    """Count a product of each output with the part of the kernel that makes it."""
    kernel = equation.invars[1].aval.shape
    outputs = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
    return 2 * equation.outvars[0].aval.size * math.prod(kernel) / outputs


_OPERATIONS = {
    "dot_general": _of_product,
    "conv_general_dilated": _of_convolution,
}


def _inner(params: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the subprograms of an equation."""
    for value in params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            part = getattr(part, "jaxpr", part)
            if hasattr(part, "eqns"):
                yield part


# Custom calls that compute nothing.
_MARKS = ("Sharding", "AllocateBuffer", "AssumeGatherIndicesInBound", "annotate_")
_CALL = re.compile(r'custom_call_target="([^"]+)"')
_PALLAS = re.compile(r'op_name="[^"]*?(splash_\w+?)(?:_(?:no_)?residuals)?[/"]')


@dataclasses.dataclass(frozen=True)
class Memory:
    """The bytes that a program takes on a device while it runs, by the compiler."""

    arguments: int
    temporary: int
    results: int  # without those that reuse the memory of arguments

    @property
    def total(self) -> int:
        """All bytes that must fit at the same time."""
        return self.arguments + self.temporary + self.results


def read_memory(program: Any) -> Memory | None:
    """Return the memory of a compiled program; None if its compiler does not say."""
    found = program.memory_analysis()
    if found is None:
        return None
    results = found.output_size_in_bytes - found.alias_size_in_bytes
    return Memory(found.argument_size_in_bytes, found.temp_size_in_bytes, results)


def read_flops(program: Any) -> float:
    """Return XLA's own count for one device, which includes every operation."""
    found = program.cost_analysis() or {}
    found = found[0] if isinstance(found, list) else found
    return float(found.get("flops", 0.0))


def read_kernels(text: str) -> dict[str, int]:
    """Count the calls of kernels that XLA did not generate itself, by name."""
    found: collections.Counter = collections.Counter()
    for line in text.split("\n"):
        if call := _CALL.search(line):
            if call[1].startswith(_MARKS):
                continue
            pallas = _PALLAS.search(line)
            found[pallas[1] if pallas else call[1]] += 1
    return dict(found.most_common())
