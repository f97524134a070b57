"""The orchard: steps, edges and apples, and players of different appetites."""

import jax.numpy as jnp
import numpy as np

from transformer_jax.family.decisions import episodes, orchard
from transformer_jax.family.decisions.orchard import CELLS


def state(x, y, apples):
    found = np.zeros(orchard.FEATURES)
    found[y * orchard.SIDE + x] = 1
    for right, down in apples:
        found[CELLS + down * orchard.SIDE + right] = 1
    return found


def test_a_step_walks_picks_and_stays_at_the_edge_in_numpy_and_in_jax():
    cases = [  # where, apples, action → where, apples, reward, end
        ((2, 3), [(2, 2), (5, 5)], 0, (2, 2), [(5, 5)], 1, False),
        ((2, 3), [(2, 2), (5, 5)], 1, (3, 3), [(2, 2), (5, 5)], 0, False),
        ((2, 3), [(2, 4)], 2, (2, 4), [], 1, True),
        ((0, 3), [(1, 1)], 3, (0, 3), [(1, 1)], 0, False),
        ((5, 0), [(1, 1)], 0, (5, 0), [(1, 1)], 0, False),
    ]
    states = np.stack([state(*place, apples) for place, apples, *_ in cases])
    actions = np.array([case[2] for case in cases])
    wanted = np.stack([state(*case[3], case[4]) for case in cases])
    for xp in (np, jnp):
        after, rewards, ended = orchard.step(
            xp.asarray(states), xp.asarray(actions), xp
        )
        np.testing.assert_array_equal(after, wanted)
        assert rewards.tolist() == [case[5] for case in cases]
        assert ended.tolist() == [case[6] for case in cases]


def test_episodes_begin_with_all_apples_and_none_below_the_walker():
    first = orchard.begin(np.random.RandomState(0), 50)
    walker, apples = first[:, :CELLS], first[:, CELLS:]
    assert (walker.sum(axis=1) == 1).all()
    assert (apples.sum(axis=1) == orchard.APPLES).all()
    assert not (walker * apples).any() and len(set(walker.argmax(axis=1))) > 20


def test_recorded_returns_are_spread_and_follow_the_appetites():
    played = episodes.record(orchard, "train", 400)
    returns = np.array([episode["rewards"].sum() for episode in played])
    counts = np.bincount(returns.astype(int), minlength=orchard.APPLES + 1)
    assert len(counts) == 9 and counts.min() >= 15
    random = np.random.RandomState(0)
    policy, states = orchard.Policy(random, 60), orchard.begin(random, 60)
    policy.noise[:] = 0
    appetites, reached = orchard.APPLES - policy.left_over, np.zeros(60)
    for number in range(orchard.STEPS):
        states, rewards, _ = orchard.step(states, policy.act(states, number))
        reached += rewards
    assert (reached == appetites).mean() > 0.8
