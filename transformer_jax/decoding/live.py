"""Search the answers to requests that arrive at any time, from any thread.

Requests of several callers share batches. A batch advances a few steps at a time;
between two times, rows of ended sentences are given to what has arrived (continuous
batching), and a caller may look at what has been written so far. Rows are independent
of each other, so answers are those of `Engine.search`.

    live = Live(engine)
    for number, hypotheses in live.search(params, requests, options): …
    live.close()

Only requests whose programs are the same share a batch, so lengths that a caller may
choose freely are rounded up, and each row keeps its own limit. While a program is
compiled the batches wait, so there are few: sources are padded to powers of two, and
`Live.compile` compiles all that batches of one kind may need.
"""

import collections
import contextlib
import contextvars
import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer_jax.base.errors import UserError
from transformer_jax.decoding import DecodeRequest, Options
from transformer_jax.decoding.engine import (
    IN_FLIGHT,
    REFILLED,
    Batch,
    Engine,
    Hypothesis,
    longest_answer,
    pad_length,
    shape_of,
)
from transformer_jax.decoding.searching import rows_for
from transformer_jax.sharding import Params

STEPS = 8  # of a batch between two looks at what has arrived
FEW = 2  # of a batch that somebody watches, or that has many idle rows
BATCHES = 4  # of different kinds that a thread advances in turn
ENDED = 4  # a batch stops, too, when this part of its rows has ended
PATIENCE = 2  # times that a request lets a batch go on, so that others come with it
SOURCES = 32, 64, 128, 256  # lengths to which shorter sources are padded

# Called with a request, the tokens with which its answer begins, and if it has ended.
Watch = Callable[[DecodeRequest, Sequence[int], bool], None]


class Cancelled(Exception):
    """Raised in the thread whose searches are cancelled."""


class Caller:
    """Follow the searches of a thread while their answers grow, or cancel them."""

    def __init__(self, watch: Watch | None = None):
        """Make a caller; `watch` is called in the thread that searches."""
        self.watch, self.cancelled = watch, False
        self._told: list[queue.SimpleQueue] = []

    @contextlib.contextmanager
    def searching(self) -> Iterator[None]:
        """Make the searches of this thread those of the caller."""
        token = _caller.set(self)
        try:
            yield
        finally:
            _caller.reset(token)

    def cancel(self) -> None:
        """Cancel the searches, from any thread."""
        self.cancelled = True
        for told in list(self._told):
            told.put(Cancelled())

    def expect(self, told: queue.SimpleQueue) -> None:
        """Note a queue from which a search takes what it is told."""
        self._told.append(told)
        if self.cancelled:
            told.put(Cancelled())


def calling() -> Caller:
    """Return the caller whose searches are those of this thread, or a new one."""
    return _caller.get(None) or Caller()


_caller: contextvars.ContextVar[Caller] = contextvars.ContextVar("caller")


@dataclasses.dataclass
class _Entry:
    """A request that waits or is being answered."""

    request: DecodeRequest
    options: Options
    params: Params
    number: int  # among the requests of its caller
    told: queue.SimpleQueue  # takes (number, hypotheses or tokens) or an error
    watched: bool
    abandoned: bool = False
    passed: int = 0  # times that batches went on without it

    @property
    def kind(self) -> "_Kind":
        """Return what the requests of one batch share."""
        source = pad_source(len(self.request.source))
        shared = shape_of(self.request, self.options, source).kind
        return _Kind(id(self.params), self.options.without_numbers(), shared, source)


class _Kind(NamedTuple):
    """What the requests of one batch share."""

    params: int
    options: Options
    shape: Any
    source: int  # the padded length, all of which attention reads

    @property
    def search(self) -> "_Kind":
        """Return what is the same for sources of all lengths."""
        return self._replace(source=0)

    @property
    def longer(self) -> "_Kind":
        """Return the kind of the next longer sources, whose batches it may share."""
        return self._replace(source=pad_source(self.source + 1))


class Live:
    """Share the batches of an engine among all callers, on one device."""

    def __init__(self, engine: Engine):
        """Start the threads that search; `close` ends them."""
        if engine.mesh.size > 1:
            raise UserError(
                f"requests that arrive one by one are searched on one device, but the "
                f"mesh has {engine.mesh.size}: load the run with a mesh of one device, "
                "and start a process for each"
            )
        self.engine = engine
        self._waiting: dict[_Kind, collections.deque[_Entry]] = {}  # by kind
        self._changed = threading.Condition()
        self._closed = False
        self._held: list[collections.Counter[_Kind]] = [
            collections.Counter() for _ in range(IN_FLIGHT)
        ]
        self._workers = [
            threading.Thread(
                target=self._work, args=[held], name=f"search {i}", daemon=True
            )
            for i, held in enumerate(self._held)
        ]
        for worker in self._workers:
            worker.start()

    def search(
        self, params: Params, requests: Sequence[DecodeRequest], options: Options
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yield (number of a request, its hypotheses) as found.

        A caller that stops early gives up the rest.
        """
        told: queue.SimpleQueue = queue.SimpleQueue()
        caller = calling()
        caller.expect(told)
        entries = [
            _Entry(
                *_rounded(request, options), params, i, told, caller.watch is not None
            )
            for i, request in enumerate(requests)
        ]
        self._add(entries)
        left = len(entries)
        try:
            while left:
                found = told.get()
                if isinstance(found, BaseException):
                    raise found
                number, content, ended = found
                if caller.watch:
                    tokens = content[0].tokens if ended else content
                    caller.watch(requests[number], tokens, ended)
                if ended:
                    left -= 1
                    yield number, content
        finally:
            for entry in entries:
                entry.abandoned = True

    def compile(self, params: Params, request: DecodeRequest, options: Options) -> None:
        """Compile all programs of batches of this kind, for answers of usual length.

        One step is taken with each number of rows, and between each two of them.
        """
        request, options = _rounded(request, options)
        source, engine = pad_source(len(request.source)), self.engine
        asked = dict.fromkeys(range(engine.row_sizes[0]), (request, options))

        def use(rows: int) -> None:
            smaller = max((n for n in engine.live_sizes if n < rows), default=rows)
            with jax.set_mesh(engine.mesh):
                batch = Batch(engine, params, asked, options, rows, source)
                batch.check_memory(0)
                batch.begin(list(range(rows)))
                for _ in range(2):  # with slots for usual answers, and for longer ones
                    batch.resize(rows)
                    list(batch.advance(rows, most=1))
                    batch.found()
                    batch.places = np.arange(rows)  # some may have ended
                    list(batch.written([0]))
                    for fresh in [n for n in batch.read_sizes if n <= rows]:
                        batch.places[:] = -1
                        batch.refill(list(range(fresh)))
                    batch.places[1:] = -1
                    batch.resize(smaller)
                    batch.resize(rows)
                    batch.grow()
                batch.shrink()

        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            list(pool.map(use, engine.live_sizes[::-1]))

    def close(self) -> None:
        """Refuse new requests, finish those that are here, and end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.join()

    def _add(self, entries: Sequence[_Entry]) -> None:
        with self._changed:
            if self._closed:
                raise UserError("the search has been closed: it takes no requests")
            for entry in entries:
                self._waiting.setdefault(entry.kind, collections.deque()).append(entry)
            self._changed.notify_all()

    def _work(self, held: collections.Counter[_Kind]) -> None:
        """Advance batches, a few steps each in turn, until the search is closed.

        `held` tells the other threads how many requests of each kind the batches have.
        """
        batches: list[_Shared] = []
        with jax.set_mesh(self.engine.mesh):
            while True:
                with self._changed:
                    held.clear()
                    for batch in batches:
                        held.update(entry.kind for entry in batch.entries.values())
                    while not batches and not self._waiting:
                        if self._closed:
                            return
                        self._changed.wait()
                    given = self._give(batches)
                    for _, entries in given:
                        held.update(entry.kind for entry in entries)
                for batch, entries in given:
                    batch.take(entries)
                    if batch not in batches:
                        batches.append(batch)
                for batch in batches:
                    batch.advance()
                batches = [batch for batch in batches if batch.entries]

    def _give(self, batches: Sequence["_Shared"]) -> list[Any]:
        """Return (batch, entries that it takes): batches that go on, and new ones.

        The threads share the requests of a kind evenly. Few entries are taken at once,
        but many wait until a part of the rows is free, because their sources are read
        together. Shorter sources join a batch of longer ones if they are no more than
        those, because padding costs less than a batch of its own. For the same reason a
        busy thread leaves few requests to another one with a small batch of their kind.
        If there are too many kinds, no batch takes more, so that each gets its turn.
        """
        given: dict[_Shared, list[_Entry]] = {}
        open_, sizes = {batch.kind: batch for batch in batches}, self.engine.row_sizes
        crowded = len(open_.keys() | self._waiting.keys()) > BATCHES
        asked = collections.Counter({k: len(w) for k, w in self._waiting.items()})
        for held in self._held:
            asked.update(held)
        searched: collections.Counter[_Kind] = collections.Counter()
        for kind, count in asked.items():
            searched[kind.search] += count
        for kind, waiting in list(self._waiting.items()):
            own = kind.longer if asked[kind] <= asked[kind.longer] else kind
            batch = open_.get(own)
            if batch is None and len(open_) < BATCHES:
                if batches and self._fits_elsewhere(own, len(waiting)):
                    continue
                batch = open_[own] = _Shared(self.engine, own)
            elif batch is None or crowded:
                continue
            batch.drop_abandoned()
            taken = given.setdefault(batch, [])
            share = max(-(-searched[kind.search] // IN_FLIGHT), sizes[-1])
            space = min(share, sizes[0]) - len(batch.entries) - len(taken)
            waiting[0].passed += 1
            least = max(batch.rows // REFILLED, 1)
            if waiting[0].passed > PATIENCE:
                least = min(least, len(waiting))
            if min(space, len(waiting)) >= least:
                taken += _take(waiting, space)
                del self._waiting[kind]
                if waiting:  # the others are served first
                    self._waiting[kind] = waiting
        return [(batch, entries) for batch, entries in given.items() if entries]

    def _fits_elsewhere(self, kind: _Kind, count: int) -> bool:
        """Return whether another thread has a small batch with idle rows for these."""
        counts = [held[kind] for held in self._held]
        return any(0 < n <= self.engine.row_sizes[-1] - count for n in counts)


class _Shared:
    """A batch whose rows are of several callers."""

    def __init__(self, engine: Engine, kind: _Kind):
        self.engine, self.kind = engine, kind
        self.entries: dict[int, _Entry] = {}
        self._batch: Batch | None = None
        self._asked: dict[int, Any] = {}
        self._count = 0

    @property
    def rows(self) -> int:
        """Return the number of rows, of which some may be free."""
        return self._batch.rows if self._batch else 0

    def take(self, entries: Sequence[_Entry]) -> None:
        """Begin to search for entries; grow if there are too few rows."""
        members = list(range(self._count, self._count + len(entries)))
        self._count += len(entries)
        self.entries |= dict(zip(members, entries, strict=True))
        for number in members:
            entry = self.entries[number]
            self._asked[number] = entry.request, entry.options
        longest = max(members, key=lambda i: len(self._asked[i][0].source))
        parts = _split(members, self.engine.read_sizes)
        try:
            batch, rows = self._batch, rows_for(self.engine.live_sizes, len(members))
            if batch is None or not batch.members:
                first, asked = self.entries[members[0]], self._asked
                source = self.kind.source
                batch = self._batch = Batch(
                    self.engine, first.params, asked, first.options, rows, source
                )
                batch.check_memory(longest)
                batch.begin(next(parts))
                batch.resize(rows)
            else:
                count = len(batch.members) + len(members)
                rows = max(rows_for(self.engine.live_sizes, count), batch.rows)
                batch.check_memory(longest, rows)
                batch.resize(rows)
                batch.shrink()
            for part in parts:
                batch.refill(part)
        except UserError as error:  # too large: those that were here go on
            self._fail(members, error)
        except BaseException as error:  # raised again by the callers
            self._fail(list(self.entries), error)

    def advance(self) -> None:
        """Take a few steps, and tell the callers what has been found."""
        if not self.entries or (batch := self._batch) is None:
            return
        least = min(batch.free + max(batch.rows // ENDED, 1), batch.rows)
        try:
            watched = any(entry.watched for entry in self.entries.values())
            idle = batch.free >= max(batch.rows // ENDED, 1)  # requests may arrive
            steps = FEW if watched or idle else STEPS
            for number, found in list(batch.advance(least, steps)):
                self._tell(number, found, ended=True)
            self.drop_abandoned()
            seen = [i for i, entry in self.entries.items() if entry.watched]
            for number, tokens in batch.written(seen) if seen else ():
                self._tell(number, tokens, ended=False)
            batch.resize(len(self.entries))
        except BaseException as error:  # raised again by the callers
            self._fail(list(self.entries), error)

    def drop_abandoned(self) -> None:
        """Free the rows of callers that have left."""
        for number in [i for i, entry in self.entries.items() if entry.abandoned]:
            del self.entries[number], self._asked[number]
            if self._batch:
                self._batch.leave(number)

    def _tell(self, number: int, content: Any, ended: bool) -> None:
        entry = self.entries[number]
        entry.told.put((entry.number, content, ended))
        if ended:
            del self.entries[number], self._asked[number]

    def _fail(self, numbers: Sequence[int], error: BaseException) -> None:
        for number in numbers:
            self.entries[number].told.put(error)
            del self.entries[number], self._asked[number]
        if not self.entries:
            self._batch = None


def _split(members: list[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Split members into parts that programs of these sizes read with few idle rows."""
    while members:
        size = max((n for n in sizes if n <= len(members)), default=min(sizes))
        yield members[:size]
        members = members[size:]


def _take(waiting: collections.deque[_Entry], most: int) -> list[_Entry]:
    """Take entries from the front, and discard those that nobody waits for."""
    taken: list[_Entry] = []
    while waiting and len(taken) < most:
        if not (entry := waiting.popleft()).abandoned:
            taken.append(entry)
    return taken


def _rounded(request: DecodeRequest, options: Options) -> tuple[DecodeRequest, Options]:
    """Round up the lengths that a program is compiled for; the row keeps its limit."""
    longest = longest_answer(request, options)
    limit = request.limit or longest
    if limit > longest:  # a turn of a longer text, whose end may not be forced
        return request, options
    return dataclasses.replace(request, limit=limit), round_lengths(options)


def pad_source(length: int) -> int:
    """Return the length to which a source is padded that shares its batch."""
    return next((n for n in SOURCES if n >= length), pad_length(length))


def round_lengths(options: Options) -> Options:
    """Return options whose lengths are some of the few that are compiled."""
    return dataclasses.replace(
        options,
        max_length=pad_length(options.max_length) if options.max_length else 0,
        extra_length=pad_length(options.extra_length),
    )
