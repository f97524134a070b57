"""Lines in, replies out, in order: what `predict`, `load(run)` and `evaluate` share.

A line that is longer than allowed is split where sentences end (a prefix begins the
first), and its replies are joined again; or it is refused, with the reason. Nothing is
cut. A reply is handed over as soon as all those before it have been.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from transformer_jax.decoding import Options, Reply
from transformer_jax.errors import Refused, UserError
from transformer_jax.sharding import Params

ON_LONG = ("refuse", "split")


def reply(
    inference: Any,  # `tasks.protocols.Inference`
    params: Params,
    mesh: Any,
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
    splits = on_long == "split" and max_length and hasattr(inference, "split")
    requests, parts, errors = [], [], {}
    for i, line in enumerate(lines):
        prefix = prefixes[i] if prefixes else ""
        try:
            pieces = inference.split(line, max_length) if splits else [line]
            own = [
                inference.parse(
                    piece, max_length, prefix * (k == 0), first + i, options
                )
                for k, piece in enumerate(pieces)
            ]
        except Refused as error:
            errors[i], own = Reply(line, error=str(error)), []
        parts.append(range(len(requests), len(requests) + len(own)))
        requests += own
    found: dict[int, Reply] = {}
    waiting = iter(enumerate(lines))
    nxt = next(waiting, None)

    def ready():
        nonlocal nxt
        while nxt is not None and all(p in found for p in parts[nxt[0]]):
            i, line = nxt
            own = [found.pop(p) for p in parts[i]]
            if i in errors:
                yield errors[i]
            else:
                whole = own[0] if len(own) == 1 else inference.join(own)
                yield dataclasses.replace(whole, line=line)
            nxt = next(waiting, None)

    yield from ready()
    answers = inference.answers(params, requests, mesh, options)
    for done, (number, answer) in enumerate(answers, start=1):
        found[number] = answer
        progress(done, len(requests))
        yield from ready()
