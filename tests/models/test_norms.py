"""Norms that a user registers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from transformer_jax import config as configs
from transformer_jax.base.errors import UserError
from transformer_jax.models import layers
from transformer_jax.models.stack import Stack
from transformer_jax.models.transformer_config import TransformerConfig


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
