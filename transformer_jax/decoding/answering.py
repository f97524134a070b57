"""Lines in, replies out, in order: what `predict`, `load(run)` and `evaluate` share.

A line that is longer than allowed is split where sentences end (a prefix begins the
first), and its replies are joined again; or it is refused, with the reason. Nothing is
cut. A reply is handed over as soon as all those before it have been.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax.sharding import Mesh

from transformer_jax.decoding.engine import check_least
from transformer_jax.decoding.options import Options
from transformer_jax.decoding.requests import (
    DecodeRequest,
    Inference,
    Reply,
    SplitsLines,
)
from transformer_jax.errors import Refused, UserError
from transformer_jax.sharding import Params

ON_LONG = ("refuse", "split")
# Added to a line's number for each of its parts: they draw by other seeds than the
# lines that stand near.
PARTS = 1_000_003


def reply(
    inference: Inference,
    params: Params,
    mesh: Mesh,
    lines: Sequence[Any],  # text; a task may take more, such as images
    options: Options,
    *,
    max_length: int = 0,
    on_long: str = "refuse",
    prefixes: Sequence[str] = (),
    first: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Reply]:
    """Yield one reply a line, in order; `first` is the number of the first, from 0.

    `prefixes` are what the answers must begin with; `max_length` 0 allows any length.
    """
    if on_long not in ON_LONG:
        raise UserError(f"on_long={on_long!r}: choose {' | '.join(ON_LONG)}")

    def open_job(i: int, line: Any) -> _Job:
        parts, prefix = [line], prefixes[i] if prefixes else ""
        try:
            if on_long == "split" and max_length and isinstance(inference, SplitsLines):
                parts = inference.split(line, max_length)
            # A prefix begins the answer to the first part.
            begun = [prefix] + [""] * (len(parts) - 1)
            requests = [
                inference.parse(part, max_length, start, first + i + k * PARTS, options)
                for k, (part, start) in enumerate(zip(parts, begun, strict=True))
            ]
            for request in requests:
                check_least(request, options)
        except Refused as error:
            return _Job(line, [], str(error))
        return _Job(line, requests)

    jobs = [open_job(i, line) for i, line in enumerate(lines)]
    places = [(job, part) for job in jobs for part in range(len(job.requests))]
    requests = [job.requests[part] for job, part in places]
    waiting = collections.deque(jobs)
    yield from _take_finished(waiting, inference)
    answers = inference.answers(params, requests, mesh, options)
    for done, (number, answer) in enumerate(answers, start=1):
        job, part = places[number]
        job.replies[part] = answer
        progress(done, len(requests))
        yield from _take_finished(waiting, inference)


class _Job:
    """A line, the requests made of it, and the replies to them as they come."""

    def __init__(self, line: Any, requests: list[DecodeRequest], error: str = ""):
        self.line, self.requests, self.error = line, requests, error
        self.replies: dict[int, Reply] = {}  # by the numbers of their requests


def _take_finished(
    waiting: collections.deque[_Job], inference: Inference
) -> Iterator[Reply]:
    """Yield the replies to the first lines, as far as all their parts are answered."""
    while waiting and len(waiting[0].replies) == len(waiting[0].requests):
        job = waiting.popleft()
        replies = [job.replies[part] for part in range(len(job.requests))]
        if job.error:
            yield Reply(job.line, error=job.error)
        elif len(replies) > 1 and isinstance(inference, SplitsLines):
            yield dataclasses.replace(inference.join(replies), line=job.line)
        else:
            yield dataclasses.replace(replies[0], line=job.line)
