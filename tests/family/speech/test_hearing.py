"""Models that hear: the convolutions, padding, the search, and the mesh."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import sharding
from transformer_jax.family.speech.model import (
    Ear,
    SoundClassifier,
    SpeechConfig,
    Transcriber,
    frames_per_vector,
    shorten,
)
from transformer_jax.models import registry
from transformer_jax.models.attention import Mask
from transformer_jax.models.positions import sinusoid_t2t

registry.find("speech")  # for its rules
CONFIG = SpeechConfig(
    vocab_size=16, encoder_layers=1, decoder_layers=1, d_model=12, d_ff=20, num_heads=2,
    norm="pre", tie="decoder", dropout_embedding=0.0, dropout_residual=0.0,
)  # fmt: skip
BANDS = 5
LENGTHS = (11, 8, 3, 1)


@pytest.fixture(scope="module")
def sounds():
    draw = np.random.RandomState(0).standard_normal
    return [jnp.asarray(draw((n, BANDS)), jnp.float32) for n in LENGTHS]


def pad(sounds, length, filler=0.0):
    frames = np.full((len(sounds), length, BANDS), filler, np.float32)
    segments = np.zeros((len(sounds), length), np.int32)
    for i, sound in enumerate(sounds):
        frames[i, : len(sound)], segments[i, : len(sound)] = sound, 1
    return jnp.asarray(frames), jnp.asarray(segments)


@functools.cache
def initial(module):
    """Parameters without a bias of 0, which would hide what padding does."""
    frames, more = jnp.zeros((1, 4, BANDS)), ()
    if isinstance(module, Transcriber):
        more = (jnp.ones((1, 1), jnp.int32),)
    params = jax.jit(module.init)(jax.random.key(1), frames, *more)["params"]
    noise = np.random.RandomState(7).standard_normal
    return jax.tree.map(lambda p: p + 0.3 * noise(p.shape).astype(np.float32), params)


@functools.cache
def applied(module):
    """The module as a compiled function."""
    return jax.jit(lambda params, *inputs: module.apply({"params": params}, *inputs))


@pytest.mark.parametrize(("stride", "tanh"), [(2, True), (1, False)])
def test_the_convolutions_are_two_sums_over_three_frames(stride, tanh, sounds):
    ear = Ear(7, stride, "gelu_tanh" if tanh else "gelu_erf")
    frames, segments = pad(sounds[:1], LENGTHS[0])
    params = jax.jit(ear.init)(jax.random.key(0), frames, segments)["params"]
    x = sounds[0]
    for name, step in (("convolution_0", stride), ("convolution_1", 2)):
        kernel, bias = (np.asarray(params[name][k]) for k in ("kernel", "bias"))
        around = np.pad(x, ((1, 1), (0, 0)))
        rows = range(0, len(x), step)
        sums = [np.einsum("wi,wio->o", around[t : t + 3], kernel) + bias for t in rows]
        x = np.asarray(jax.nn.gelu(np.stack(sums), approximate=tanh))
    found = ear.apply({"params": params}, frames, segments)[0]
    assert found.shape == (3 if stride == 2 else 6, 7)  # of 11 frames
    np.testing.assert_allclose(found, x, atol=1e-5)


@pytest.mark.parametrize("stride", [2, 1])
def test_a_sound_alone_gets_what_it_gets_in_any_batch(stride, sounds):
    module = Transcriber(dataclasses.replace(CONFIG, stride=stride))
    target = jnp.asarray([[2, 5, 7]])
    params, run = initial(module), applied(module)
    frames, segments = pad(sounds, 19, filler=-50.0)
    many = jnp.tile(target, (len(sounds), 1))
    together = run(params, frames, many, segments).logits
    for i in (1, 2):
        alone = run(params, sounds[i][None], target).logits[0]
        np.testing.assert_allclose(together[i], alone, atol=2e-5)


def test_a_vector_is_real_if_its_first_frame_is(sounds):
    _, segments = pad(sounds, 16)
    for stride, length in itertools.product((1, 2), (9, 10, 11, 12)):
        each = frames_per_vector(SpeechConfig(stride=stride))
        real = jnp.ones((1, length), jnp.int32)
        shape = jax.ShapeDtypeStruct((1, length, BANDS), jnp.float32)
        ear = Ear(4, stride).init_with_output
        made = jax.eval_shape(ear, jax.random.key(0), shape, real)
        assert made[0].shape[1] == shorten(real, each).shape[1]
        vectors = [-(-n // each) for n in LENGTHS]
        assert shorten(segments, each).sum(1).tolist() == vectors


def test_positions_of_sound_are_others_than_those_of_its_transcript(sounds):
    learned = dataclasses.replace(
        CONFIG, positions="learned", sound_positions="sinusoid_t2t", max_positions=5
    )
    module, target = Transcriber(learned), jnp.asarray([[2, 5, 7]])
    params = initial(module)
    tables = {name for name in params if "positions" in name}
    assert tables == {"target_positions"}
    frames, segments = pad(sounds[:1], LENGTHS[0])

    def encoded(kind):
        there = Transcriber(dataclasses.replace(learned, sound_positions=kind))
        return there.apply({"params": params}, frames, segments, method="encode")[0]

    vectors = module.apply(
        {"params": params}, frames, segments, method=lambda m, *x: m.ear(*x)
    )
    added = vectors + sinusoid_t2t(jnp.arange(3)[None], CONFIG.d_model)
    wanted = module.apply(
        {"params": params}, added, shorten(segments, 4),
        method=lambda m, x, s: m.encoder(x, jnp.arange(3)[None], Mask(s, s))[0],
    )  # fmt: skip
    np.testing.assert_allclose(encoded("sinusoid_t2t"), wanted, atol=1e-5)
    assert np.abs(encoded("none") - wanted).max() > 0.1
    run = applied(module)
    other = {**params, "target_positions": {"table": jnp.zeros((5, CONFIG.d_model))}}
    [one, two] = (run(p, frames, target, segments).logits for p in (params, other))
    assert np.abs(one - two).max() > 0.1


def test_a_search_token_by_token_sees_what_training_sees(sounds):
    module = Transcriber(CONFIG)
    params, bound = initial(module), {"params": initial(module)}
    frames, segments = pad(sounds, 13)
    tokens = jax.random.randint(jax.random.key(3), (len(sounds), 4), 4, 13)
    whole = applied(module)(params, frames, tokens, segments).logits
    batch = {"source": frames, "source_segments": segments}
    static, state = jax.jit(lambda b: module.apply(bound, b, 4, method="start"))(batch)
    extend = jax.jit(lambda *inputs: module.apply(bound, *inputs, method="extend"))
    for t in range(4):
        place = jnp.full((len(sounds), 1, 1), t)
        logits, state = extend(tokens[:, None, t : t + 1], place, static, state)
        np.testing.assert_allclose(logits[:, 0, 0], whole[:, t], atol=2e-5)


def test_a_class_does_not_depend_on_the_padding(sounds):
    module = SoundClassifier(CONFIG, 3)
    params, run = initial(module), applied(module)
    together = run(params, *pad(sounds[1:3], 12, 8.0)).logits
    alone = [run(params, sound[None]).logits[0] for sound in sounds[1:3]]
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_parameters_are_split_by_the_rules_of_the_model(sounds):
    module = Transcriber(CONFIG)
    params = initial(module)
    mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2, "sequence": 1})
    places = sharding.shardings(params, mesh)
    first, second = (places["ear"][f"convolution_{i}"]["kernel"].spec for i in (0, 1))
    assert (first[2], second[1], second[2]) == ("tensor", "tensor", "fsdp")
    inputs = pad(sounds, 16)
    inputs = {"frames": inputs[0], "target": jnp.ones((4, 3), jnp.int32),
              "segments": inputs[1]}  # fmt: skip
    alone = applied(module)(params, *inputs.values()).logits

    def apply(params, batch):
        return module.apply({"params": params}, *(batch[name] for name in inputs))

    with jax.set_mesh(mesh):
        batch = sharding.to_global(jax.tree.map(np.asarray, inputs), mesh)
        split = jax.jit(apply)(jax.device_put(params, places), batch).logits
    np.testing.assert_allclose(split, alone, atol=2e-5)
