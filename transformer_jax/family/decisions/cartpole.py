"""CartPole: balance a pole on a cart by pushing it left or right (Barto et al. 1983).

    F   = (push + m_p l θ'² sin θ) / m
    θ'' = (g sin θ - F cos θ) / (l (4/3 - m_p cos² θ / m))
    x'' = F - m_p l θ'' cos θ / m

Constants, Euler steps, reward and limits are those of Gymnasium's CartPole-v1. The same
equations run in NumPy, to record episodes, and in JAX, to play them with a model.
Pitfall: an episode that ends at the limit of 500 steps looks like one that fails there.
"""

import math
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

VERSION = 1  # part of the data fingerprint: raise when the episodes change

NAME = "cartpole"
FEATURES = 4  # place and speed of the cart, angle and speed of the pole
ACTIONS = 2  # push left, push right
STEPS = 500  # the longest episode
MOST = 500.0  # the largest return: 1 for each step
LEAST = 1.0  # the smallest return from any step on
SCALES = (2.4, 2.0, 0.21, 2.0)  # sizes that the features have, to bring them near 1

GRAVITY = 9.8
CART, POLE = 1.0, 0.1  # masses
LENGTH = 0.5  # half of the pole's
PUSH = 10.0
SECONDS = 0.02  # of a step
EDGE = 2.4  # the cart may not go beyond, either way
FALLEN = 12 * 2 * math.pi / 360  # nor the pole

GAINS = (0.1, 0.2, 1.0, 0.5)  # of the hand-written controller
NOISES = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)  # shares of random actions


def begin(random: np.random.RandomState, count: int) -> Float[np.ndarray, "R 4"]:
    """Draw the first states of episodes."""
    return random.uniform(-0.05, 0.05, (count, FEATURES))


def step(
    states: Float[Any, "R 4"], actions: Int[Any, "R"], xp: Any = np
) -> tuple[Float[Any, "R 4"], Float[Any, "R"], Bool[Any, "R"]]:
    """Make a step; return the new states, the rewards, and which episodes end.

    `xp` is NumPy, or JAX's form of it.
    """
    place, speed, angle, turn = states.T
    push = xp.where(actions == 1, PUSH, -PUSH)
    mass, sine, cosine = CART + POLE, xp.sin(angle), xp.cos(angle)
    force = (push + POLE * LENGTH * xp.square(turn) * sine) / mass
    inertia = LENGTH * (4.0 / 3.0 - POLE * xp.square(cosine) / mass)
    turning = (GRAVITY * sine - cosine * force) / inertia
    moving = force - POLE * LENGTH * turning * cosine / mass
    states = xp.stack(
        [
            place + SECONDS * speed,
            speed + SECONDS * moving,
            angle + SECONDS * turn,
            turn + SECONDS * turning,
        ],
        axis=1,
    )
    ended = (xp.abs(states[:, 0]) > EDGE) | (xp.abs(states[:, 2]) > FALLEN)
    return states, xp.ones_like(place), ended


def control(states: Float[np.ndarray, "R 4"]) -> Int[np.ndarray, "R"]:
    """Push towards the side to which the pole falls: this balances it."""
    return (states @ np.array(GAINS) > 0).astype(np.int64)


class Policy:
    """Players of mixed skill: the controller, with noise, until it may give up.

    Each player takes a random action at a rate of its own. Half of them give up at a
    step of their own, and from then on push the wrong way.
    """

    def __init__(self, random: np.random.RandomState, count: int):
        """Draw the noise and last good step of each of the `count` rows of states."""
        self.random = random
        self.noise = np.array(NOISES)[random.randint(len(NOISES), size=count)]
        stops = random.uniform(size=count) < 0.5
        self.until = np.where(stops, random.randint(STEPS, size=count), STEPS)

    def act(
        self, states: Float[np.ndarray, "R 4"], number: int
    ) -> Int[np.ndarray, "R"]:
        """Choose the actions of a step, counted from 0."""
        right = control(states)
        chosen = np.where(number < self.until, right, 1 - right)
        free = self.random.uniform(size=len(states)) < self.noise
        return np.where(free, self.random.randint(ACTIONS, size=len(states)), chosen)
