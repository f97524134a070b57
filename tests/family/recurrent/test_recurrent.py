"""Recurrent models: padding is ignored, steps equal one pass, beams are independent."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import config as configs
from transformer_jax import sharding
from transformer_jax.base.errors import UserError
from transformer_jax.config import checks
from transformer_jax.data.batches import Shape
from transformer_jax.decoding import Options, searching
from transformer_jax.decoding.engine import DecodeRequest, Engine
from transformer_jax.family.recurrent import model as recurrent
from transformer_jax.family.recurrent.model import Recurrent, RecurrentConfig
from transformer_jax.models import kernels, registry
from transformer_jax.tasks.parts.text import segments, shift_right
from transformer_jax.training import report

B, T, S, D, V, ROWS = 2, 3, 5, 14, 19, 23
SOURCE = jnp.array([[4, 9, 6, 11, 3], [5, 8, 3, 0, 0]])
TARGET = jnp.array([[7, 12, 3], [13, 3, 0]])
CELLS = tuple(recurrent.CELLS)
KINDS = [(cell, attention) for cell in CELLS for attention in recurrent.ATTENTIONS]
LSTM = {"cell": "lstm", "attention": "additive"}
SOME_KINDS = [kind for kind in KINDS if kind[0] == "lstm" or kind[1] == "dot"]


def config(**changes):
    sizes = dict(
        vocab_size=V, vocab_rows=ROWS, source_vocab_size=17, source_vocab_rows=29,
        d_model=D, layers=1, tie="none",
    )  # fmt: skip
    return RecurrentConfig(**{**sizes, **changes})


def pair(source=SOURCE, target=TARGET):
    """The model's four inputs for a batch of sentences."""
    return source, shift_right(target), segments(source), segments(target)


def draw(shapes):
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: jnp.asarray(0.4 * rng.normal(size=leaf.shape), jnp.float32), shapes
    )


@functools.cache
def drawn(**changes):
    module = Recurrent(config(**changes))
    return draw(jax.eval_shape(module.init, jax.random.key(0), *pair())["params"])


@functools.cache
def forward(**changes):
    module = Recurrent(config(**changes))
    params = drawn(**changes)
    return jax.jit(lambda *inputs: module.apply({"params": params}, *inputs))


def flat(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {sharding.path_name(path): leaf for path, leaf in leaves}


@pytest.mark.parametrize("kind", ["additive", "dot"])
def test_attention_is_its_formula_position_by_position(kind):
    module = recurrent.ATTENTIONS[kind](config(attention=kind))
    rng = np.random.default_rng(2)
    x, memory = rng.normal(size=(B, T, D)), rng.normal(size=(B, S, D))
    x, memory = jnp.asarray(x, jnp.float32), jnp.asarray(memory, jnp.float32)

    def look(module, x, memory):
        return module(x, memory, module.keys(memory), segments(SOURCE))

    shapes = jax.eval_shape(
        lambda key: module.init(key, x, memory, method=look), jax.random.key(0)
    )
    params = draw(shapes["params"])
    joined, weights = module.apply({"params": params}, x, memory, method=look)
    p = jax.tree.map(np.asarray, params)
    for b, t in np.ndindex(B, T):
        scores = np.zeros(int((SOURCE[b] != 0).sum()))
        for s in range(len(scores)):
            if kind == "dot":
                scores[s] = x[b, t] @ memory[b, s] / D**0.5
                continue
            key = memory[b, s] @ p["key"]["kernel"] + p["key"]["bias"]
            scores[s] = p["score"] @ np.tanh(x[b, t] @ p["query"]["kernel"] + key)
        share = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(weights[b, t, : len(share)], share, atol=1e-5)
        assert (weights[b, t, len(share) :] == 0).all()
        both = np.concatenate([share @ memory[b, : len(share)], x[b, t]])
        expected = np.tanh(both @ p["out"]["kernel"] + p["out"]["bias"])
        np.testing.assert_allclose(joined[b, t], expected, atol=1e-5)


@pytest.mark.parametrize(("cell", "attention"), SOME_KINDS)
def test_padding_has_no_influence_however_much_there_is(cell, attention):
    run, real = forward(cell=cell, attention=attention), np.asarray(TARGET != 0)
    source, target, *hidden = pair()
    before = run(source, target, *hidden).logits[real]
    source = jnp.where(hidden[0] == 0, 15, source)
    target = jnp.where(hidden[1] == 0, 16, target)
    after = run(source, target, *hidden).logits[real]
    np.testing.assert_array_equal(after, before)
    wider = pair(jnp.pad(SOURCE, ((0, 0), (0, 6))), jnp.pad(TARGET, ((0, 0), (0, 4))))
    after = run(*wider).logits[:, :T][real]
    np.testing.assert_allclose(after, before, atol=1e-6)


def test_no_output_sees_its_own_answer_or_a_later_one():
    run = forward(**LSTM)
    before = run(*pair()).logits
    for t in range(T):
        after = run(*pair(target=TARGET.at[0, t].set(14))).logits
        np.testing.assert_array_equal(after[0, : t + 1], before[0, : t + 1])
        np.testing.assert_array_equal(after[1], before[1])
        changed = np.abs(after[0, t + 1 :] - before[0, t + 1 :]).max(-1)
        assert (changed > 1e-3).all()


@pytest.mark.parametrize(("cell", "attention"), KINDS)
def test_steps_of_several_beams_and_unequal_prompts_equal_one_forward(cell, attention):
    changes = {"cell": cell, "attention": attention, "layers": 2}
    model = searching.bind(Recurrent(config(**changes)), drawn(**changes))
    extend = jax.jit(model.extend)
    prompt, lengths = jnp.array([[2, 7, 12], [2, 13, 0]]), jnp.array([3, 2])
    question = searching.DecodeInputs(prompt, lengths, limits=lengths)
    batch = {"source": SOURCE, "source_segments": segments(SOURCE)}
    prefill = jax.jit(lambda *given: searching.prefill(model, *given, 2, 11))
    static, state, first = prefill(batch, question)
    assert all(leaf.shape[:2] == (B, 2) for leaf in jax.tree.leaves(state))
    assert all(leaf.shape[0] == B for leaf in jax.tree.leaves(static))

    tokens, parents = jnp.array([[[5], [6]], [[8], [9]]]), jnp.array([[1, 1], [1, 0]])
    positions = jnp.broadcast_to(lengths[:, None, None], (B, 2, 1))
    second, state = extend(tokens, positions, static, state)
    state, newer = (
        searching.reorder(state, parents),
        jnp.array([[[4], [10]], [[11], [4]]]),
    )
    third, _ = extend(newer, positions + 1, static, state)

    run, never = forward(**changes), jnp.array([0, 2])  # which no search may choose
    for row, beam in np.ndindex(B, 2):
        written = tokens[row, parents[row, beam], 0], newer[row, beam, 0]
        length = int(lengths[row])
        read = jnp.stack([*prompt[row, :length], *written, *[0] * (T - length)])[None]
        source = SOURCE[row : row + 1]
        whole = run(source, read, segments(source), segments(read)).logits[0]
        whole = whole.at[:, never].set(-jnp.inf)[:, :V]
        steps = (
            first[row, beam],
            second[row, parents[row, beam], 0],
            third[row, beam, 0],
        )
        for i, step in enumerate(steps):
            np.testing.assert_allclose(step[:V], whole[length - 1 + i], atol=2e-5)


@pytest.mark.parametrize(("cell", "attention"), SOME_KINDS)
def test_the_loss_depends_on_every_parameter(cell, attention):
    changes = {"cell": cell, "attention": attention}
    module = Recurrent(config(**changes))

    def total(params):
        logits = module.apply({"params": params}, *pair()).logits[..., :V]
        return jax.nn.log_softmax(logits)[:, :2, 7].sum()

    gradients = flat(jax.jit(jax.grad(total))(drawn(**changes)))
    for name, gradient in gradients.items():
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 1e-5, name


def test_a_fresh_model_neither_forgets_nor_grows():
    x, real = jnp.zeros((B, T, D)), jnp.ones((B, T), bool)
    params = recurrent.Recurrence("lstm", 7).init(jax.random.key(3), x, real)["params"]
    for gate in jnp.split(params["recurrent"], 4, axis=1):
        np.testing.assert_allclose(gate @ gate.T, np.eye(7), atol=1e-5)
    forgetting = np.repeat([0.0, 1.0, 0.0, 0.0], 7)
    np.testing.assert_array_equal(params["input"]["bias"], forgetting)


def test_weights_are_one_head_of_one_layer():
    (weights,) = forward(cell="lstm", attention="dot")(*pair()).cross_attention
    assert weights.shape == (B, 1, T, S)
    np.testing.assert_allclose(weights.sum(-1), np.ones((B, 1, T)), atol=1e-6)
    without = forward(cell="lstm", attention="none")(*pair())
    assert without.cross_attention == ()


def test_bfloat16_keeps_parameters_states_and_logits_in_float32():
    half = {"dtype": "bfloat16"}
    module, exact = Recurrent(config(**half)), forward(**LSTM)(*pair()).logits[..., :V]
    logits = forward(**half)(*pair()).logits[..., :V]
    assert logits.dtype == jnp.float32
    batch = {"source": SOURCE, "source_segments": segments(SOURCE)}
    start = functools.partial(module.apply, length=3, method="start")
    static, state = jax.eval_shape(start, {"params": drawn(**half)}, batch)
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {np.dtype("f4")}
    assert static["memory"].dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in flat(drawn(**half)).values()} == {np.dtype("f4")}
    real = np.asarray(TARGET != 0)
    error = np.abs(logits - exact)[real].max()
    assert 1e-4 < error < 0.1 * np.abs(exact[real]).max()


@pytest.mark.parametrize("kind", ["words", "embedding", "residual"])
def test_each_dropout_rate_alone_changes_training_and_never_evaluation(kind):
    module, plain = Recurrent(config(**{f"dropout_{kind}": 0.3})), forward(**LSTM)
    run = jax.jit(module.apply, static_argnames="train")
    given = {"params": drawn(**LSTM)}, *pair()
    expected = plain(*pair()).logits
    np.testing.assert_array_equal(run(*given).logits, expected)
    dropped = run(*given, train=True, rngs={"dropout": jax.random.key(0)}).logits
    assert np.abs(dropped - expected).max() > 1e-2


def test_several_devices_give_the_loss_and_gradients_of_one():
    registry.find(
        "recurrent"
    )  # a model that is found this way also has its sharding rules
    module = Recurrent(config(d_model=16, vocab_rows=24, source_vocab_rows=32))
    inputs = [jnp.tile(array, (4, 1)) for array in pair()]
    params = draw(jax.eval_shape(module.init, jax.random.key(0), *inputs)["params"])

    def total(params, *inputs):
        logits = module.apply({"params": params}, *inputs).logits[..., :V]
        return jax.nn.log_softmax(logits)[..., 7].sum()

    expected = jax.jit(jax.value_and_grad(total))(params, *inputs)
    mesh = sharding.make_mesh({"data": 4, "fsdp": 2, "tensor": 1, "sequence": 1})
    with jax.set_mesh(mesh):
        params = jax.device_put(params, sharding.shardings(params, mesh))
        found = jax.jit(jax.value_and_grad(total))(params, *inputs)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4),
        found,
        expected,
    )


# Searches


@pytest.fixture(scope="module")
def searched():
    """A function: the result of a search with a given batch size."""
    vocab = 83
    sizes = dict.fromkeys(("vocab_size", "source_vocab_size"), vocab)
    rows = dict.fromkeys(("vocab_rows", "source_vocab_rows"), vocab)
    module = Recurrent(config(**sizes, **rows, cell="gru", tie="all"))
    params = draw(jax.eval_shape(module.init, jax.random.key(0), *pair())["params"])
    rng = np.random.default_rng(8)
    asked = [
        DecodeRequest([*rng.integers(4, vocab, size=n % 5 + 1).tolist(), 3])
        for n in range(7)
    ]

    @functools.cache
    def search(rows, multiple, **options):
        options = Options(beams=3, n_best=2, extra_length=13, **options)
        engine = Engine(module, sharding.local_mesh(), rows, multiple)
        found = dict(engine.search(params, asked, options))
        return [found[i] for i in range(len(asked))]

    return search


def test_a_beam_finds_the_same_for_a_sentence_alone_and_among_others(searched):
    together, alone = searched(4, 2), searched(1, 1)
    assert len({len(h.tokens) for found in together for h in found}) > 2
    for many, one in zip(together, alone, strict=True):
        assert [h.tokens for h in many] == [h.tokens for h in one]
        scores = [[h.score for h in found] for found in (many, one)]
        np.testing.assert_allclose(*scores, rtol=5e-5)


def test_coverage_rewards_attending_to_all_words_of_the_source(searched):
    plain, covering = searched(4, 2), searched(4, 4, coverage=0.4)
    lost = []
    for without, found in zip(plain, covering, strict=True):
        score = {h.tokens: h.score for h in without}
        lost += [score[h.tokens] - h.score for h in found if h.tokens in score]
    assert min(lost) > -1e-5  # a word that is not attended to is a loss, never a gain
    assert max(lost) > 0.1


# Configs


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data.batching": "packed"}, ("packed", "buckets")),
        ({"mesh.tensor": "2"}, ("mesh.tensor 2", "mesh.data")),
        ({"mesh.sequence": "2", "data.length_multiple": "2"}, ("mesh.sequence 2",)),
        ({"model.d_model": "13"}, ("13 is odd", "14", "bidirectional")),
        ({"model.cell": "lstn"}, ("rnn | lstm | gru", "lstm")),
        ({"model.attention": "multi"}, ("none | additive | dot",)),
        ({"model.layers": "0"}, ("model.layers = 0", "at least 1")),
        ({"model.attention": "none", "decode.coverage": "0.2"}, ("coverage", "0.0")),
    ],
)
def test_impossible_settings_are_refused_with_advice(changes, says):
    with pytest.raises(UserError) as caught:
        configs.load("recurrent", changes)
    (problem,) = caught.value.problems
    assert all(word in problem for word in says), problem


def test_conversation_and_parsing_may_use_a_recurrent_model():
    for task in ("conversation", "parsing"):
        assert not checks.find_problems(configs.base(task, "recurrent"))
    with pytest.raises(UserError, match="Choose transformer"):
        configs.base("images", "recurrent")


def test_a_translator_does_not_become_recurrent_by_a_key_alone():
    with pytest.raises(UserError) as caught:
        configs.load("quickstart", {"model.name": "recurrent"})
    assert all(w in str(caught.value) for w in ("recurrent", "translation", "base(ta"))


def test_a_number_of_layers_that_no_machine_can_shape_is_refused():
    said = "model.layers = 1001: must be at least 1 and at most 1000"
    with pytest.raises(UserError, match=said):
        configs.load("recurrent", {"model.layers": "1001"})


def test_an_empty_config_is_that_of_the_config_file():
    c = RecurrentConfig()
    assert (c.cell, c.layers, c.d_model, c.dropout_residual) == ("lstm", 2, 512, 0.1)
    assert {c.vocab_rows, c.source_vocab_size, c.source_vocab_rows} == {c.vocab_size}


def alone():
    module = Recurrent(RecurrentConfig(vocab_size=V, d_model=14, layers=1))
    return module, jax.jit(module.init)(jax.random.key(0), SOURCE, TARGET)


def test_without_segments_every_token_is_real():
    module, variables = alone()
    run = jax.jit(module.apply)
    got = run(variables, SOURCE, TARGET)
    expected = run(variables, SOURCE, TARGET, *map(jnp.ones_like, (SOURCE, TARGET)))
    # Two programs: constants are folded, so a sum may round differently.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), got, expected
    )
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got))


def test_an_encoder_alone_reads_every_token_unless_segments_are_given():
    module, variables = alone()
    memory, _ = module.apply(variables, SOURCE, method="encode")
    real = jnp.ones_like(SOURCE)
    expected, _ = module.apply(variables, SOURCE, real, method="encode")
    np.testing.assert_array_equal(memory, expected)
    fewer, _ = module.apply(variables, SOURCE, real.at[:, -1].set(0), method="encode")
    assert jnp.abs(memory - fewer).max() > 1e-3


@pytest.mark.parametrize("model", [{}, {"cell": "gru", "attention": "dot"}], ids=str)
def test_every_parameter_has_a_rule_that_splits_it_evenly(model):
    base, vocabulary = configs.base("translation", "recurrent"), 40_960
    with base.unlocked():
        base.model.update(model)
    sizes = dict(vocab_size=vocabulary, source_vocab_size=vocabulary)
    module = registry.build(base, "seq2seq", **sizes)
    shapes = jax.eval_shape(module.init, jax.random.key(0), *pair())["params"]
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        name = sharding.path_name(path)
        spec = sharding.spec_of(name, leaf)
        assert len(spec) in (0, leaf.ndim), name
        for size, axes in zip(leaf.shape, spec, strict=False):
            assert axes is None or size % 8 == 0, name


def test_a_recurrent_model_has_no_kernels_of_attention():
    other = Recurrent(RecurrentConfig())
    assert kernels.with_weights(other) is other
    base = configs.base("translation", "recurrent")
    batches = [Shape(8, (20, 24), packed=False)]
    assert report.attention_line(base, batches, sharding.local_mesh()) == []


def test_the_size_of_word_vectors_asks_for_no_heads(tmp_path):
    path = tmp_path / "v.txt"
    path.write_text("the" + " 1" * 15 + "\n")
    with pytest.raises(UserError, match=r"set model.d_model = 15$"):
        configs.load("recurrent", {"model.word_vectors": str(path)})
