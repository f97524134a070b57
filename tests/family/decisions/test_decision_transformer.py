"""A decision transformer: what an action may depend on, and reading step by step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import config as configs
from transformer_jax.family.decisions import task as decisions
from transformer_jax.family.decisions.model import DecisionSizes, Steps
from transformer_jax.models import registry

B, T, F, A = 2, 5, 3, 7


def make(returns=True, **model):
    config = configs.base("decisions")
    small = {"decoder_layers": 1, "d_model": 24, "d_ff": 32, "num_heads": 2}
    with config.unlocked():
        config.model.update(small | model)
    module = registry.build(
        config, "decisions", decisions.MODULES, sizes=DecisionSizes(F, A, T, returns)
    )
    keys = jax.random.split(jax.random.key(1), 3)
    before = jax.random.randint(keys[0], (B, T), 0, A).at[:, 0].set(-1)
    returns_ = jax.random.uniform(keys[1], (B, T))
    steps = Steps(before, returns_, jax.random.normal(keys[2], (B, T, F)))
    real = jnp.ones((B, T), jnp.int32)
    params = module.init(jax.random.key(0), steps, real)["params"]
    # Positions begin at random, and so should whatever is compared.
    return module, {"params": params}, steps, real


@pytest.mark.parametrize(
    ("returns", "positions"), [(True, "learned"), (False, "rotary")]
)
def test_reading_step_by_step_gives_the_logits_of_reading_all_at_once(
    returns, positions
):
    module, variables, steps, real = make(returns, positions=positions)
    wanted = module.apply(variables, steps, real).logits
    read = jax.jit(functools.partial(module.apply, method="extend"))
    batch = {"rows": jnp.zeros(B)}
    static, state = module.apply(variables, batch, T + 2, method="start")

    def extend(part, places, state):
        some = jax.tree.map(lambda a: a[:, None, part], steps)
        places = jnp.broadcast_to(jnp.array(places), (B, 1, len(places)))
        return read(variables, some, places, static, state)

    # What is at position -1 is not there.
    _, state = extend(slice(3, 5), [-1, -1], state)
    first, state = extend(slice(0, 2), [0, 1], state)
    found = [first]
    for t in range(2, T):
        logits, state = extend(slice(t, t + 1), [t], state)
        found.append(logits)
    found = jnp.concatenate(found, axis=2)[:, 0]
    np.testing.assert_allclose(found, wanted, atol=2e-5)


def test_an_action_depends_on_its_step_and_those_before_and_on_nothing_after():
    module, variables, steps, real = make()

    def logits(returns, states):
        steps_ = steps.replace(returns=returns, states=states)
        return module.apply(variables, steps_, real).logits[:, 2].sum()

    slopes = jax.grad(logits, (0, 1))(steps.returns, steps.states)
    for slope in slopes:
        used = abs(np.asarray(slope)).reshape(B, T, -1).sum(-1)
        assert (used[:, :3] > 0).all() and (used[:, 3:] == 0).all()
    changed = steps.replace(before=steps.before.at[:, 3:].set(0))
    found = [module.apply(variables, s, real).logits[:, :3] for s in (steps, changed)]
    np.testing.assert_array_equal(*found)


def test_padding_at_the_end_changes_nothing_before_it():
    module, variables, steps, real = make()
    short = real.at[1, 3:].set(0)
    whole, padded = (module.apply(variables, steps, r).logits for r in (real, short))
    np.testing.assert_allclose(whole[1, :3], padded[1, :3], atol=1e-6)


def test_without_returns_none_are_read():
    module, variables, steps, real = make(returns=False)
    assert "goal" not in variables["params"]
    other = steps.replace(returns=steps.returns + 1)
    found = [module.apply(variables, s, real).logits for s in (steps, other)]
    np.testing.assert_array_equal(*found)
