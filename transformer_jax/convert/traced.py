"""The search of a model as functions of arrays, which exports trace.

    start    parameters, source [b, s], room [t] → the state of a search for t tokens
    extend   parameters, token [b], its position, state → logits [b, V], state

The state is a list of arrays. Its first `fixed` ones never change; `extend` returns the
others. Of a language model's source only the number of rows is used.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from transformer_jax import tasks
from transformer_jax.runs.run import Run
from transformer_jax.tasks.parts.text import segments


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of arrays, and what it takes after the parameters."""

    function: Callable[..., Any]
    takes: tuple[Any, ...]  # a tree of shapes and types


@dataclasses.dataclass(frozen=True)
class Search:
    """The two programs of a search."""

    start: Program
    extend: Program
    fixed: int


def prepare(run: Run, **options: Any) -> Run:
    """Return a run whose model computes with plain products, for any sizes.

    `options` replace further options of its model.
    """
    config = run.config.copy_and_resolve_references()
    with config.unlocked():  # kernels may choose by sizes, which are free here
        config.model.update({"attention": "einsum", **options})
    task = tasks.find(config.task).open(config, run.folder.tokenizer)
    return dataclasses.replace(run, config=config, task=task)


def params_of(run: Run) -> dict[str, np.ndarray]:
    """Return the parameters by their paths."""
    flat = flax.traverse_util.flatten_dict(run.params, sep="/")
    return {name: np.asarray(x) for name, x in flat.items()}


def apply(run: Run, params: dict, *arguments: Any, method: str = "__call__") -> Any:
    """Call a method of the run's model with parameters by their paths."""
    tree = flax.traverse_util.unflatten_dict(params, sep="/")
    module = run.task.objective.module
    return module.apply({"params": tree}, *arguments, method=method)


def ints(*shape: Any) -> jax.ShapeDtypeStruct:
    """Describe an array of integers, whose sizes may be free."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def free_sizes(names: str, least: int = 2) -> tuple[Any, ...]:
    """Return free sizes; those of sequences are at least so long."""
    limits = [f"{name} >= {1 if name == 'b' else least}" for name in names.split(", ")]
    return tuple(jax_export.symbolic_shape(names, constraints=limits))


def search_of(run: Run, least: int = 2) -> Search:
    """Return the programs of a prepared run's search; see `free_sizes`."""

    def begin(params, source, room):
        batch = {"source": source, "source_segments": segments(source)}
        if run.config.task == "language":
            batch = {"prompt": source}
        return apply(run, params, batch, room.shape[0], method="start")

    def start(params, source, room):
        return jax.tree.leaves(begin(params, source, room))

    def extend(params, token, position, leaves):
        tokens = token[:, None, None]
        state = jax.tree.unflatten(structure, leaves)
        places = jnp.broadcast_to(position, tokens.shape)
        logits, after = apply(run, params, tokens, places, *state, method="extend")
        return logits[:, 0, 0], jax.tree.leaves(after)

    b, s, t = free_sizes("b, s, t", least)
    first = ints(b, s), ints(t)
    state = jax.eval_shape(begin, params_of(run), *first)
    leaves, structure = jax.tree.flatten(state)
    later = ints(b), ints(), leaves
    fixed = len(jax.tree.leaves(state[0]))
    return Search(Program(start, first), Program(extend, later), fixed)
