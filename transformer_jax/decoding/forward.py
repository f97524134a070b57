"""Read given sequences instead of writing: one forward pass over any number of them.

`PairScorer` reads targets as answers to their sources: how likely they are and what
they attend to. It also makes vectors of sources. `TextScorer` reads texts with a
language model. Sequences of similar length share a batch; each shape is compiled once.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from transformer_jax import sharding
from transformer_jax.base.ids import BOS, PAD
from transformer_jax.base.programs import Program
from transformer_jax.decoding.engine import pad_length
from transformer_jax.decoding.searching import (
    NEG_INF,
    announce,
    bind,
    row_sizes,
    rows_for,
)
from transformer_jax.models import kernels
from transformer_jax.sharding import Params

Pair = tuple[Sequence[int], Sequence[int]]  # source and target, each with its end
Sides = Mapping[str, Any]  # the items of each array of a batch, in order


class BatchedForward:
    """Apply a function (params, batch) → outputs [B, …] to any number of items.

    An item of a side is a sequence [T, …], which is padded with zeros to a common
    length, or, with `equal`, an array whose shape is that of all others.
    """

    def __init__(
        self,
        function: Callable[[Any, Any], Any],
        batch_rows: int,
        row_multiple: int,
        made_from: Callable[[], Sequence[Any]],
        equal: bool = False,
    ):
        """Make the form; `made_from` tells what the function depends on (`Program`)."""
        self._rows, self._equal = (batch_rows, row_multiple), equal
        self._announced: set = set()  # programs that have been compiled
        self._compiled = functools.cache(
            lambda mesh: Program(
                function, made_from(), out_shardings=sharding.replicated(mesh)
            )
        )

    def __call__(
        self, params: Params, sides: Sides, mesh: Mesh
    ) -> Iterator[tuple[int, Any]]:
        """Yield (number of an item, its outputs), in any order.

        Item i consists of the i-th array of each side. An item that comes alone is read
        without empty rows beside it, which would take as long.
        """
        sizes = row_sizes(*self._rows, sharding.row_devices(mesh))
        if mesh.size == 1 and all(len(items) == 1 for items in sides.values()):
            sizes = [1]
        for batch, members in _batches(sides, sizes, self._equal):
            if not self._equal:
                shapes = tuple(array.shape for array in batch.values())
                longest = max(shape[1] for shape in shapes)
                announce(self._announced, (mesh, shapes), longest)
            with jax.set_mesh(mesh):
                batch = sharding.to_global(batch, mesh)
                found = jax.device_get(self._compiled(mesh)(params, batch))
            for row, i in enumerate(members):
                yield i, jax.tree.map(lambda a, row=row: a[row], found)


class PairScorer:
    """Read pairs, or sources alone, with an encoder-decoder model."""

    def __init__(self, module: Any, batch_rows: int, row_multiple: int):
        """Make a scorer; attention is read with weights, sources are encoded without.

        A kernel that keeps no weights needs less memory for long sources.
        """
        self.module, self.plain = kernels.with_weights(module), module
        sizes = batch_rows, row_multiple
        self._read = BatchedForward(self._read_pairs, *sizes, lambda: [self.module])
        self._encode = BatchedForward(
            self._encode_sources, *sizes, lambda: [self.plain]
        )

    def pairs(
        self, params: Params, pairs: Sequence[Pair], mesh: Mesh
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield (number, log-probability of each target token, attention), any order.

        Attention [target, source] is the mean over the heads of the last layer; its
        shape is [target, 0] for a model without attention.
        """
        sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
        sides = {"source": sources, "target": targets}
        for i, (log_probs, attention) in self._read(params, sides, mesh):
            source, target = map(len, pairs[i])
            yield i, log_probs[:target], attention[:target, :source]

    def vectors(
        self, params: Params, sources: Sequence[Sequence[int]], mesh: Mesh
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (number, mean of the encoder's output over the tokens of a source)."""
        return self._encode(params, {"source": sources}, mesh)

    def _read_pairs(self, params, batch):
        source, target = batch["source"], batch["target"]
        read = jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=BOS)
        outputs = self.module.apply(
            {"params": params},
            source,
            read,
            (source != PAD).astype(jnp.int32),
            (target != PAD).astype(jnp.int32),
        )
        # As in a search, padding and the start get no probability.
        logits = outputs.logits.at[..., jnp.array([PAD, BOS])].set(NEG_INF)
        log_probs = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(log_probs, target[..., None], axis=-1)[..., 0]
        if not outputs.cross_attention:
            return chosen, jnp.zeros((*target.shape, 0))
        return chosen, outputs.cross_attention[-1].mean(axis=1)

    def _encode_sources(self, params, batch):
        source = batch["source"]
        real = source != PAD
        memory, _ = self.plain.apply(
            {"params": params}, source, real.astype(jnp.int32), method="encode"
        )
        total = jnp.where(real[..., None], memory.astype(jnp.float32), 0).sum(axis=1)
        return total / jnp.maximum(real.sum(axis=1, keepdims=True), 1)


class TextScorer:
    """Read texts that share a beginning with a language model."""

    def __init__(self, module: Any, batch_rows: int, row_multiple: int):
        self.module = module
        self._read = BatchedForward(
            self._read_texts, batch_rows, row_multiple, lambda: [module]
        )

    def texts(
        self,
        params: Params,
        given: Sequence[int],
        texts: Sequence[Sequence[int]],
        mesh: Mesh,
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (number, log-probability of each token of a text), in any order.

        `given` begins with the start token. It is read once for all rows of a batch.
        """
        sides = {"given": [given] * len(texts), "text": texts}
        for i, log_probs in self._read(params, sides, mesh):
            yield i, log_probs[: len(texts[i])]

    def _read_texts(self, params, batch):
        model, given, text = (
            bind(self.module, params),
            batch["given"][:1],
            batch["text"],
        )
        rows, length = text.shape
        real = given != PAD
        places = jnp.where(real, jnp.arange(given.shape[1]), -1)[:, None]
        static, state = model.start({"prompt": given}, given.shape[1] + length)
        before, state = model.extend(given[:, None], places, static, state)
        first = jnp.broadcast_to(
            before[0, 0, real.sum() - 1], (rows, 1, before.shape[-1])
        )

        state = jax.tree.map(
            lambda a: jnp.broadcast_to(a, (rows, *a.shape[1:])) if a.ndim else a, state
        )
        places = jnp.where(text != PAD, real.sum() + jnp.arange(length), -1)
        after, _ = model.extend(text[:, None], places[:, None], static, state)
        logits = jnp.concatenate([first, after[:, 0, :-1]], axis=1)
        log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
        return jnp.take_along_axis(log_probs, text[..., None], axis=-1)[..., 0]


def _batches(
    sides: Sides, row_sizes: Sequence[int], equal: bool
) -> Iterator[tuple[dict[str, np.ndarray], list[int]]]:
    """Yield batches of these sizes and their items; similar lengths share a batch."""
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for i, item in enumerate(zip(*sides.values(), strict=True)):
        lengths = () if equal else map(len, item)
        shape = tuple(pad_length(max(length, 1)) for length in lengths)
        by_shape.setdefault(shape, []).append(i)
    kinds = {name: _kind_of(items) for name, items in sides.items()}
    for shape, members in sorted(by_shape.items()):
        for begin in range(0, len(members), row_sizes[0]):
            part = members[begin : begin + row_sizes[0]]
            rows = rows_for(row_sizes, len(part))
            batch = {}
            for place, (name, items) in enumerate(sides.items()):
                dtype, inner = kinds[name]
                inner = inner if equal else (shape[place], *inner[1:])
                batch[name] = np.zeros((rows, *inner), dtype)
                for row, i in enumerate(part):
                    index = (row,) if equal else (row, slice(len(items[i])))
                    batch[name][index] = items[i]
            yield batch, part


def _kind_of(items: Any) -> tuple[type, tuple[int, ...]]:
    """Return the dtype and the shape of the items of a side, by the first of them."""
    first = np.asarray(items[0] if len(items) else ())
    return (
        np.float32 if first.dtype.kind == "f" and first.size else np.int32,
        first.shape,
    )
