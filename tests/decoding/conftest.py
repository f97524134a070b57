"""A model with random parameters whose answers have many lengths."""

import jax
import jax.numpy as jnp
import pytest

from transformer_jax.models.transformer import Seq2Seq


@pytest.fixture(scope="session")
def model_of():
    """A function: the module of a config, and parameters."""

    def make(config):
        module, some = Seq2Seq(config), jnp.ones((2, 3), jnp.int32)
        params = module.init(jax.random.key(5), some, some, some, some)["params"]
        # This head sometimes prefers the end of a sentence.
        table = params["embedding"]["embedding"] * 5
        return module, jax.tree.map(
            lambda a: table if a.shape == table.shape else a * 2, params
        )

    return make
