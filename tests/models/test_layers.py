"""Feed-forward, norm, residual order, and dropout with masks that are pure noise."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.models.layers import (
    ACTIVATIONS,
    Dropout,
    FeedForward,
    keep_mask,
    keep_mask_plainly,
    layer_norm,
    output_layer,
    residual,
)

B, T, D, F = 2, 3, 7, 11
ROWS, COLUMNS = 499, 521


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def feed_forward(activation="relu"):
    module = FeedForward(D, F, activation)
    shapes = jax.eval_shape(module.init, jax.random.key(0), normal(B, T, D))["params"]
    params = jax.tree.map(lambda s: normal(*s.shape, seed=len(s.shape)), shapes)
    return module, params


def test_feed_forward_is_the_papers_formula():
    module, params = feed_forward()
    x = normal(B, T, D)
    w1, w2 = params["inner"]["kernel"], params["outer"]["kernel"]
    b1, b2 = params["inner"]["bias"], params["outer"]["bias"]
    expected = np.maximum(0, np.asarray(x) @ w1 + b1) @ w2 + b2
    got = module.apply({"params": params}, x)
    np.testing.assert_allclose(got, expected, atol=1e-4)
    gelu = feed_forward("gelu_tanh")[0].apply({"params": params}, x)
    assert np.abs(gelu - got).max() > 1e-2


def test_each_gelu_is_its_formula():
    x = np.linspace(-4, 4, 101)
    erf = np.array([math.erf(v / math.sqrt(2)) for v in x])
    tanh = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    for name, shape in (("gelu_erf", erf), ("gelu_tanh", tanh)):
        got = ACTIVATIONS[name](jnp.asarray(x))
        np.testing.assert_allclose(got, x * (1 + shape) / 2, atol=1e-6)


@pytest.mark.parametrize("use_bias", [True, False])
def test_an_output_layer_does_not_round_its_product(use_bias):
    plain = output_layer(F, jnp.float32, use_bias)
    short, x = output_layer(F, jnp.bfloat16, use_bias), normal(B, T, D)
    params = jax.tree.map(lambda p: normal(*p.shape), plain.init(jax.random.key(0), x))
    rounded = jax.tree.map(lambda p: p.astype(jnp.bfloat16).astype(jnp.float32), params)
    if use_bias:
        rounded["params"]["bias"] = params["params"]["bias"]
    x = x.astype(jnp.bfloat16)
    expected = plain.apply(rounded, x.astype(jnp.float32))
    got = short.apply(params, x)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)

    def total(layer):
        return jax.grad(lambda p, y: (layer.apply(p, y) ** 2).sum(), argnums=(0, 1))

    slopes = total(short)(params, x), total(plain)(rounded, x.astype(jnp.float32))
    for one, other in zip(*map(jax.tree.leaves, slopes), strict=True):
        scale = np.abs(other).max()
        np.testing.assert_allclose(np.asarray(one, np.float32), other, atol=scale / 64)


def test_feed_forward_mixes_no_positions():
    module, params = feed_forward()

    def by_position(x):
        return module.apply({"params": params}, x).sum((0, 2))

    x = normal(1, T, D)
    seen = np.abs(jax.jacrev(by_position)(x)[:, 0]).max(-1)
    np.testing.assert_array_equal(seen > 0, np.eye(T, dtype=bool))


def test_layer_norm_survives_a_mean_that_dwarfs_the_spread():
    x = normal(B, T, 512) + 4096
    got = layer_norm(1e-6, jnp.float32).apply(
        {"params": {"scale": jnp.ones(512), "bias": jnp.zeros(512)}}, x
    )
    exact = np.asarray(x, np.float64)
    exact -= exact.mean(-1, keepdims=True)
    exact /= exact.std(-1, keepdims=True)
    np.testing.assert_allclose(got, exact, atol=1e-2)


@pytest.mark.parametrize(
    ("order", "expected"),
    [("post", 10 * (1 + 7 * (3 * 1))), ("pre", 1 + 7 * (3 * 10))],
)
def test_dropout_affects_only_the_sublayer_and_the_norm_is_where_asked(order, expected):
    got, extra = residual(
        jnp.ones((B, T, D)),
        sublayer=lambda y: (3 * y, "extra"),
        norm=lambda y: 10 * y,
        dropout=lambda y: 7 * y,
        order=order,
    )
    np.testing.assert_array_equal(got, np.full((B, T, D), expected))
    assert extra == "extra"


def drop(rate, x, key=None, train=True):
    rngs = None if key is None else {"dropout": key}
    return Dropout(rate).apply({}, x, train, rngs=rngs)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_drops_its_share_and_keeps_the_mean(rate):
    got = np.asarray(drop(rate, jnp.ones((ROWS, COLUMNS)), jax.random.key(1)))
    assert set(np.unique(got)) == {np.float32(0), np.float32(1 / (1 - rate))}
    sigma = (rate * (1 - rate) / got.size) ** 0.5
    assert abs((got == 0).mean() - rate) < 4 * sigma
    assert abs(got.mean() - 1) < 4 * sigma / (1 - rate)


def test_dropout_is_the_identity_without_a_rate_or_out_of_training():
    x = normal(B, T, D)
    np.testing.assert_array_equal(drop(0.0, x), x)
    np.testing.assert_array_equal(drop(0.5, x, train=False), x)


def test_dropout_keeps_the_type_of_what_it_drops():
    x = normal(B, T, D).astype(jnp.bfloat16)
    assert drop(0.5, x, jax.random.key(1)).dtype == jnp.bfloat16


def test_dropped_entries_pass_no_gradient():
    x, key = normal(13, 17), jax.random.key(1)
    gradient = jax.grad(lambda x: drop(0.5, x, key).sum())(x)
    np.testing.assert_array_equal(gradient, 2.0 * (drop(0.5, x, key) != 0))


@pytest.fixture(scope="module")
def masks():
    """Masks of neighbouring keys, as numbers of mean 0 and variance 1."""
    root = jax.random.key(0)
    keys = [jax.random.fold_in(root, i) for i in range(5)]
    share = 0.7
    drawn = [np.asarray(keep_mask(k, share, (ROWS, COLUMNS))) for k in keys]
    again = np.asarray(keep_mask(keys[0], share, (ROWS, COLUMNS)))
    np.testing.assert_array_equal(again, drawn[0])
    return [(m - share) / (share * (1 - share)) ** 0.5 for m in drawn]


def test_two_keys_give_two_masks_that_have_nothing_in_common(masks):
    for i, one in enumerate(masks):
        for other in masks[:i]:
            for step in (0, 1):
                related = (one[:, step:] * other[:, : COLUMNS - step]).mean()
                assert abs(related) < 4.5 / one.size**0.5


@pytest.mark.parametrize("steps", [(0, 1), (1, 0), (1, 1), (0, 2), (0, 8), (8, 0)])
def test_neighbouring_entries_of_a_mask_have_nothing_in_common(masks, steps):
    down, right = steps
    for mask in masks:
        near = mask[down:, right:] * mask[: ROWS - down, : COLUMNS - right]
        assert abs(near.mean()) < 4.5 / near.size**0.5


@pytest.mark.parametrize("axis", [0, 1])
def test_every_row_and_column_of_a_mask_has_its_share(masks, axis):
    for mask in masks:
        z = mask.sum(axis) / mask.shape[axis] ** 0.5  # one normal deviate per line
        freedom = len(z)
        # The sum of their squares is χ²: its deviation is as large as expected.
        assert abs((z**2).sum() - freedom) < 4.5 * (2 * freedom) ** 0.5
        assert abs(z).max() < 5


def test_a_share_of_one_keeps_all_and_of_none_keeps_nothing():
    key = jax.random.key(0)
    assert keep_mask(key, 1.0, (ROWS, COLUMNS)).all()
    assert not keep_mask(key, 0.0, (ROWS, COLUMNS)).any()


def test_the_hash_draws_what_the_general_generator_draws(masks):
    """Both masks differ as much as two draws from one distribution."""
    share = 0.7
    root = jax.random.key(0)
    for i, hashed in enumerate(masks):
        key = jax.random.fold_in(root, i)
        plain = np.asarray(keep_mask_plainly(key, share, (ROWS, COLUMNS)))
        plain = (plain - share) / (share * (1 - share)) ** 0.5
        for one in (
            lambda m: m,
            lambda m: m[1:] * m[:-1],
            lambda m: m[:, 1:] * m[:, :-1],
        ):
            a, b = one(hashed), one(plain)
            assert abs(a.mean() - b.mean()) < 4.5 * (2 / a.size) ** 0.5
        # So do the counts per row: two samples of one distribution (Kolmogorov).
        a, b = np.sort(hashed.sum(1)), np.sort(plain.sum(1))
        at = np.concatenate([a, b])
        apart = np.searchsorted(a, at, "right") - np.searchsorted(b, at, "right")
        assert abs(apart).max() / ROWS < 1.95 * (2 / ROWS) ** 0.5
