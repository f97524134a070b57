"""Layer norm and batch norm on padded batches, and norms that a user registers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import config as configs
from transformer_jax.base.errors import UserError
from transformer_jax.models import layers
from transformer_jax.models.norms import batch_norm, layer_norm, moments
from transformer_jax.models.stack import Stack
from transformer_jax.models.transformer_config import TransformerConfig

B, T, D = 3, 5, 7
REAL = jnp.arange(T) < jnp.array([[5], [2], [3]])  # one sentence per row, padded


def noise(seed=0):
    numbers = np.random.default_rng(seed).normal(3.0, 2.0, size=(B, T, D))
    return jnp.asarray(numbers, jnp.float32)


def test_layer_norm_is_that_of_the_models():
    module = layers.layer_norm(1e-6, jnp.float32)
    expected, _ = module.init_with_output(jax.random.key(0), noise())
    np.testing.assert_allclose(layer_norm(noise()), expected, atol=1e-5)


@pytest.mark.parametrize("real", [None, REAL], ids=["counted", "left out"])
def test_batch_norm_is_that_of_flax(real):
    module = nn.BatchNorm(False, epsilon=1e-6, use_fast_variance=False)
    mask = None if real is None else real[..., None]
    expected, _ = module.init_with_output(jax.random.key(0), noise(), mask=mask)
    np.testing.assert_allclose(batch_norm(noise(), real), expected, atol=1e-5)


def test_padding_that_is_counted_moves_the_statistics():
    """Zeros in a third of the places: μ is scaled by 2/3, σ² gains 2/9 μ²."""
    x = jnp.where(REAL[..., None], noise(), 0.0)
    mean, variance = moments(x, (0, 1), REAL)
    counted, spread = moments(x, (0, 1))
    share = 1 - REAL.mean()
    np.testing.assert_allclose(counted, (1 - share) * mean, rtol=1e-5)
    expected = (1 - share) * variance + share * (1 - share) * mean**2
    np.testing.assert_allclose(spread, expected, rtol=1e-4)


def test_more_padding_changes_only_a_batch_norm_that_counts_it():
    wider = jnp.pad(noise(), ((0, 0), (0, 4), (0, 0)))
    more = jnp.pad(REAL, ((0, 0), (0, 4)))
    for norm in (lambda x, real: layer_norm(x), batch_norm):
        got = norm(wider, more)[:, :T]
        np.testing.assert_allclose(got, norm(noise(), REAL), atol=1e-5)
    assert abs(batch_norm(wider)[:, :T] - batch_norm(noise())).max() > 0.1


def test_only_layer_norm_answers_a_sentence_alone_as_in_its_batch():
    x = noise()
    np.testing.assert_array_equal(layer_norm(x[1:2]), layer_norm(x)[1:2])
    alone, among = batch_norm(x[1:2], REAL[1:2]), batch_norm(x, REAL)[1:2]
    assert abs(alone - among)[0, :2].max() > 0.1


def test_batch_norm_shows_a_decoder_what_it_has_to_predict():
    """A gradient says so: the first token's output depends on the last token."""

    def first(norm, x):
        return jnp.sin(norm(x)[0, 0]).sum()

    seen = [jax.grad(first, argnums=1)(n, noise()) for n in (layer_norm, batch_norm)]
    assert (seen[0][0, -1] == 0).all()
    assert abs(seen[1][0, -1]).max() > 1e-3


def test_a_batch_of_nothing_but_padding_stays_finite():
    nothing = jnp.zeros((B, T), bool)
    assert jnp.isfinite(batch_norm(jnp.zeros((B, T, D)), nothing)).all()


def test_a_norm_that_is_registered_is_a_choice_and_is_used(monkeypatch):
    with pytest.raises(UserError, match=r"'unit': choose layer \| rms"):
        configs.load("quickstart", {"model.norm_kind": "unit"})
    monkeypatch.setitem(
        layers.NORM_KINDS,
        "unit",
        lambda epsilon, dtype: nn.RMSNorm(epsilon, dtype=dtype, use_scale=False),
    )
    config = configs.load("quickstart", {"model.norm_kind": "unit"})
    assert config.model.norm_kind == "unit"
    sizes = dict(vocab_size=5, d_model=8, d_ff=8, num_heads=2)
    module = Stack(TransformerConfig(**sizes, norm_kind="unit"), layers=1)
    inputs = jnp.ones((1, 2, 8)), jnp.arange(2)[None], None
    params = jax.eval_shape(module.init, jax.random.key(0), *inputs)["params"]
    assert set(params["layer_0"]) == {"self_attention", "feed_forward"}


def test_the_package_has_no_norm_over_the_batch():
    """Its answers would depend on the other sentences of the batch."""
    assert set(layers.NORM_KINDS) == {"layer", "rms"}
