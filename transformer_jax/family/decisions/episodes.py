"""Recorded episodes, cut into windows: what was seen, what was done, what followed.

A record is a window of some steps: their states, their actions and their returns-to-go.
A return-to-go is the sum of the rewards from a step to the end of the episode. Windows
overlap by half, as they do when a model plays (`family/decisions/rollouts.py`).
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from transformer_jax.base.schema import option
from transformer_jax.data.reading.records import Record, Records
from transformer_jax.data.reading.sources import SPLITS, GeneratedSource, Splits
from transformer_jax.family.decisions import cartpole, orchard

WORLDS: dict[str, Any] = {world.NAME: world for world in (cartpole, orchard)}

# Seeds of the states and draws with which a model plays when it is judged by a split.
# Validation chooses the weights, so it plays from other states than the test.
BEGINS = {"train": 30_000, "validation": 10_000, "test": 20_000}


@dataclasses.dataclass(frozen=True)
class EpisodeOptions:
    """Record episodes: options of `config.data`."""

    source: str = option(
        "cartpole", "The world that is played.", choices=lambda: WORLDS
    )
    train_size: int = option(2000, "Episodes.", least=1, most=10**6)
    validation_size: int = option(100, "Episodes.", least=1, most=10**6)
    test_size: int = option(100, "Episodes.", least=1, most=10**6)
    window: int = option(20, "Steps that are read together; even.", least=2, most=1000)
    asked: tuple = option(
        (50.0, 100.0, 200.0, 300.0, 400.0, 500.0), "Returns to be judged by."
    )


class EpisodeSource(Splits):
    """The windows of episodes, which the package records."""

    def _open(self, split: str) -> Records:
        data = self.data
        made = describe(data.source, data.window, data.window // 2, data.asked)
        return made.read(data, split)


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
    found = {"states": seen, "actions": done, "rewards": paid}
    arrays = {name: np.stack(steps, axis=1) for name, steps in found.items()}
    return [
        {name: array[i, :n] for name, array in arrays.items()}
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

    Each window has a return to ask a model for, too, one of `asked` in equal parts, and
    the seed of the states in which it begins to play for it.
    """
    episodes = record(WORLDS[name], split, size)
    windows = [window for one in episodes for window in cut(one, length, stride)]
    for i, window in enumerate(windows):
        window["asked"] = float(asked[i * len(asked) // len(windows)])
        window["begins"] = BEGINS[split]
    return windows


def describe(
    name: str, length: int, stride: int, asked: Sequence[float]
) -> GeneratedSource:
    """Describe the windows of a world's episodes as generated data."""
    make = functools.partial(generate, name, length, stride, asked)
    decided = (str(length), str(stride), str(tuple(asked)), str(BEGINS))
    return GeneratedSource(name, WORLDS[name].VERSION, SPLITS, make, decided)
