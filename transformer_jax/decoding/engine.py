"""Search the answers to any number of requests, in batches of few static shapes.

A shape follows from a request's own length, so an answer does not depend on its batch.
A search runs until enough rows have finished for the others to fit into a smaller
batch, and then continues with these alone. Its cache begins with slots for an answer of
usual length and grows to the longest allowed only if necessary, because attention reads
all slots. On one device, threads search two batches at a time, because parts of a step
keep only one core busy.
"""

import collections
import dataclasses
import functools
import itertools
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from transformer_jax import sharding
from transformer_jax.base.errors import Refused, UserError
from transformer_jax.base.ids import BOS
from transformer_jax.decoding import DecodeRequest, Options
from transformer_jax.decoding.beam import BeamSearch
from transformer_jax.decoding.constraints import Constraint
from transformer_jax.decoding.memory import estimate_search, free_on, needs_of
from transformer_jax.decoding.sampling import SamplingSearch
from transformer_jax.decoding.searching import (
    DecodeInputs,
    Hypotheses,
    Search,
    announce,
    bind,
    numbers_of,
    resize,
    row_sizes,
    rows_for,
)
from transformer_jax.sharding import Params

IN_FLIGHT = 2  # batches searched at a time
LARGE = 0.25  # a search that may need more of the memory is compiled to know


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """A hypothesis as host values."""

    tokens: tuple[int, ...]
    log_prob: float
    score: float


class Engine:
    """Search with one module on one mesh."""

    def __init__(
        self,
        module: nn.Module,
        mesh: Mesh,
        batch_rows: int,
        row_multiple: int,
        constraint: Constraint | None = None,
    ):
        """Make an engine; `constraint` applies to requests that carry arrays for it."""
        self.module, self.mesh, self.constraint = module, mesh, constraint
        self._announced: set = set()  # programs that have been compiled
        devices = sharding.row_devices(mesh)
        self.row_sizes = row_sizes(batch_rows, row_multiple, devices)
        jit = functools.partial(jax.jit, out_shardings=sharding.replicated(mesh))
        self._begin = jax.jit(self._begin_search, static_argnames=("shape", "options"))
        self._advance = jax.jit(
            self._advance_search,
            static_argnames="options",
            donate_argnums=1,
            # Every process needs to know which rows have finished.
            out_shardings=(None, sharding.replicated(mesh)),
        )
        self._result = jit(self._result_of, static_argnames="options")
        self._keep_rows = jax.jit(_keep_rows)
        self._resize_cache = jax.jit(_resize_cache, static_argnames="slots")

    def search(
        self, params: Params, requests: Sequence[DecodeRequest], options: Options
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yield (number of a request, its hypotheses), in any order."""
        if self.mesh.size == 1:
            yield from self._search_by_threads(params, requests, options)
            return
        params = sharding.unsplit_fsdp(params, self.mesh)
        with jax.set_mesh(self.mesh):
            for batch in self._batches(requests, options):  # in one order everywhere
                yield from self._search(params, requests, options, *batch)

    def states(
        self, params: Params, request: DecodeRequest, options: Options
    ) -> Iterator[Any]:
        """Yield the state of one request's search, initially and after each token.

        The steps are those of `search`. Read a state before asking for the next one,
        which takes over its memory.
        """
        shape, rows = _shape_of(request, options), rows_for(self.row_sizes, 1)
        batch = _collate([request], rows, shape, options)
        options = options.without_numbers()
        if self.mesh.size > 1:
            params = sharding.unsplit_fsdp(params, self.mesh)
        with jax.set_mesh(self.mesh):
            batch = sharding.to_global(batch, self.mesh)
            carry = self._begin(params, batch, shape=shape, options=options)
            unfinished = True
            for step in itertools.count(1):
                yield carry
                if not unfinished:
                    return
                if step == shape.first_step_limit + 1:
                    carry = self._resize_cache(carry, slots=shape.prompt + shape.length)
                carry, waiting = self._advance(params, carry, 0, step, options=options)
                unfinished = bool(np.asarray(waiting)[0])

    def _search_by_threads(self, params, requests, options):
        waiting = collections.deque(self._batches(requests, options))
        threads = min(IN_FLIGHT, len(waiting))
        results: queue.SimpleQueue = queue.SimpleQueue()
        abandoned = threading.Event()

        def work():
            try:
                with jax.set_mesh(self.mesh):
                    while True:
                        try:
                            batch = waiting.popleft()
                        except IndexError:
                            break
                        for found in self._search(params, requests, options, *batch):
                            results.put(found)
                            if abandoned.is_set():
                                return
                results.put(None)
            except Exception as error:  # raised again by the main thread
                results.put(error)

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        try:
            while threads:
                found = results.get()
                if isinstance(found, Exception):
                    raise found
                if found is None:
                    threads -= 1
                else:
                    yield found
        finally:  # also if the caller stops early: a thread must not outlive Python
            waiting.clear()
            abandoned.set()
            for worker in workers:
                worker.join()

    def _search(self, params, requests, options, rows, shape, members):
        batch = _collate([requests[i] for i in members], rows, shape, options)
        options = options.without_numbers()
        batch = sharding.to_global(batch, self.mesh)
        program = rows, shape, options
        if program not in self._announced:
            self._check_memory(params, batch, *program)
        announce(self._announced, program, shape.source)
        carry = self._begin(params, batch, shape=shape, options=options)
        step_limit = shape.first_step_limit
        places = np.array([*members, *[-1] * (rows - len(members))])
        while True:
            smaller = [n for n in self.row_sizes if n < rows]
            # Rows are not moved between devices.
            enough = smaller[0] if smaller and self.mesh.size == 1 else 0
            carry, unfinished = self._advance(
                params, carry, enough, step_limit, options=options
            )
            unfinished = np.asarray(unfinished)
            leaving = ~unfinished & (places >= 0)
            if leaving.any():
                found = jax.device_get(self._result(carry, options=options))
                for row in np.flatnonzero(leaving):
                    yield int(places[row]), _unpack(found, int(row), options)
            staying = np.flatnonzero(unfinished & (places >= 0))
            if not len(staying):
                return
            places = np.where(unfinished, places, -1)
            fewer = rows_for(self.row_sizes, len(staying))
            if fewer < rows:
                # Fill empty rows with finished ones, on which no work is done.
                filler = np.flatnonzero(~unfinished)[: fewer - len(staying)]
                kept, rows = np.concatenate([staying, filler]), fewer
                places, carry = places[kept], self._keep_rows(carry, jnp.asarray(kept))
            if step_limit < shape.length:
                step_limit = shape.length
                carry = self._resize_cache(carry, slots=shape.prompt + step_limit)

    def _check_memory(self, params, batch, rows, shape, options) -> None:
        """Refuse a search that does not fit into memory at its full size.

        A search that may be too large, by an estimate from above, is compiled in
        advance to know.
        """
        free, memories = free_on(self.mesh)
        carry = self._begin.eval_shape(params, batch, shape=shape, options=options)
        slots = shape.prompt + shape.length
        carry = jax.eval_shape(functools.partial(_resize_cache, slots=slots), carry)
        state = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(carry))
        needs = 3 * state + estimate_search(self.module, rows, shape, options)
        if needs <= LARGE * free * memories:
            return
        needs = state
        if state <= free * memories:
            lowered = self._advance.lower(
                params, carry, 0, shape.length, options=options
            )
            began = self._begin.lower(params, batch, shape=shape, options=options)
            programs = [lowered.compile(), began.compile()]
            shares = memories if memories > 1 else self.mesh.size
            needs = shares * max(map(needs_of, programs))
        if needs > free * memories:
            raise UserError(
                f"{rows} lines searched together with beams {options.beams}, for "
                f"answers of up to {shape.length:,} pieces, need {needs / 1e9:,.0f} "
                f"GB, but {free * memories / 1e9:,.0f} are free: lower beams, "
                "max_length (extra_length) or eval.batch_rows"
            )

    def compile(
        self, params: Any, request: DecodeRequest, options: Options, **flags: Any
    ) -> list[Any]:
        """Compile the search of a full batch of requests, for abstract parameters.

        Return the programs that begin the search and that advance it. `flags` are
        compiler options.
        """
        rows, shape = self.row_sizes[0], _shape_of(request, options)
        arrays = _collate([request], rows, shape, options)
        options = options.without_numbers()
        places = sharding.unsplit_shardings(params, self.mesh)
        params = jax.tree.map(_abstract, params, places)
        with jax.set_mesh(self.mesh):
            batch = sharding.abstract_global(arrays, self.mesh, rows)
            traced = self._begin.trace(params, batch, shape=shape, options=options)
            begin = traced.lower().compile(flags)
            carry = jax.tree.map(_abstract, traced.out_info, begin.output_shardings)
            advance = self._advance.lower(
                params, carry, 0, shape.first_step_limit, options=options
            )
            return [begin, advance.compile(flags)]

    def _begin_search(self, params, batch, shape: "_Shape", options: Options):
        names = (field.name for field in dataclasses.fields(DecodeInputs))
        inputs = DecodeInputs(**{name: batch.get(name) for name in names})
        model = bind(self.module, params)
        carry = self._make_search(options).begin(model, batch, inputs, shape.length)
        return _resize_cache(carry, shape.prompt + shape.first_step_limit)

    def _advance_search(self, params, carry, enough, step_limit, options: Options):
        search, model = self._make_search(options), bind(self.module, params)
        carry = jax.lax.while_loop(
            lambda c: (search.unfinished(c).sum() > enough) & (c.step < step_limit),
            lambda c: search.advance(model, c),
            carry,
        )
        return carry, search.unfinished(carry)

    def _result_of(self, carry, options: Options) -> Hypotheses:
        return self._make_search(options).result(carry)

    def _make_search(self, options: Options) -> Search:
        if options.beams == 1 or options.sample:  # greedy search, or sampling
            return SamplingSearch(options, self.constraint)
        return BeamSearch(options, self.constraint)

    def _batches(self, requests, options) -> Iterator[tuple[int, "_Shape", list[int]]]:
        """Yield (rows, shape, members) of each batch, short sources first."""
        by_shape: dict[_Shape, list[int]] = {}
        order = sorted(range(len(requests)), key=lambda i: (len(requests[i].source), i))
        for i in order:
            by_shape.setdefault(_shape_of(requests[i], options), []).append(i)
        for shape, members in by_shape.items():
            while members:
                rows = rows_for(self.row_sizes, len(members))
                yield rows, shape, members[:rows]
                members = members[rows:]


@dataclasses.dataclass(frozen=True)
class _Shape:
    """Static sizes of a batch: lengths of its sources, prompts and answers."""

    source: int
    prompt: int
    length: int
    constraint: tuple[tuple[str, int], ...] = ()  # names and lengths of its arrays

    @property
    def first_step_limit(self) -> int:
        """The length of an answer for which the cache has slots at first."""
        return min(self.length, self.source + 16)


def _shape_of(request: DecodeRequest, options: Options) -> _Shape:
    source = pad_length(len(request.source))
    prompt = pad_length(len(request.prefix)) + 1 if request.prefix else 1
    length = options.max_length or source + options.extra_length
    arrays = request.constraint or {}
    widths = tuple((name, pad_length(len(a))) for name, a in arrays.items())
    return _Shape(source, prompt, length, widths)


def check_least(request: DecodeRequest, options: Options) -> None:
    """Refuse a line whose shortest allowed answer exceeds its longest."""
    most = longest_answer(request, options)
    asks = len(request.source) or len(request.prefix)
    if options.min_length > most and asks:
        raise Refused(
            f"an answer of at least {options.min_length} pieces (min_length) is longer "
            f"than the {most} allowed for this line: lower min_length, or raise "
            "max_length or extra_length"
        )


def longest_answer(request: DecodeRequest, options: Options) -> int:
    """Count the tokens that an answer may have, including its end."""
    pieces = max(len(request.source) - 1, 0)  # of the source, without its end
    return max(options.max_length or pieces + options.extra_length, 1)


def positions_needed(request: DecodeRequest, options: Options) -> int:
    """Count the positions of the longer side; the end of an answer is never read."""
    return max(
        len(request.source), len(request.prefix) + longest_answer(request, options)
    )


def pad_length(length: int) -> int:
    """Return the padded length of a source: a power of 2, or halfway between two.

    Each is compiled, so there are only a few.
    """
    whole = 1 << max(length - 1, 1).bit_length()
    return max(12, whole * 3 // 4 if length <= whole * 3 // 4 else whole)


def _collate(requests, rows: int, shape: _Shape, options: Options) -> dict[str, Any]:
    """Return the arrays of a batch; the limit of an empty row is 0.

    Sources are tokens or arrays of vectors, all of the same kind as the first.
    """
    first = np.asarray(requests[0].source)
    kind = np.float32 if first.ndim > 1 else np.int32
    batch = {
        "source": np.zeros((rows, shape.source, *first.shape[1:]), kind),
        "source_segments": np.zeros((rows, shape.source), np.int32),
        "prompt": np.zeros((rows, shape.prompt), np.int32),
        "prompt_lengths": np.ones(rows, np.int32),
        "limits": np.zeros(rows, np.int32),
        "seeds": np.zeros(rows, np.int32),
        "numbers": numbers_of(options, rows),
    }
    if shape.constraint:
        batch["constraint"] = {
            name: np.zeros(
                (rows, width), np.asarray(requests[0].constraint[name]).dtype
            )
            for name, width in shape.constraint
        }
    batch["prompt"][:, 0] = BOS
    for i, request in enumerate(requests):
        length = len(request.source)  # 0 for a language model
        batch["source"][i, :length] = request.source
        batch["source_segments"][i, :length] = 1
        batch["prompt"][i, 1 : len(request.prefix) + 1] = request.prefix
        batch["prompt_lengths"][i] += len(request.prefix)
        batch["limits"][i] = request.limit or longest_answer(request, options)
        batch["seeds"][i] = request.seed
        for name, _ in shape.constraint:
            values = request.constraint[name]
            batch["constraint"][name][i, : len(values)] = values
    # An empty row still needs a token to attend to.
    batch["source_segments"][len(requests) :, 0] = 1
    return batch


def _abstract(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _keep_rows(carry: Any, kept: Any) -> Any:
    """Keep only these rows of a search's state; scalars do not change."""
    return jax.tree.map(lambda a: a[kept] if a.ndim else a, carry)


def _resize_cache(carry: Any, slots: int) -> Any:
    """Resize the cache of a search to this number of slots, including the prompt."""
    return carry.replace(state=resize(carry.state, slots))


def _unpack(found: Hypotheses, row: int, options: Options) -> list[Hypothesis]:
    return [
        Hypothesis(
            tuple(map(int, found.tokens[row, k, : found.lengths[row, k]])),
            float(found.log_probs[row, k]),
            float(score),
        )
        for k, score in enumerate(found.scores[row, : options.n_best])
        if np.isfinite(score)
    ]
