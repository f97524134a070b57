"""Play episodes with a model of decisions: many at a time, in one compiled program.

A model reads the last steps of a window and acts; the world answers with a state and a
reward, which is taken off the return asked for. Windows overlap by half. A cache holds
the steps of one: when it is full, the second half is read again as the beginning of the
next, because what a layer has kept of these steps knows of the steps that are left out.
So a step costs two readings, and not one of a whole window.
"""

import dataclasses
import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_jax.family.decisions.model import Steps
from transformer_jax.sharding import Params


class Episodes(flax.struct.PyTreeNode):
    """The state of episodes that are played together."""

    number: Int[Array, ""]  # steps made so far
    states: Float[Array, "R F"]
    goals: Float[Array, "R"]  # returns that are still asked for
    before: Int[Array, "R"]  # the last actions; -1: none yet
    reached: Float[Array, "R"]
    done: Bool[Array, "R"]
    seen: Steps  # the steps of the last half window


@dataclasses.dataclass(frozen=True)
class Rules:
    """Set how episodes are played; hashable, because jit compiles for each."""

    world: Any  # a module such as family/decisions/cartpole.py
    half: int  # steps of half a window
    greedy: bool  # take the likeliest action; False: draw by probability


def play(
    module: Any,
    rules: Rules,
    params: Params,
    asked: Float[Array, "R"],
    states: Float[Array, "R F"],
    keys: Key[Array, "R"],
) -> Float[Array, "R"]:
    """Return the return that each episode reaches from its first state.

    `module` has `start` and `extend`. An episode depends on its own row alone.
    """
    rows, half = len(asked), rules.half
    blank = Steps(
        before=jnp.full((rows, half), -1),
        returns=jnp.zeros((rows, half)),
        states=jnp.zeros((rows, half, rules.world.FEATURES)),
    )
    episodes = Episodes(
        number=jnp.int32(0),
        states=states,
        goals=asked,
        before=jnp.full(rows, -1),
        reached=jnp.zeros(rows),
        done=jnp.zeros(rows, bool),
        seen=blank,
    )
    episodes = jax.lax.while_loop(
        lambda e: (e.number < rules.world.STEPS) & ~e.done.all(),
        functools.partial(_play_half, module, rules, params, keys),
        episodes,
    )
    return episodes.reached


def _play_half(module, rules, params, keys, episodes: Episodes) -> Episodes:
    """Read the last half of a window again, and play the next."""
    rows, half = len(episodes.goals), rules.half
    apply = functools.partial(module.apply, {"params": params})
    static, cache = apply({"rows": episodes.goals}, 2 * half, method="start")
    first = episodes.number == 0
    places = jnp.where(first, -1, jnp.arange(half))
    known = episodes.seen.replace(before=episodes.seen.before.at[:, 0].set(-1))
    _, cache = apply(
        jax.tree.map(lambda a: a[:, None], known),
        jnp.broadcast_to(places, (rows, 1, half)),
        static,
        cache,
        method="extend",
    )

    def advance(carry, i):
        episodes, cache = carry
        now = Steps(
            before=episodes.before,
            returns=episodes.goals,
            states=episodes.states / jnp.array(rules.world.SCALES),
        )
        now = now.replace(returns=now.returns / rules.world.MOST)
        place = jnp.where(first, 0, half) + i
        logits, cache = apply(
            jax.tree.map(lambda a: a[:, None, None], now),
            jnp.broadcast_to(place, (rows, 1, 1)),
            static,
            cache,
            method="extend",
        )
        actions = _choose(rules, logits[:, 0, 0], keys, episodes.number)
        return (_advance(rules.world, episodes, actions), cache), now

    (episodes, _), seen = jax.lax.scan(advance, (episodes, cache), jnp.arange(half))
    return episodes.replace(seen=jax.tree.map(lambda a: a.swapaxes(0, 1), seen))


def _choose(rules, logits, keys, number):
    if rules.greedy:
        return logits.argmax(axis=-1).astype(jnp.int32)
    drawn = jax.vmap(
        lambda key, row: jax.random.categorical(jax.random.fold_in(key, number), row)
    )(keys, logits)
    return drawn.astype(jnp.int32)


def _advance(world, episodes: Episodes, actions) -> Episodes:
    """Make a step of the world; episodes that have ended stay as they are."""
    done = episodes.done | (episodes.number >= world.STEPS)
    states, rewards, ended = world.step(episodes.states, actions, jnp)
    goals = jnp.maximum(episodes.goals - rewards, world.LEAST)
    return episodes.replace(
        number=episodes.number + 1,
        states=jnp.where(done[:, None], episodes.states, states),
        goals=goals,
        before=actions,
        reached=episodes.reached + jnp.where(done, 0.0, rewards),
        done=done | ended,
    )
