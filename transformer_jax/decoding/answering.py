"""Lines in, answers out, in order: what `predict`, `load(run)` and `evaluate` share.

A line that is longer than allowed is split where sentences end (a prefix begins the
first), and its answers are joined again; or it is refused, with the reason. Nothing is
cut. An answer is handed over as soon as all those before it have been.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from transformer_jax.errors import Refused, UserError

ON_LONG = ("refuse", "split")


@dataclasses.dataclass(frozen=True)
class Reply:
    """What became of a line: the task's answer, or why there is none."""

    line: Any
    text: str
    answer: Any = None
    error: str = ""


def reply(
    task: Any,
    params: Any,
    mesh: Any,
    lines: Sequence[Any],  # text; a task may take more, such as images
    options: Any,
    *,
    max_length: int = 0,
    on_long: str = "refuse",
    prefixes: Sequence[str] = (),
    first: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Reply]:
    """One reply a line, in order. `first` is the number of the first line, from 0.

    `prefixes` are what the answers must begin with; `max_length` 0 allows any length.
    """
    if on_long not in ON_LONG:
        raise UserError(f"on_long={on_long!r}: choose {' | '.join(ON_LONG)}")
    items, parts, errors = [], [], {}
    for i, line in enumerate(lines):
        prefix = prefixes[i] if prefixes else ""
        try:
            pieces = _split(task, line, max_length, on_long)
            asked = [
                task.inference.parse(
                    piece, max_length, prefix * (k == 0), first + i, options
                )
                for k, piece in enumerate(pieces)
            ]
        except Refused as error:
            errors[i], asked = str(error), []
        parts.append(range(len(items), len(items) + len(asked)))
        items += asked
    found: dict[int, Any] = {}
    waiting = iter(enumerate(lines))
    nxt = next(waiting, None)

    def ready():
        nonlocal nxt
        while nxt is not None and all(p in found for p in parts[nxt[0]]):
            i, line = nxt
            yield _join(task, line, [found.pop(p) for p in parts[i]], errors.get(i, ""))
            nxt = next(waiting, None)

    yield from ready()
    for done, (number, answer) in enumerate(
        task.inference.answers(params, items, mesh, options), start=1
    ):
        found[number] = answer
        progress(done, len(items))
        yield from ready()


def _split(task: Any, line: Any, max_length: int, on_long: str) -> list[Any]:
    if on_long == "split" and max_length:
        return task.inference.split(line, max_length)
    return [line]


def _join(task: Any, line: Any, answers: list[Any], error: str) -> Reply:
    if error:
        return Reply(line, "", None, error)
    answer = answers[0] if len(answers) == 1 else task.inference.join(answers)
    return Reply(line, task.inference.render(answer), answer)
