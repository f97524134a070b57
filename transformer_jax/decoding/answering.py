"""Answer lines in order, for `predict`, `load(run)` and `evaluate`.

A line that is longer than allowed is refused with the reason, or it is split at the
ends of sentences and the replies are joined again. A prefix then belongs to the first
sentence, and a line with words to include is refused. No line is truncated. A reply is
yielded as soon as all earlier ones have been.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax.sharding import Mesh

from transformer_jax.base.errors import Refused, UserError
from transformer_jax.decoding.engine import check_least
from transformer_jax.decoding.options import Options
from transformer_jax.decoding.requests import (
    DecodeRequest,
    Includes,
    Inference,
    ReadsText,
    Reply,
    SplitsLines,
    check_text,
)
from transformer_jax.sharding import Params

ON_LONG = ("refuse", "split")
# Added to a line's seed for each of its parts, so that they draw with other seeds than
# the neighbouring lines.
PARTS = 1_000_003


def answer_lines(
    inference: Inference,
    params: Params,
    mesh: Mesh,
    lines: Sequence[Any],  # text, or for some tasks images
    options: Options,
    *,
    max_length: int = 0,
    on_long: str = "refuse",
    prefixes: Sequence[str] = (),
    include: Sequence[Sequence[str]] = (),
    first: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
    answers: Callable[..., Iterator[tuple[int, Reply]]] | None = None,
) -> Iterator[Reply]:
    """Yield one reply per line, in order; `first` is the number of the first line.

    Answers begin with the `prefixes` and contain the words of `include`. A `max_length`
    of 0 allows any length. `answers` is called in place of the method of the inference.
    """
    if on_long not in ON_LONG:
        raise UserError(f"on_long={on_long!r}: choose {' | '.join(ON_LONG)}")
    if max_length < 0:
        raise UserError(f"max_input={max_length}: must be at least 0 (any length)")
    if len(prefixes) not in (0, len(lines)):
        raise UserError(
            f"there are {len(prefixes)} prefixes for {len(lines)} lines: give one "
            "prefix per line"
        )
    if len(include) not in (0, len(lines)):
        raise UserError(
            f"words to include for {len(include)} of {len(lines)} lines: give "
            "a list of words per line, which may be empty"
        )
    if any(include) and not isinstance(inference, Includes):
        raise UserError(
            "answers of this task cannot be made to include words: leave out include"
        )

    def open_job(i: int, line: Any) -> _Job:
        given, prefix, unknown = line, prefixes[i] if prefixes else "", ()
        try:
            phrases = [one for one in include[i] if one.strip()] if include else []
            check_text(line, prefix, *phrases)
            if isinstance(inference, ReadsText) and isinstance(line, str):
                line = inference.reads.compose(line)
                unknown = inference.reads.find_unknown(line)
            parts = [line]
            if on_long == "split" and max_length and isinstance(inference, SplitsLines):
                parts = inference.split(line, max_length)
            # Only the answer to the first part begins with the prefix.
            starts = [prefix] + [""] * (len(parts) - 1)
            requests = [
                inference.parse(part, max_length, start, first + i + k * PARTS, options)
                for k, (part, start) in enumerate(zip(parts, starts, strict=True))
            ]
            if phrases and isinstance(inference, Includes):
                if len(requests) > 1:
                    raise Refused(
                        f"{len(parts)} parts of a line that is split, of which it is "
                        "not known which is to include the words: split it yourself"
                    )
                requests = [inference.include(requests[0], phrases, options)]
            for request in requests:
                check_least(request, options)
        except Refused as error:
            return _Job(given, [], str(error))
        except (AttributeError, TypeError, ValueError) as error:
            if isinstance(line, str) or isinstance(error, UserError):
                raise
            reason = str(error).split("\n")[0]
            return _Job(given, [], f"{type(line).__name__} is not a line: {reason}")
        return _Job(given, requests, unknown=unknown)

    jobs = [open_job(i, line) for i, line in enumerate(lines)]
    places = [(job, part) for job in jobs for part in range(len(job.requests))]
    requests = [job.requests[part] for job, part in places]
    waiting = collections.deque(jobs)
    yield from _take_finished(waiting, inference)
    found = (answers or inference.answers)(params, requests, mesh, options)
    for done, (number, answer) in enumerate(found, start=1):
        job, part = places[number]
        job.replies[part] = answer
        progress(done, len(requests))
        yield from _take_finished(waiting, inference)


class _Job:
    """A line, its requests, and the replies that have arrived."""

    def __init__(
        self,
        line: Any,
        requests: list[DecodeRequest],
        error: str = "",
        unknown: tuple[str, ...] = (),
    ):
        self.line, self.requests, self.error = line, requests, error
        self.unknown = unknown
        self.replies: dict[int, Reply] = {}  # by the number of the request


def _take_finished(
    waiting: collections.deque[_Job], inference: Inference
) -> Iterator[Reply]:
    """Yield the replies to the leading lines whose parts are all answered."""
    while waiting and len(waiting[0].replies) == len(waiting[0].requests):
        job = waiting.popleft()
        replies = [job.replies[part] for part in range(len(job.requests))]
        if job.error:
            yield Reply(job.line, error=job.error)
        else:
            reply = replies[0]
            if len(replies) > 1 and isinstance(inference, SplitsLines):
                reply = inference.join(replies)
            yield dataclasses.replace(reply, line=job.line, unknown=job.unknown)
