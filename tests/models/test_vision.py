"""The ViT: the place of each pixel, its influence, and parity with PyTorch."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import config, sharding
from transformer_jax.base.errors import UserError
from transformer_jax.models.transformer_config import TransformerConfig
from transformer_jax.models.vision import (
    VisionConfig,
    ViT,
    sinusoid_2d,
    split_patches,
)

B, D, F, N, K, H, LAYERS = 2, 14, 11, 2, 3, 5, 2
HEIGHT, WIDTH, CHANNELS, PATCH, CLASSES = 6, 15, 2, 3, 13
ROWS, COLUMNS = HEIGHT // PATCH, WIDTH // PATCH
LENGTH = 1 + ROWS * COLUMNS
ADDED = ("learned", "sinusoid", "sinusoid_2d")  # to the size of a patch


def look(**changes):
    sizes = dict(
        height=HEIGHT, width=WIDTH, channels=CHANNELS, patch=PATCH, classes=CLASSES
    )
    return VisionConfig(**{**sizes, **changes})


def build(vision=None, **changes):
    sizes = dict(
        vocab_size=0, vocab_rows=0, source_vocab_size=0, source_vocab_rows=0,
        encoder_layers=LAYERS, decoder_layers=0, d_model=D, d_ff=F, num_heads=N,
        d_k=K, d_v=H, norm="pre", activation="gelu_tanh",
        dropout_embedding=0.0, dropout_residual=0.0,
    )  # fmt: skip
    return ViT(TransformerConfig(**{**sizes, **changes}), vision or look())


def shapes(module):
    """By shape alone: nothing is computed."""
    images = jax.ShapeDtypeStruct((1, *module.vision.image), jnp.float32)
    return jax.eval_shape(module.init, jax.random.key(0), images)["params"]


def flat(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {sharding.path_name(path): leaf for path, leaf in leaves}


@functools.cache
def draw(module):
    """Random parameters, none of them 0, and random images."""
    rng = np.random.default_rng(0)

    def fill(path, leaf):
        offset = 1.0 if path[-1].key == "scale" else 0.0
        values = offset + rng.normal(size=leaf.shape) * D**-0.5
        return jnp.asarray(values, jnp.float32)

    params = jax.tree_util.tree_map_with_path(fill, shapes(module))
    images = rng.uniform(size=(B, *module.vision.image))
    return params, jnp.asarray(images, jnp.float32)


@functools.cache
def forward(module):
    def logits(params, images, key=None):
        rngs = None if key is None else {"dropout": key}
        train = key is not None
        return module.apply({"params": params}, images, train, rngs=rngs).logits

    return jax.jit(logits)


@functools.cache
def run(module):
    """The outputs for these, random weights of the logits, and the gradients."""
    params, images = draw(module)
    weigh = np.random.default_rng(1).normal(size=(B, module.vision.classes))

    def weighed(params):
        outputs = module.apply({"params": params}, images)
        return (outputs.logits * weigh).sum(), outputs

    both = jax.jit(jax.value_and_grad(weighed, has_aux=True))
    (_, outputs), gradients = both(params)
    return outputs, weigh, flat(gradients)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("positions", ADDED)
def test_parameters_have_their_names_and_are_as_many_as_the_formula(norm, positions):
    found = flat(shapes(build(look(positions=positions), norm=norm)))
    attention = 2 * (D * N * K + N * K) + (D * N * H + N * H) + (N * H * D + D)
    layer = attention + (D * F + F) + (F * D + D) + 2 * 2 * D
    ends = (PATCH**2 * CHANNELS * D + D) + D + (D * CLASSES + CLASSES)
    table = LENGTH * D if positions == "learned" else 0
    last = 2 * D if norm == "pre" else 0
    count = sum(math.prod(leaf.shape) for leaf in found.values())
    assert count == ends + table + LAYERS * layer + last

    own = {name for name in found if not name.startswith("encoder/layer_")}
    expected = {"patches/kernel", "patches/bias", "class_token"}
    expected |= {"head/kernel", "head/bias"}
    expected |= {"positions/table"} if positions == "learned" else set()
    expected |= {"encoder/norm/scale", "encoder/norm/bias"} if norm == "pre" else set()
    assert own == expected


def test_the_large_model_of_the_paper_has_its_size():
    sizes = dict(d_model=1024, d_ff=4096, num_heads=16, d_k=64, d_v=64)
    vision = VisionConfig(224, 224, 3, 16, 1000)
    params = shapes(build(vision, **sizes, encoder_layers=24))
    # timm's vit_large_patch16_224
    assert sum(math.prod(p.shape) for p in jax.tree.leaves(params)) == 304_326_632


def test_patches_are_read_row_by_row_and_so_are_their_pixels():
    image = np.arange(HEIGHT * WIDTH * CHANNELS, dtype=np.float32)
    image = image.reshape(1, HEIGHT, WIDTH, CHANNELS)
    expected = [
        [
            image[0, PATCH * row + i, PATCH * column + j, channel]
            for i in range(PATCH)
            for j in range(PATCH)
            for channel in range(CHANNELS)
        ]
        for row in range(ROWS)
        for column in range(COLUMNS)
    ]
    np.testing.assert_array_equal(split_patches(jnp.asarray(image), PATCH)[0], expected)


@pytest.mark.parametrize("pixel", [(0, 0), (2, 3), (4, 2), (5, 14)])
def test_a_pixel_reaches_its_own_patch_only(pixel):
    module = build()
    params, images = draw(module)

    def embed(images):
        return module.apply({"params": params}, images, method="embed")

    other = images.at[1, *pixel, 1].add(1.0)
    changed = np.argwhere(np.abs(embed(other) - embed(images)).max(-1) > 0)
    row, column = pixel[0] // PATCH, pixel[1] // PATCH
    assert changed.tolist() == [[1, 1 + row * COLUMNS + column]]


def test_pixels_are_normalised_by_channel():
    plain = build()
    normalised = build(look(mean=(0.5, 0.25), deviation=(0.125, 2.0)))
    params, images = draw(plain)
    shifted = (images - np.array([0.5, 0.25])) / np.array([0.125, 2.0])
    wanted = plain.apply({"params": params}, shifted.astype(jnp.float32)).logits
    found = normalised.apply({"params": params}, images).logits
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match="has 1 numbers, but the images have 2 channel"):
        look(mean=(0.5,))


def test_every_pixel_influences_its_own_image_only():
    module = build()
    params, images = draw(module)

    gradient = jax.grad(lambda images: forward(module)(params, images)[1, 7])(images)
    assert (gradient[1] != 0).all() and (gradient[0] == 0).all()


@pytest.mark.parametrize("positions", ADDED)
def test_the_gradient_reaches_every_parameter(positions):
    for name, gradient in run(build(look(positions=positions)))[2].items():
        if name.endswith("key/bias"):
            # A shift of all keys shifts all scores alike: this gradient is 0.
            continue
        rows = np.abs(gradient).reshape(-1, gradient.shape[-1]).max(-1)
        assert (rows > 1e-6).all(), name


def test_logits_are_float32_and_weights_are_given_by_layer():
    outputs = run(build())[0]
    assert outputs.logits.shape == (B, CLASSES)
    assert [w.shape for w in outputs.encoder_attention] == [
        (B, N, LENGTH, LENGTH)
    ] * LAYERS
    for weights in outputs.encoder_attention:
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    half = forward(build(dtype="bfloat16"))(*draw(build()))
    assert outputs.logits.dtype == half.dtype == jnp.float32
    assert 0 < np.abs(half - outputs.logits).max() < 0.2


def test_dropout_is_for_training_only():
    module = build(dropout_embedding=0.3)
    calm = forward(module)(*draw(module))
    np.testing.assert_allclose(calm, run(build())[0].logits, atol=1e-5)
    noisy = forward(module)(*draw(module), jax.random.key(0))
    assert np.abs(noisy - calm).max() > 1e-2


def exchange(positions, table=None):
    """How far the logits move if the first and the last patch are exchanged."""
    module = build(look(positions=positions))
    params, images = draw(module)
    if table is not None:
        params = {**params, "positions": {"table": table}}
    first, last = images[:, :PATCH, :PATCH], images[:, -PATCH:, -PATCH:]
    other = images.at[:, :PATCH, :PATCH].set(last).at[:, -PATCH:, -PATCH:].set(first)
    before, after = (forward(module)(params, x) for x in (images, other))
    return np.abs(after - before).max()


def test_only_positions_tell_where_a_patch_is():
    for positions in ADDED:
        assert exchange(positions) > 1e-2, positions
    assert exchange("learned", jnp.zeros((LENGTH, D))) < 1e-5


def test_the_kinds_of_positions_differ():
    made = {}
    for positions in ADDED:
        module = build(look(positions=positions))
        params, images = draw(module)
        params = {**params, "patches": jax.tree.map(jnp.zeros_like, params["patches"])}
        params["class_token"] = jnp.zeros(D)
        made[positions] = module.apply({"params": params}, images, method="embed")[0]
    for kind, places in made.items():
        assert len({tuple(row) for row in np.asarray(places)}) == LENGTH, kind
    for a, b in (("learned", "sinusoid"), ("sinusoid", "sinusoid_2d")):
        assert np.abs(made[a] - made[b]).max(-1).min() > 1e-3
    assert (made["sinusoid_2d"][0] == 0).all()
    np.testing.assert_allclose(made["sinusoid"][0], [0, 1] * (D // 2))


def test_transposing_the_grid_exchanges_the_halves_of_the_2d_waves():
    def places(grid):
        return np.asarray(sinusoid_2d(grid, D))[0, 1:].reshape(*grid, 2, D // 2)

    tall, wide = places((5, 3)), places((3, 5))
    np.testing.assert_array_equal(wide, tall.swapaxes(0, 1)[..., ::-1, :])
    assert (tall[2, :, 0] == tall[2, 0, 0]).all()  # this half depends only on the row
    assert (tall[:, 2, 1] == tall[0, 2, 1]).all()


def convolved(**changes):
    """A ViT of 12×20 pixels whose patches of 4 come from two convolutions."""
    sizes = dict(height=12, width=20, patch=4, stem="convolutional")
    return build(look(**sizes), **changes)


def test_convolutions_have_twice_as_many_channels_each_time():
    found = {n: p.shape for n, p in flat(shapes(convolved())).items() if "stem" in n}
    assert found == {
        "stem/convolutions_0/kernel": (3, 3, CHANNELS, D // 2),
        "stem/norms_0/scale": (D // 2,),
        "stem/norms_0/bias": (D // 2,),
        "stem/convolutions_1/kernel": (3, 3, D // 2, D),
        "stem/norms_1/scale": (D,),
        "stem/norms_1/bias": (D,),
        "stem/linear/kernel": (D, D),
        "stem/linear/bias": (D,),
    }
    assert not any(n.startswith("patches") for n in flat(shapes(convolved())))


@pytest.mark.parametrize(
    ("pixel", "patches"),
    [((4, 8), [7]), ((3, 8), [2, 7]), ((7, 7), [6, 7, 11, 12])],  # 5 in a row
)
def test_convolutions_see_three_pixels_above_and_left_of_a_patch(pixel, patches):
    module = convolved()
    params, images = draw(module)

    def embed(images):
        return module.apply({"params": params}, images, method="embed")[1, 1:]

    changed = embed(images.at[1, *pixel].add(1.0)) != embed(images)
    assert np.flatnonzero(changed.any(-1)).tolist() == patches


def test_convolutions_do_not_look_at_other_images_and_learn_in_every_parameter():
    module = convolved()
    params, images = draw(module)
    alone = forward(module)(params, images[:1])
    np.testing.assert_allclose(alone, forward(module)(params, images)[:1], atol=1e-5)
    for name, gradient in run(module)[2].items():
        assert name.endswith("key/bias") or np.abs(gradient).max() > 1e-6, name


def test_convolutions_are_pytorchs(parity):
    torch, module = parity.torch, convolved()
    params, images = draw(module)
    stem = jax.tree.map(lambda p: torch.tensor(np.array(p)), params["stem"])
    x = torch.tensor(np.array(images)).permute(0, 3, 1, 2)
    for i in range(2):
        kernel = stem[f"convolutions_{i}"]["kernel"].permute(3, 2, 0, 1)
        x = torch.nn.functional.conv2d(x, kernel, stride=2, padding=1)
        norm = stem[f"norms_{i}"]
        x = torch.nn.functional.layer_norm(
            x.permute(0, 2, 3, 1), kernel.shape[:1], norm["scale"], norm["bias"], 1e-6
        )
        x = x.relu().permute(0, 3, 1, 2)
    wanted = x.flatten(2).mT @ stem["linear"]["kernel"] + stem["linear"]["bias"]
    places = params["positions"]["table"]
    found = module.apply({"params": params}, images, method="embed") - places
    np.testing.assert_allclose(found[:, 1:], wanted.numpy(), atol=1e-5)


@pytest.mark.parametrize(("patch", "advice"), [(7, "4 or 8"), (1, "2 or 4")])
def test_convolutions_need_a_patch_that_is_a_power_of_two(patch, advice):
    keys = {"model.stem": "convolutional", "model.patch": str(patch)}
    said = f"model.patch = {patch} is no power of two.* use {advice}, or model.stem"
    with pytest.raises(UserError, match=said):
        config.load("images", keys)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            dict(stem="convolution"),
            "stem = 'convolution': one of linear, convolutional. Did you mean 'conv",
        ),
        (
            dict(height=28, width=28, patch=5),
            "image 28x28 .* patches of side 5: use 4 or 7",
        ),
        (dict(height=28, width=28, patch=31), "image 28x28 .* side 31: use 28$"),
        (dict(height=6, width=15, patch=2), "image 6x15 .* side 2: use 1 or 3"),
        (dict(patch=0), "side 0: use 1$"),
        (dict(positions="sinusoid2d"), "'sinusoid2d'.*Did you mean 'sinusoid_2d'"),
    ],
)
def test_impossible_sizes_are_refused_with_advice(changes, problem):
    with pytest.raises(UserError, match=problem):
        look(**changes)


def test_images_of_another_size_are_refused_with_both():
    module, other = build(), jnp.zeros((B, WIDTH, HEIGHT, CHANNELS))
    says = "images of 15x6x2, but the model reads 6x15x2: scale the images"
    with pytest.raises(UserError, match=says):
        module.init(jax.random.key(0), other)


def test_an_odd_width_cannot_be_halved():
    with pytest.raises(UserError, match="an even d_model, not 7: use 6 or 8"):
        sinusoid_2d((2, 3), 7)


def twin(norm):
    return build(norm=norm, d_k=D // N, d_v=D // N)


@pytest.fixture(scope="module")
def parity():
    """The names of a layer's parameters in PyTorch; skips the test without PyTorch."""
    import test_parity

    return test_parity


def make_peer(torch, norm):
    """PyTorch's encoder between a convolution and a linear map."""
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(
        D, N, F, dropout=0.0, layer_norm_eps=1e-6, batch_first=True,
        norm_first=norm == "pre",
        activation=functools.partial(nn.functional.gelu, approximate="tanh"),
    )  # fmt: skip
    last = nn.LayerNorm(D, eps=1e-6) if norm == "pre" else None
    peer = nn.Module()
    peer.patches = nn.Conv2d(CHANNELS, D, PATCH, PATCH)
    peer.token = nn.Parameter(torch.zeros(D))
    peer.table = nn.Parameter(torch.zeros(LENGTH, D))
    peer.encoder = nn.TransformerEncoder(
        layer, LAYERS, last, enable_nested_tensor=False
    )
    peer.head = nn.Linear(D, CLASSES)
    return peer.train()  # evaluation would take a fast path without gradients


def run_peer(torch, peer, images):
    x = peer.patches(torch.tensor(images).permute(0, 3, 1, 2)).flatten(2).mT
    x = torch.cat([peer.token.expand(B, 1, D), x], 1) + peer.table
    return peer.head(peer.encoder(x)[:, 0])


def names(parity, norm):
    """(our path, their name, their rows that correspond to it)."""
    yield from (("class_token", "token", ...), ("positions/table", "table", ...))
    for end, ending in (("kernel", "weight"), ("bias", "bias")):
        yield f"patches/{end}", f"patches.{ending}", ...
        yield f"head/{end}", f"head.{ending}", ...
    for i in range(LAYERS):
        place = f"encoder/layer_{i}", f"encoder.layers.{i}"
        yield from parity.layer_names(*place, cross=False)
    if norm == "pre":
        yield "encoder/norm/scale", "encoder.norm.weight", ...
        yield "encoder/norm/bias", "encoder.norm.bias", ...


def turn(name, array):
    """In PyTorch's layout: columns of a kernel are rows, those of patches images."""
    if name == "patches/kernel":
        return array.reshape(PATCH, PATCH, CHANNELS, D).transpose(3, 2, 0, 1)
    return array.T if name.endswith("kernel") else array


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_logits_and_every_gradient_are_pytorchs(parity, norm):
    torch, module = parity.torch, twin(norm)
    params, images = draw(module)
    outputs, weigh, gradients = run(module)
    peer = make_peer(torch, norm)
    theirs, pairs = dict(peer.named_parameters()), list(names(parity, norm))
    assert {mine for mine, *_ in pairs} == set(gradients)
    assert {other for _, other, _ in pairs} == set(theirs)
    with torch.no_grad():
        for mine, other, rows in pairs:
            values = np.array(turn(mine, flat(params)[mine]))
            theirs[other][rows] = torch.tensor(values)
    logits = run_peer(torch, peer, np.array(images))
    (logits * torch.tensor(weigh)).sum().backward()

    assert outputs.logits.std() > 0.5
    np.testing.assert_allclose(outputs.logits, logits.detach().numpy(), atol=1e-5)
    for mine, other, rows in pairs:
        expected = theirs[other].grad[rows].numpy()
        got = turn(mine, np.asarray(gradients[mine]))
        largest = 1.0 if mine.endswith("key/bias") else np.abs(expected).max()
        assert largest > 1e-3, mine
        np.testing.assert_allclose(
            got / largest, expected / largest, atol=1e-4, err_msg=mine
        )
