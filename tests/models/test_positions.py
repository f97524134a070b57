"""Positions: the paper's waves, shifts as rotations, and tables with an end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.models.positions import PositionEncoding, sinusoid, sinusoid_t2t
from transformer_jax.models.transformer import LanguageModel, Seq2Seq
from transformer_jax.models.transformer_config import TransformerConfig

D = 14
POSITIONS = np.array([[0, 1, 2, 3, 4], [7, 31, 127, 509, 1021]])


def waves(positions):
    """The formula of section 3.5 in float64, one entry at a time."""
    encoding = np.zeros((*positions.shape, D))
    for i in range(D // 2):
        angle = positions / 10_000 ** (2 * i / D)
        encoding[..., 2 * i], encoding[..., 2 * i + 1] = np.sin(angle), np.cos(angle)
    return encoding


def test_sines_and_cosines_interleave_as_in_the_papers_formula():
    got = sinusoid(jnp.asarray(POSITIONS), D)
    np.testing.assert_allclose(got, waves(POSITIONS), atol=2e-4)
    np.testing.assert_allclose(got[0], waves(POSITIONS)[0], atol=1e-6)


def test_sines_first_is_a_fixed_permutation_of_interleaved():
    got = sinusoid(jnp.asarray(POSITIONS), D, interleave=False)
    order = [*range(0, D, 2), *range(1, D, 2)]
    np.testing.assert_array_equal(got, sinusoid(jnp.asarray(POSITIONS), D)[..., order])


def test_the_authors_code_has_the_slowest_wave_at_10000():
    got = np.asarray(sinusoid_t2t(jnp.asarray(POSITIONS), D))
    for i in range(D // 2):
        angle = POSITIONS / 10_000 ** (i / (D // 2 - 1))
        np.testing.assert_allclose(got[..., i], np.sin(angle), atol=1e-4)
        np.testing.assert_allclose(got[..., D // 2 + i], np.cos(angle), atol=1e-4)
    assert sinusoid_t2t(jnp.asarray(POSITIONS), 2).shape == (2, 5, 2)


def test_a_universal_stack_reads_the_positions_of_its_embedding():
    """From the second round on, what is added again is of the kind of the first."""
    sizes = {"vocab_size": 11, "d_model": D, "d_ff": 6, "num_heads": 1}
    sizes |= {"decoder_layers": 2, "shared_layers": "universal"}
    tokens, found = jnp.array([[4, 9, 5]]), {}
    for kind in ("sinusoid_concat", "sinusoid_t2t"):
        module = LanguageModel(TransformerConfig(**sizes, positions=kind))
        params = module.init(jax.random.key(0), tokens)
        signal = module.bind(params).decoder._round_signal(1, jnp.arange(3)[None])
        waves = PositionEncoding(kind, D, 0).apply({}, jnp.arange(3)[None])
        rounds = PositionEncoding(kind, D, 0).apply({}, jnp.full((1, 3), 2))
        np.testing.assert_allclose(signal, waves + rounds, atol=1e-6)
        found[kind] = signal
    assert np.ptp(found["sinusoid_concat"] - found["sinusoid_t2t"]) > 0.1


@pytest.mark.parametrize(("top", "error"), [(10_000, 0.001), (1_000_000, 0.065)])
def test_sinusoids_far_out_lose_precision_as_documented(top, error):
    places = np.arange(top - 2000, top + 1)
    found = sinusoid(jnp.asarray(places)[None], 512)[0]
    angles = places[:, None] * 10_000.0 ** (-np.arange(0, 512, 2) / 512)
    exact = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(len(places), -1)
    assert error / 2 < np.abs(found - exact).max() < error


def test_tensor2tensors_table_is_another_than_both():
    places = np.arange(50)
    angles = places[:, None] * 10_000.0 ** (-np.arange(16) / (32 / 2 - 1))
    theirs = np.concatenate([np.sin(angles), np.cos(angles)], -1)
    ours = sinusoid(jnp.asarray(places)[None], 32, interleave=False)[0]
    assert np.abs(ours - theirs).max() > 0.1


@pytest.mark.parametrize("shift", [1, 13])
def test_a_shift_is_one_rotation_wherever_it_starts(shift):
    positions = jnp.asarray([[0, 1, 5, 17, 101]])
    rotation = np.zeros((D, D))
    for i in range(0, D, 2):
        angle = shift / 10_000 ** (i / D)
        sin, cos = np.sin(angle), np.cos(angle)
        rotation[i : i + 2, i : i + 2] = [[cos, sin], [-sin, cos]]
    np.testing.assert_allclose(
        sinusoid(positions + shift, D), sinusoid(positions, D) @ rotation.T, atol=5e-5
    )


@pytest.mark.parametrize("kind", ["sinusoid", "sinusoid_concat", "learned"])
def test_an_encoding_follows_the_positions_it_is_given(kind):
    module = PositionEncoding(kind, D, max_positions=11)
    positions = jnp.array([[0, 1, 2, 3], [2, 0, 3, 2]])
    got, variables = module.init_with_output(jax.random.key(0), positions)
    np.testing.assert_array_equal(got[1], got[0][jnp.array([2, 0, 3, 2])])
    assert len({tuple(row) for row in np.asarray(got[0])}) == 4
    if kind != "learned":
        encoding = sinusoid(positions, D, interleave=kind == "sinusoid")
        np.testing.assert_array_equal(got, encoding)
    expected = {"table": (11, D)} if kind == "learned" else {}
    assert jax.tree.map(jnp.shape, variables.get("params", {})) == expected


def small(**changes):
    sizes = dict(
        vocab_size=13, vocab_rows=13, source_vocab_size=13, source_vocab_rows=13,
        encoder_layers=1, decoder_layers=1, d_model=D, d_ff=11, num_heads=2,
        d_k=3, d_v=5, max_positions=7,
        dropout_embedding=0.0, dropout_residual=0.0,
    )  # fmt: skip
    return TransformerConfig(**{**sizes, **changes})


def drawn(module, *inputs):
    """Parameters of fixed noise."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda s: jnp.asarray(rng.normal(size=s.shape) * D**-0.5, jnp.float32), shapes
    )


PAIR = jnp.array([[4, 5, 6, 7, 8], [9, 10, 11, 12, 3]])
ONES = jnp.ones_like(PAIR)


@pytest.mark.parametrize("make", [Seq2Seq, LanguageModel])
def test_padding_may_reach_beyond_a_learned_table_and_changes_nothing(make):
    module = make(small(positions="learned"))
    inputs = (PAIR, PAIR, ONES, ONES) if make is Seq2Seq else (PAIR, ONES)
    params = drawn(module, *inputs)
    wide = [jnp.pad(array, ((0, 0), (0, 6))) for array in inputs]  # 11 > 7
    narrow = module.apply({"params": params}, *inputs).logits
    found = module.apply({"params": params}, *wide).logits
    np.testing.assert_allclose(found[:, :5], narrow, rtol=1e-4, atol=1e-5)
    assert np.isfinite(found).all()


def test_a_packed_row_may_be_wider_than_a_learned_table():
    module = LanguageModel(small(positions="learned"))
    params = drawn(module, PAIR, ONES)
    alone = module.apply({"params": params}, PAIR, ONES).logits
    row, segments = PAIR.reshape(1, -1), jnp.repeat(jnp.array([[1, 2]]), 5, axis=1)
    places = jnp.tile(jnp.arange(5), 2)[None]
    packed = module.apply({"params": params}, row, segments, places).logits
    np.testing.assert_allclose(packed[0].reshape(alone.shape), alone, atol=1e-4)


def encode(kind, *arguments):
    """The encoder's output for fixed random parameters."""
    module = Seq2Seq(small(positions=kind))
    params = drawn(module, PAIR, PAIR, ONES, ONES)
    return module.apply({"params": params}, *arguments, method="encode")[0]


@pytest.mark.parametrize("kind", ["none", "sinusoid"])
def test_only_positions_tell_the_encoder_the_order(kind):
    order = np.array([3, 0, 4, 2, 1])
    source = jnp.array([[4, 5, 6, 7, 8], [9, 10, 11, 12, 0]])
    segments = (source != 0).astype(jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(5), (2, 5))
    straight = encode(kind, source, segments, positions)[:, order]
    real = np.asarray(segments[:, order], bool)
    apart = encode(kind, source[:, order], segments[:, order], positions) - straight
    along = (
        encode(kind, source[:, order], segments[:, order], positions[:, order])
        - straight
    )
    np.testing.assert_allclose(along[real], 0, atol=1e-5)
    if kind == "none":
        np.testing.assert_allclose(apart[real], 0, atol=1e-5)
    else:
        assert (np.abs(apart[real]).max(-1) > 1e-2).all()
