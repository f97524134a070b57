"""One engine for every search: many prompts in, their hypotheses out, in order.

Sources are sorted by length into few static shapes, each compiled once. A shape
follows from a source's own length, so its answer does not depend on what shares its
batch.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from transformer_jax import sharding
from transformer_jax.decoding import Hypotheses, bind
from transformer_jax.decoding.beam import beam_search
from transformer_jax.decoding.greedy import greedy
from transformer_jax.ids import BOS


@dataclasses.dataclass(frozen=True)
class Options:
    """How to search; `config.decode` has the defaults."""

    beams: int = 4
    alpha: float = 0.6
    extra_length: int = 50
    n_best: int = 1


@dataclasses.dataclass(frozen=True)
class Found:
    """One hypothesis on the host."""

    tokens: tuple[int, ...]
    log_prob: float
    score: float


class Engine:
    """Searches with one module on one mesh."""

    def __init__(
        self, module: nn.Module, mesh: Mesh, batch_rows: int, row_multiple: int
    ):
        self.mesh = mesh
        # Two batch sizes: full ones, and one for the few sentences that remain.
        few = min(row_multiple, batch_rows)
        self.row_sizes = (few, max(batch_rows // few * few, few))
        self._search = jax.jit(
            functools.partial(_search, module),
            static_argnames=("length", "options"),
            out_shardings=sharding.replicated(mesh),
        )

    def search(
        self,
        params: Any,
        sources: Sequence[Sequence[int]],
        options: Options,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[list[Found]]:
        """For each source (end of sentence included) its best hypotheses."""
        found: list[list[Found]] = [[] for _ in sources]
        done = 0
        for rows, length, members in self._batches([len(s) for s in sources]):
            batch = _collate([sources[i] for i in members], rows, length)
            # A source's own pieces, its end not counted, and the extra ones.
            limits = np.ones(rows, np.int32)
            limits[: len(members)] = [
                len(sources[i]) - 1 + options.extra_length for i in members
            ]
            inputs = {**batch, "limits": limits}
            with jax.set_mesh(self.mesh):
                hypotheses = self._search(
                    params,
                    sharding.to_global(inputs, self.mesh),
                    length=length + options.extra_length,
                    options=options,
                )
            for i, best in zip(members, _unpack(hypotheses, options), strict=False):
                found[i] = best
            done += len(members)
            progress(done, len(sources))
        return found

    def _batches(self, lengths: list[int]) -> Iterator[tuple[int, int, list[int]]]:
        """(rows, padded length, members) of each batch, short sources first."""
        by_length: dict[int, list[int]] = {}
        for i in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
            by_length.setdefault(bucket(lengths[i]), []).append(i)
        few, many = self.row_sizes
        for length, members in by_length.items():
            rows = many if len(members) > few else few
            while members:
                yield rows, length, members[:rows]
                members = members[rows:]


def bucket(length: int) -> int:
    """The padded length of a source: a step of 8, then of an eighth of a power of 2."""
    step = 8
    while length > step * 8:
        step *= 2
    return -(-length // step) * step


def _collate(sources, rows: int, length: int) -> dict[str, np.ndarray]:
    source = np.zeros((rows, length), np.int32)
    for row, tokens in zip(source, sources, strict=False):
        row[: len(tokens)] = tokens
    segments = (source != 0).astype(np.int32)
    segments[len(sources) :, 0] = 1  # an empty row still has something to look at
    return {"source": source, "source_segments": segments}


def _search(module, params, batch, length: int, options: Options) -> Hypotheses:
    rows = batch["source"].shape[0]
    limits = batch.pop("limits")
    prompt = jnp.full((rows, 1), BOS)
    prompt_lengths = jnp.ones((rows,), jnp.int32)
    args = (bind(module, params), batch, prompt, prompt_lengths, limits, length)
    if options.beams == 1:
        return greedy(*args)
    return beam_search(*args, options.beams, options.alpha, options.n_best)


def _unpack(hypotheses: Hypotheses, options: Options) -> Iterator[list[Found]]:
    host = jax.device_get(hypotheses)
    for tokens, lengths, log_probs, scores in zip(
        host.tokens, host.lengths, host.log_probs, host.scores, strict=True
    ):
        yield [
            Found(
                tuple(map(int, tokens[k, : lengths[k]])), float(log_probs[k]), float(s)
            )
            for k, s in enumerate(scores[: options.n_best])
            if np.isfinite(s)
        ]
