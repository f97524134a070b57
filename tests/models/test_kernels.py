"""Kernels of attention: each equals the einsum; `auto` chooses one that can run.

cuDNN itself needs a GPU: here JAX's own implementation takes its arguments. Splash runs
in Pallas' interpreter.
"""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from transformer_jax import config as configs
from transformer_jax import optim, sharding
from transformer_jax.base.errors import UserError
from transformer_jax.models import kernels
from transformer_jax.models.attention import Mask, attend, look_ahead_mask, padding_mask
from transformer_jax.models.kernels import Case, blockwise, choose, cudnn, splash
from transformer_jax.models.positions import DistanceBias
from transformer_jax.models.transformer import LanguageModel, Seq2Seq
from transformer_jax.models.transformer_config import TransformerConfig
from transformer_jax.runs.checkpoint import TrainState
from transformer_jax.tasks.language import LanguageObjective
from transformer_jax.tasks.parts.text import attention_of
from transformer_jax.train import train_step

B, T, S, N, G, K = 2, 37, 23, 6, 3, 8
ROW = np.repeat([[1] * 20 + [2] * 13 + [0] * 4, [1] * 10 + [2] * 20 + [0] * 7], 1, 0)
PACKED = jnp.asarray(ROW)
PLACES = jnp.asarray([[*range(20), *range(13), *[0] * 4], [*range(10), *range(27)]])
PADDED = (PACKED > 0).astype(jnp.int32)
SOURCE = jnp.asarray([[1] * 14 + [2] * 9, [1] * 3 + [2] * 17 + [0] * 3])
ORDER = jnp.arange(T)[None]

MASKS = {  # by name: the mask, and which queries are read
    "none": (None, None),
    "causal": (look_ahead_mask(ORDER, whole=True), None),
    "padded": (Mask(PADDED, PADDED, whole=True), PADDED),
    "keys padded": (padding_mask(PADDED), None),
    "causal padded": (look_ahead_mask(ORDER, PADDED, whole=True), PADDED),
    "packed": (Mask(PACKED, PACKED), PACKED),
    "causal packed": (look_ahead_mask(PLACES, PACKED), PACKED),
    "window": (look_ahead_mask(ORDER, whole=True).replace(window=4), None),
    "window padded": (
        look_ahead_mask(ORDER, PADDED, whole=True).replace(window=7),
        PADDED,
    ),
    "window packed": (look_ahead_mask(PLACES, PACKED).replace(window=6), PACKED),
    "cross padded": (Mask((SOURCE > 0).astype(jnp.int32), PADDED, whole=True), PADDED),
    "cross packed": (Mask(SOURCE, PACKED), PACKED),
}
KERNELS = {
    "blockwise 5": functools.partial(blockwise.attend, block=5),
    "blockwise 16": functools.partial(blockwise.attend, block=16),
    "blockwise 64": functools.partial(blockwise.attend, block=64),
    "cudnn": functools.partial(cudnn.attend, implementation="xla"),
    "splash": functools.partial(splash.attend, interpret=True),
}


def einsum(query, key, value, mask, bias):
    return attend(query, key, value, mask, bias)[0]


def normal(*shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def draw(keys, groups=G, dtype=jnp.float32):
    sizes = (T, N), (keys, groups), (keys, groups)
    return [normal(B, *s, K, seed=i, dtype=dtype) for i, s in enumerate(sizes)]


def run(function, qkv, mask, read, bias=None):
    """The output at the queries that are read, and the gradients of all inputs."""
    read = jnp.ones((B, T)) if read is None else read != 0

    def total(qkv, table):
        own = bias if table is None else bias.replace(table=table)
        output = function(*qkv, mask, own).astype(jnp.float32)
        output = jnp.where(read[..., None, None], output, 0)
        return (output**2).sum(), output

    table = None if bias is None else bias.table
    argnums = 0 if table is None else (0, 1)
    gradients, output = jax.jit(jax.grad(total, argnums, has_aux=True))(qkv, table)
    return jax.tree.leaves((output, gradients))


@functools.cache
def run_einsum(name):
    """What each kernel is compared with under this mask."""
    mask, read = MASKS[name]
    keys = T if mask is None else mask.key_segments.shape[1]
    return run(einsum, draw(keys), mask, read)


def assert_equal(got, expected, tolerance):
    for a, b in zip(got, expected, strict=True):
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        scale = np.abs(b).max()
        np.testing.assert_allclose(a / scale, b / scale, atol=tolerance)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_outputs_and_gradients_equal_those_of_the_einsum(kernel, name):
    mask, read = MASKS[name]
    if mask is not None and mask.window and kernel == "cudnn":
        case = dataclasses.replace(GPU, window=mask.window)
        assert "not a window of" in str(kernels.find_problem("cudnn", case))
        return
    keys = T if mask is None else mask.key_segments.shape[1]
    given = draw(keys), mask, read
    assert_equal(run(KERNELS[kernel], *given), run_einsum(name), 2e-6)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("kernel", ["blockwise 16", "cudnn", "splash"])
def test_heads_of_keys_may_be_shared(kernel, groups):
    given = draw(T, groups), *MASKS["causal packed"]
    assert_equal(run(KERNELS[kernel], *given), run(einsum, *given), 2e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_bfloat16_is_as_near_to_float32_as_the_einsum_is(kernel):
    mask, read = MASKS["causal packed"]
    half, exact = draw(T, dtype=jnp.bfloat16), draw(T)
    got = run(KERNELS[kernel], half, mask, read)
    assert {x.dtype for x in got[1:]} == {np.dtype(jnp.bfloat16)}
    assert_equal(got, run(einsum, exact, mask, read), 0.03)


def make_bias(kind, positions):
    table = normal(8, N, seed=9) if kind == "relative" else None
    return DistanceBias(positions, positions, table, kind, N, causal=True, furthest=16)


@pytest.mark.parametrize("mask", ["causal padded", "causal packed"])
@pytest.mark.parametrize("kind", ["relative", "alibi"])
@pytest.mark.parametrize("block", [5, 16, 64])
def test_a_bias_by_distance_is_made_for_each_block(block, kind, mask):
    bias = make_bias(kind, PLACES if mask == "causal packed" else ORDER)
    given = draw(T), *MASKS[mask], bias
    got = run(KERNELS[f"blockwise {block}"], *given)
    assert len(got) == (5 if kind == "relative" else 4)  # the table has a gradient
    assert_equal(got, run(einsum, *given), 3e-6)


def test_a_query_that_sees_nothing_gets_zeros_and_no_gradient():
    segments = PADDED.at[0].set(0)
    got = run(KERNELS["blockwise 16"], draw(T), padding_mask(segments), None)
    assert all(np.isfinite(x).all() and (x[0] == 0).all() for x in got)
    assert np.abs(got[0][1]).max() > 0.1


@pytest.mark.parametrize("kind", ["none", "relative", "alibi"])
def test_devices_that_share_rows_and_heads_compute_what_one_does(kind):
    bias = None if kind == "none" else make_bias(kind, PLACES)
    given = draw(T, groups=2), *MASKS["causal packed"], bias
    function = functools.partial(kernels.attend, "blockwise")
    alone = run(function, *given)
    devices = np.array(jax.devices()[:4]).reshape(2, 1, 2, 1)
    with jax.set_mesh(Mesh(devices, sharding.AXES, axis_types=(AxisType.Auto,) * 4)):
        assert_equal(run(function, *given), alone, 1e-6)


def test_memory_grows_with_the_length_and_not_with_its_square():
    def memory(function, length):
        x = jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32)
        mask = look_ahead_mask(jnp.arange(length)[None])
        gradient = jax.grad(lambda *x: (function(*x, mask, None) ** 2).sum(), (0, 1, 2))
        compiled = jax.jit(gradient).lower(x, x, x).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    blocks = functools.partial(blockwise.attend, block=64)
    assert memory(blocks, 2048) < 4.5 * memory(blocks, 512)
    assert memory(einsum, 2048) > 12 * memory(einsum, 512)


GPU = Case("gpu", jnp.bfloat16, 64, 64, 8, queries=512, keys=512)
CPU = dataclasses.replace(GPU, platform="cpu")
TPU = dataclasses.replace(GPU, platform="tpu")


@pytest.mark.parametrize(
    "case, changes, expected",
    [
        (GPU, {}, "cudnn"),
        (GPU, {"dtype": "float32"}, "einsum"),
        (GPU, {"dropout": 0.1}, "einsum"),
        (GPU, {"bias": True}, "einsum"),
        (GPU, {"bias": True, "queries": 4096, "keys": 4096}, "blockwise"),
        (GPU, {"d_v": 32}, "einsum"),
        (GPU, {"window": 64}, "einsum"),
        (TPU, {"window": 64}, "splash"),
        (GPU, {"d_k": 36, "d_v": 36}, "einsum"),
        (GPU, {"sequence": 2}, "einsum"),
        (GPU, {"kv_heads": 1, "tensor": 2}, "einsum"),
        (GPU, {"packed": True}, "cudnn"),
        (GPU, {"packed": True, "keys": 511}, "einsum"),
        (TPU, {}, "splash"),
        (TPU, {"keys": 64}, "einsum"),
        (TPU, {"bias": True}, "einsum"),
        (CPU, {}, "einsum"),
        (CPU, {"queries": 1024, "keys": 1024}, "einsum"),
        (CPU, {"queries": 1025, "keys": 1024}, "blockwise"),
        (CPU, {"queries": 4096, "keys": 4096, "dropout": 0.1}, "einsum"),
    ],
)
def test_auto_takes_what_the_hardware_and_the_case_allow(case, changes, expected):
    choice = choose("auto", dataclasses.replace(case, **changes))
    assert choice.kernel == expected
    usual = (
        expected == {"gpu": "cudnn", "tpu": "splash", "cpu": "einsum"}[case.platform]
    )
    assert bool(choice.reason) != usual or "dropout" in changes


def test_a_kernel_that_cannot_run_is_an_error_in_training_and_is_replaced_elsewhere():
    with pytest.raises(
        UserError,
        match="'cudnn' runs on a gpu, not on a cpu: set it to 'einsum', or "
        "model.attention to 'auto'",
    ):
        choose("cudnn", CPU)
    assert choose("cudnn", CPU, strict=False).kernel == "einsum"
    assert choose("blockwise", CPU).kernel == "blockwise"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"attention": "flash"}, "model.attention = 'flash': choose auto | einsum"),
        ({"attention": "cudnn"}, "set model.dtype to 'bfloat16'"),
        ({"attention": "splash", "positions": "alibi"}, "adds no bias to scores"),
        (
            {"attention": "cudnn", "dtype": "bfloat16", "attention_window": 64},
            "reads whole rows, not a window of 64: set model.attention_window to 0",
        ),
        (
            {"attention": "blockwise", "dropout_attention": 0.1},
            "dropout_attention to 0.0",
        ),
    ],
)
def test_a_config_with_a_kernel_that_cannot_work_is_refused(changes, message):
    overrides = {f"model.{key}": str(value) for key, value in changes.items()}
    with pytest.raises(UserError, match=r".*" + message.replace("|", r"\|")):
        configs.load("quickstart", overrides)


CONFIG = TransformerConfig(
    encoder_layers=2, decoder_layers=2, d_model=12, d_ff=20, num_heads=6, kv_heads=3,
    vocab_size=31, vocab_rows=32, source_vocab_size=31, source_vocab_rows=32,
    positions="relative", relative_buckets=8,
)  # fmt: skip
BLOCKS = dataclasses.replace(CONFIG, attention="blockwise")
TOKENS = jnp.asarray(np.random.default_rng(5).integers(4, 31, (B, T))) * PADDED


@pytest.mark.system
def test_ten_steps_of_training_by_blocks_equal_those_of_the_einsum(monkeypatch):
    monkeypatch.setattr(blockwise.attend, "__defaults__", (16,))
    settings = configs.base(task="language")
    optimizer = optim.make_optimizer(settings)
    batch = {"tokens": TOKENS, "segments": PACKED, "positions": PLACES}

    def train(config):
        objective = LanguageObjective(settings, LanguageModel(config), 31)
        params = objective.init(jax.random.key(0))
        state = (0, params, optimizer.init(params), jax.random.key(1), None)
        state, step = (
            TrainState(*state),
            functools.partial(
                train_step, loss=objective.loss, optimizer=optimizer, micro_batches=1
            ),
        )
        found, step = [], jax.jit(step)
        for _ in range(10):
            state, outcome = step(state, batch)
            found.append(outcome.sums.loss / outcome.sums.weight)
        return np.array(found)

    expected = train(CONFIG)
    assert abs(expected[0] - expected[-1]) > 1e-3
    for config in (BLOCKS, dataclasses.replace(BLOCKS, remat="full")):
        np.testing.assert_allclose(train(config), expected, rtol=1e-5)


@functools.cache
def translate(config):
    module = Seq2Seq(config)
    params = module.init(jax.random.key(0), TOKENS, TOKENS)
    return module, params, jax.jit(module.apply)(params, TOKENS, TOKENS)


def test_a_kernel_returns_no_weights_so_inspection_uses_the_einsum():
    module, params, outputs = translate(BLOCKS)
    _, _, expected = translate(CONFIG)
    np.testing.assert_allclose(outputs.logits, expected.logits, atol=1e-5)
    assert outputs.self_attention == outputs.cross_attention == ()
    with pytest.raises(UserError, match="model.attention makes no weights"):
        attention_of(outputs.cross_attention)
    inside = jax.jit(kernels.with_weights(module).apply)(params, TOKENS, TOKENS)
    for name in ("self_attention", "cross_attention", "encoder_attention"):
        got, want = getattr(inside, name), getattr(expected, name)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)
    other = nn.Dense(3)  # a module without kernels
    assert kernels.with_weights(other) is other


def test_a_search_with_a_kernel_reads_as_the_forward_pass_does():
    module, params, outputs = translate(BLOCKS)
    call = functools.partial(module.apply, params)
    batch = {"source": TOKENS, "source_segments": jnp.ones_like(TOKENS)}
    static, state = call(batch, T, method="start")
    found = []
    for first in (0, 11):
        tokens = TOKENS[:, None, first : first + 11]
        places = jnp.broadcast_to(ORDER[:, None, first : first + 11], tokens.shape)
        logits, state = call(tokens, places, static, state, method="extend")
        found.append(logits[:, 0])
    expected = outputs.logits[:, :22]
    np.testing.assert_allclose(jnp.concatenate(found, 1), expected, atol=1e-4)
