"""Rounded matrices: their products, and whole models that use them."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.models.layers import dot_rows
from transformer_jax.models.layers.rounded import (
    KINDS,
    Bfloat16Matrix,
    Int8Matrix,
    round_matrices,
    stack,
)
from transformer_jax.models.transformer import LanguageModel, Seq2Seq
from transformer_jax.models.transformer_config import TransformerConfig

TINY = TransformerConfig(
    vocab_size=37, vocab_rows=40, source_vocab_size=37, source_vocab_rows=40,
    encoder_layers=1, decoder_layers=2, d_model=24, d_ff=44, num_heads=2,
)  # fmt: skip
VARIANTS = {
    "as in the paper": {},
    "nothing tied": {"tie": "none", "source_vocab_size": 31},
    "learned positions": {"positions": "learned"},
    "one head of keys": {"kv_heads": 1, "bias": "none"},
    "gates": {"activation": "swiglu"},
    "bfloat16": {"dtype": "bfloat16"},
    "scanned": {"scan_layers": True},
}


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def by_definition(x, matrix):
    """Compute the product with Python's integers, by the formula of the module."""
    scale_w = np.abs(matrix).max(axis=0) / 127
    scale_x = np.abs(x).max(axis=1, keepdims=True) / 127
    q_w = np.rint(matrix / np.float32(scale_w)).astype(object)
    q_x = np.rint(x / np.float32(scale_x)).astype(object)
    return (q_x @ q_w).astype(np.float64) * scale_x * scale_w


def test_a_product_is_that_of_the_rounded_integers():
    x, matrix = draw(5, 19), draw(19, 7, seed=1)
    found = Int8Matrix.round(jnp.asarray(matrix), axis=0).multiply(jnp.asarray(x))
    np.testing.assert_allclose(found, by_definition(x, matrix), rtol=1e-5, atol=1e-6)
    # The integers err, but by no more than half a unit of each factor.
    unit_x = np.abs(x).max(axis=1, keepdims=True) / 127
    unit_w = np.abs(matrix).max(axis=0) / 127
    most = unit_x / 2 * np.abs(matrix).sum(0) + unit_w / 2 * (
        np.abs(x).sum(1, keepdims=True) + 19 * unit_x / 2
    )
    error = np.abs(np.asarray(found) - x @ matrix)
    assert (error <= most + 1e-5).all() and error.max() > 1e-4


def test_a_table_scores_by_its_rows_and_gives_them_back():
    x, table = draw(5, 19), draw(7, 19, seed=1)
    rounded = Int8Matrix.round(jnp.asarray(table), axis=1)
    found = rounded.score(jnp.asarray(x))
    np.testing.assert_allclose(found, by_definition(x, table.T), rtol=1e-5, atol=1e-6)
    rows = rounded.look_up(jnp.asarray([[2, 6]]))
    unit = np.abs(table[[2, 6]]).max(axis=1, keepdims=True) / 127
    assert (np.abs(rows[0] - table[[2, 6]]) <= unit / 2 + 1e-6).all()


def test_a_row_does_not_depend_on_the_others_and_zeros_stay_zeros():
    matrix = Int8Matrix.round(jnp.asarray(draw(19, 7)), axis=0)
    x = draw(5, 19, seed=1)
    x[3] = 0
    together = matrix.multiply(jnp.asarray(x))
    x[0] *= 1e6
    np.testing.assert_array_equal(matrix.multiply(jnp.asarray(x))[1:], together[1:])
    assert not together[3].any()
    nothing = Int8Matrix.round(jnp.zeros((19, 7)), axis=0)
    assert not nothing.multiply(jnp.asarray(x)).any()


def cut(x):
    """Round to bfloat16 by definition: the nearest number whose last 16 bits are 0."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16  # ties to even
    return bits.astype(np.uint32).view(np.float32)


def test_a_product_in_bfloat16_rounds_both_factors_and_not_their_sum():
    x, matrix = draw(5, 300), draw(300, 7, seed=1)
    found = Bfloat16Matrix.round(jnp.asarray(matrix), axis=0).multiply(jnp.asarray(x))
    exact = cut(x).astype(np.float64) @ cut(matrix).astype(np.float64)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-4)
    assert np.abs(found - x @ matrix).max() > 1e-2
    table = Bfloat16Matrix.round(jnp.asarray(matrix.T), axis=1)
    np.testing.assert_allclose(table.score(jnp.asarray(x)), exact, rtol=1e-5, atol=1e-4)
    rows = table.look_up(jnp.asarray([[2, 6]]))
    assert rows.dtype == jnp.float32
    np.testing.assert_array_equal(rows[0], cut(matrix.T[[2, 6]]))


@pytest.mark.parametrize("kind", KINDS)
def test_stacked_maps_are_multiplied_as_alone(kind):
    matrices = [draw(19, 7, seed=i) for i in range(3)]
    rounded = [KINDS[kind].round(jnp.asarray(m), axis=0) for m in matrices]
    x = jnp.asarray(draw(4, 1, 19))
    found = dot_rows(x, stack(rounded))
    assert found.shape == (4, 1, 3, 7)
    for i, matrix in enumerate(rounded):
        np.testing.assert_allclose(found[:, :, i], dot_rows(x, matrix), rtol=1e-6)


def products(jaxpr):
    """Yield the types of the operands of all products, also in inner programs."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield {str(v.aval.dtype) for v in equation.invars}, equation
        for value in equation.params.values():
            if hasattr(value, "jaxpr"):
                inner = getattr(value.jaxpr, "jaxpr", value.jaxpr)
                yield from products(inner)
            elif hasattr(value, "eqns"):
                yield from products(value)


BOTH = "as in the paper", "nothing tied", "gates"  # the others only as integers


@pytest.mark.parametrize(
    "name, kind",
    [*itertools.product(VARIANTS, ["int8"]), *itertools.product(BOTH, ["bfloat16"])],
)
def test_every_matrix_of_a_model_is_used_as_rounded(name, kind):
    config = dataclasses.replace(TINY, **VARIANTS[name])
    source = jnp.asarray([[5, 9, 31, 2, 17], [8, 4, 3, 0, 0]]) % 30
    target = jnp.asarray([[2, 7, 30], [2, 11, 0]])
    module = Seq2Seq(config)
    params = module.init(jax.random.key(0), source, target)["params"]
    rounded = round_matrices(params, kind)

    def run(params):
        return module.apply({"params": params}, source, target).logits

    plain, found = (np.asarray(run(p)[..., :37], np.float32) for p in (params, rounded))
    assert 0 < np.abs(found - plain).max() < 0.05 * np.abs(plain).max()
    kinds = [types for types, _ in products(jax.make_jaxpr(run)(rounded).jaxpr)]
    # What is left in floats is attention: scores and values, of two kinds or three.
    layers = config.encoder_layers + 2 * config.decoder_layers
    if not config.scan_layers:
        assert sum(kind not in types for types in kinds) == 2 * layers
    assert sum(types == {kind} for types in kinds) >= 6 * config.encoder_layers


@pytest.mark.parametrize("kind", KINDS)
def test_the_pieces_of_a_search_are_computed_as_rounded(kind):
    module = LanguageModel(TINY)
    tokens = jnp.asarray([[2, 7, 30, 11]])
    params = module.init(jax.random.key(0), tokens)["params"]
    rounded = round_matrices(params, kind)
    static, cache = module.apply(
        {"params": rounded}, {"prompt": tokens}, 6, method="start"
    )

    def step(params, tokens, positions, cache):
        return module.apply(
            {"params": params}, tokens, positions, static, cache, method="extend"
        )

    logits, cache = step(rounded, tokens[None], jnp.arange(4)[None, None], cache)
    whole = module.apply({"params": rounded}, tokens).logits
    np.testing.assert_allclose(logits[0], whole, atol=2e-5)
    arguments = jnp.asarray([[[9]]]), jnp.asarray([[[4]]]), cache
    jaxpr = jax.make_jaxpr(step)(rounded, *arguments).jaxpr
    kinds = [types for types, _ in products(jaxpr)]
    assert sum(kind not in types for types in kinds) == 2 * TINY.decoder_layers
