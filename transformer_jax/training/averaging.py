"""Average the last checkpoints of a training (6.1)."""

from collections.abc import Callable

from ml_collections import ConfigDict

from transformer_jax import hosts
from transformer_jax.runs.checkpoint import Checkpoints, average
from transformer_jax.runs.folder import Folder
from transformer_jax.sharding import Params


def average_last(
    config: ConfigDict,
    folder: Folder,
    checkpoints: Checkpoints,
    like: Params,
    say: Callable[[str], None],
) -> tuple[int, list[int]]:
    """Write the average of the last checkpoints, unless it exists.

    Return the last step and the steps that are averaged.
    """
    steps = hosts.broadcast_from_first(checkpoints.steps())
    used = choose_steps(config, steps)
    if len(used) < min(config.checkpoint.average, len(steps)):
        say(f"averaging  {', '.join(map(str, used))}: earlier steps are too early")
    identity = folder.identity(config)
    averaged = Checkpoints(folder.averaged, writer=True, identity=identity)
    if hosts.broadcast_from_first(averaged.steps())[-1:] != used[-1:]:
        averaged.save_params(used[-1], average(checkpoints, used, like))
        averaged.close()
    return steps[-1], used


def choose_steps(config: ConfigDict, steps: list[int]) -> list[int]:
    """Choose the last checkpoints behind the warm-up, in the last third of the steps.

    Parameters that still move fast are no estimates of one optimum: their mean is worse
    than the last of them.
    """
    late = max(config.optim.warmup_steps, steps[-1] * 2 // 3)
    used = [step for step in steps[-config.checkpoint.average :] if step >= late]
    return used or steps[-1:]
