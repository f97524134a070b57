"""Models that hear: the convolutions, padding, the search, and the mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import sharding
from transformer_jax.models import registry
from transformer_jax.models.speech import Ear, SoundClassifier, Transcriber, shorten
from transformer_jax.models.transformer_config import TransformerConfig

registry.find("speech")  # for its rules
CONFIG = TransformerConfig(
    vocab_size=13, encoder_layers=2, decoder_layers=2, d_model=12, d_ff=20, num_heads=3,
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


@pytest.fixture(scope="module")
def transcriber(sounds):
    module = Transcriber(CONFIG)
    frames, segments = pad(sounds, 16)
    target = jnp.ones((len(sounds), 3), jnp.int32)
    params = module.init(jax.random.key(1), frames, target, segments)["params"]
    # A bias that is 0 would hide what padding does.
    noise = lambda p: p + 0.3 * jax.random.normal(jax.random.key(p.size), p.shape)  # noqa: E731
    return module, jax.tree.map(noise, params)


def test_the_convolutions_are_two_sums_over_three_frames(sounds):
    ear = Ear(7)
    frames, segments = pad(sounds[:1], LENGTHS[0])
    params = ear.init(jax.random.key(0), frames, segments)["params"]
    x = sounds[0]
    for name in ("convolution_0", "convolution_1"):
        kernel, bias = (np.asarray(params[name][k]) for k in ("kernel", "bias"))
        around = np.pad(x, ((1, 1), (0, 0)))
        rows = range(0, len(x), 2)
        sums = [np.einsum("wi,wio->o", around[t : t + 3], kernel) + bias for t in rows]
        x = np.asarray(jax.nn.gelu(np.stack(sums), approximate=True))
    found = ear.apply({"params": params}, frames, segments)[0]
    assert found.shape == (3, 7)  # 11 frames, then 6, then 3
    np.testing.assert_allclose(found, x, atol=1e-5)


def test_a_sound_alone_gets_what_it_gets_in_any_batch(sounds, transcriber):
    module, params = transcriber
    target = jnp.asarray([[2, 5, 7]])
    for length, filler in ((11, 9.0), (12, -7.0), (23, 50.0)):
        frames, segments = pad(sounds, length, filler)
        many = jnp.broadcast_to(target, (len(sounds), 3))
        together = module.apply({"params": params}, frames, many, segments)
        for i, sound in enumerate(sounds):
            alone = module.apply({"params": params}, sound[None], target)
            np.testing.assert_allclose(together.logits[i], alone.logits[0], atol=2e-5)


def test_a_vector_is_real_if_its_frames_are(sounds):
    _, segments = pad(sounds, 16)
    expected = [-(-n // 4) for n in LENGTHS]
    assert shorten(segments).sum(1).tolist() == expected == [3, 2, 1, 1]
    for length in (9, 10, 11, 12):
        frames = jnp.ones((1, length, BANDS))
        ear = Ear(4)
        made, _ = ear.init_with_output(jax.random.key(0), frames, frames[..., 0] > 0)
        assert made.shape[1] == shorten(frames[..., 0]).shape[1]


def test_a_search_token_by_token_sees_what_training_sees(sounds, transcriber):
    module, params = transcriber
    frames, segments = pad(sounds, 13)
    tokens = jax.random.randint(jax.random.key(3), (len(sounds), 5), 4, 13)
    whole = module.apply({"params": params}, frames, tokens, segments).logits
    batch = {"source": frames, "source_segments": segments}
    bound = {"params": params}
    static, state = module.apply(bound, batch, 5, method="start")
    for t in range(5):
        now = tokens[:, None, t : t + 1], jnp.full((len(sounds), 1, 1), t)
        logits, state = module.apply(bound, *now, static, state, method="extend")
        np.testing.assert_allclose(logits[:, 0, 0], whole[:, t], atol=2e-5)


def test_a_class_does_not_depend_on_the_padding(sounds):
    module = SoundClassifier(CONFIG, 3)
    frames, segments = pad(sounds, 12, 8.0)
    params = module.init(jax.random.key(2), frames, segments)["params"]
    params = jax.tree.map(lambda p: p + 0.1, params)
    together = module.apply({"params": params}, frames, segments).logits
    for i, sound in enumerate(sounds):
        alone = module.apply({"params": params}, sound[None]).logits
        np.testing.assert_allclose(together[i], alone[0], atol=1e-5)


def test_parameters_are_split_by_the_rules_of_the_model(sounds, transcriber):
    module, params = transcriber
    mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2, "sequence": 1})
    config = TransformerConfig(
        vocab_size=16, encoder_layers=1, decoder_layers=1, d_model=12, d_ff=20,
        num_heads=2, tie="decoder", dropout_embedding=0.0, dropout_residual=0.0,
    )  # fmt: skip
    module = Transcriber(config)
    frames, segments = pad(sounds, 16)
    target = jnp.ones((len(sounds), 3), jnp.int32)
    params = module.init(jax.random.key(1), frames, target, segments)["params"]
    alone = module.apply({"params": params}, frames, target, segments).logits
    places = sharding.shardings(params, mesh)
    kernels = params["ear"]["convolution_0"], params["ear"]["convolution_1"]
    assert [k["kernel"].shape for k in kernels] == [(3, BANDS, 12), (3, 12, 12)]
    first, second = (places["ear"][f"convolution_{i}"]["kernel"].spec for i in (0, 1))
    assert (first[2], second[1], second[2]) == ("tensor", "tensor", "fsdp")
    params = jax.device_put(params, places)
    with jax.set_mesh(mesh):
        batch = sharding.to_global(
            {
                "f": np.asarray(frames),
                "t": np.asarray(target),
                "s": np.asarray(segments),
            },
            mesh,
        )
        run = jax.jit(lambda p, b: module.apply({"params": p}, b["f"], b["t"], b["s"]))
        split = run(params, batch).logits
    np.testing.assert_allclose(split, alone, atol=2e-5)
