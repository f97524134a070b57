"""Drive any autoregressive model through pure functions.

A model is two functions. `start(batch, length) → (static, state)` reads the source;
`extend(tokens [B, K, T], positions, static, state) → (logits, state)` reads tokens at
their positions (-1 is padding) and returns the logits of the next ones. Arrays of
`state` are [B, K, …], unless they belong to a part with methods of its own (such as
`KVCache`); `reorder` makes hypotheses continue others. `static` is never copied per
beam.

A search implements the protocol `Search`: pure methods over its own state. `engine.py`
drives it in parts; `run` is the plain form of that.
"""

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import BOS, PAD
from transformer_jax.decoding.options import NUMBERS, Options
from transformer_jax.models.cache import put_rows
from transformer_jax.sharding import Params

NEG_INF = float("-inf")

logger = logging.getLogger(__name__)


def see_nothing(*_: Any) -> Any:
    """Refuse a search that reads the vectors of a decoder, where there are none."""
    raise UserError(
        "contrast needs the vectors of one Transformer's decoder, and this model has "
        "none: set contrast to 0"
    )


class BoundModel(NamedTuple):
    """An autoregressive model with its parameters bound.

    `see` is `extend` that also returns what the decoder makes of each token
    [B, K, T, D].
    """

    start: Callable[[dict, int], tuple[Any, Any]]
    extend: Callable[[Any, Any, Any, Any], tuple[Any, Any]]
    see: Callable[[Any, Any, Any, Any], tuple[Any, Any, Any]] = see_nothing


def bind(module: nn.Module, params: Params) -> BoundModel:
    """Bind the two methods of a linen module; padding and start get no probability."""
    variables = {"params": params}

    def start(batch, length):
        return module.apply(variables, batch, length, method="start")

    def extend(tokens, positions, static, state):
        logits, state = module.apply(
            variables, tokens, positions, static, state, method="extend"
        )
        return exclude(logits), state

    def see(tokens, positions, static, state):
        seen: Any = module.apply(
            variables,
            *(tokens, positions, static, state),
            method="extend",
            capture_intermediates=lambda part, _: part.name == "decoder",
            mutable=["intermediates"],
        )
        (logits, state), found = seen
        decoder = found.get("intermediates", {}).get("decoder") or see_nothing()
        vectors = decoder["__call__"][0][0]
        return exclude(logits), state, vectors.reshape(*tokens.shape, -1)

    def exclude(logits):
        # As one matrix, because XLA on a CPU copies four axes. Only two columns are
        # written, because another pass over all logits takes time.
        flat = logits.reshape(-1, logits.shape[-1])
        flat = flat.at[:, PAD].set(NEG_INF).at[:, BOS].set(NEG_INF)
        return flat.reshape(logits.shape)

    return BoundModel(start, extend, see)


def reorder(state: Any, parents: Int[Array, "B K"]) -> Any:
    """Return the state of hypotheses that each continue a parent.

    Arrays are gathered; a part of the state with a method `reorder` is cheaper.
    """
    return _each_part(state, "reorder", gather, parents)


def tile(state: Any, beams: int) -> Any:
    """Return the state of `beams` hypotheses that all continue the only one."""
    return _each_part(state, "tile", lambda a, n: jnp.repeat(a, n, axis=1), beams)


def resize(state: Any, slots: int) -> Any:
    """Return the state with this number of cache slots, which include the prompt.

    A part that is limited has a method `resize`; a recurrent state has no limit.
    """
    return _each_part(state, "resize", lambda a, _: a, slots)


def replace_rows(
    search: Any, fresh: Any, rows: Int[Array, "F"], slots: int | None = None
) -> Any:
    """Give rows of a search's state to other sentences, whose search begins.

    Row i of `fresh` becomes row `rows[i]`; it is dropped if that is out of range. The
    shorter rows get zeros at their ends. With `slots`, caches are resized before.
    """

    def put(old, new):
        if hasattr(old, "replace_rows"):
            return old.replace_rows(new, rows, slots)
        return put_rows(old, new, rows)

    return jax.tree.map(
        put, search, fresh, is_leaf=lambda part: hasattr(part, "replace_rows")
    )


def write(
    tokens: Int[Array, "B K L"], step: Int[Array, "B"], new: Int[Array, "B K"]
) -> Int[Array, "B K L"]:
    """Write a token to each hypothesis, at the step of its row."""
    place = jnp.arange(tokens.shape[-1])
    return jnp.where(place == step[:, None, None], new[..., None], tokens)


def _each_part(state: Any, name: str, otherwise: Callable, *args: Any) -> Any:
    """Change a state with the method `name` of its parts, and arrays by `otherwise`."""

    def change(part):
        method = getattr(part, name, None)
        return method(*args) if method else otherwise(part, *args)

    return jax.tree.map(change, state, is_leaf=lambda part: hasattr(part, name))


def gather(array: Any, parents: Int[Array, "B K"]) -> Any:
    """Take the parents' entries of an array [B, K, …]."""
    return array[jnp.arange(array.shape[0])[:, None], parents]


class DecodeInputs(flax.struct.PyTreeNode):
    """The inputs of a search for each row, besides the model's own input."""

    prompt: Any  # Int [B, P]: tokens before the answer, padded at the end
    prompt_lengths: Any  # Int [B]
    limits: Any  # Int [B]: most tokens of an answer, with its end; 0 marks an empty row
    seeds: Any = None  # Int [B], of a row's random draws
    constraint: Any = None  # {name: [B, W]}, the arrays of the search's constraint
    numbers: Any = None  # {name: [B]}, the options that are read as data

    def with_numbers(self, options: Options) -> "DecodeInputs":
        """Add the numbers of the options, unless they are given."""
        if self.numbers is not None:
            return self
        numbers = numbers_of(options, len(self.limits))
        return self.replace(numbers=jax.tree.map(jnp.asarray, numbers))


def numbers_of(options: Options, rows: int) -> dict[str, np.ndarray]:
    """Return the options that are read as data, for each row."""
    kinds = {"seed": np.uint32}
    return {
        name: np.full(rows, getattr(options, name), kinds.get(name, np.float32))
        for name in NUMBERS
    }


class Hypotheses(flax.struct.PyTreeNode):
    """The hypotheses of a search, best first; an empty slot scores -inf."""

    tokens: Any  # Int [B, K, L], padded with 0 after the end of sentence
    lengths: Any  # Int [B, K], including the end of sentence
    log_probs: Any  # Float [B, K]
    scores: Any  # Float [B, K]: log_probs divided by the length penalty


@runtime_checkable
class Search(Protocol):
    """A search with pure methods over its own state, a PyTree with rows [B, …].

    A state has the fields `step` [B], the tokens written so far, and `state`, the
    model's. Rows are independent of each other, so each may be at another step.
    """

    def begin(
        self,
        model: BoundModel,
        batch: dict,
        inputs: DecodeInputs,
        length: int,
        slots: int | None = None,
    ) -> Any:
        """Read the prompts; return the initial state, for up to `length` tokens.

        A cache has slots for the prompts and `slots` tokens; None means for all.
        """
        ...

    def advance(self, model: BoundModel, state: Any, /) -> Any:
        """Return the state after one more token of every hypothesis."""
        ...

    def unfinished(self, state: Any, /) -> Array:
        """Return which rows [B] need more steps."""
        ...

    def result(self, state: Any, /) -> Hypotheses:
        """Return the hypotheses found so far, best first."""
        ...

    def written(self, state: Any, /) -> tuple[Array, Array]:
        """Return the texts [B, N, L] that answers may begin with, and which exist.

        A text of an answer begins with one of them, or is one of them.
        """
        ...


def announce(announced: set, program: Hashable, length: int) -> None:
    """Log that a program is being compiled, the first time that it is used."""
    if program not in announced:
        announced.add(program)
        logger.debug("compiling… (the first line of up to %d pieces)", length)


def row_sizes(most: int, multiple: int, devices: int = 1) -> list[int]:
    """List the numbers of rows that a batch may have, largest first.

    Each is a multiple of the devices that share rows. Each is compiled, so there are
    only a few.
    """
    few = -(-min(multiple, most) // devices) * devices
    sizes = [max(most // few, 1) * few]
    while sizes[-1] > few:
        sizes.append(max(sizes[-1] // 2 // few, 1) * few)
    return sizes


def rows_for(sizes: Sequence[int], count: int) -> int:
    """Return the smallest of these sizes that holds `count` rows, or the largest."""
    return min((n for n in sizes if n >= count), default=max(sizes))


def prefill(
    model: BoundModel,
    batch: dict,
    inputs: DecodeInputs,
    beams: int,
    slots: int,
    watch: bool = False,
) -> tuple[Any, Any, Float[Array, "B K V"]]:
    """Read prompts of any lengths; return static part, state and next logits.

    A prompt is read once for all beams that continue it. With `watch`, the state tracks
    the attention to the source (`KVCache.track_attention`).
    """
    width = inputs.prompt.shape[1]
    static, state = model.start(batch, width + slots)
    if watch:
        state = state.track_attention(static["segments"])
    place = jnp.arange(width)
    positions = jnp.where(place < inputs.prompt_lengths[:, None, None], place, -1)
    logits, state = model.extend(inputs.prompt[:, None], positions, static, state)
    last = (inputs.prompt_lengths - 1)[:, None, None, None]
    logits = jnp.take_along_axis(logits, last, axis=2)[:, :, 0]
    return static, tile(state, beams), jnp.repeat(logits, beams, axis=1)


def run(
    search: Search, model: BoundModel, batch: dict, inputs: DecodeInputs, length: int
) -> Hypotheses:
    """Run a search to its end: the plain form of `engine.Engine.search`."""
    carry = search.begin(model, batch, inputs, length)
    carry = jax.lax.while_loop(
        lambda c: search.unfinished(c).any(), lambda c: search.advance(model, c), carry
    )
    return search.result(carry)
