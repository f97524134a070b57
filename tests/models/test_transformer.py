"""Complete models: which inputs influence which outputs, and what has no effect.

All runs share a few compiled programs: parameters are drawn, not initialised, so that
no bias is 0 and all embeddings differ.
"""

import collections
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import sharding
from transformer_jax.base.ids import BOS, EOS, UNK
from transformer_jax.models.embeddings import TokenEmbedding
from transformer_jax.models.transformer import LanguageModel, Seq2Seq
from transformer_jax.models.transformer_config import TransformerConfig
from transformer_jax.tasks.parts.text import shift_right

B, T, S, D, V, ROWS = 2, 3, 5, 14, 19, 23
SOURCE = jnp.array([[4, 9, 6, 11, 3], [5, 8, 3, 0, 0]])
TARGET = jnp.array([[7, 12, 3], [13, 3, 0]])
DROPOUTS = ("words", "embedding", "residual", "attention", "feed_forward")


def config(**changes):
    sizes = dict(
        vocab_size=V, vocab_rows=ROWS, source_vocab_size=17, source_vocab_rows=29,
        encoder_layers=1, decoder_layers=2, d_model=D, d_ff=11, num_heads=7,
        d_k=3, d_v=5, tie="none",
        dropout_embedding=0.0, dropout_residual=0.0,
    )  # fmt: skip
    return TransformerConfig(**{**sizes, **changes})


def segments(tokens):
    return (tokens != 0).astype(jnp.int32)


def pair(source=SOURCE, target=TARGET):
    """The model's four inputs for a batch of sentences."""
    return source, shift_right(target), segments(source), segments(target)


@functools.cache
def shapes(make=Seq2Seq, **changes):
    """Path and shape of each parameter."""
    inputs = pair() if make is Seq2Seq else (TARGET, segments(TARGET))
    tree = jax.eval_shape(make(config(**changes)).init, jax.random.key(0), *inputs)
    return tree["params"]


def flat(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {sharding.path_name(path): leaf for path, leaf in leaves}


@functools.cache
def drawn(**changes):
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        offset = 1.0 if path[-1].key == "scale" else 0.0
        return jnp.asarray(offset + 0.3 * rng.normal(size=leaf.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes(**changes))


@functools.cache
def forward(**changes):
    module = Seq2Seq(config(**changes))
    return jax.jit(lambda params, *inputs: module.apply({"params": params}, *inputs))


def logits(*inputs):
    return np.asarray(forward()(drawn(), *inputs).logits)


@pytest.fixture(scope="module")
def influence():
    """|∂ output at t / ∂ embedding of token i|, i in source and target vocabulary.

    The tokens of a sentence differ, so each row of a table represents a position.
    """
    module, weigh = Seq2Seq(config()), np.random.default_rng(1).normal(size=V)
    source, target, *hidden = pair()
    target = target.at[0].set(jnp.array([14, 15, 16])).at[1].set(jnp.array([2, 13, 0]))

    def outputs(source_table, target_table):
        params = dict(drawn())
        params["source_embedding"] = {"embedding": source_table}
        params["target_embedding"] = {"embedding": target_table}
        outputs = module.apply({"params": params}, source, target, *hidden)
        return outputs.logits[..., :V] @ weigh

    tables = [drawn()[f"{s}_embedding"]["embedding"] for s in ("source", "target")]
    by_source, by_target = jax.jit(jax.jacrev(outputs, (0, 1)))(*tables)
    return (
        np.abs(by_source).max(-1),
        np.abs(by_target).max(-1),
        np.asarray(source),
        np.asarray(target),
    )


def test_the_decoder_sees_what_it_has_read_and_nothing_later(influence):
    _, seen, _, target = influence
    np.testing.assert_array_equal(
        seen[0][:, target[0]] > 0, np.tril(np.ones((T, T), bool))
    )
    np.testing.assert_array_equal(
        seen[1][:2, target[1]] > 0, [[True, False, False], [True, True, False]]
    )


def test_every_output_sees_all_of_its_own_source_and_none_of_its_padding(influence):
    seen, _, source, _ = influence
    for row, length in enumerate((T, 2)):
        for t in range(length):
            expected = set(source[row].tolist()) - {0}
            assert set(np.flatnonzero(seen[row, t])) == expected


def test_no_output_sees_its_own_answer_or_a_later_one():
    before = logits(*pair())
    for t in range(T):
        after = logits(*pair(target=TARGET.at[0, t].set(14)))
        np.testing.assert_array_equal(after[0, : t + 1], before[0, : t + 1])
        np.testing.assert_array_equal(after[1], before[1])
        changed = np.abs(after[0, t + 1 :] - before[0, t + 1 :]).max(-1)
        assert (changed > 1e-3).all()


def test_tokens_at_padding_have_no_influence():
    source, target, *hidden = pair()
    before = logits(source, target, *hidden)
    after = logits(
        jnp.where(hidden[0] == 0, 15, source),
        jnp.where(hidden[1] == 0, 16, target),
        *hidden,
    )
    real = np.asarray(hidden[1], bool)
    np.testing.assert_array_equal(after[real], before[real])
    assert not np.array_equal(after[~real], before[~real])


def test_padding_at_the_end_changes_nothing():
    longer = pair(jnp.pad(SOURCE, ((0, 0), (0, 6))), jnp.pad(TARGET, ((0, 0), (0, 4))))
    real = np.asarray(TARGET != 0)
    np.testing.assert_allclose(
        logits(*longer)[:, :T][real], logits(*pair())[real], atol=1e-5
    )


def test_packed_sentences_are_answered_as_if_separate():
    source = jnp.array([[4, 9, 6, 11, 3, 5, 8, 3, 0, 0, 0]])
    target = jnp.array([[2, 7, 12, 2, 13, 0, 0]])
    outputs = forward()(
        drawn(),
        source,
        target,
        jnp.array([[1, 1, 1, 1, 1, 2, 2, 2, 0, 0, 0]]),
        jnp.array([[1, 1, 1, 2, 2, 0, 0]]),
        jnp.array([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2]]),
        jnp.array([[0, 1, 2, 0, 1, 0, 1]]),
    )
    apart, together = logits(*pair()), outputs.logits[0]
    np.testing.assert_allclose(together[:3], apart[0], atol=1e-5)
    np.testing.assert_allclose(together[3:5], apart[1, :2], atol=1e-5)


def test_weights_are_by_layer_head_query_and_key():
    outputs = forward()(drawn(), *pair())
    assert [w.shape for w in outputs.encoder_attention] == [(B, 7, S, S)]
    assert [w.shape for w in outputs.self_attention] == [(B, 7, T, T)] * 2
    assert [w.shape for w in outputs.cross_attention] == [(B, 7, T, S)] * 2


def test_rows_past_the_vocabulary_have_probability_0():
    probabilities = jax.nn.softmax(logits(*pair()))
    assert probabilities.shape == (B, T, ROWS)
    assert (probabilities[..., V:] == 0).all()
    assert (probabilities[..., :V] > 0).all()
    table = TokenEmbedding(V, ROWS, D)
    embedding = {"params": {"embedding": jnp.ones((ROWS, D))}}
    tied = jax.nn.softmax(table.apply(embedding, jnp.ones((B, T, D)), method="logits"))
    np.testing.assert_allclose(tied[..., :V], np.full((B, T, V), 1 / V), rtol=1e-6)
    assert (tied[..., V:] == 0).all()


@pytest.mark.parametrize(
    ("tie", "tables"),
    [
        ("all", {"embedding/embedding": (ROWS, D)}),
        (
            "decoder",
            {
                "source_embedding/embedding": (29, D),
                "target_embedding/embedding": (ROWS, D),
            },
        ),
        (
            "none",
            {
                "source_embedding/embedding": (29, D),
                "target_embedding/embedding": (ROWS, D),
                "projection/kernel": (D, ROWS),
            },
        ),
    ],
)
def test_tables_are_shared_as_far_as_they_are_tied(tie, tables):
    paths = {name: leaf.shape for name, leaf in flat(shapes(tie=tie)).items()}
    outside = {n: s for n, s in paths.items() if not n.startswith(("enc", "dec"))}
    assert outside == tables


def test_a_tied_table_embeds_and_predicts():
    table = TokenEmbedding(V, V, D)
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(V, D)), jnp.float32)
    variables = {"params": {"embedding": weights}}
    read = table.apply(variables, TARGET)
    np.testing.assert_allclose(read, weights[TARGET] * math.sqrt(D), rtol=1e-6)
    for x in read, read[:1, :1]:  # a row alone is multiplied in another way
        answered = table.apply(variables, x, method="logits")
        np.testing.assert_allclose(answered, x @ weights.T, rtol=1e-5, atol=1e-4)


def test_logits_of_one_row_are_not_rounded_to_bfloat16():
    table = TokenEmbedding(V, V, D, dtype=jnp.bfloat16)
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(V, D)), jnp.bfloat16)
    variables = {"params": {"embedding": weights}}
    x = jnp.asarray(np.random.default_rng(1).normal(size=(1, 1, D)), jnp.bfloat16)
    found = table.apply(variables, x, method="logits")
    assert found.dtype == jnp.float32
    exact = x.astype(jnp.float32) @ weights.astype(jnp.float32).T
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


def test_embeddings_begin_with_unit_variance_after_scaling():
    table, rows, size = TokenEmbedding(1009, 1009, 64), 1009, 64
    tokens = jnp.arange(rows)[None]
    read, variables = table.init_with_output(jax.random.key(0), tokens)
    spread = 4 / (2 * rows * size) ** 0.5
    weights = variables["params"]["embedding"]
    assert abs(weights.std() * size**0.5 - 1) < spread
    assert abs(read.std() - 1) < spread


def norms(**changes):
    names = {name.rpartition("/")[0] for name in flat(shapes(**changes))}
    return {name for name in names if name.endswith("norm")}


def test_a_pre_norm_stack_ends_with_a_norm_and_a_post_norm_stack_does_not():
    assert norms(norm="pre") - norms(norm="post") == {"encoder/norm", "decoder/norm"}
    assert norms(norm="post") < norms(norm="pre")
    assert norms(norm="pre", make=LanguageModel) - norms(make=LanguageModel) == {
        "decoder/norm"
    }


def test_parameters_have_the_names_that_checkpoints_rely_on():
    names = set(flat(shapes(encoder_layers=1, decoder_layers=1, tie="all")))
    own = {
        f"{attention}/{part}/{end}"
        for attention in ("self_attention", "cross_attention")
        for part in ("query", "key", "value", "out")
        for end in ("kernel", "bias")
    } | {
        f"feed_forward/{part}/{end}"
        for part in ("inner", "outer")
        for end in ("kernel", "bias")
    } | {
        f"{sublayer}_norm/{end}"
        for sublayer in ("self_attention", "cross_attention", "feed_forward")
        for end in ("scale", "bias")
    }  # fmt: skip
    decoder = {f"decoder/layer_0/{name}" for name in own}
    encoder = {f"encoder/layer_0/{n}" for n in own if not n.startswith("cross")}
    assert names == encoder | decoder | {"embedding/embedding"}


def operations(train=True, **changes):
    """How often each operation occurs in the program of a forward pass."""
    module = Seq2Seq(config(decoder_layers=1, **changes))

    def run(params, key):
        rngs = {"dropout": key}
        return module.apply({"params": params}, *pair(), train=train, rngs=rngs).logits

    program = jax.make_jaxpr(run)(shapes(decoder_layers=1), jax.random.key(0))
    return collections.Counter(primitives(program.jaxpr))


def primitives(program):
    for equation in program.eqns:
        yield equation.primitive.name
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from primitives(inner)


@pytest.mark.parametrize(
    ("kind", "places"),
    [
        ("words", 2),  # source and target
        ("embedding", 2),
        ("residual", 2 + 3),  # each sublayer of encoder and decoder
        ("attention", 1 + 2),
        ("feed_forward", 1 + 1),
    ],
)
def test_each_dropout_rate_acts_in_its_own_places(kind, places):
    rate = {f"dropout_{kind}": 0.1}
    assert operations(**rate)["random_bits"] == places
    assert operations(train=False, **rate)["random_bits"] == 0
    assert operations()["random_bits"] == 0


def one_layer(params, train=True, seed=0, **changes):
    """Logits of the smallest model that has every kind of dropout."""
    module = LanguageModel(config(decoder_layers=1, **changes))
    rngs, inputs = {"dropout": jax.random.key(seed)}, (TARGET, segments(TARGET))
    outputs = module.apply({"params": params}, *inputs, train=train, rngs=rngs)
    return outputs.logits[np.asarray(TARGET) != 0][:, :V]


@pytest.mark.parametrize("kind", DROPOUTS)
def test_each_dropout_rate_alone_changes_training_and_never_evaluation(kind):
    params = drawn(make=LanguageModel, decoder_layers=1)
    rate = {f"dropout_{kind}": 0.3}
    plain = one_layer(params)
    np.testing.assert_array_equal(one_layer(params, train=False, **rate), plain)
    dropped = one_layer(params, **rate)
    assert np.abs(dropped - plain).max() > 1e-2
    np.testing.assert_array_equal(one_layer(params, **rate), dropped)
    assert not np.array_equal(one_layer(params, seed=1, **rate), dropped)


def test_word_dropout_has_words_read_as_unknown_but_no_end_of_a_text():
    table = TokenEmbedding(V, V, D, dropout=0.3)
    words = jnp.asarray(np.random.default_rng(0).integers(4, V, (50, 40)))
    tokens = words.at[:, 0].set(BOS).at[:, -1].set(EOS)
    params = table.init(jax.random.key(0), tokens)
    plain = table.apply(params, tokens)
    np.testing.assert_array_equal(table.apply(params, tokens, False), plain)
    vectors = table.apply(params, tokens, True, rngs={"dropout": jax.random.key(1)})
    unknown = np.asarray((vectors == table.apply(params, jnp.asarray([[UNK]]))).all(-1))
    np.testing.assert_array_equal(np.asarray(vectors)[~unknown], plain[~unknown])
    assert not unknown[:, 0].any() and not unknown[:, -1].any()
    assert unknown[:, 1:-1].mean() == pytest.approx(0.3, abs=0.03)


def test_recomputing_layers_changes_no_parameter_output_or_gradient():
    [remat] = primitives(jax.make_jaxpr(jax.checkpoint(lambda x: x))(1.0).jaxpr)
    assert operations()[remat] == 0
    assert operations(remat="full")[remat] == 2  # one per layer
    assert flat(shapes(remat="full")).keys() == flat(shapes()).keys()
    rates = {f"dropout_{kind}": 0.1 for kind in DROPOUTS}

    def run(remat):
        def total(params):
            logits = one_layer(params, remat=remat, **rates)
            return (logits**2).sum(), logits

        both = jax.jit(jax.value_and_grad(total, has_aux=True))
        (_, logits), gradient = both(drawn(make=LanguageModel, decoder_layers=1))
        return logits, flat(gradient)

    (stored, expected), (recomputed, got) = run("none"), run("full")
    np.testing.assert_allclose(recomputed, stored, atol=1e-5)
    for name, leaf in expected.items():
        scale = np.abs(leaf).max() + 1e-3
        np.testing.assert_allclose(
            got[name] / scale, leaf / scale, atol=1e-5, err_msg=name
        )


def test_bfloat16_computes_in_bfloat16_between_float32_parameters_and_logits():
    half = {"dtype": "bfloat16"}
    assert {leaf.dtype for leaf in flat(shapes(**half)).values()} == {np.dtype("f4")}
    exact = logits(*pair())[..., :V]
    outputs = forward(**half)(drawn(), *pair())
    assert outputs.logits.dtype == jnp.float32
    weights = (*outputs.encoder_attention, *outputs.cross_attention)
    assert {w.dtype for w in weights} == {np.dtype("f4")}
    real = np.asarray(TARGET) != 0
    error = np.abs(outputs.logits[..., :V] - exact)[real].max()
    assert 1e-4 < error < 0.1 * np.abs(exact[real]).max()


def test_a_language_model_is_causal_and_packs_its_texts():
    module = LanguageModel(config(decoder_layers=1))
    params = drawn(make=LanguageModel, decoder_layers=1)
    run = jax.jit(lambda *inputs: module.apply({"params": params}, *inputs).logits)
    tokens = jnp.array([[4, 9, 6, 5, 8], [5, 8, 0, 0, 0], [4, 9, 7, 5, 8]])
    counted = jnp.broadcast_to(jnp.arange(5), (3, 5))
    packed = jnp.array([[1, 1, 1, 2, 2], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
    restarted = counted.at[0].set(jnp.array([0, 1, 2, 0, 1]))
    together = run(tokens, packed, restarted)
    np.testing.assert_allclose(together[0, 3:], together[1, :2], atol=1e-5)
    alone = run(tokens, segments(tokens), counted)
    np.testing.assert_allclose(together[0, :3], alone[0, :3], atol=1e-5)
    assert np.abs(together[0, 3:] - alone[0, 3:]).max() > 1e-2
    np.testing.assert_allclose(alone[2, :2], alone[0, :2], atol=1e-5)
    assert (np.abs(alone[2, 2:] - alone[0, 2:]).max(-1) > 1e-3).all()
