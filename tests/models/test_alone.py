"""Each module alone: made from a few sizes and called with arrays."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import config as configs
from transformer_jax.models import (
    Classifier,
    Encoder,
    LanguageModel,
    MaskedLM,
    MultiHeadAttention,
    Seq2Seq,
    TransformerConfig,
    registry,
)
from transformer_jax.models.attention import look_ahead_mask, padding_mask
from transformer_jax.models.positions import PositionSignal, rotation

B, T, S, N, D, V = 2, 3, 5, 7, 91, 17
HEAD = D // N
TOKENS = jnp.array([[4, 9, 6, 11, 3], [5, 8, 3, 7, 12]])
TARGET = jnp.array([[7, 12, 3], [13, 3, 10]])


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def small(**changes):
    sizes = dict(
        vocab_size=V, encoder_layers=1, decoder_layers=1, d_model=14, d_ff=11,
        num_heads=2,
    )  # fmt: skip
    return TransformerConfig(**{**sizes, **changes})


@pytest.fixture(scope="module")
def heads():
    """An attention by its two sizes, its variables, queries and a longer memory."""
    mha = MultiHeadAttention(d_model=D, num_heads=N)
    x, memory = normal(B, T, D), normal(B, S, D, seed=1)
    return mha, mha.init(jax.random.key(0), x), x, memory


def test_a_head_has_its_share_of_the_width_unless_given_a_size(heads):
    _, variables, x, _ = heads
    assert jax.tree.map(jnp.shape, variables["params"]) == {
        name: {"kernel": (D, N * HEAD), "bias": (N * HEAD,)}
        for name in ("query", "key", "value", "out")
    }
    told = MultiHeadAttention(D, N, d_k=2, d_v=3)
    shapes = jax.eval_shape(told.init, jax.random.key(0), x)["params"]
    sizes = {name: shapes[name]["kernel"].shape for name in shapes}
    assert sizes == {
        "query": (D, N * 2), "key": (D, N * 2), "value": (D, N * 3), "out": (N * 3, D),
    }  # fmt: skip


def test_attention_of_one_sequence_is_attention_to_its_own_keys_and_values(heads):
    mha, variables, x, _ = heads
    own = mha.apply(variables, x, method="keys_values")
    output, weights = mha.apply(variables, x)
    assert output.shape == (B, T, D) and weights.shape == (B, N, T, T)
    for other in (own, x):
        for got, expected in zip(
            mha.apply(variables, x, other), (output, weights), strict=True
        ):
            np.testing.assert_array_equal(got, expected)


def test_attention_of_one_sequence_respects_a_mask(heads):
    mha, variables, x, _ = heads
    mask = look_ahead_mask(jnp.arange(T)[None])
    _, weights = mha.apply(variables, x, mask=mask)
    np.testing.assert_array_equal(
        weights != 0, np.broadcast_to(np.tri(T, dtype=bool), (B, N, T, T))
    )


def test_attention_to_a_memory_of_another_length(heads):
    mha, variables, x, memory = heads
    output, weights = mha.apply(variables, x, memory)
    assert output.shape == (B, T, D) and weights.shape == (B, N, T, S)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    made = mha.apply(variables, memory, method="keys_values")
    np.testing.assert_array_equal(mha.apply(variables, x, made)[0], output)
    assert jnp.abs(output - mha.apply(variables, x)[0]).max() > 1e-2


@pytest.mark.parametrize("kind", ["mask", "boolean"])
def test_masked_parts_of_a_memory_have_no_influence(heads, kind):
    mha, variables, x, memory = heads
    segments = jnp.array([[1, 1, 1, 0, 0]] * B)
    mask = padding_mask(segments)
    if kind == "boolean":
        mask = (segments != 0)[:, None, None, :]
    output, weights = mha.apply(variables, x, memory, mask)
    shorter, _ = mha.apply(variables, x, memory[:, :3])
    np.testing.assert_allclose(output, shorter, atol=1e-5)
    assert not weights[..., 3:].any()


def test_the_keys_of_one_sequence_are_placed_as_its_queries_are(heads):
    mha, variables, x, _ = heads

    def weights(first):
        turn = rotation(first + jnp.arange(T)[None], HEAD - 1)
        return even.apply(seen, x, signal=PositionSignal(turn=turn))[1]

    even = MultiHeadAttention(D, N, d_k=HEAD - 1)
    seen = even.init(jax.random.key(0), x)
    # A rotation encodes only distances: it has an effect, but not the text's start.
    np.testing.assert_allclose(weights(0), weights(11), atol=1e-5)
    assert jnp.abs(weights(0) - even.apply(seen, x)[1]).max() > 1e-3


def test_an_empty_config_is_the_papers_base_model():
    c = TransformerConfig()
    assert (c.encoder_layers, c.decoder_layers, c.d_model, c.d_ff) == (6, 6, 512, 2048)
    assert (c.num_heads, c.d_k, c.d_v) == (8, 64, 64)
    assert {c.vocab_rows, c.source_vocab_size, c.source_vocab_rows} == {c.vocab_size}


@pytest.mark.parametrize("model", registry.names_for("seq2seq"))
def test_the_defaults_of_a_model_are_those_of_the_config_file(model):
    base = configs.base("translation", model)
    default, section = dataclasses.asdict(registry.find(model).config()), base.model
    shared = (default.keys() & set(section.keys())) - {"d_k", "d_v"}
    assert len(shared) > 9
    assert {k: default[k] for k in shared} == {k: section[k] for k in shared}
    vocab = default["vocab_size"]
    assert vocab == base.tokenizer.vocab_size
    assert default == dataclasses.asdict(registry.make_sizes(base, vocab, vocab))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"vocab_size": 13}, (13, 13, 13, 13)),
        ({"vocab_size": 13, "vocab_rows": 19}, (13, 19, 13, 13)),
        ({"vocab_size": 13, "source_vocab_size": 11}, (13, 13, 11, 11)),
        ({"vocab_size": 0, "source_vocab_size": 11}, (0, 0, 11, 11)),
        (
            {"vocab_size": 13, "source_vocab_size": 11, "source_vocab_rows": 23},
            (13, 13, 11, 23),
        ),
        ({"vocab_size": 0}, (0, 0, 0, 0)),
    ],
)
def test_sizes_that_others_imply_are_resolved(given, expected):
    for name in registry.names_for("seq2seq"):
        c = registry.find(name).config(**given)
        assert expected == (
            c.vocab_size, c.vocab_rows, c.source_vocab_size, c.source_vocab_rows,
        )  # fmt: skip


def test_sizes_of_heads_are_implied_one_by_one():
    c = TransformerConfig(d_model=26, num_heads=2, d_v=5)
    assert (c.d_k, c.d_v) == (13, 5)


@pytest.mark.parametrize(
    ("task", "given", "expected"),
    [
        ("language", {"vocab_size": 13}, {"vocab_size": 13, "vocab_rows": 16}),
        (
            "classification",
            {"source_vocab_size": 11},
            {"source_vocab_size": 11, "source_vocab_rows": 16, "vocab_size": 0},
        ),
    ],
)
def test_a_task_of_one_vocabulary_has_no_extra_layers_or_rows(task, given, expected):
    config = configs.base(task)
    config.tokenizer.row_multiple = 8
    got = dataclasses.asdict(registry.make_sizes(config, **given))
    unused = {"language": "encoder_layers", "classification": "decoder_layers"}[task]
    expected = {**expected, unused: 0, "d_k": 64, "d_v": 64}
    assert {name: got[name] for name in expected} == expected


MODULES = {
    "seq2seq": (Seq2Seq, {}, (TOKENS, TARGET)),
    "language_model": (LanguageModel, {}, (TOKENS,)),
    "encoder": (Encoder, {}, (TOKENS,)),
    "classifier": (Classifier, {"outputs": 3}, (TOKENS,)),
    "mean_classifier": (Classifier, {"outputs": 3, "pooling": "mean"}, (TOKENS,)),
    "masked_lm": (MaskedLM, {}, (TOKENS,)),
}


@pytest.mark.parametrize("name", MODULES)
def test_without_segments_every_token_is_real(name):
    make, more, inputs = MODULES[name]
    module = make(small(), **more)
    variables = jax.jit(module.init)(jax.random.key(0), *inputs)
    run = jax.jit(module.apply)
    got = run(variables, *inputs)
    expected = run(variables, *inputs, *map(jnp.ones_like, inputs))
    # Two programs: constants are folded, so a sum may round differently.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), got, expected
    )
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got))


def test_an_encoder_called_gives_what_it_encodes():
    module = Encoder(small())
    variables = module.init(jax.random.key(0), TOKENS)
    x, weights = module.apply(variables, TOKENS)
    assert x.shape == (*TOKENS.shape, 14) and weights[0].shape == (B, 2, S, S)
    np.testing.assert_array_equal(
        module.apply(variables, TOKENS, method="encode")[0], x
    )


def test_positions_count_from_0_unless_they_are_given():
    module = Seq2Seq(small())
    variables = module.init(jax.random.key(0), TOKENS, TARGET)

    def logits(first):
        places = [first + jnp.arange(n)[None] for n in (S, T)]
        return module.apply(variables, TOKENS, TARGET, None, None, *places).logits

    without = module.apply(variables, TOKENS, TARGET).logits
    np.testing.assert_array_equal(logits(0), without)
    assert jnp.abs(logits(3) - without).max() > 1e-3
