"""Every position encoding and every variant: one decoder step by step is one forward.

And each equals its own formula: rotations as complex numbers, buckets counted by
hand, shared heads as copies.
"""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import config as configs
from transformer_jax import sharding
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import BOS, PAD
from transformer_jax.decoding import searching
from transformer_jax.models import Classifier, Encoder, MaskedLM
from transformer_jax.models import positions as place
from transformer_jax.models.attention import attend
from transformer_jax.models.layers import GATES, FeedForward, rms_norm
from transformer_jax.models.transformer import LanguageModel, Seq2Seq
from transformer_jax.models.transformer_config import TransformerConfig
from transformer_jax.models.vision import VisionConfig, ViT
from transformer_jax.tasks.parts.text import shift_right

B, T, S, D, V = 2, 5, 7, 18, 13
SOURCE = jnp.array([[4, 9, 6, 11, 3, 7, 2], [5, 8, 3, 0, 0, 0, 0]])
TARGET = jnp.array([[7, 12, 3, 10, 4], [11, 3, 6, 9, 0]])
MODERN = {
    "norm": "pre", "norm_kind": "rms", "qk_norm": True, "activation": "swiglu",
    "positions": "rotary", "kv_heads": 2,
}  # fmt: skip
VARIANTS = [  # sinusoids are those of the other tests
    {"positions": "learned"},
    {"positions": "rotary", "rotary_scaling": "ntk", "rotary_factor": 3.0},
    {"positions": "relative", "kv_heads": 3, "activation": "relu2"},
    {"positions": "alibi", "kv_heads": 1},
    {"positions": "sinusoid+rotary"},
    {"positions": "none"},
    MODERN,
    {"norm": "deepnorm", "shared_layers": "universal", "decoder_layers": 3},
    {"norm": "sandwich", "parallel_sublayers": True, "shared_layers": "all"},
    {
        "positions": "rotary",
        "attention_window": 3,
        "decoder_layers": 2,
        "rotary_scaling": "yarn",
        "rotary_factor": 4.0,
        "rotary_original": 9,
    },
    {"bias": "none", "tie": "inputs", "embedding_norm": True, "output_bias": True},
    {"bias": "qkv", "tie": "none", "embedding_scale": False, "output_bias": True},
]


def config(**changes):
    sizes = dict(
        vocab_size=V, vocab_rows=V, source_vocab_size=V, source_vocab_rows=V,
        encoder_layers=1, decoder_layers=1, d_model=D, d_ff=11, num_heads=6,
        d_k=4, d_v=5, max_positions=17,
        dropout_embedding=0.0, dropout_residual=0.0,
    )  # fmt: skip
    return TransformerConfig(**{**sizes, **changes})


def segments(tokens):
    return (tokens != 0).astype(jnp.int32)


def drawn(module, *inputs, scale=0.3):
    """Random parameters, so that no bias is 0 and no scale is 1."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda s: jnp.asarray(scale * rng.normal(size=s.shape), jnp.float32), shapes
    )


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def variant(request):
    """(module, parameters, inputs, logits, gradients) of a model of the paper's form"""
    module = Seq2Seq(config(**request.param))
    inputs = SOURCE, shift_right(TARGET), segments(SOURCE), segments(TARGET)
    params = drawn(module, *inputs)

    def loss(params):
        logits = module.apply({"params": params}, *inputs).logits
        return (jnp.sin(logits) * segments(TARGET)[..., None]).sum(), logits

    (_, logits), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return module, params, inputs, logits, grads


def test_gradients_reach_every_parameter(variant):
    leaves = jax.tree_util.tree_leaves_with_path(variant[-1])
    idle = [sharding.path_name(p) for p, g in leaves if not np.abs(g).max() > 0]
    # Adding the same number to all scores of a query changes no weight.
    assert all("key/bias" in name for name in idle), idle


def test_every_parameter_has_a_place_on_a_mesh(variant):
    placed = sharding.shardings(variant[1], sharding.local_mesh())
    specs = [one.spec for one in jax.tree.leaves(placed)]
    for leaf, spec in zip(jax.tree.leaves(variant[1]), specs, strict=True):
        assert len(spec) in (0, leaf.ndim)


def test_a_prompt_and_single_steps_equal_one_forward(variant):
    """Two beams that follow each other crosswise; a prompt is shorter than another."""
    module, params, inputs, logits, _ = variant
    given = 3

    @jax.jit
    def run(params):
        model = searching.bind(module, params)
        batch = {"source": SOURCE, "source_segments": segments(SOURCE)}
        static, state = model.start(batch, T)
        order = jnp.arange(T)
        lengths = jnp.array([given, given - 1])
        first = jnp.where(order[:given] < lengths[:, None], order[:given], -1)
        tokens = inputs[1][:, None]
        seen, state = model.extend(tokens[..., :given], first[:, None], static, state)
        state = searching.tile(state, 2)
        steps = []
        for step in range(2):
            at = lengths + step
            token = jnp.take_along_axis(inputs[1], at[:, None], axis=1)
            twice = [jnp.repeat(x[:, None], 2, 1) for x in (token, at[:, None])]
            state = searching.reorder(state, jnp.array([[1, 0], [1, 1]]))
            found, state = model.extend(*twice, static, state)
            steps.append(found[:, :, 0])
        return seen[:, 0], steps

    seen, steps = run(params)
    real = np.array([t for t in range(V) if t not in (PAD, BOS)])  # never chosen
    for row, length in enumerate((given, given - 1)):
        expected = logits[row][:, real]
        np.testing.assert_allclose(
            seen[row, :length, real].T, expected[:length], atol=3e-5
        )
        for step, found in enumerate(steps):
            for beam in range(2):
                got = found[row, beam][real]
                np.testing.assert_allclose(got, expected[length + step], atol=3e-5)


@pytest.mark.parametrize("kind", ["rotary", "relative", "alibi"])
def test_only_distances_matter(kind):
    """The text of a language model may begin at any position."""
    module = LanguageModel(config(positions=kind))
    params = drawn(module, TARGET, segments(TARGET))

    @jax.jit
    def read(first):
        at = first + jnp.arange(T)[None]
        return module.apply({"params": params}, TARGET, segments(TARGET), at).logits

    np.testing.assert_allclose(read(0)[0], read(101)[0], atol=1e-4)
    order = jnp.array([0, 2, 1, 3, 4])
    moved = module.apply(
        {"params": params}, TARGET, segments(TARGET), jnp.argsort(order)[None]
    )
    assert np.abs(moved.logits[0] - read(0)[0]).max() > 1e-3


def test_sinusoids_and_rotary_can_be_combined():
    """With the same parameters, the two do together what each does alone."""
    found = {}
    for kind in ("none", "sinusoid", "rotary", "sinusoid+rotary"):
        module = LanguageModel(config(positions=kind))
        params = drawn(module, TARGET, segments(TARGET))
        found[kind] = module.apply({"params": params}, TARGET, segments(TARGET)).logits
    kinds = list(found.values())
    for i, one in enumerate(kinds):
        for other in kinds[:i]:
            assert np.abs(one - other).max() > 1e-3
    # By hand: rotated heads, and sinusoids added to the embeddings.
    module = LanguageModel(config(positions="rotary"))
    waves = place.sinusoid(jnp.arange(T)[None], D)
    params = drawn(module, TARGET, segments(TARGET))

    def told(next_method, args, kwargs, context):
        out = next_method(*args, **kwargs)
        read = (context.module.name, context.method_name) == ("embedding", "__call__")
        return out + waves if read else out

    with nn.intercept_methods(told):
        by_hand = module.apply({"params": params}, TARGET, segments(TARGET)).logits
    np.testing.assert_allclose(found["sinusoid+rotary"], by_hand, atol=1e-5)


def test_rotary_turns_points_of_the_plane():
    x = np.random.default_rng(0).normal(size=(B, T, 3, 8)).astype(np.float32)
    at = jnp.array([[0, 1, 2, 3, 4], [7, 31, 127, 3, 1021]])
    got = np.asarray(place.rotate(jnp.asarray(x), place.rotation(at, 8)))
    points = x[..., :4] + 1j * x[..., 4:]
    angles = np.asarray(at)[..., None, None] / 10_000 ** (np.arange(4) / 4)
    turned = points * np.exp(1j * angles)
    expected = np.concatenate([turned.real, turned.imag], -1)
    np.testing.assert_allclose(got, expected, atol=5e-4)


def test_scaled_rotary_reads_far_positions_as_near_ones():
    near, far = jnp.array([[3, 5, 11]]), jnp.array([[12, 20, 44]])
    plain = place.rotation(near, 8)
    linear = place.rotation(far, 8, scaling="linear", factor=4.0)
    np.testing.assert_allclose(plain, linear, atol=1e-6)
    ntk = place.rotation(far, 8, scaling="ntk", factor=4.0)
    unscaled = place.rotation(far, 8)
    np.testing.assert_allclose(ntk[1][..., 0], unscaled[1][..., 0], atol=1e-5)
    np.testing.assert_allclose(ntk[1][..., -1], plain[1][..., -1], atol=1e-5)


@pytest.mark.parametrize("gain", [0.0, 1.5])
def test_yarn_slows_the_slow_angles_alone_and_lengthens_what_it_turns(gain):
    band = place.Band(low=1.0, high=32.0, original=512, gain=gain)
    where, size, factor = jnp.array([[1]]), 32, 8.0
    waves = place.rotation(where, size, scaling="yarn", factor=factor, band=band)
    cos, sin = (np.asarray(wave[0, 0], np.float64) for wave in waves)
    length = gain or 0.1 * math.log(factor) + 1
    np.testing.assert_allclose(np.hypot(cos, sin), length, rtol=1e-6)
    rates = 10_000.0 ** (-np.arange(16) / 16)
    slowed = np.arctan2(sin, cos) / rates
    turns = 512 * rates / (2 * np.pi)
    assert (turns > 32).sum() == 2 and (turns < 1).sum() == 8
    np.testing.assert_allclose(slowed[:2], 1, rtol=1e-5)
    np.testing.assert_allclose(slowed[8:], 1 / factor, rtol=1e-3)
    assert (np.diff(slowed[1:9]) < 0).all()


def bucket_by_hand(distance, buckets, furthest, causal):
    """The bucket of one distance (key - query), as defined in the T5 paper."""
    offset = 0
    if not causal:
        buckets //= 2
        offset = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return offset + distance
    share = math.log(distance / exact) / math.log(furthest / exact)
    return offset + min(exact + int(share * (buckets - exact)), buckets - 1)


@pytest.mark.parametrize("causal", [True, False])
def test_relative_buckets_are_exact_near_by_and_shared_far_away(causal):
    distances = np.arange(-300, 301)
    got = place.relative_buckets(jnp.asarray(distances)[None, None], 32, 128, causal)
    expected = [bucket_by_hand(int(d), 32, 128, causal) for d in distances]
    np.testing.assert_array_equal(got[0, 0], expected)
    # Half of a two-sided table is for keys after the query, none of them at 0.
    assert set(expected) == set(range(32)) - (set() if causal else {16})


def test_alibi_slopes_are_those_of_the_paper():
    np.testing.assert_allclose(place.alibi_slopes(8), 2.0 ** -np.arange(1, 9))
    twelve = place.alibi_slopes(12)
    np.testing.assert_allclose(twelve[:8], 2.0 ** -np.arange(1, 9))
    np.testing.assert_allclose(twelve[8:], 2.0 ** -np.array([0.5, 1.5, 2.5, 3.5]))


def test_alibi_takes_the_distance_times_the_slope():
    module = place.PositionBias("alibi", num_heads=3, causal=True)
    bias = module.apply({}, jnp.array([[4]]), jnp.array([[0, 3, 4]]))
    slopes = place.alibi_slopes(3)
    np.testing.assert_allclose(bias[0, :, 0], -slopes[:, None] * [[4, 1, 0]])


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_shared_keys_equal_copies_of_them(groups):
    query, key = normal(B, T, 6, 4), normal(B, S, groups, 4, seed=1)
    value = normal(B, S, groups, 5, seed=2)
    bias = normal(B, 6, T, S, seed=3)
    copies = (jnp.repeat(x, 6 // groups, axis=2) for x in (key, value))
    for got, expected in zip(
        attend(query, key, value, bias=bias),
        attend(query, *copies, bias=bias),
        strict=True,
    ):
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_shared_keys_make_the_cache_smaller():
    def size(kv_heads):
        module = LanguageModel(config(kv_heads=kv_heads))
        start = functools.partial(module.apply, length=11, method="start")
        params = drawn(module, TARGET, segments(TARGET))
        _, cache = start({"params": params}, {"prompt": TARGET})
        return cache.layers[0].key.size

    assert size(0) == 6 * size(1) == 3 * size(2)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_window_ends_the_influence_of_tokens_before_it(layers):
    window, length = 3, 11
    settings = {"positions": "rotary", "norm": "pre", "decoder_layers": layers}
    module = LanguageModel(config(**settings, attention_window=window))
    tokens = jnp.asarray(np.random.default_rng(2).integers(4, V, (1, length)))
    params = drawn(module, tokens)

    def influence(shift):
        """Of a change of each token's vector, on the logits of each position."""
        vectors = params["embedding"]["embedding"]
        # A table with a row for each place, so that each token has its own vector.
        rows = jnp.concatenate([vectors, vectors[tokens[0]] + shift])
        wide = LanguageModel(
            config(
                **settings, attention_window=window,
                vocab_size=V + length, vocab_rows=V + length,
            )
        )  # fmt: skip
        places = V + jnp.arange(length)[None]
        inside = {**params, "embedding": {"embedding": rows}}
        return wide.apply({"params": inside}, places).hidden[0].sum(-1)

    zeros = jnp.zeros((length, D))
    gradient = np.abs(jax.jacobian(influence)(zeros)).max(-1)  # [query, key]
    distance = np.arange(length)[:, None] - np.arange(length)
    reach = layers * (window - 1)  # each layer hands on what it has seen
    seen = (distance >= 0) & (distance <= reach)
    assert (gradient[seen] > 0).all() and (gradient[~seen] == 0).all()


def test_a_packed_text_has_a_window_of_its_own():
    module = LanguageModel(config(positions="rotary", attention_window=3))
    texts = jnp.asarray([[7, 12, 3, 10, 4, 6]]), jnp.asarray([[11, 3, 6, 9]])
    params = drawn(module, texts[0])
    packed = jnp.concatenate(texts, axis=1)
    counts = [jnp.arange(text.shape[1])[None] for text in texts]
    marks = [jnp.full_like(text, i) for i, text in enumerate(texts, 1)]
    found = module.apply(
        {"params": params},
        packed,
        jnp.concatenate(marks, 1),
        jnp.concatenate(counts, 1),
    ).logits
    wanted = [module.apply({"params": params}, text).logits for text in texts]
    np.testing.assert_allclose(found, jnp.concatenate(wanted, 1), atol=1e-5)


def test_rms_norm_is_its_formula():
    x = normal(B, T, 7)
    scale = normal(7, seed=1)
    got = rms_norm(1e-6, jnp.float32).apply({"params": {"scale": scale}}, x)
    root = np.sqrt((np.asarray(x) ** 2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(got, x / root * scale, atol=1e-5)


def test_normed_queries_and_keys_do_not_grow_with_their_projections():
    def weights(factor):
        module = LanguageModel(config(qk_norm=True))
        params = drawn(module, TARGET, segments(TARGET))
        own = params["decoder"]["layer_0"]["self_attention"]
        for name in ("query", "key"):
            own[name] = jax.tree.map(lambda p: factor * p, own[name])
        return module.apply({"params": params}, TARGET, segments(TARGET))

    one, many = (weights(f).self_attention[0] for f in (1.0, 50.0))
    np.testing.assert_allclose(one, many, atol=1e-3)


@pytest.mark.parametrize("kind", [*GATES, "relu2", "silu"])
def test_a_gated_unit_is_its_formula(kind):
    module, x = FeedForward(D, 11, kind), normal(B, T, D)
    params = drawn(module, x)
    parts = {
        name: np.asarray(x, np.float64) @ p["kernel"] + p["bias"]
        for name, p in params.items()
        if name != "outer"
    }

    def sigmoid(y):
        return 1 / (1 + np.exp(-y))

    def gelu(y):
        return y * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))

    shapes = {
        "glu": sigmoid,
        "reglu": lambda y: np.maximum(y, 0),
        "geglu": gelu,
        "swiglu": lambda y: y * sigmoid(y),
        "silu": lambda y: y * sigmoid(y),
        "relu2": lambda y: np.maximum(y, 0) ** 2,
    }
    hidden = shapes[kind](parts["gate" if "gate" in parts else "inner"])
    hidden = hidden * parts["inner"] if kind in GATES else hidden
    expected = hidden @ params["outer"]["kernel"] + params["outer"]["bias"]
    got = module.apply({"params": params}, x)
    np.testing.assert_allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["rotary", "relative", "alibi", "none"])
def test_images_take_every_kind_of_positions(kind):
    vision = VisionConfig(6, 4, 1, patch=2, classes=3, positions=kind)
    module = ViT(config(positions=kind), vision)
    image = normal(1, 6, 4, 1)
    params = drawn(module, image)
    corner = image.at[:, :2, :2].set(image[:, 4:, 2:])
    swapped = corner.at[:, 4:, 2:].set(image[:, :2, :2])
    one, other = (module.apply({"params": params}, x).logits for x in (image, swapped))
    # Without positions, an image is a bag of patches.
    assert np.allclose(one, other, atol=1e-5) == (kind == "none")


def test_a_fixed_bias_is_a_function_and_a_line_in_a_table(monkeypatch):
    def near(distance, heads):
        return jnp.where(jnp.abs(distance) < 2, 0.0, -1e9)[:, None]

    monkeypatch.setitem(place.BIASES, "near", near)
    sizes = dict(vocab_size=17, encoder_layers=1, d_model=14, d_ff=11, num_heads=2)
    module = Encoder(TransformerConfig(**sizes, positions="near"))
    tokens = jnp.array([[5, 6, 7, 8, 9]])
    (_, [weights]), _ = module.init_with_output(jax.random.key(0), tokens)
    distance = np.abs(np.subtract.outer(range(5), range(5)))
    for head in weights[0]:
        np.testing.assert_array_equal(head > 0, distance < 2)


@pytest.mark.parametrize(
    "bias, having",
    [
        ("all", {"query", "key", "value", "out", "inner", "outer"}),
        ("qkv", {"query", "key", "value"}),
        ("none", set()),
    ],
)
def test_the_linear_maps_have_the_biases_that_are_asked_for(bias, having):
    module = Seq2Seq(config(bias=bias))
    params = module.init(jax.random.key(0), SOURCE, TARGET)["params"]
    paths, _ = jax.tree_util.tree_flatten_with_path(params)
    names = [sharding.path_name(path).split("/") for path, _ in paths]
    found = {parts[-2] for parts in names if parts[-1] == "bias"}
    assert {name for name in found if "norm" not in name} == having


def test_the_table_of_the_inputs_is_apart_from_the_output():
    module = Seq2Seq(config(tie="inputs"))
    params = module.init(jax.random.key(0), SOURCE, TARGET)["params"]
    assert {"embedding", "projection"} <= params.keys()
    assert "target_embedding" not in params
    kernel = params["projection"]["kernel"]
    out = module.apply({"params": params}, SOURCE, TARGET)
    np.testing.assert_allclose(out.logits, out.hidden @ kernel, rtol=1e-5, atol=1e-5)


def test_what_is_embedded_is_scaled_and_normalised_as_asked():
    for scaled in (True, False):
        module = Encoder(config(embedding_scale=scaled, embedding_norm=True))
        params = module.init(jax.random.key(0), SOURCE)["params"]
        table = params["embedding"]["embedding"]
        factor = math.sqrt(D) if scaled else 1.0
        x = table[SOURCE] * factor + place.sinusoid(jnp.arange(S)[None], D)
        x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)
        _, made = module.apply({"params": params}, SOURCE, capture_intermediates=True)
        (found,) = made["intermediates"]["embedding_norm"]["__call__"]
        np.testing.assert_allclose(found, x, rtol=1e-4, atol=1e-5)


def test_a_bias_is_added_to_the_logits():
    module = LanguageModel(config(output_bias=True))
    params = module.init(jax.random.key(0), TARGET)["params"]
    bias = jnp.arange(V, dtype=jnp.float32)
    plain = module.apply({"params": params}, TARGET).logits
    moved = {**params, "output_bias": {"bias": bias}}
    found = module.apply({"params": moved}, TARGET).logits
    np.testing.assert_allclose(
        found - plain, jnp.broadcast_to(bias, found.shape), atol=1e-5
    )


def test_a_masked_model_may_transform_before_it_predicts():
    module = MaskedLM(config(activation="gelu_erf"), head_transform=True)
    params = module.init(jax.random.key(0), SOURCE)["params"]
    out = module.apply({"params": params}, SOURCE)
    dense = params["transform"]
    x = nn.gelu(out.hidden @ dense["kernel"] + dense["bias"], approximate=False)
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)
    logits = x @ params["embedding"]["embedding"].T
    np.testing.assert_allclose(out.logits, logits, rtol=1e-4, atol=1e-4)


def test_a_classifier_may_read_the_special_token_through_a_pooler():
    module = Classifier(config(), outputs=3, pooling="pooler")
    params = module.init(jax.random.key(0), SOURCE)["params"]
    encoded, _ = module.apply({"params": params}, SOURCE, method="encode")
    pooler, head = params["pooler"], params["head"]
    pooled = jnp.tanh(encoded[:, 0] @ pooler["kernel"] + pooler["bias"])
    found = module.apply({"params": params}, SOURCE).logits
    wanted = pooled @ head["kernel"] + head["bias"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("option", "value"), [("rotary_factor", "2.0"), ("rotary_gain", "1.1")]
)
def test_an_option_of_rotations_without_effect_is_refused(option, value):
    changes = {"model.positions": "rotary", f"model.{option}": value}
    with pytest.raises(UserError, match=f"model.{option} = {value} has no effect with"):
        configs.load("language", changes)
    scaled = {"model.rotary_scaling": "yarn", "model.rotary_factor": "2.0"}
    assert configs.load("language", changes | scaled)
