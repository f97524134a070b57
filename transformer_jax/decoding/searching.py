"""Drive any autoregressive model by pure functions.

A model is two functions. `start(batch, length) → (static, state)` reads the source;
`extend(tokens [B, K, T], positions, static, state) → (logits, state)` reads tokens at
their positions (-1: padding) and predicts what follows each. Leaves of `state` are
[B, K, …]; `reorder` makes hypotheses continue others. `static` is never copied per
beam.

A search is a class with pure methods over its own state: `begin`, `advance` by one
token, `unfinished` [B], `result`. `run` drives a search to its end; `engine.py` does so
in parts.
"""

import logging
import math
import os
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from transformer_jax.ids import BOS, PAD
from transformer_jax.models.attention import MASKED
from transformer_jax.sharding import Params

NEG_INF = float("-inf")

logger = logging.getLogger(__name__)


class Model(NamedTuple):
    """An autoregressive model with its parameters bound."""

    start: Callable[[dict, int], tuple[Any, Any]]
    extend: Callable[[Any, Any, Any, Any], tuple[Any, Any]]


def bind(module: nn.Module, params: Params) -> Model:
    """Bind a linen module's two methods; padding and start are never chosen."""
    variables = {"params": params}

    def start(batch, length):
        return module.apply(variables, batch, length, method="start")

    def extend(tokens, positions, static, state):
        logits, state = module.apply(
            variables, tokens, positions, static, state, method="extend"
        )
        # Impossible, not merely unlikely: a beam may be wider than the real choices.
        # As one matrix: of four axes, XLA on a CPU makes copies.
        flat = logits.reshape(-1, logits.shape[-1])
        token = jnp.arange(flat.shape[-1])
        never = (token == PAD) | (token == BOS) | (flat <= MASKED)
        return jnp.where(never, NEG_INF, flat).reshape(logits.shape), state

    return Model(start, extend)


def reorder(state: Any, parents: Int[Array, "B K"]) -> Any:
    """Return the state of hypotheses that each continue a parent.

    Arrays are gathered; a part of the state with a method `reorder` does it cheaper.
    """
    return _each_part(state, "reorder", gather, parents)


def tile(state: Any, beams: int) -> Any:
    """Return the state of `beams` hypotheses that continue the only one there is."""
    return _each_part(state, "tile", lambda a, n: jnp.repeat(a, n, axis=1), beams)


def resize(state: Any, slots: int) -> Any:
    """Return the state with room for so many tokens, prompt included.

    A part that has a limit has a method `resize`; a recurrent state has none.
    """
    return _each_part(state, "resize", lambda a, _: a, slots)


def _each_part(state: Any, name: str, otherwise: Callable, *args: Any) -> Any:
    """Change the state by the method `name` of its parts, arrays by `otherwise`."""

    def change(part):
        method = getattr(part, name, None)
        return method(*args) if method else otherwise(part, *args)

    return jax.tree.map(change, state, is_leaf=lambda part: hasattr(part, name))


def gather(array: Any, parents: Int[Array, "B K"]) -> Any:
    """Take the parents' entries of an array [B, K, …]."""
    return array[jnp.arange(array.shape[0])[:, None], parents]


class DecodeInputs(flax.struct.PyTreeNode):
    """What a search reads of each row, beside the model's own input."""

    prompt: Any  # Int [B, P]: what the answer begins behind, padded at the end
    prompt_lengths: Any  # Int [B]
    limits: Any  # Int [B]: tokens an answer may have, its end counted; 0: no row
    seeds: Any = None  # Int [B], of what is drawn by chance
    constraint: Any = None  # {name: [B, W]}, what the search's constraint reads


class Hypotheses(flax.struct.PyTreeNode):
    """The hypotheses of a search, best first; an empty slot scores -inf."""

    tokens: Any  # Int [B, K, L], padded with 0 behind the end of sentence
    lengths: Any  # Int [B, K], end of sentence counted
    log_probs: Any  # Float [B, K]
    scores: Any  # Float [B, K]: log_probs over the length penalty


def announce(begun: set, program: Hashable, length: int) -> None:
    """Say that a program is compiled, the first time that it is used.

    A command that answers shows this: nobody else waits for it.
    """
    if program not in begun:
        begun.add(program)
        logger.debug("compiling… (the first line of up to %d pieces)", length)


def device_memory(mesh: Mesh) -> tuple[int | float, int]:
    """Return the bytes of a device's memory, and how many of them a mesh has.

    Devices of a CPU share the host's. What is not known has no end.
    """
    first = mesh.local_devices[0]
    if first.platform != "cpu":
        return (first.memory_stats() or {}).get("bytes_limit", math.inf), mesh.size
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), 1
    except (AttributeError, OSError, ValueError):  # not on this system
        return math.inf, 1


def row_sizes(most: int, multiple: int, devices: int = 1) -> list[int]:
    """List the numbers of rows that a batch may have, largest first.

    All of them divide over the devices that share rows. Each is compiled, so they are
    few.
    """
    few = -(-min(multiple, most) // devices) * devices
    sizes = [max(most // few, 1) * few]
    while sizes[-1] > few:
        sizes.append(max(sizes[-1] // 2 // few, 1) * few)
    return sizes


def rows_for(sizes: Sequence[int], count: int) -> int:
    """Return the smallest of these sizes that holds so many, or the largest."""
    return min((n for n in sizes if n >= count), default=max(sizes))


def prefill(
    model: Model,
    batch: dict,
    inputs: DecodeInputs,
    beams: int,
    length: int,
    watch: bool = False,
) -> tuple[Any, Any, Float[Array, "B K V"]]:
    """Read the prompts, which may differ in length; return the logits that follow.

    A prompt is read once, whatever the number of beams that continue it. With `watch`
    the state adds up what is attended to (`KVCache.track_attention`).
    """
    width = inputs.prompt.shape[1]
    static, state = model.start(batch, width + length)
    if watch:
        state = state.track_attention(static["segments"])
    place = jnp.arange(width)
    positions = jnp.where(place < inputs.prompt_lengths[:, None, None], place, -1)
    logits, state = model.extend(inputs.prompt[:, None], positions, static, state)
    last = (inputs.prompt_lengths - 1)[:, None, None, None]
    logits = jnp.take_along_axis(logits, last, axis=2)[:, :, 0]
    return static, tile(state, beams), jnp.repeat(logits, beams, axis=1)


def run(search: Any, model: Model, batch: dict, inputs: DecodeInputs, length: int):
    """Run a search to its end."""
    carry = search.begin(model, batch, inputs, length)
    carry = jax.lax.while_loop(
        lambda c: search.unfinished(c).any(), lambda c: search.advance(model, c), carry
    )
    return search.result(carry)
