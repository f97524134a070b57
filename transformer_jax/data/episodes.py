"""Recorded episodes, cut into windows: what was seen, what was done, what followed.

A window is a record of `length` steps at most. Each step has the state, the action, the
action before it (none at a window's start) and its return-to-go, the sum of all rewards
from this step to the end of the episode.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from transformer_jax.data.generated import cartpole, orchard
from transformer_jax.data.records import Record
from transformer_jax.data.sources import SPLITS, GeneratedSource

WORLDS: dict[str, Any] = {world.NAME: world for world in (cartpole, orchard)}


def record(world: Any, split: str, size: int) -> list[Record]:
    """Record episodes of a world's mixed players: states, actions and rewards."""
    # The older generator, since no version of NumPy may change what it draws.
    random = np.random.RandomState(1 + SPLITS.index(split))
    states, policy = world.begin(random, size), world.Policy(random, size)
    alive = np.ones(size, bool)
    seen, done, paid, lengths = [], [], [], np.zeros(size, int)
    for number in range(world.STEPS):
        actions = policy.act(states, number)
        after, rewards, ended = world.step(states, actions)
        seen.append(states)
        done.append(actions)
        paid.append(rewards)
        lengths += alive
        states, alive = after, alive & ~ended
        if not alive.any():
            break
    arrays = [np.stack(x, axis=1) for x in (seen, done, paid)]
    return [
        dict(
            zip(
                ("states", "actions", "rewards"),
                (a[i, :n] for a in arrays),
                strict=True,
            )
        )
        for i, n in enumerate(lengths)
    ]


def returns_to_go(rewards: Float[np.ndarray, "T"]) -> Float[np.ndarray, "T"]:
    """Add up the rewards from each step to the end."""
    return np.cumsum(rewards[::-1])[::-1]


def cut(episode: Record, length: int, stride: int) -> list[Record]:
    """Cut an episode into windows that begin every `stride` steps."""
    actions, returns = episode["actions"], returns_to_go(episode["rewards"])
    windows = []
    for begin in range(0, max(len(actions) - (length - stride), 1), stride):
        part = slice(begin, begin + length)
        windows.append(
            {
                "states": episode["states"][part].astype(np.float32),
                "actions": actions[part].astype(np.int32),
                "returns": returns[part].astype(np.float32),
            }
        )
    return windows


def generate(
    name: str, length: int, stride: int, asked: Sequence[float], split: str, size: int
) -> list[Record]:
    """Record episodes and cut them into windows.

    Each window has a return to ask a model for, too: those of `asked`, in equal parts.
    """
    episodes = record(WORLDS[name], split, size)
    windows = [window for one in episodes for window in cut(one, length, stride)]
    for i, window in enumerate(windows):
        window["asked"] = float(asked[i * len(asked) // len(windows)])
    return windows


def source(
    name: str, length: int, stride: int, asked: Sequence[float]
) -> GeneratedSource:
    """Describe the windows of a world's episodes as generated data."""
    make = functools.partial(generate, name, length, stride, asked)
    decided = (str(length), str(stride), str(tuple(asked)))
    return GeneratedSource(name, WORLDS[name].VERSION, SPLITS, make, decided)
