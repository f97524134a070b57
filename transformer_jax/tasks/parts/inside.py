"""Look inside a model while it reads examples: every output, the loss, its gradient.

An interceptor of flax sees the output of each module, so no model has code for this.
The outputs are named by the paths that the parameters have, such as
encoder/layer_0/feed_forward, and can be replaced on the way.
"""

import dataclasses
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from transformer_jax.base.errors import UserError, nearest
from transformer_jax.data import store
from transformer_jax.data.batches import Batch, Shape
from transformer_jax.data.reading.records import Generated
from transformer_jax.losses import means
from transformer_jax.models.layers.dropout import Dropout
from transformer_jax.models.outputs import Outputs
from transformer_jax.sharding import Params
from transformer_jax.tasks.protocols import Record, Task

DROPOUT = (nn.Dropout, Dropout)  # changes nothing here
Patch = Mapping[str, Callable[[Array], Array]]  # by path: from an output to another


@dataclasses.dataclass(frozen=True)
class Inside:
    """The values that a model computed for a batch of examples."""

    batch: dict[str, np.ndarray]  # what it read, as in training
    loss: float  # the mean, without dropout
    activations: dict[str, Array]  # the output of each module, by path
    attention: dict[str, Array]  # weights [B, N, T, S], by path
    outputs: Outputs | None  # logits, hidden states and weights, of most models

    @property
    def logits(self) -> Array:
        """The logits, if the model has returned them."""
        if self.outputs is None:
            raise UserError(
                "this model returns no logits by themselves: see activations"
            )
        return self.outputs.logits


def make_batch(task: Task, records: Sequence[Record]) -> dict[str, np.ndarray]:
    """Encode and pad examples as one batch; nothing is left out or cut."""
    with tempfile.TemporaryDirectory(prefix="transformer_jax_") as folder:
        held = Generated(lambda: [dict(r) for r in records], "inside")
        made = store.build(
            Path(folder),
            held,
            task.data.columns_for(held),
            task.data.encode,
            "inside",
        )
        lengths = np.atleast_2d(task.data.lengths(made).T).T
        multiple = task.config.data.length_multiple
        longest = (-(-int(n) // multiple) * multiple for n in lengths.max(axis=0))
        shape = Shape(len(records), tuple(longest))
        batch = Batch(shape, np.arange(len(records))[:, None])
        arrays = task.data.collate(made.take(batch.real), batch)
        return {name: np.array(array) for name, array in arrays.items()}


def look(
    task: Task, params: Params, batch: Mapping[str, Any], patch: Patch | None = None
) -> Inside:
    """Read a batch, and return each module's output; `patch` replaces outputs."""
    patch = patch or {}

    def read(params: Params, batch: Mapping[str, Array]) -> tuple[Any, ...]:
        seen: dict[str, Any] = {}
        weights: dict[str, Any] = {}
        with nn.intercept_methods(_catch(seen, weights, patch)):
            sums = task.objective.loss(params, batch)
        return sums, seen, weights

    sums, seen, weights = jax.jit(read)(params, dict(batch))
    if unknown := [path for path in patch if path not in seen]:
        raise UserError(
            f"patch: the model has no output {unknown[0]!r}."
            f"{nearest(unknown[0], seen)} It has {', '.join(sorted(seen)[:4])}, …"
        )
    whole = seen.pop("", None)
    outputs = whole if isinstance(whole, Outputs) else None
    if outputs and (size := getattr(task.objective, "vocab_size", 0)):
        # The rows of a table are filled up to a multiple; those are no pieces.
        outputs = outputs.replace(logits=outputs.logits[..., :size])
    return Inside(dict(batch), means(sums)["loss"], seen, weights, outputs)


def _catch(seen: dict[str, Any], weights: dict[str, Any], patch: Patch) -> Callable:
    """Make an interceptor that notes the outputs of modules, and replaces some."""

    def catch(next_call: Callable, args: Any, kwargs: Any, context: Any) -> Any:
        result = next_call(*args, **kwargs)
        if context.method_name != "__call__" or isinstance(context.module, DROPOUT):
            return result
        path = "/".join(context.module.path)
        several = isinstance(result, tuple) and not hasattr(result, "_fields")
        first: Any = result[0] if several else result
        rest: tuple[Any, ...] = result[1:] if several else ()
        if path in patch:
            first = patch[path](first)
        seen[path] = first
        attends = several and path.endswith("attention")
        if attends and rest[0] is not None:
            weights[path] = rest[0]
        return (first, *rest) if several else first

    return catch


def gradient(
    task: Task, params: Params, batch: Mapping[str, Any], patch: Patch | None = None
) -> tuple[float, Params]:
    """Return the mean loss of a batch, and its gradient by each parameter."""
    patch = patch or {}

    def loss(params: Params, batch: Mapping[str, Array]) -> Array:
        with nn.intercept_methods(_catch({}, {}, patch)):
            sums = task.objective.loss(params, batch)
        return sums.loss / jnp.maximum(sums.weight, 1)

    value, slope = jax.jit(jax.value_and_grad(loss))(params, dict(batch))
    return float(value), slope


def count_flops(task: Task, params: Params, batch: Mapping[str, Any]) -> int:
    """Count the floating-point operations of the loss of a batch, as XLA does."""
    compiled = jax.jit(task.objective.loss).lower(params, dict(batch)).compile()
    found: Any = compiled.cost_analysis() or {}
    return int(found.get("flops", 0))
