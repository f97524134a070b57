"""The cache of a search: values that stay in place read like values that are copied."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.models import LanguageModel, TransformerConfig
from transformer_jax.models.cache import KeysValues, KVCache, reorder_by_copying

B, BEAMS, SLOTS, G, K, H, S = 2, 3, 5, 2, 7, 11, 13
rng = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def written(cache):
    """The values each hypothesis reads in the first layer, [B, beams, slots, …]."""
    rows, beams, slots = cache.writer.shape
    one, row = cache.layers[0], np.arange(rows)[:, None, None]
    places = np.arange(slots) * beams + cache.writer
    key, value = np.moveaxis(one.key, 2, 1), np.moveaxis(one.value, 2, 1)
    filled = int(cache.next)
    return key[row, places][:, :, :filled], value[row, places][:, :, :filled]


def step(cache, new):
    positions = jnp.full((B, BEAMS, 1), cache.next)
    cache = cache.begin_step(positions)
    layers = tuple(cache.write(layer, new) for layer in cache.layers)
    return cache.end_step(layers, normal(B, 1, BEAMS, S), positions)


def test_a_cache_that_reorders_indices_reads_like_one_that_copies():
    cache = KVCache.empty(1, B, BEAMS, SLOTS, (G, K, H), jnp.float32)
    cache = cache.track_attention(jnp.ones((B, S), jnp.int32))
    copied, expected = cache, np.zeros((B, BEAMS, 0, G, K), np.float32)
    for _ in range(SLOTS):
        new = KeysValues(normal(B * BEAMS, G, 1, K), normal(B * BEAMS, G, 1, H))
        state = rng.bit_generator.state  # both see the same weights
        cache = step(cache, new)
        rng.bit_generator.state = state
        copied = step(copied, new)
        parents = jnp.asarray(rng.integers(BEAMS, size=(B, BEAMS)))
        key = new.key.reshape(B, BEAMS, 1, G, K)
        expected = np.concatenate([expected, key], axis=2)
        expected = expected[np.arange(B)[:, None], parents]
        cache, copied = cache.reorder(parents), reorder_by_copying(copied, parents)
        for a, b in zip(written(cache), written(copied), strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(written(cache)[0], expected)
        np.testing.assert_array_equal(cache.attended, copied.attended)
    own = np.arange(BEAMS)[:, None]
    assert (np.asarray(copied.writer) == own).all()
    assert (np.asarray(cache.writer) != own).any()


@pytest.mark.parametrize("positions", ["sinusoid", "rotary", "relative", "alibi"])
def test_a_model_predicts_the_same_from_either_cache(positions):
    sizes = dict(vocab_size=17, decoder_layers=2, d_model=12, d_ff=5, num_heads=3)
    module = LanguageModel(TransformerConfig(**sizes, positions=positions))
    prompt = jnp.asarray(rng.integers(4, 17, size=(B, 3)))
    variables = module.init(jax.random.key(0), prompt)
    _, cache = module.apply(variables, {"prompt": prompt}, SLOTS, method="start")

    @jax.jit
    def extend(tokens, places, cache):
        return module.apply(variables, tokens, places, {}, cache, method="extend")

    places = jnp.broadcast_to(jnp.arange(3), (B, 1, 3))
    _, cache = extend(prompt[:, None], places, cache)
    cache = copied = cache.tile(BEAMS)
    for position in (3, 4):
        parents = jnp.asarray(rng.integers(BEAMS, size=(B, BEAMS)))
        tokens = jnp.asarray(rng.integers(4, 17, size=(B, BEAMS, 1)))
        places = jnp.full_like(tokens, position)
        logits, cache = extend(tokens, places, cache.reorder(parents))
        copied = reorder_by_copying(copied, parents)
        expected, copied = extend(tokens, places, copied)
        # The same numbers are in other columns, so a sum may round differently.
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)
