"""Reading what is given, instead of writing: how likely a target is, what it attends
to, a vector for a sentence; or whatever else one forward pass finds.

Sequences of like length share a batch; each shape is compiled once.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from transformer_jax import sharding
from transformer_jax.decoding import NEG_INF, row_sizes, rows_for
from transformer_jax.ids import BOS, PAD

Pair = tuple[Sequence[int], Sequence[int]]  # source and target, each with its end
Sides = dict[str, Sequence[Sequence[int]]]  # of a batch, by name; item i of each is one


class BatchedForward:
    """A function (params, batch) → outputs [B, …], over any number of sequences."""

    def __init__(
        self,
        function: Callable[[Any, dict], Any],
        batch_rows: int,
        row_multiple: int,
        pad_length: Callable[[int], int],
    ):
        self.row_sizes, self.pad_length = (
            row_sizes(batch_rows, row_multiple),
            pad_length,
        )
        self._compiled = functools.cache(
            lambda mesh: jax.jit(function, out_shardings=sharding.replicated(mesh))
        )

    def __call__(
        self, params: Any, sides: Sides, mesh: Mesh
    ) -> Iterator[tuple[int, Any]]:
        """(number, its outputs) in whatever order."""
        for batch, members in _batches(sides, self.row_sizes, self.pad_length):
            with jax.set_mesh(mesh):
                batch = sharding.to_global(batch, mesh)
                found = jax.device_get(self._compiled(mesh)(params, batch))
            for row, i in enumerate(members):
                yield i, jax.tree.map(lambda a, row=row: a[row], found)


class PairScorer:
    """Reads with one module on one mesh."""

    def __init__(
        self,
        module: nn.Module,
        mesh: Mesh,
        batch_rows: int,
        row_multiple: int,
        pad_length: Callable[[int], int],
    ):
        self.module, self.mesh = module, mesh
        self.row_sizes, self.pad_length = (
            row_sizes(batch_rows, row_multiple),
            pad_length,
        )
        jit = functools.partial(jax.jit, out_shardings=sharding.replicated(mesh))
        self._read, self._encode = jit(self._read_pairs), jit(self._encode_sources)

    def pairs(
        self, params: Any, pairs: Sequence[Pair]
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """(number, log-probability of each target token, attention [target, source])

        in whatever order. Attention is the mean over the heads of the last layer; a
        model without any has that of [target, 0].
        """
        sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
        sides = {"source": sources, "target": targets}
        for batch, members in _batches(sides, self.row_sizes, self.pad_length):
            with jax.set_mesh(self.mesh):
                found = self._read(params, sharding.to_global(batch, self.mesh))
            log_probs, attention = jax.device_get(found)
            for row, i in enumerate(members):
                source, target = map(len, pairs[i])
                yield i, log_probs[row, :target], attention[row, :target, :source]

    def vectors(
        self, params: Any, sources: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, np.ndarray]]:
        """(number, mean of the encoder's output over the tokens of the source)."""
        sides = {"source": sources}
        for batch, members in _batches(sides, self.row_sizes, self.pad_length):
            with jax.set_mesh(self.mesh):
                found = self._encode(params, sharding.to_global(batch, self.mesh))
            yield from zip(members, jax.device_get(found), strict=False)

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
        # As in a search, padding and the start are never chosen.
        logits = outputs.logits.at[..., jnp.array([PAD, BOS])].set(NEG_INF)
        log_probs = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(log_probs, target[..., None], axis=-1)[..., 0]
        if not outputs.cross_attention:
            return chosen, jnp.zeros((*target.shape, 0))
        return chosen, outputs.cross_attention[-1].mean(axis=1)

    def _encode_sources(self, params, batch):
        source = batch["source"]
        real = source != PAD
        memory, _ = self.module.apply(
            {"params": params}, source, real.astype(jnp.int32), method="encode"
        )
        total = jnp.where(real[..., None], memory.astype(jnp.float32), 0).sum(axis=1)
        return total / jnp.maximum(real.sum(axis=1, keepdims=True), 1)


def _batches(
    sides: Sides, row_sizes: Sequence[int], pad_length: Callable[[int], int]
) -> Iterator[tuple[dict[str, np.ndarray], list[int]]]:
    """Batches of such sizes, and whose they are: items of like lengths together."""
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for i, item in enumerate(zip(*sides.values(), strict=True)):
        shape = tuple(pad_length(max(len(part), 1)) for part in item)
        by_shape.setdefault(shape, []).append(i)
    for shape, members in sorted(by_shape.items()):
        for begin in range(0, len(members), row_sizes[0]):
            part = members[begin : begin + row_sizes[0]]
            rows = rows_for(row_sizes, len(part))
            batch = {}
            for (name, sequences), length in zip(sides.items(), shape, strict=True):
                batch[name] = np.zeros((rows, length), np.int32)
                for row, i in zip(batch[name], part, strict=False):
                    row[: len(sequences[i])] = sequences[i]
            yield batch, part
