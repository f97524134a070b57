"""Attention: which tokens see which; hiding, splitting and folding are exact."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import sharding
from transformer_jax.models import attention
from transformer_jax.models.attention import (
    Mask,
    MultiHeadAttention,
    attend,
    look_ahead_mask,
    padding_mask,
)
from transformer_jax.models.cache import KeysValues, KVCache

B, T, S, N, K, H, D = 2, 3, 5, 7, 11, 13, 17
ALLOWED = np.array(
    [
        [[1, 1, 0, 0, 1], [0, 1, 1, 1, 1], [1, 0, 0, 0, 0]],
        [[0, 0, 1, 1, 0], [1, 1, 1, 1, 1], [0, 1, 0, 1, 0]],
    ],
    bool,
)[:, None]
EMPTY = ALLOWED.copy()
EMPTY[1, 0, 1] = False


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@pytest.fixture(scope="module")
def qkv():
    return normal(B, T, N, K), normal(B, S, N, K, seed=1), normal(B, S, N, H, seed=2)


def hide(allowed, way):
    """The same mask as the arguments of `attend`, in one of the three ways."""
    if way == "boolean":
        return {"mask": jnp.asarray(allowed)}
    hidden = {"-1e9": -1e9, "-inf": -np.inf}[way]
    return {"bias": jnp.asarray(np.where(allowed, 0.0, hidden), jnp.float32)}


WAYS = ("boolean", "-1e9", "-inf")


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("way", WAYS)
def test_attention_is_the_papers_formula(qkv, way):
    q, k, v = (np.asarray(x, np.float64) for x in qkv)
    output, weights = attend(*qkv, **hide(ALLOWED, way))
    for b in range(B):
        for n in range(N):
            scores = q[b, :, n] @ k[b, :, n].T / K**0.5
            expected = softmax(np.where(ALLOWED[b, 0], scores, -np.inf))
            np.testing.assert_allclose(weights[b, n], expected, atol=1e-6)
            np.testing.assert_allclose(
                output[b, :, n], expected @ v[b, :, n], atol=1e-5
            )


@pytest.mark.parametrize("way", WAYS)
def test_hidden_keys_have_weight_zero_and_each_head_sums_to_one(qkv, way):
    _, weights = attend(*qkv, **hide(ALLOWED, way))
    hidden = np.broadcast_to(~ALLOWED, weights.shape)
    assert (np.asarray(weights)[hidden] == 0).all()
    assert (np.asarray(weights)[~hidden] > 0).all()
    np.testing.assert_allclose(weights.sum(-1), np.ones((B, N, T)), rtol=1e-6)


@functools.partial(jax.jit, static_argnames="way")
def value_and_gradients(qkv, way):
    arguments = hide(EMPTY, way)

    def total(qkv, bias):
        output, weights = attend(*qkv, arguments.get("mask"), bias)
        return (output**2).sum() + (weights**2).sum(), (output, weights)

    argnums = (0, 1) if "bias" in arguments else 0
    return jax.value_and_grad(total, argnums, has_aux=True)(qkv, arguments.get("bias"))


@pytest.mark.parametrize("way", WAYS)
def test_a_query_that_sees_nothing_stays_finite_forwards_and_backwards(qkv, way):
    (_, (output, weights)), gradients = value_and_gradients(qkv, way)
    for array in jax.tree.leaves((output, weights, gradients)):
        assert np.isfinite(array).all()
    np.testing.assert_allclose(weights.sum(-1), np.ones((B, N, T)), rtol=1e-6)
    _, others = attend(*qkv, **hide(ALLOWED, way))
    np.testing.assert_allclose(weights[0], others[0], atol=1e-6)


def test_permuting_keys_with_their_values_changes_nothing(qkv):
    q, k, v = qkv
    order = np.array([3, 0, 4, 2, 1])
    output, weights = attend(q, k, v, jnp.asarray(ALLOWED))
    again, permuted = attend(
        q, k[:, order], v[:, order], jnp.asarray(ALLOWED[..., order])
    )
    np.testing.assert_allclose(again, output, atol=1e-5)
    np.testing.assert_allclose(permuted, weights[..., order], atol=1e-6)


def test_the_softmax_is_in_float32_when_the_computation_is_in_bfloat16():
    half = jnp.bfloat16
    q, k = normal(B, T, N, 4).astype(half), normal(B, S, N, 4, seed=1).astype(half)
    output, weights = attend(q, k, normal(B, S, N, H).astype(half))
    assert output.dtype == half and weights.dtype == jnp.float32
    scores = np.einsum("btnk,bsnk->bnts", np.float64(q), np.float64(k)) / 2
    np.testing.assert_allclose(weights, softmax(scores), atol=1e-6)


def test_dropout_acts_on_the_weights_that_attend_not_on_those_returned(qkv):
    _, plain = attend(*qkv)
    output, weights = attend(*qkv, dropout=lambda w: 2 * w)
    np.testing.assert_allclose(output, 2 * attend(*qkv)[0], atol=1e-5)
    np.testing.assert_array_equal(weights, plain)


@pytest.fixture(scope="module")
def heads():
    """A multi-head attention, random parameters for it, queries and keys."""
    module = MultiHeadAttention(D, N, K, H)

    def run(module, x, memory, mask=None):
        return module(x, module.keys_values(memory), mask)

    x, memory = normal(B, T, D), normal(B, S, D, seed=1)
    shapes = jax.eval_shape(
        lambda: module.init(jax.random.key(0), x, memory, method=run)
    )
    rng = np.random.default_rng(3)
    params = jax.tree.map(
        lambda s: jnp.asarray(rng.normal(size=s.shape) / D**0.5, jnp.float32), shapes
    )
    return module, run, params["params"], x, memory


def test_queries_keys_and_values_begin_as_one_matrix_of_all_three(heads):
    _, run, *_ = heads
    size = 64
    module = MultiHeadAttention(size, 4, size // 4, size // 4)
    x = normal(1, T, size)
    begun = module.init(jax.random.key(1), x, x, method=run)["params"]
    # Glorot: uniform, up to the root of 6 over the sum of a matrix's two sizes.
    for name, both in {"query": 4, "key": 4, "value": 4, "out": 2}.items():
        largest = float(jnp.abs(begun[name]["kernel"]).max())
        assert largest == pytest.approx((6 / (both * size)) ** 0.5, rel=0.01)


def test_one_projection_split_over_heads_is_a_projection_per_head(heads):
    module, run, params, x, memory = heads
    mask = jnp.asarray(ALLOWED)
    together, weights = module.apply({"params": params}, x, memory, mask, method=run)
    single = jax.jit(
        lambda p: MultiHeadAttention(D, 1, K, H).apply(
            {"params": p}, x, memory, mask, method=run
        )
    )
    total = 0.0
    for n in range(N):
        own = {
            name: {k: heads_columns(a, n, size) for k, a in params[name].items()}
            for name, size in {"query": K, "key": K, "value": H}.items()
        }
        kernel = params["out"]["kernel"][n * H : (n + 1) * H]
        own["out"] = {"kernel": kernel, "bias": params["out"]["bias"] / N}
        output, alone = single(own)
        np.testing.assert_allclose(alone[:, 0], weights[:, n], atol=1e-6)
        total += output
    np.testing.assert_allclose(together, total, atol=1e-5)


def heads_columns(array, head, size):
    return array[..., head * size : (head + 1) * size]


def test_beams_that_share_a_source_see_it_as_if_each_had_its_own_copy(heads):
    module, run, params, _, memory = heads
    beams = 3
    x = normal(B * beams, T, D, seed=4)
    mask = padding_mask(jnp.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]]))
    shared = module.apply({"params": params}, x, memory, mask, method=run)
    copied = module.apply(
        {"params": params},
        x,
        jnp.repeat(memory, beams, axis=0),
        padding_mask(jnp.repeat(mask.key_segments, beams, axis=0)),
        method=run,
    )
    for one, other in zip(shared, copied, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, atol=1e-5)


BEAMS = 3


def filled_cache(steps, beams=BEAMS):
    """A cache into which the hypotheses of two rows have written their own values."""
    return fill(KVCache.empty(1, B, beams, S, (N, K, H), jnp.float32), 0, steps)


def fill(cache, first, end):
    """The cache after these steps, and what was written [B, beams, step, N, H + K]."""
    written, beams = [], cache.writer.shape[1]
    for step in range(first, end):
        positions = jnp.full((B, beams, 1), step)
        cache = cache.begin_step(positions)
        seed = 2 * step + 3
        new = KeysValues(
            normal(B * beams, N, 1, K, seed=seed),
            normal(B * beams, N, 1, H, seed=seed + 1),
        )
        layer = cache.write(cache.layers[0], new)
        cache = cache.end_step((layer,), None, positions)
        both = np.concatenate([new.value, new.key], axis=-1)
        written.append(both.reshape(B, beams, N, H + K))
    return cache, np.stack(written, axis=2)


def seen_by(cache, step):
    """The values and keys, by slot, that the mask of each hypothesis lets through."""
    beams, slots = cache.writer.shape[1:]
    mask = np.asarray(cache.mask(jnp.full((B, beams, 1), step)))
    mask = mask.reshape(B, beams, slots, beams)
    # Slots may be in any order; positions say which is which.
    order = np.argsort(np.where(cache.positions[0] < 0, slots, cache.positions[0]))
    mask = mask[:, :, order]
    assert (mask.sum(axis=-1)[:, :, : step + 1] == 1).all()
    assert not mask[:, :, step + 1 :].any()
    value = np.asarray(cache.layers[0].value).reshape(B, N, slots, beams, H)
    key = np.asarray(cache.layers[0].key).reshape(B, N, slots, beams, K)
    value, key = value[:, :, order], key[:, :, order]
    seen = (
        np.einsum("bksj,bnsjh->bksnh", mask, value),
        np.einsum("bksj,bnsjh->bksnh", mask, key),
    )
    return np.concatenate(seen, axis=-1)[:, :, : step + 1]


def test_each_hypothesis_reads_what_it_wrote():
    cache, written = filled_cache(3)
    np.testing.assert_array_equal(seen_by(cache, 2), written)


def test_a_hypothesis_that_follows_another_reads_what_that_one_read():
    cache, written = filled_cache(3)
    parents = np.array([[2, 0, 0], [1, 1, 2]])
    followed = cache.reorder(jnp.asarray(parents))
    rows = np.arange(B)[:, None]
    np.testing.assert_array_equal(seen_by(followed, 2), written[rows, parents])
    again = followed.reorder(jnp.asarray(parents))
    np.testing.assert_array_equal(
        seen_by(again, 2), written[rows, parents][rows, parents]
    )
    # Nothing was moved.
    for old, new in zip(cache.layers, again.layers, strict=True):
        assert old.value is new.value


def test_hypotheses_that_go_on_from_one_read_what_it_read_and_then_their_own():
    cache, written = filled_cache(2, beams=1)
    wide = cache.tile(BEAMS)
    np.testing.assert_array_equal(seen_by(wide, 1), np.repeat(written, BEAMS, axis=1))
    wide, own = fill(wide, 2, 3)
    np.testing.assert_array_equal(seen_by(wide, 2)[:, :, 2:], own)


@pytest.mark.parametrize("slots", [3, S + 4])
def test_a_cache_of_another_size_holds_what_was_written(slots):
    cache, written = filled_cache(2)
    other = cache.resize(slots)
    assert other.layers[0].key.shape[2] == slots * BEAMS
    np.testing.assert_array_equal(seen_by(other, 1), written)
    other, own = fill(other, 2, 3)
    np.testing.assert_array_equal(seen_by(other, 2)[:, :, 2:], own)


def test_padding_in_the_cache_is_never_attended_to():
    cache = KVCache.empty(1, B, BEAMS, S, (N, K, H), jnp.float32)
    positions = jnp.broadcast_to(
        jnp.array([[[0, 1, -1]], [[0, -1, -1]]]), (B, BEAMS, 3)
    )
    mask = np.asarray(cache.begin_step(positions).mask(positions))
    seen = mask.reshape(B, BEAMS, 3, S, BEAMS).any(axis=-1)
    assert not seen[0, :, :, 2].any() and not seen[1, :, :, 1:].any()
    assert seen[0, :, 1, :2].all() and not seen[0, :, 0, 1].any()


def boolean(*rows):
    """A row of a mask from a string: x sees, . does not."""
    return np.array([[c == "x" for c in row] for row in rows])


def test_padding_is_hidden_from_every_query():
    dense = padding_mask(jnp.array([[1, 1, 0], [1, 0, 0]])).dense()
    assert dense.shape == (2, 1, 1, 3)
    np.testing.assert_array_equal(dense[:, 0, 0], boolean("xx.", "x.."))


def test_looking_ahead_is_hidden():
    dense = look_ahead_mask(jnp.arange(4)[None]).dense()
    np.testing.assert_array_equal(dense[0, 0], boolean("x...", "xx..", "xxx.", "xxxx"))


def test_look_ahead_and_padding_together_hide_both():
    dense = look_ahead_mask(jnp.arange(4)[None], jnp.array([[1, 1, 0, 0]])).dense()
    np.testing.assert_array_equal(dense[0, 0], boolean("x...", "xx..", "..x.", "..xx"))


def test_packed_sentences_see_only_their_own_segment():
    segments = jnp.array([[1, 1, 2, 2, 2, 0]])
    np.testing.assert_array_equal(
        Mask(segments, segments).dense()[0, 0],
        boolean("xx....", "xx....", "..xxx.", "..xxx.", "..xxx.", ".....x"),
    )


def test_look_ahead_counts_within_a_packed_segment():
    positions = jnp.array([[0, 1, 0, 1, 2, 0]])
    mask = look_ahead_mask(positions, jnp.array([[1, 1, 2, 2, 2, 0]]))
    np.testing.assert_array_equal(
        mask.dense()[0, 0],
        boolean("x.....", "xx....", "..x...", "..xx..", "..xxx.", ".....x"),
    )


def test_cross_attention_joins_the_segments_of_two_packed_sequences():
    mask = Mask(jnp.array([[1, 2, 2, 0, 0]]), jnp.array([[1, 1, 2]]))
    np.testing.assert_array_equal(
        mask.dense()[0, 0], boolean("x....", "x....", ".xx..")
    )


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_few_queries_of_a_search_attend_by_the_formula(platform, monkeypatch):
    """Few queries and many keys are multiplied in another order on a CPU."""
    monkeypatch.setattr(sharding, "platform", lambda: platform)
    rng = np.random.default_rng(5)
    query, key, value = (
        jnp.asarray(rng.normal(size=(2, heads, length, 7)), jnp.float32)
        for heads, length in ((6, 3), (3, 29), (3, 29))
    )
    mask = jnp.asarray(rng.random((2, 1, 3, 29)) < 0.7)

    def run(query, key, value):
        return attention.attend_by_head(query, key, value, mask)[0]

    def by_definition(query, key, value):
        key, value = (jnp.repeat(x, 2, axis=1) for x in (key, value))
        scores = query @ key.swapaxes(2, 3) / np.sqrt(7)
        return jax.nn.softmax(jnp.where(mask, scores, -1e9)) @ value

    arrays = query, key, value
    np.testing.assert_allclose(run(*arrays), by_definition(*arrays), atol=1e-5)
    gradients = [
        jax.grad(lambda *a, f=f: (f(*a) ** 2).sum(), argnums=(0, 1, 2))(*arrays)
        for f in (run, by_definition)
    ]
    for found, wanted in zip(*gradients, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-4)
    barriers = str(jax.make_jaxpr(run)(*arrays)).count("optimization_barrier")
    assert barriers == (platform == "cpu")
