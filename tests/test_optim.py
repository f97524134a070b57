"""Schedules at the steps that matter, what each optimizer does, the running mean."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer_jax import config as configs
from transformer_jax import losses, optim, sharding, train
from transformer_jax.base import schema
from transformer_jax.base.errors import UserError
from transformer_jax.runs import resuming
from transformer_jax.runs import run as runs
from transformer_jax.runs.checkpoint import TrainState


def settings(**changes):
    config = configs.base()
    with config.unlocked():
        config.optim.update(changes)
        config.train.steps = 1000
    return config


def rates(**changes):
    """The learning rate of update s, from 1."""
    schedule = optim.make_schedule(settings(**changes))
    return lambda step: float(schedule(step - 1))


def test_noam_is_the_papers_formula():
    rate = rates(schedule="noam", warmup_steps=40, constant=2.0)
    for step in (1, 7, 39, 40, 41, 900):
        expected = 2.0 * 512**-0.5 * min(step**-0.5, step * 40**-1.5)
        assert rate(step) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("schedule", ["rsqrt", "linear", "cosine", "wsd"])
def test_all_others_rise_in_a_line_to_their_constant(schedule):
    rate = rates(schedule=schedule, warmup_steps=50, constant=0.3)
    assert rate(1) == pytest.approx(0.3 / 50, rel=1e-2)
    assert rate(25) == pytest.approx(0.15, rel=1e-2)
    assert rate(50) == pytest.approx(0.3, rel=1e-3)


@pytest.mark.parametrize("schedule", [s for s in optim.SCHEDULES if s != "constant"])
def test_the_learning_rate_is_the_highest_of_any_schedule(schedule):
    common = {"schedule": schedule, "warmup_steps": 50, "constant": 0.3}
    rate = rates(**common, learning_rate=0.02)
    found = [rate(step) for step in (1, 25, 49, 50, 51, 400, 1000)]
    assert max(found) == pytest.approx(0.02, rel=3e-2)
    assert rates(**common, learning_rate=0.0)(50) == rates(**common)(50) != found[3]


def test_each_schedule_falls_as_its_name_says():
    common = {"warmup_steps": 100, "constant": 1.0}
    rsqrt = rates(schedule="rsqrt", **common)
    assert rsqrt(400) == pytest.approx(0.5)
    linear = rates(schedule="linear", **common)
    assert linear(550) == pytest.approx(0.5, abs=2e-3)
    cosine = rates(schedule="cosine", **common)
    assert cosine(550) == pytest.approx(0.5, abs=2e-3)
    assert cosine(325) == pytest.approx((1 + np.sqrt(0.5)) / 2, abs=2e-3)
    stable = rates(schedule="wsd", decay_share=0.2, **common)
    assert stable(799) == 1.0
    assert stable(900) == pytest.approx(0.5, abs=6e-3)
    for ending in (linear, cosine, stable):
        assert 0 < ending(1000) < 0.01  # the last update still learns
    assert rates(schedule="constant", **common)(1) == 1.0


def test_decay_steps_end_a_schedule_elsewhere():
    rate = rates(schedule="linear", warmup_steps=100, constant=1.0, decay_steps=300)
    assert rate(200) == pytest.approx(0.5, abs=5e-3)
    assert rate(301) == rate(900) == 0.0


def test_decay_steps_say_which_schedules_they_move():
    fields = {f.name: f.metadata["meaning"] for f in schema.fields(optim.OptimOptions)}
    named = fields["decay_steps"].split(":")[0].split(", ")
    for schedule in optim.SCHEDULES:
        common = {"schedule": schedule, "warmup_steps": 100, "constant": 1.0}
        moved = rates(**common, decay_steps=300)
        assert (moved(301) == moved(900) == 0.0) is (schedule in named)
        assert (rates(**common)(290) != moved(290)) is (schedule in named)
        found = optim.find_problems(settings(**common, decay_steps=100))
        assert bool(found) is (schedule in named)


def like(config, **changed):
    flat = dict(configs.items(config))
    return flat | {k.replace("__", "."): v for k, v in changed.items()}


def test_a_schedule_that_knows_the_end_does_not_let_it_move():
    for schedule, may in (("noam", True), ("wsd", False), ("cosine", False)):
        run = like(settings(schedule=schedule))
        lines = resuming.differences(run, {**run, "train.steps": 2000})
        assert bool(lines) != may
    fixed = like(settings(schedule="cosine", decay_steps=500))
    assert not resuming.differences(fixed, {**fixed, "train.steps": 2000})


def test_a_run_that_is_older_than_a_key_has_its_default():
    new = like(settings())
    old = {k: v for k, v in new.items() if k != "model.kv_heads"}
    assert not resuming.differences(old, new)
    assert resuming.differences(old, {**new, "model.kv_heads": 2})


PARAMS = {
    "embedding": jnp.ones((3, 2)),
    "layer": {
        "kernel": jnp.array([[1.0, -2.0], [3.0, 4.0], [0.5, 0.1]]),
        "bias": jnp.array([1.0, 2.0]),
    },
}


def one_update(gradients=PARAMS, params=PARAMS, **changes):
    changes = {"schedule": "constant", "constant": 0.1} | changes
    optimizer = optim.make_optimizer(settings(**changes))
    state = optimizer.init(params)
    updates, state = optimizer.update(gradients, state, params)
    return updates, state


@pytest.mark.parametrize("name", optim.OPTIMIZERS)
def test_every_optimizer_goes_down_a_slope(name):
    config = settings(name=name, schedule="constant", constant=0.1, beta2=0.99)
    optimizer, target = optim.make_optimizer(config), jax.tree.map(jnp.sin, PARAMS)

    def loss(params):
        return sum(((a - b) ** 2).sum() for a, b in zip(
            jax.tree.leaves(params), jax.tree.leaves(target), strict=True))  # fmt: skip

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    params, state = PARAMS, optimizer.init(PARAMS)
    for _ in range(300):
        params, state = step(params, state)
    assert loss(params) < 0.05 * loss(PARAMS)


@pytest.mark.parametrize("name", optim.OPTIMIZERS)
def test_the_state_of_every_optimizer_has_a_place_on_a_mesh(name):
    params = {
        "encoder": {"inner": {"kernel": jnp.ones((256, 384)), "bias": jnp.ones(384)}}
    }
    params["embedding"] = jnp.ones((4, 2))
    state = optim.make_optimizer(settings(name=name)).init(params)
    mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2, "sequence": 1})
    placed = sharding.shardings(state, mesh)
    jax.block_until_ready(jax.device_put(state, placed))
    specs = [tuple(place.spec) for place in jax.tree.leaves(placed)]
    leaves = jax.tree.leaves(state)
    for leaf, spec in zip(leaves, specs, strict=True):
        assert len(spec) in (0, leaf.ndim)
    if name != "adafactor":  # whose numbers are too few to split
        assert ("fsdp", "tensor") in specs


def test_lion_moves_everything_by_the_same():
    updates, _ = one_update(name="lion")
    for update, gradient in zip(
        jax.tree.leaves(updates), jax.tree.leaves(PARAMS), strict=True
    ):
        np.testing.assert_allclose(update, -0.1 * np.sign(gradient), rtol=1e-5)


def test_muon_makes_hidden_matrices_orthogonal_and_leaves_tables_to_adam():
    updates, _ = one_update(name="muon", beta1=0.9)
    found = np.asarray(updates["layer"]["kernel"]) / -0.1
    values = np.linalg.svd(found / (0.2 * np.sqrt(3)), compute_uv=False)
    assert (values > 0.6).all() and (values < 1.3).all()  # five rounds come near to 1
    adam = optax.scale_by_adam(0.9, 0.98, 1e-9, nesterov=True)
    adam, _ = adam.update(PARAMS, adam.init(PARAMS))
    for name in ("embedding", "layer"):
        one, other = (u[name] if name == "embedding" else u[name]["bias"]
                      for u in (updates, adam))  # fmt: skip
        np.testing.assert_allclose(one, -0.1 * other, rtol=1e-4)


def test_muon_updates_as_optax_does():
    """Ours takes only the momentum from optax, whose products are slower."""
    params = {
        name: {"kernel": jax.random.normal(jax.random.key(i), shape)}
        for i, (name, shape) in enumerate({"wide": (6, 20), "tall": (20, 6)}.items())
    }
    gradients = [jax.tree.map(lambda p, i=i: jnp.sin(p + i), params) for i in range(3)]
    theirs = optax.contrib.muon(0.1, beta=0.9, eps=1e-9, consistent_rms=0.2)
    constant = {"schedule": "constant", "constant": 0.1}
    ours = optim.make_optimizer(settings(name="muon", beta1=0.9, **constant))
    states = [theirs.init(params), ours.init(params)]
    for gradient in gradients:
        wanted, states[0] = theirs.update(gradient, states[0], params)
        found, states[1] = ours.update(gradient, states[1], params)
        for name, update in found.items():
            np.testing.assert_allclose(
                update["kernel"], wanted[name]["kernel"], rtol=1e-4, atol=1e-6
            )


@pytest.mark.parametrize("end", ["projection", "head", "patches", "stem"])
def test_muon_leaves_first_and_last_layers_to_adam(end):
    kernel = PARAMS["layer"]["kernel"]
    params = {end: {"linear": {"kernel": kernel}}, "layer": {"kernel": kernel}}
    updates, _ = one_update(params, params, name="muon", beta1=0.9)
    adam = optax.scale_by_adam(0.9, 0.98, 1e-9, nesterov=True)
    adam, _ = adam.update(params, adam.init(params))
    found, wanted = (u[end]["linear"]["kernel"] for u in (updates, adam))
    np.testing.assert_allclose(found, -0.1 * wanted, rtol=1e-4)
    other, wanted = (u["layer"]["kernel"] for u in (updates, adam))
    assert np.abs(other + 0.1 * wanted).max() > 1e-3


def test_adafactor_keeps_a_number_a_row_and_a_column():
    params = {"kernel": jnp.ones((256, 384))}
    state = optim.make_optimizer(settings(name="adafactor")).init(params)
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) < 1000
    params = {"kernel": jnp.ones((127, 384))}  # too small to be factored
    state = optim.make_optimizer(settings(name="adafactor")).init(params)
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) > 127 * 384


def test_weight_decay_is_of_matrices_alone_and_times_the_learning_rate():
    nothing = jax.tree.map(jnp.zeros_like, PARAMS)
    updates, _ = one_update(nothing, name="adamw", weight_decay=0.5)
    kernel = PARAMS["layer"]["kernel"]
    np.testing.assert_allclose(updates["layer"]["kernel"], -0.05 * kernel, rtol=1e-5)
    assert not np.any(updates["layer"]["bias"])
    table = PARAMS["embedding"]
    np.testing.assert_allclose(updates["embedding"], -0.05 * table, rtol=1e-5)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"optim.weight_decay": "0.1"}, "optim.name = 'adamw'"),
        ({"optim.name": "lyon"}, "Did you mean 'lion'"),
        ({"optim.schedule": "cosin"}, "Did you mean 'cosine'"),
        ({"eval.weights": "ema"}, "set optim.ema"),
        ({"optim.ema": "1.0"}, "a share"),
        ({"optim.decay_share": "0.0"}, "optim.decay_share"),
        ({"model.kv_heads": "3"}, "does not divide over model.kv_heads 3"),
        ({"model.positions": "rotary", "model.d_k": "7"}, "set model.d_k to 8"),
        ({"model.rotary_factor": "2.0"}, "model.rotary_scaling"),
    ],
)
def test_what_cannot_work_is_said_before_anything_runs(overrides, words):
    with pytest.raises(UserError, match=words):
        configs.load("quickstart", overrides)


def test_the_running_mean_follows_its_formula():
    def loss(params, batch, key):
        value = (params["w"] * batch["x"]).sum()
        return losses.Sums(value, jnp.float32(1))

    optimizer = optax.sgd(0.1)
    params = {"w": jnp.array([1.0, -2.0])}
    state = TrainState(
        jnp.int32(0), params, optimizer.init(params), jax.random.key(0), params
    )
    mean = np.asarray(params["w"])
    for step in range(4):
        state, _ = train.train_step(
            state, {"x": jnp.array([3.0, 5.0])}, loss=loss, optimizer=optimizer,
            micro_batches=1, ema_decay=0.2,
        )  # fmt: skip
        decay = min(0.2, (1 + step) / (10 + step))
        mean = decay * mean + (1 - decay) * np.asarray(state.params["w"])
        np.testing.assert_allclose(state.ema["w"], mean, rtol=1e-6)


@pytest.mark.system
def test_a_run_answers_with_its_running_mean_if_told_to(tiny_run):
    mean, last = runs.load(tiny_run, "ema"), runs.load(tiny_run, "last")
    assert mean.weights == "ema" and mean.step == 12
    moved = jax.tree.map(
        lambda a, b: float(jnp.abs(a - b).max()), mean.params, last.params
    )
    assert 0 < max(jax.tree.leaves(moved)) < 0.1
    assert len(mean.predict(["O gato dorme."])) == 1


def moments_of(optimizer, gradients):
    """The state after these gradients, and each update."""
    params = {"kernel": jnp.zeros((40, 50)), "bias": jnp.zeros(50)}
    state, updates = optimizer.init(params), []
    step = jax.jit(optimizer.update)
    for scale in gradients:
        grads = jax.tree.map(lambda p, s=scale: jnp.full_like(p, s), params)
        found, state = step(grads, state, params)
        updates.append(found["kernel"])
    return state, updates


@pytest.mark.parametrize("name", ["adam", "adafactor", "lion", "muon"])
def test_moments_may_be_kept_in_bfloat16(name):
    config = settings(name=name, state_dtype="bfloat16")
    state, updates = moments_of(optim.make_optimizer(config), [1.0, 2.0])
    shapes = {"kernel": (40, 50), "bias": (50,)}
    kept = {
        leaf.dtype for leaf in jax.tree.leaves(state) if leaf.shape in shapes.values()
    }
    assert kept == {jnp.dtype("bfloat16")}
    _, exact = moments_of(optim.make_optimizer(settings(name=name)), [1.0, 2.0])
    np.testing.assert_allclose(updates[1], exact[1], rtol=0.02, atol=1e-7)


def test_moments_in_bfloat16_follow_even_the_slowest_decay():
    """1 - 0.9999 is far less than what bfloat16 can add to 1."""
    slow = {"beta2": 0.9999, "warmup_steps": 10}
    gradients = [1.0] * 20 + [0.0] * 300
    half = optim.make_optimizer(settings(**slow, state_dtype="bfloat16"))
    short, _ = moments_of(half, gradients)
    exact, _ = moments_of(optim.make_optimizer(settings(**slow)), gradients)
    mean = short.inner[0].nu["kernel"].astype(jnp.float32).mean()
    assert mean == pytest.approx(float(exact[0].nu["kernel"].mean()), rel=2e-3)


def test_rounding_by_chance_has_the_right_mean_and_keeps_what_is_exact():
    x = jnp.full((300, 300), 1 + 2.0**-9)  # a quarter of the way to 1 + 2^-7
    rounded = optim.round_by_chance(x, jnp.uint32(3)).astype(jnp.float32)
    assert set(np.unique(rounded)) == {1.0, 1 + 2.0**-7}
    assert float(rounded.mean()) == pytest.approx(float(x[0, 0]), abs=1e-4)
    other = optim.round_by_chance(x, jnp.uint32(4)).astype(jnp.float32)
    assert 0.5 < float((rounded == other).mean()) < 0.75  # 5/8 if independent
    exact = jnp.array([0.0, -3.5, 2.0**100, 1 + 2.0**-7])
    np.testing.assert_array_equal(optim.round_by_chance(exact, jnp.uint32(1)), exact)


STACK = {
    "embedding": {"embedding": jnp.ones((5, 3))},
    "encoder": {
        f"layer_{i}": {"inner": {"kernel": jnp.ones((3, 3)), "bias": jnp.ones(3)}}
        for i in range(3)
    },
    "head": {"kernel": jnp.ones((3, 2))},
}


def by_name(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {sharding.path_name(path): leaf for path, leaf in leaves}


def step_of(**changes):
    """The first update of each parameter by SGD's sign, from equal gradients."""
    config = settings(schedule="constant", constant=0.1, name="adam", **changes)
    optimizer = optim.make_optimizer(config)
    state = optimizer.init(STACK)
    updates, _ = optimizer.update(jax.tree.map(jnp.ones_like, STACK), state, STACK)
    return {name: float(u.ravel()[0]) for name, u in by_name(updates).items()}, state


def test_rates_by_path_scale_the_updates_and_0_freezes():
    plain, whole = step_of()
    found, state = step_of(rates=(("head", 2.0), ("layer_1|embedding", 0.0)))
    for name, update in found.items():
        factor = 1.0
        if name.startswith("head"):
            factor = 2.0
        elif "layer_1" in name or "embedding" in name:
            factor = 0.0
        assert update == pytest.approx(factor * plain[name]), name
    sizes = [sum(x.size for x in jax.tree.leaves(s)) for s in (whole, state)]
    frozen = 5 * 3 + 3 * 3 + 3
    assert sizes[0] - sizes[1] == 2 * frozen  # no moments of what is frozen


def test_rates_decay_from_the_top_layer_down_to_the_embeddings():
    plain, _ = step_of()
    found, _ = step_of(layer_decay=0.5)
    below = {"head/kernel": 0, "embedding/embedding": 3}
    for i in range(3):
        below[f"encoder/layer_{i}/inner/kernel"] = 2 - i
        below[f"encoder/layer_{i}/inner/bias"] = 2 - i
    for name, layers in below.items():
        assert found[name] == pytest.approx(0.5**layers * plain[name]), name


def test_the_first_pattern_counts_and_one_that_matches_nothing_is_named():
    config = settings(rates=(("layer_1", 1.0), ("layer", 0.0), ("laier", 0.5)))
    factors = by_name(optim.rate_factors(config, STACK))
    assert factors["encoder/layer_1/inner/bias"] == 1.0
    assert factors["encoder/layer_0/inner/bias"] == 0.0
    (problem,) = optim.find_unmatched(config, STACK)
    assert problem.startswith("optim.rates: 'laier' is found in no path")
    (problem,) = optim.find_unmatched(settings(rates=(("", 0.0),)), STACK)
    assert problem.endswith("would freeze all parameters")
    for wrong in (("(", 0.0), ("a", -1.0), ("a",), ("a", "b"), 3):
        (problem,) = optim.find_problems(settings(rates=(wrong,), warmup_steps=10))
        assert problem.startswith("optim.rates = ")


def test_frozen_parameters_have_no_gradient_and_stay(tiny, tmp_path, one_device):
    spec, changes = "opinions", {"optim.rates": "(('encoder|embedding', 0.0),)"}
    known = dict(configs.items(configs.load(spec)))
    small = {name: text for name, text in tiny().items() if name in known}
    small |= {"optim.warmup_steps": "1", "checkpoint.every": "3", "eval.every": "3"}
    loaded = configs.load(spec, {**small, "train.steps": "6", **changes})
    folder = tmp_path / "run"
    assert train.train(loaded, folder) == 0
    begun = configs.load(spec, {**small, "train.steps": "3", **changes})
    other = tmp_path / "other"
    assert train.train(begun, other) == 0
    one, two = (by_name(runs.load(place, "last").params) for place in (folder, other))
    for name in one:
        same = bool((one[name] == two[name]).all())
        assert same == name.startswith(("encoder", "embedding")), name
    wrong = configs.load(spec, {**small, "optim.rates": "(('encodr', 0.0),)"})
    with pytest.raises(UserError, match="'encodr' is found in no path of a parameter"):
        train.train(wrong, tmp_path / "wrong")
