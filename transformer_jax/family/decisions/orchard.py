"""A grid world: walk over a field of 6 × 6 cells and pick apples, or leave them.

An episode begins in a drawn cell with 8 apples in other cells, and ends after 30 steps
or with the last apple. The return is the number of apples that were picked. The state
has a number for each cell, 1 where the walker is, and another one, 1 where an apple is.
A step against the edge stays where it is.
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

VERSION = 1  # part of the data fingerprint: raise when the episodes change

NAME = "orchard"
SIDE = 6  # cells
CELLS = SIDE * SIDE
APPLES = 8
FEATURES = 2 * CELLS
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))  # up, right, down, left
ACTIONS = len(MOVES)
STEPS = 30  # the longest episode
MOST = float(APPLES)  # the largest return
LEAST = 0.0  # the smallest return from any step on
SCALES = (1.0,) * FEATURES  # sizes that the features have

NOISES = (0.0, 0.1, 0.3, 0.6)  # shares of random actions


def begin(random: np.random.RandomState, count: int) -> Float[np.ndarray, "R F"]:
    """Draw the first states of episodes."""
    order = random.uniform(size=(count, CELLS)).argsort(axis=1)
    states = np.zeros((count, FEATURES))
    row = np.arange(count)
    states[row, order[:, 0]] = 1
    states[row[:, None], CELLS + order[:, 1 : 1 + APPLES]] = 1
    return states


def step(
    states: Float[Any, "R F"], actions: Int[Any, "R"], xp: Any = np
) -> tuple[Float[Any, "R F"], Float[Any, "R"], Bool[Any, "R"]]:
    """Make a step; return the new states, the rewards, and which episodes end.

    `xp` is NumPy, or JAX's form of it.
    """
    cell = xp.asarray(neighbours())[states[:, :CELLS].argmax(axis=1), actions]
    walker, apples = xp.eye(CELLS, dtype=states.dtype)[cell], states[:, CELLS:]
    picked = (walker * apples).sum(axis=1)
    apples = apples * (1 - walker)
    return xp.concatenate([walker, apples], axis=1), picked, ~apples.any(axis=1)


def neighbours() -> Int[np.ndarray, "cells actions"]:
    """Return the cell that each action leads to from each cell."""
    y, x = np.divmod(np.arange(CELLS)[:, None], SIDE)
    right, down = np.array(MOVES).T
    return np.clip(y + down, 0, SIDE - 1) * SIDE + np.clip(x + right, 0, SIDE - 1)


class Policy:
    """Players that walk to the nearest apple until they have had enough of them.

    From then on they avoid apples. Each has an appetite of its own, and takes a random
    action at a rate of its own.
    """

    def __init__(self, random: np.random.RandomState, count: int):
        """Draw the noise and appetite of each of the `count` rows of states."""
        self.random = random
        self.noise = np.array(NOISES)[random.randint(len(NOISES), size=count)]
        self.left_over = APPLES - random.randint(APPLES + 1, size=count)

    def act(
        self, states: Float[np.ndarray, "R F"], number: int
    ) -> Int[np.ndarray, "R"]:
        """Choose the actions of a step."""
        walker, apples = states[:, :CELLS].argmax(axis=1), states[:, CELLS:] > 0
        places = np.stack(np.divmod(np.arange(CELLS), SIDE), axis=1)
        far = np.abs(places[:, None] - places).sum(axis=-1)  # steps between cells
        after = neighbours()[walker]  # [R, actions]
        near = np.where(apples[:, None], far[after], CELLS).min(axis=2)
        at_edge = after == walker[:, None]
        hungry = (apples.sum(axis=1) > self.left_over)[:, None]
        cost = np.where(hungry, near, 1.0 * (near == 0)) + 0.5 * at_edge
        chosen = (cost + 0.1 * self.random.uniform(size=cost.shape)).argmin(axis=1)
        free = self.random.uniform(size=len(states)) < self.noise
        return np.where(free, self.random.randint(ACTIONS, size=len(states)), chosen)
