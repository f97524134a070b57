"""CartPole: the published equations, the limits, and players of mixed skill."""

import importlib.util
import math

import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.family.decisions import cartpole, episodes


def published(state, action):
    """A step as Barto, Sutton and Anderson (1983) and Florian (2007) write it."""
    x, dx, angle, turn = state
    gravity, cart, pole, half, push, seconds = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    force = push if action else -push
    total = cart + pole
    inner = (force + pole * half * turn**2 * math.sin(angle)) / total
    turning = (gravity * math.sin(angle) - math.cos(angle) * inner) / (
        half * (4 / 3 - pole * math.cos(angle) ** 2 / total)
    )
    moving = (
        force + pole * half * (turn**2 * math.sin(angle) - turning * math.cos(angle))
    ) / total
    after = (
        x + seconds * dx,
        dx + seconds * moving,
        angle + seconds * turn,
        turn + seconds * turning,
    )
    return after, abs(after[0]) > 2.4 or abs(math.degrees(after[2])) > 12


def some_states(count=50):
    sizes = np.array([2.5, 2, 0.22, 3])
    return np.random.default_rng(0).uniform(-1, 1, (count, 4)) * sizes


def test_a_step_is_that_of_the_published_equations_in_numpy_and_in_jax():
    states, actions = some_states(), np.arange(50) % 2
    wanted = [published(s, a) for s, a in zip(states, actions, strict=True)]
    after, rewards, ended = cartpole.step(states, actions)
    np.testing.assert_allclose(after, [w[0] for w in wanted], rtol=1e-12)
    assert ended.tolist() == [w[1] for w in wanted] and 0 < ended.sum() < 50
    assert rewards.tolist() == [1.0] * 50
    after, _, also = cartpole.step(jnp.asarray(states), jnp.asarray(actions), jnp)
    np.testing.assert_allclose(after, [w[0] for w in wanted], rtol=2e-5, atol=1e-6)
    assert also.tolist() == ended.tolist()


@pytest.mark.skipif(not importlib.util.find_spec("gymnasium"), reason="gymnasium")
def test_an_episode_is_that_of_gymnasium():
    import gymnasium

    world: object = gymnasium.make("CartPole-v1").unwrapped
    for seed in range(3):
        world.reset(seed=seed)
        states, ended = np.array([world.state]), np.array([False])
        random = np.random.default_rng(seed)
        while not ended[0]:
            action = int(random.integers(2))
            _, reward, fallen, _, _ = world.step(action)
            states, rewards, ended = cartpole.step(states, np.array([action]))
            np.testing.assert_allclose(states[0], world.state, rtol=1e-12)
            assert rewards[0] == reward and ended[0] == fallen


def test_the_controller_balances_to_the_end_and_random_play_does_not():
    class Play(cartpole.Policy):
        noise_of_all = 0.0

        def __init__(self, random, count):
            super().__init__(random, count)
            self.noise[:], self.until[:] = self.noise_of_all, cartpole.STEPS

    lengths = {}
    for noise in (0.0, 1.0):
        Play.noise_of_all = noise
        world = type("World", (), {**vars(cartpole), "Policy": Play})
        world.begin, world.step = cartpole.begin, cartpole.step
        played = episodes.record(world, "train", 30)
        lengths[noise] = [len(episode["actions"]) for episode in played]
    assert lengths[0.0] == [cartpole.STEPS] * 30
    assert 12 < np.mean(lengths[1.0]) < 40


def test_recorded_returns_are_spread_from_a_few_steps_to_all():
    played = episodes.record(cartpole, "train", 300)
    returns = np.array([episode["rewards"].sum() for episode in played])
    counts, _ = np.histogram(returns, bins=5, range=(0, cartpole.MOST))
    assert returns.min() < 20 and returns.max() == cartpole.MOST
    assert counts.min() >= 8


def test_each_recorded_state_follows_from_the_one_before_and_the_last_one_fails():
    for episode in episodes.record(cartpole, "test", 7):
        states, actions = episode["states"], episode["actions"]
        after, _, ended = cartpole.step(states, actions)
        np.testing.assert_array_equal(after[:-1], states[1:])
        assert not ended[:-1].any()
        assert ended[-1] or len(actions) == cartpole.STEPS
    first, again = (episodes.record(cartpole, s, 2) for s in ("train", "test"))
    assert (first[0]["states"][0] != again[0]["states"][0]).all()
