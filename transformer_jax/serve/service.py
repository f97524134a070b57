"""Answer requests in threads, and watch their time and their clients.

In its thread, the code of a run waits for the search that all requests share; the event
loop cancels what takes too long or has nobody who waits for it.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import Request
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
)
from starlette.exceptions import HTTPException

from transformer_jax.base.errors import UserError, nearest
from transformer_jax.decoding import Options, Reply
from transformer_jax.decoding.live import Caller, Cancelled
from transformer_jax.serve import shapes
from transformer_jax.serve.guards import problem
from transformer_jax.serve.models import Model

logger = logging.getLogger("transformer_jax.serve")

SLOW = "the answer takes too long: ask for fewer or shorter lines"
FAULT = "a fault of the service: its log has the details"
LOOK = 0.2  # seconds between two looks if a client is still there
THREADS = 256  # requests that are computed at a time; the others wait


class Overloaded(Exception):
    """Raised when too many lines wait for their answers, or none can be given."""


class Service:
    """The models, and what they are busy with."""

    def __init__(self, models: Sequence[Model], *, queue: int, seconds: float):
        """Serve models; `queue` is the most lines at a time, `seconds` for each."""
        self.models = {model.name: model for model in models}
        self.queue, self.seconds = queue, seconds
        self.ready = self.closing = False
        self.lines = 0  # that are being answered
        self.created = int(time.time())
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="request")
        self.metrics = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        labels = ["route", "status"]
        self.requests = Counter("requests", "Requests.", labels, registry=registry)
        about = "request_seconds", "Seconds of a request.", ["route"]
        self.request_seconds = Histogram(*about, registry=registry)
        about = "lines", "Lines that were answered.", ["model"]
        self.answered = Counter(*about, registry=registry)
        now = Gauge("lines_now", "Lines that are being answered.", registry=registry)
        now.set_function(lambda: self.lines)
        ready = Gauge("ready", "Whether requests are answered.", registry=registry)
        ready.set_function(lambda: self.ready and not self.closing)

    def find(self, name: str | None) -> Model:
        """Return a model by its name, which may be left out if there is only one."""
        names = list(self.models)
        if name is None and len(names) == 1:
            return self.models[names[0]]
        if name is None:
            raise UserError(f"name a model: {', '.join(names)}")
        if name not in self.models:
            hint = nearest(name, names)
            raise HTTPException(404, f"there is no such model.{hint} See /v1/models")
        return self.models[name]

    async def compute(
        self, request: Request, function: Callable[[], Any], caller: Caller, lines: int
    ) -> Any:
        """Call a function in a thread; cancel it if the client leaves, or in time."""
        if not self.ready:
            raise Overloaded("the models are not ready yet: see /readyz")
        if self.closing:
            raise Overloaded("the service is stopping: it takes no more requests")
        if self.lines and self.lines + lines > self.queue:
            raise Overloaded(
                f"{self.lines:,} lines are being answered, and at most {self.queue:,} "
                "may be: try again"
            )
        self.lines += lines
        loop = asyncio.get_running_loop()
        task = loop.run_in_executor(self.threads, function)
        task.add_done_callback(lambda done: self._end(done, lines))
        deadline = loop.time() + self.seconds
        try:
            while True:
                await asyncio.wait({task}, timeout=LOOK)
                if task.done():
                    return task.result()
                if loop.time() > deadline:
                    raise TimeoutError
                if await request.is_disconnected():
                    raise Cancelled
        finally:
            caller.cancel()

    def _end(self, task: asyncio.Future, lines: int) -> None:
        self.lines -= lines
        if not task.cancelled():
            task.exception()  # it has been told, or nobody waits for it

    async def stream(
        self,
        request: Request,
        model: Model,
        line: str,
        options: Options,
        prefix: str = "",
    ) -> AsyncIterator[tuple[str, Any]]:
        """Yield ("text", the answer so far) while it grows, then ("done", the reply).

        Or ("error", the body of an error).
        """
        loop = asyncio.get_running_loop()
        told: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

        def show(text: str) -> None:
            loop.call_soon_threadsafe(told.put_nowait, ("text", text))

        caller, answer = model.stream(show, line, options, prefix)
        computing = asyncio.ensure_future(self.compute(request, answer, caller, 1))
        computing.add_done_callback(lambda _: told.put_nowait(("done", "")))
        try:
            while (event := await told.get())[0] == "text":
                yield event
            reply: Reply = await computing
            if reply.error:
                yield "error", problem(400, reply.error)
                return
            self.answered.labels(model.name).inc()
            yield "done", reply
        finally:
            computing.cancel()


async def begin(events: AsyncIterator[tuple[str, Any]]) -> AsyncIterator[Any]:
    """Wait for the first event of a stream, so that a refusal has its own status."""
    first = await anext(events)
    if first[0] == "error":
        raise UserError(first[1]["error"]["message"])

    async def follow() -> AsyncIterator[Any]:
        async with contextlib.aclosing(events):  # type: ignore[type-var]
            yield first
            try:
                async for event in events:
                    yield event
            except TimeoutError:
                yield "error", problem(504, SLOW)
            except UserError as error:
                yield "error", problem(400, " ".join(error.problems))
            except Cancelled:
                return
            except Exception:
                logger.exception("a request failed")
                yield "error", problem(500, FAULT)

    return follow()


def check_lines(model: Model, lines: Sequence[str]) -> None:
    """Refuse too many lines, and lines that are too long."""
    check_count(model, len(lines))
    for number, line in enumerate(lines, start=1):
        most = model.limits.characters
        if len(line) > most:
            raise UserError(
                f"line {number} has {len(line):,} characters: at most {most:,} are read"
            )


def check_count(model: Model, count: int) -> None:
    """Refuse a request with too many lines, or files."""
    if count > model.limits.lines:
        raise UserError(
            f"{count:,} lines in a request: at most {model.limits.lines:,} are read. "
            "Send several requests"
        )


def as_answer(reply: Reply) -> shapes.Answer:
    """Return the answer that a client is given."""
    if reply.error:
        return shapes.Answer(text="", error=reply.error)
    known = "score", "others", "text"
    details = {key: one for key, one in reply.details.items() if key not in known}
    others = [shapes.Other(text=one.text, score=one.score) for one in reply.others]
    return shapes.Answer(
        text=reply.details.get("text", reply.text),
        score=reply.score,
        others=others or None,
        details=details or None,
        unknown=list(reply.unknown) or None,
    )


def write_event(kind: str, content: Mapping[str, Any] | str) -> str:
    """Write a server-sent event; a `kind` of "" is the usual one."""
    name = f"event: {kind}\n" if kind else ""
    text = content if isinstance(content, str) else json.dumps(content)
    return f"{name}data: {text}\n\n"
