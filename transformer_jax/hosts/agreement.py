"""Make all processes act on one answer.

Two processes may read different contents from a shared disk, because of a file system
cache or an error on one host. If each acted on its own answer, they could wait for each
other in different places for ever.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from transformer_jax.base.errors import UserError

SHOWN = 8  # differences between processes that are reported


def broadcast_from_first(answer: Any) -> Any:
    """Return process 0's answer, any JSON value, on every process."""
    if jax.process_count() == 1:
        return answer
    content = np.frombuffer(json.dumps(answer).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(content))))
    if jax.process_index():
        content = np.zeros(size, np.uint8)
    content = np.asarray(multihost_utils.broadcast_one_to_all(content))
    return json.loads(content.astype(np.uint8).tobytes())


def decide_in_first(decide: Callable[[], Any]) -> Any:
    """Call a function in process 0; return its value or raise its error in all."""
    if jax.process_count() == 1:
        return decide()
    answer, problems = None, []
    if jax.process_index() == 0:
        try:
            answer = decide()
        except UserError as error:
            problems = list(error.problems)
    answer, problems = broadcast_from_first([answer, problems])
    if problems:
        raise UserError(*problems)
    return answer


def refuse_differences(settings: Mapping[str, Any], name: Callable[[int], str]) -> None:
    """Refuse in all processes settings in which one of them differs from the first.

    Such processes would compute different steps, and save nothing usable. `name` names
    a process.
    """
    if jax.process_count() == 1:
        return
    first, *others = map(json.loads, gather(json.dumps(settings)))
    problems = []
    for i, other in enumerate(others, start=1):
        for key in sorted({*first, *other}):
            here, there = other.get(key, "nothing"), first.get(key, "nothing")
            if here != there:
                problems.append(
                    f"{name(i)} was started with {key} = {here!r}, but {name(0)} with "
                    f"{there!r}: start all processes with the same command and code"
                )
    if problems:
        raise UserError(*problems[:SHOWN])


def meet(what: str) -> None:
    """Wait until all processes are here."""
    multihost_utils.sync_global_devices(what)


def stops_at(step: int) -> bool:
    """Return whether a SIGTERM that reached any process asks to stop at this step."""
    return multihost_utils.reached_preemption_sync_point(step)


def gather_numbers(own: np.ndarray) -> np.ndarray:
    """Return the arrays of all processes, [processes, …]."""
    return np.asarray(multihost_utils.process_allgather(own))


def gather(text: str) -> list[str]:
    """Return the texts of all processes, in the order of their indices."""
    if jax.process_count() == 1:
        return [text]
    own = np.frombuffer(text.encode(), np.uint8)
    sizes = gather_numbers(np.array(len(own), np.int32))
    padded = np.zeros(max(int(np.max(sizes)), 1), np.uint8)
    padded[: len(own)] = own
    rows = gather_numbers(padded)
    return [
        bytes(row[:size]).decode()
        for row, size in zip(rows.astype(np.uint8), sizes, strict=True)
    ]
