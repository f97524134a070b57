"""Search the answers to any number of requests, in batches of few static shapes.

Rows whose sentences have ended are given to waiting ones, shortest first, so that a
batch is full until no sentence waits (continuous batching); then it shrinks. Rows are
independent of each other, so an answer does not depend on its batch. The cache has
slots for answers of usual length, because attention reads all slots. It grows when one
is longer, and shrinks when that one has ended. On one device, threads search two
batches at a time, because parts of a step keep only one core busy. Which sentences a
batch is given depends on their lengths alone, never on time.
"""

import collections
import dataclasses
import functools
import itertools
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from transformer_jax import sharding
from transformer_jax.base.errors import Refused, UserError
from transformer_jax.base.ids import BOS, EOS, PAD
from transformer_jax.base.programs import Program
from transformer_jax.decoding import DecodeRequest, Options
from transformer_jax.decoding.memory import (
    bound_state,
    estimate_search,
    free_on,
    needs_of,
)
from transformer_jax.decoding.searches.beam import BeamSearch
from transformer_jax.decoding.searches.constraints import Constraint
from transformer_jax.decoding.searches.sampling import SamplingSearch
from transformer_jax.decoding.searching import (
    DecodeInputs,
    Hypotheses,
    Search,
    announce,
    bind,
    numbers_of,
    replace_rows,
    resize,
    row_sizes,
    rows_for,
)
from transformer_jax.sharding import Params

IN_FLIGHT = 2  # batches searched at a time
REFILLED = 4  # a batch is refilled when this part of its rows has finished
LARGE = 0.25  # a search that may need more of the memory is compiled to know
SLOTS = 32  # for an answer at first, if sources of several lengths share a batch
ROOM = 4  # slots beyond the source's length, or beyond what has been written
UNTIL_ENDED = np.iinfo(np.int32).max  # steps: until rows end
Asked = tuple[DecodeRequest, Options]


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """A hypothesis as host values."""

    tokens: tuple[int, ...]
    log_prob: float
    score: float


@runtime_checkable
class Searches(Protocol):
    """Anything that searches as an engine does."""

    def search(
        self, params: Params, requests: Sequence[DecodeRequest], options: Options
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yield (number of a request, its hypotheses), in any order."""
        ...


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
        self._checked: set = set()  # searches that fit into memory
        devices = sharding.row_devices(mesh)
        self.row_sizes = row_sizes(batch_rows, row_multiple, devices)
        # Every second size, because to read sources takes long to compile.
        self.read_sizes = sorted({self.row_sizes[0], *self.row_sizes[::-2]})
        # Requests that arrive one by one are often alone. In a batch of a file, a row
        # alone would be one more program to compile.
        self.live_sizes = sorted({*self.row_sizes, 1})
        self.live_read_sizes = sorted({*self.read_sizes, 1})
        program = functools.partial(Program, made_from=(module, constraint))
        self._begin = program(
            self._begin_search, static_argnames=("shape", "slots", "options")
        )
        self._advance = program(
            self._advance_search,
            static_argnames="options",
            donate_argnums=1,
            # Every process needs to know which rows have finished.
            out_shardings=(None, sharding.replicated(mesh)),
        )
        self._result = program(
            self._result_of,
            static_argnames="options",
            out_shardings=sharding.replicated(mesh),
        )
        self._written = program(self._written_in, static_argnames="options")
        self._keep_rows = Program(_keep_rows)
        self._replace_rows = Program(replace_rows, donate_argnums=0)
        self._widen = Program(replace_rows, static_argnames="slots")
        self._resize_cache = Program(_resize_cache, static_argnames="slots")

    def search(
        self, params: Params, requests: Sequence[DecodeRequest], options: Options
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yield (number of a request, its hypotheses), in any order.

        They are those of `searching.run` for each request alone. On one device, threads
        search shares of the requests.
        """
        if self.mesh.size == 1:
            yield from self._search_by_threads(params, requests, options)
            return
        params = sharding.unsplit_fsdp(params, self.mesh)
        with jax.set_mesh(self.mesh):
            for share in self._share(requests, options, 1):
                for members in share:  # in one order everywhere
                    yield from self._search(params, requests, options, members)

    def states(
        self, params: Params, request: DecodeRequest, options: Options
    ) -> Iterator[Any]:
        """Yield the state of one request's search, initially and after each token.

        The steps are those of `search`. Read a state before asking for the next one,
        which takes over its memory.
        """
        shape, rows = shape_of(request, options), self.rows_of(1)
        batch = collate([(request, options)], rows, shape)
        options = options.without_numbers()
        if self.mesh.size > 1:
            params = sharding.unsplit_fsdp(params, self.mesh)
        with jax.set_mesh(self.mesh):
            batch = sharding.to_global(batch, self.mesh)
            slots = shape.first_step_limit
            begin = functools.partial(self._begin, shape=shape, options=options)
            carry, unfinished = begin(params, batch, slots=slots), True
            for step in itertools.count(1):
                yield carry
                if not unfinished:
                    return
                if step == slots + 1:
                    carry = self._resize_cache(carry, slots=shape.prompt + shape.length)
                limits = 0, step, UNTIL_ENDED
                carry, told = self._advance(params, carry, *limits, options=options)
                unfinished = bool(np.asarray(told[0])[0])

    def _search_by_threads(self, params, requests, options):
        shares = self._share(requests, options, IN_FLIGHT)
        threads = len(shares)
        results: queue.SimpleQueue = queue.SimpleQueue()
        abandoned = threading.Event()

        def work(share):
            try:
                with jax.set_mesh(self.mesh):
                    for members in share:
                        for found in self._search(params, requests, options, members):
                            results.put(found)
                            if abandoned.is_set():
                                return
                results.put(None)
            except BaseException as error:  # raised again by the main thread
                results.put(error)

        workers = [threading.Thread(target=work, args=[share]) for share in shares]
        for worker in workers:
            worker.start()
        try:
            while threads:
                found = results.get()
                if isinstance(found, BaseException):
                    raise found
                if found is None:
                    threads -= 1
                else:
                    yield found
        finally:  # also if the caller stops early: a thread must not outlive Python
            abandoned.set()
            for worker in workers:
                worker.join()

    def _search(self, params, requests, options, members):
        """Search the answers to requests of one kind, shortest first."""
        waiting = collections.deque(members)
        one_device = self.mesh.size == 1  # rows are not moved between devices
        while waiting:
            rows = self.rows_of(len(waiting))
            asked = {i: (requests[i], options) for i in members}
            batch = Batch(self, params, asked, options, rows)
            batch.check_memory(waiting[-1])  # the longest
            batch.begin([waiting.popleft() for _ in range(min(rows, len(waiting)))])
            refill = max(rows // REFILLED, self.row_sizes[-1]) if one_device else rows
            while batch.members:
                smaller = [n for n in self.row_sizes if n < batch.rows]
                least = refill if waiting else batch.rows - max(smaller, default=0)
                yield from batch.advance(least if one_device else batch.rows)
                if one_device and waiting:
                    batch.shrink()
                while one_device and waiting and batch.free >= refill:
                    few = min(refill, len(waiting))
                    batch.refill([waiting.popleft() for _ in range(few)])
                if one_device and not waiting and rows > self.row_sizes[-1]:
                    batch.resize(len(batch.members))

    def rows_of(self, requests: int) -> int:
        """Return how many rows a batch has that begins with so many requests.

        A request that comes alone has no other rows, because each takes as long as its
        own, and someone waits.
        """
        if requests == 1 and self.mesh.size == 1:
            return 1
        return rows_for(self.row_sizes, requests)

    def _check_memory(self, params, batch, rows, shape, options) -> None:
        """Refuse a search that does not fit into memory at its full size.

        A search that may be too large, by an estimate from above, is compiled in
        advance to know.
        """
        free, memories = free_on(self.mesh)
        most = bound_state(self.module, rows, shape, options)
        needs = 3 * most + estimate_search(self.module, rows, shape, options)
        if needs <= LARGE * free * memories:
            return
        begin: Any = {"shape": shape, "slots": 0, "options": options}
        carry = self._begin.jitted.eval_shape(params, batch, **begin)
        slots = shape.prompt + shape.length
        carry = jax.eval_shape(functools.partial(_resize_cache, slots=slots), carry)
        state = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(carry))
        needs = 3 * state + estimate_search(self.module, rows, shape, options)
        if needs <= LARGE * free * memories:
            return
        needs = state
        if state <= free * memories:
            limits = 0, shape.length, UNTIL_ENDED
            lowered = self._advance.jitted.lower(
                params, carry, *limits, options=options
            )
            begin["slots"] = shape.length
            began = self._begin.jitted.lower(params, batch, **begin)
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
        rows, shape = self.row_sizes[0], shape_of(request, options)
        arrays = collate([(request, options)], rows, shape)
        options = options.without_numbers()
        places = sharding.unsplit_shardings(params, self.mesh)
        params = jax.tree.map(_abstract, params, places)
        with jax.set_mesh(self.mesh):
            batch = sharding.abstract_global(arrays, self.mesh, rows)
            begin: Any = {"slots": shape.first_step_limit, "options": options}
            traced = self._begin.jitted.trace(params, batch, shape=shape, **begin)
            begin = traced.lower().compile(flags)
            carry = jax.tree.map(_abstract, traced.out_info, begin.output_shardings)
            limits = 0, shape.first_step_limit, UNTIL_ENDED
            advance = self._advance.jitted.lower(
                params, carry, *limits, options=options
            )
            return [begin, advance.compile(flags)]

    def _begin_search(
        self, params, batch, shape: "Shape", slots: int, options: Options
    ):
        model, search = bind(self.module, params), self._make_search(options)
        return search.begin(model, batch, read_inputs(batch), shape.length, slots)

    def _advance_search(
        self, params, carry, enough, step_limit, most, options: Options
    ):
        """Take up to `most` steps, while more than `enough` rows are unfinished."""
        search, model = self._make_search(options), bind(self.module, params)

        def goes_on(loop):
            taken, carry = loop
            unfinished = search.unfinished(carry)
            outgrown = unfinished & (carry.step >= step_limit)
            return (unfinished.sum() > enough) & ~outgrown.any() & (taken < most)

        def advance(loop):
            taken, carry = loop
            return taken + 1, search.advance(model, carry)

        carry = jax.lax.while_loop(goes_on, advance, (0, carry))[1]
        return carry, (search.unfinished(carry), carry.step)

    def _result_of(self, carry, options: Options) -> Hypotheses:
        """Return the hypotheses of all rows, to be compiled."""
        return self._make_search(options).result(carry)

    def _written_in(self, carry, options: Options):
        """Return the texts that answers begin with, to be compiled."""
        return self._make_search(options).written(carry)

    def _make_search(self, options: Options) -> Search:
        if options.contrast:
            from transformer_jax.decoding.searches.contrast import ContrastiveSearch

            return ContrastiveSearch(options, self.constraint)
        if options.beams == 1 or options.sample:  # greedy search, or sampling
            return SamplingSearch(options, self.constraint)
        return BeamSearch(options, self.constraint)

    def _share(self, requests, options, most: int) -> list[list[list[int]]]:
        """Share requests among at most so many searches.

        Each has groups of requests that may be in a batch together, shortest first.
        """
        by_kind: dict[Any, list[int]] = {}
        order = sorted(range(len(requests)), key=lambda i: (len(requests[i].source), i))
        for i in order:
            by_kind.setdefault(shape_of(requests[i], options).kind, []).append(i)
        groups = list(by_kind.values())
        shares: list[list[list[int]]] = [[] for _ in range(most)]
        for group in groups:
            parts = min(most, -(-len(group) // self.row_sizes[0]))
            free = sorted(shares, key=lambda share: sum(map(len, share)))
            for part in range(parts):
                free[part].append(group[part::parts])
        return [share for share in shares if share]


class Batch:
    """The rows of one search, and which requests they belong to.

    `asked` has requests with their options by number. It may grow during the search;
    the options of a batch differ only in `NUMBERS`.
    """

    def __init__(
        self,
        engine: Engine,
        params: Params,
        asked: Mapping[int, Asked],
        options: Options,
        rows: int,
        source: int = 0,
    ):
        """Make a batch.

        `source` is the least length to which sources are padded, if requests arrive one
        by one. Then the batch begins with the program that refills it, and possibly
        with more rows.
        """
        self.engine, self.params, self.asked = engine, params, asked
        self.options, self.rows = options.without_numbers(), rows
        self.source = source
        self.sizes = engine.live_sizes if source else sorted(engine.row_sizes)
        self.read_sizes = engine.live_read_sizes if source else engine.read_sizes
        self.shape: Any = None  # until it begins

    @property
    def members(self) -> list[int]:
        """The requests that are being answered."""
        return [int(i) for i in self.places if i >= 0]

    @property
    def free(self) -> int:
        """The number of rows without a request."""
        return self.rows - len(self.members)

    @property
    def usual(self) -> int:
        """The length of an answer for which there are slots at first."""
        limit = self.shape.first_step_limit
        return min(limit, SLOTS) if self.source else limit

    def check_memory(self, longest: int, rows: int = 0) -> None:
        """Refuse the search if it does not fit into memory with the longest request.

        `rows` are those that it will have, by default those that it has.
        """
        shape = self._shape_for([longest])
        if self.shape:
            shape = max(self.shape, shape, key=lambda one: one.source)
        program = rows or self.rows, shape, self.options
        if program not in self.engine._checked:
            arrays = self._collate([longest], program[0], shape)
            self.engine._check_memory(self.params, arrays, *program)
            self.engine._checked.add(program)

    def begin(self, members: list[int]) -> None:
        """Begin the search of these requests."""
        engine, self.shape = self.engine, self._shape_for(members)
        self.step_limit = self.usual
        slots = self.step_limit
        if self.source:
            self.rows, slots = rows_for(self.read_sizes, len(members)), 0
        arrays = self._collate(members, self.rows, self.shape)
        program = self.rows, self.shape, self.options
        announce(engine._announced, program, self.shape.source)
        self.carry = engine._begin(
            self.params, arrays, shape=self.shape, slots=slots, options=self.options
        )
        if not slots:
            self._limit_steps(self.step_limit)
        self.places = np.array([*members, *[-1] * (self.rows - len(members))])
        self.unfinished = self.places >= 0
        self.steps = np.zeros(self.rows, int)

    def advance(
        self, least: int, most: int = UNTIL_ENDED
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Search until at least this many rows are free; yield what has been found.

        It stops after `most` steps, too.
        """
        engine, options = self.engine, self.options
        limits = self.rows - least, self.step_limit, most
        self.carry, told = engine._advance(
            self.params, self.carry, *limits, options=options
        )
        self.unfinished, self.steps = map(np.asarray, told)
        leaving = np.flatnonzero(~self.unfinished & (self.places >= 0))
        if len(leaving):
            found = self.found()
            for row in leaving:
                number = int(self.places[row])
                yield number, _unpack(found, int(row), self.asked[number][1])
        self.places = np.where(self.unfinished, self.places, -1)
        if (self.unfinished & (self.steps >= self.step_limit)).any():
            self.grow()

    def grow(self) -> None:
        """Add slots, for an answer that is longer than usual."""
        self._limit_steps(2 * self.step_limit)

    def shrink(self) -> None:
        """Free the slots that only an answer needed that has ended."""
        limit, written = self.usual, self.steps[self.places >= 0]
        while limit < max(written, default=0) + ROOM:
            limit *= 2
        if limit < self.step_limit:
            self._limit_steps(limit)

    def _limit_steps(self, limit: int) -> None:
        self.step_limit = min(limit, self.shape.length)
        slots = self.shape.prompt + self.step_limit
        self.carry = self.engine._resize_cache(self.carry, slots=slots)

    def found(self) -> Hypotheses:
        """Return the hypotheses of all rows, whether they have ended or not."""
        return jax.device_get(self.engine._result(self.carry, options=self.options))

    def refill(self, members: list[int]) -> None:
        """Give free rows to other requests."""
        engine = self.engine
        shape = max(self.shape, self._shape_for(members), key=lambda one: one.source)
        rows = rows_for(self.read_sizes, len(members))
        arrays = self._collate(members, rows, shape)
        fresh = engine._begin(
            self.params, arrays, shape=shape, slots=0, options=self.options
        )
        taken = np.flatnonzero(self.places < 0)[: len(members)]
        dropped = [self.rows] * (rows - len(members))
        at = jnp.asarray([*taken, *dropped], jnp.int32)
        if shape == self.shape:
            self.carry = engine._replace_rows(self.carry, fresh, at)
        else:
            self.shape = shape
            self.step_limit = max(self.step_limit, self.usual)
            slots = shape.prompt + self.step_limit
            self.carry = engine._widen(self.carry, fresh, at, slots=slots)
        self.places[taken] = members

    def resize(self, count: int) -> None:
        """Change the number of rows to the smallest that holds so many requests.

        Those in the batch stay, and each row that is added is a copy, without a
        request.
        """
        staying, sizes = len(self.members), self.sizes
        wanted = sizes.index(rows_for(sizes, max(count, staying)))
        # From size to size, because each pair of sizes has a program.
        while staying and (now := sizes.index(self.rows)) != wanted:
            self._keep(sizes[now + 1 if now < wanted else now - 1])

    def _keep(self, rows: int) -> None:
        staying = np.flatnonzero(self.places >= 0)
        # Finished rows come first, because they ask for no steps.
        empty = np.flatnonzero(self.places < 0)
        empty = empty[np.argsort(self.unfinished[empty], kind="stable")]
        filler = [*empty, *staying][: max(rows - len(staying), 0)]
        filler += [filler[0]] * (rows - len(staying) - len(filler)) if filler else []
        kept = np.array([*staying, *filler], int)
        self.places = np.where(np.arange(rows) < len(staying), self.places[kept], -1)
        self.unfinished, self.steps = self.unfinished[kept], self.steps[kept]
        self.rows = rows
        self.carry = self.engine._keep_rows(self.carry, jnp.asarray(kept))

    def leave(self, number: int) -> None:
        """Give up a request; its row is free."""
        self.places = np.where(self.places == number, -1, self.places)

    def written(self, numbers: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield (number of a request, the tokens with which its answer will begin)."""
        found = self.engine._written(self.carry, options=self.options)
        tokens, there = map(np.asarray, found)
        for number in numbers:
            row = int(np.flatnonzero(self.places == number)[0])
            yield number, _common_beginning(tokens[row][there[row]])

    def _shape_for(self, members: list[int]) -> "Shape":
        shapes = [shape_of(*self.asked[i], self.source) for i in members]
        return max(shapes, key=lambda shape: shape.source)

    def _collate(self, members: list[int], rows: int, shape: "Shape") -> Any:
        arrays = collate([self.asked[i] for i in members], rows, shape)
        return sharding.to_global(arrays, self.engine.mesh)


@dataclasses.dataclass(frozen=True)
class Shape:
    """Static sizes of a batch: lengths of its sources, prompts and answers."""

    source: int
    prompt: int
    length: int
    constraint: tuple[tuple[str, int], ...] = ()  # names and lengths of its arrays

    @property
    def kind(self) -> tuple[Any, ...]:
        """Return what requests of one batch share: all but the source's length."""
        return self.prompt, self.constraint

    @property
    def first_step_limit(self) -> int:
        """The length of an answer for which the cache has slots at first."""
        return min(self.length, pad_length(self.source + ROOM))


def shape_of(request: DecodeRequest, options: Options, source: int = 0) -> Shape:
    """Return the static sizes of a request whose source has at least this length."""
    source = max(pad_length(len(request.source)), source)
    prompt = pad_length(len(request.prefix)) + 1 if request.prefix else 1
    length = options.max_length or source + options.extra_length
    arrays = request.constraint or {}
    widths = tuple((name, pad_length(len(a))) for name, a in arrays.items())
    return Shape(source, prompt, length, widths)


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


def collate(asked: Sequence[Asked], rows: int, shape: Shape) -> dict[str, Any]:
    """Return the arrays of a batch; the limit of an empty row is 0.

    Sources are tokens or arrays of vectors, all of the same kind as the first.
    """
    requests = [request for request, _ in asked]
    first = np.asarray(requests[0].source)
    kind = np.float32 if first.ndim > 1 else np.int32
    batch = {
        "source": np.zeros((rows, shape.source, *first.shape[1:]), kind),
        "source_segments": np.zeros((rows, shape.source), np.int32),
        "prompt": np.zeros((rows, shape.prompt), np.int32),
        "prompt_lengths": np.ones(rows, np.int32),
        "limits": np.zeros(rows, np.int32),
        "seeds": np.zeros(rows, np.int32),
        "numbers": numbers_of(asked[0][1], rows),
    }
    if shape.constraint:
        batch["constraint"] = {
            name: np.zeros(
                (rows, width), np.asarray((requests[0].constraint or {})[name]).dtype
            )
            for name, width in shape.constraint
        }
    batch["prompt"][:, 0] = BOS
    for i, (request, options) in enumerate(asked):
        length = len(request.source)  # 0 for a language model
        batch["source"][i, :length] = request.source
        batch["source_segments"][i, :length] = 1
        batch["prompt"][i, 1 : len(request.prefix) + 1] = request.prefix
        batch["prompt_lengths"][i] += len(request.prefix)
        batch["limits"][i] = request.limit or longest_answer(request, options)
        batch["seeds"][i] = request.seed
        for name, values in batch["numbers"].items():
            values[i] = getattr(options, name)
        for name, _ in shape.constraint:
            values = (request.constraint or {})[name]
            batch["constraint"][name][i, : len(values)] = values
    # An empty row still needs a token to attend to.
    batch["source_segments"][len(requests) :, 0] = 1
    return batch


def read_inputs(batch: dict[str, Any]) -> DecodeInputs:
    """Return what a search reads of a batch, besides the model's own input."""
    names = (field.name for field in dataclasses.fields(DecodeInputs))
    return DecodeInputs(**{name: batch.get(name) for name in names})


def _abstract(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _keep_rows(carry: Any, kept: Any) -> Any:
    """Keep only these rows of a search's state; scalars do not change."""
    return jax.tree.map(lambda a: a[kept] if a.ndim else a, carry)


def _resize_cache(carry: Any, slots: int) -> Any:
    """Resize the cache of a search to this number of slots, including the prompt."""
    return carry.replace(state=resize(carry.state, slots))


def _common_beginning(tokens: np.ndarray) -> list[int]:
    """Return the tokens with which all of these texts [N, L] begin, without an end."""
    first = tokens[0]
    same = (tokens == first).all(axis=0) & (first != PAD) & (first != EOS)
    return [int(token) for token in first[: same.argmin() if not same.all() else None]]


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
