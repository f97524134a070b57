"""Average the last checkpoints of a training run (6.1)."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from transformer_jax import hosts
from transformer_jax.base.errors import UserError
from transformer_jax.runs.checkpoint import Checkpoints, Damaged
from transformer_jax.runs.folder import Folder
from transformer_jax.sharding import Params


def average_last(
    config: ConfigDict,
    folder: Folder,
    checkpoints: Checkpoints,
    like: Params,
    say: Callable[[str], None],
) -> tuple[int, list[int]]:
    """Write the average of the last valid checkpoints, unless it exists.

    An average of other steps, as `checkpoint.average` was another, is replaced. Return
    the last step and the averaged steps.
    """
    hosts.decide_in_first(folder.check_there)
    steps = hosts.broadcast_from_first(checkpoints.steps())
    used = choose_steps(config, steps)
    if len(used) < min(config.checkpoint.average, len(steps)):
        say(f"averaging  only {', '.join(map(str, used))}: the others are too early")
    identity = folder.identity(config)
    averaged = Checkpoints(folder.averaged, writer=True, identity=identity)
    saved = hosts.broadcast_from_first(averaged.steps())
    chosen, ready = averaged.averaged_steps(saved[-1]) if saved else ([], [])
    if chosen == used or not chosen and saved[-1:] == used[-1:]:
        try:
            averaged.restore_params(saved[-1], like)
            return steps[-1], ready or used
        except Damaged as error:
            say(f"warning    {error}: it is made again")
    chosen = used
    params, used, damaged = average(checkpoints, chosen, like)
    for line in damaged:
        say(f"warning    not averaged: {line}")
    if used[-1] in saved:
        averaged.set_aside(used[-1])
    averaged.save_params(used[-1], params, chosen, used)
    averaged.close()
    return steps[-1], used


def average(
    checkpoints: Checkpoints, steps: Sequence[int], like: Any
) -> tuple[Params, list[int], list[str]]:
    """Return the mean of the parameters at several steps (the paper uses 5).

    Damaged checkpoints are left out. Also return the steps that were used and the
    problems of the others.
    """
    add = jax.jit(lambda a, b: jax.tree.map(lambda x, y: x + y, a, b), donate_argnums=0)
    total, used, damaged = None, [], []
    for step in steps:
        try:
            params = checkpoints.restore_params(step, like)
        except Damaged as error:
            damaged.append(str(error))
            continue
        total = params if total is None else add(total, params)
        used.append(step)
    if not used:
        raise UserError(
            "none of the checkpoints to average can be read: start the same command "
            "again, to continue from an earlier one",
            *damaged,
        )
    divide = jax.jit(lambda a: jax.tree.map(lambda x: x / len(used), a))
    return divide(total), used, damaged


def choose_steps(config: ConfigDict, steps: list[int]) -> list[int]:
    """Choose the last checkpoints after the warmup, in the last third of the steps.

    Parameters that still move fast do not scatter around one optimum, so their mean is
    worse than the last of them. A step at which the run ended before `train.steps` was
    raised is left out, because an undisturbed run would not have saved it.
    """
    every = config.checkpoint.every
    steps = [step for step in steps if step % every == 0 or step == steps[-1]]
    late = max(config.optim.warmup_steps, steps[-1] * 2 // 3)
    used = [step for step in steps[-config.checkpoint.average :] if step >= late]
    return used or steps[-1:]
