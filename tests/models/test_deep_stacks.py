"""Deep stacks: each arrangement of sublayers by its formula, in NumPy."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import config as configs
from transformer_jax.base.errors import UserError
from transformer_jax.models.attention import look_ahead_mask
from transformer_jax.models.layers import deepnorm_for
from transformer_jax.models.positions import sinusoid
from transformer_jax.models.registry import Longest
from transformer_jax.models.stack import Stack
from transformer_jax.models.transformer import LanguageModel, Seq2Seq
from transformer_jax.models.transformer_config import TransformerConfig, find_problems

B, T, S, D, F, N, LAYERS = 2, 5, 7, 12, 11, 3, 3
ORDER = jnp.arange(T)[None]


def config(**changes):
    sizes = dict(
        vocab_size=13, encoder_layers=LAYERS, decoder_layers=LAYERS, d_model=D, d_ff=F,
        num_heads=N, norm_epsilon=1e-5, dropout_embedding=0.0, dropout_residual=0.0,
    )  # fmt: skip
    return TransformerConfig(**{**sizes, **changes})


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def stack_of(cross=False, **changes):
    """A stack, random parameters, and its inputs."""
    module = Stack(config(**changes), LAYERS, causal=cross, cross=cross)
    mask = look_ahead_mask(ORDER) if cross else None
    memory = jnp.asarray(normal(B, S, D, seed=2)) if cross else None
    inputs = jnp.asarray(normal(B, T, D, seed=1)), ORDER, mask
    shapes = jax.eval_shape(functools.partial(module.init, memory=memory),
                            jax.random.key(0), *inputs)["params"]  # fmt: skip
    leaves, tree = jax.tree.flatten(shapes)
    noise = [0.4 * normal(*leaf.shape, seed=i) for i, leaf in enumerate(leaves)]
    return module, jax.tree.unflatten(tree, noise), inputs, memory


# The formulas, in NumPy.


def linear(p, x):
    return x @ p["kernel"] + p["bias"]


def norm(p, x):
    centred = x - x.mean(-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return centred / spread * p["scale"] + p["bias"]


def attend(p, x, memory, causal):
    heads = []
    split = D // N
    query = linear(p["query"], x)
    key, value = linear(p["key"], memory), linear(p["value"], memory)
    for h in range(N):
        own = slice(h * split, (h + 1) * split)
        scores = query[..., own] @ key[..., own].swapaxes(1, 2) / np.sqrt(split)
        if causal:
            scores = np.where(np.tri(T, dtype=bool), scores, -1e30)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        heads.append(weights / weights.sum(-1, keepdims=True) @ value[..., own])
    return linear(p["out"], np.concatenate(heads, -1))


def sublayers(p, memory):
    """The sublayers as functions of their inputs, by name."""
    causal = memory is not None
    found = {"self_attention": lambda y: attend(p["self_attention"], y, y, causal)}
    if causal:
        found["cross_attention"] = lambda y: attend(
            p["cross_attention"], y, memory, False
        )
    inner, outer = p["feed_forward"]["inner"], p["feed_forward"]["outer"]
    found["feed_forward"] = lambda y: linear(outer, np.maximum(linear(inner, y), 0))
    return found


def post(p, x, f, name, alpha=1.0):
    return norm(p[f"{name}_norm"], alpha * x + f(x))


def pre(p, x, f, name):
    return x + f(norm(p[f"{name}_norm"], x))


def sandwich(p, x, f, name):
    return x + norm(p[f"{name}_output_norm"], f(norm(p[f"{name}_norm"], x)))


def deepnorm(p, x, f, name):
    """A decoder of 3 layers that reads an encoder, or an encoder of 3 alone."""
    alpha = 9**0.25 if "cross_attention" in p else 6**0.25
    return post(p, x, f, name, alpha)


RESIDUALS = {"post": post, "pre": pre, "sandwich": sandwich, "deepnorm": deepnorm}
FORMS = [
    *({"norm": name} for name in RESIDUALS),
    {"norm": "pre", "parallel_sublayers": True},
    {"norm": "deepnorm", "parallel_sublayers": True},
    {"shared_layers": "all"},
    {"shared_layers": "universal", "positions": "sinusoid"},
    {"shared_layers": "universal", "positions": "none", "norm": "pre"},
]


def run_by_hand(params, x, memory, form):
    add = RESIDUALS[form.get("norm", "post")]
    for i in range(LAYERS):
        shared = form.get("shared_layers", "none")
        p = params["layer_0" if shared != "none" else f"layer_{i}"]
        if shared == "universal":
            x = x + waves(i + 1)
            if form["positions"] == "sinusoid" and i > 0:
                x = x + np.stack([waves(t) for t in range(T)])
        parts = sublayers(p, memory)
        if form.get("parallel_sublayers"):
            together = lambda y, parts=parts: sum(f(y) for f in parts.values())  # noqa: E731
            x = add(p, x, together, "layer")
        else:
            for name, f in parts.items():
                x = add(p, x, f, name)
    return norm(params["norm"], x) if "norm" in params else x


def waves(number):
    angles = number / 10_000 ** (np.arange(0, D, 2) / D)
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(D)


@pytest.mark.parametrize("cross", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_arrangement_is_its_formula(form, cross):
    module, params, inputs, memory = stack_of(cross, **form)
    source = (
        module.apply({"params": params}, memory, method="cross_keys_values")
        if cross
        else None
    )
    got = module.apply({"params": params}, *inputs, source)[0]
    exact = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
    x = np.asarray(inputs[0], np.float64)
    expected = run_by_hand(exact, x, memory, form)
    np.testing.assert_allclose(got, expected, atol=2e-4, rtol=2e-4)
    assert ("norm" in params) == (form.get("norm") in ("pre", "sandwich"))


@pytest.mark.parametrize(
    ("sizes", "alpha", "beta"),
    [  # figure 2 of Wang et al., 2022, worked out by hand
        ((12, False, 0), 24**0.25, 96**-0.25),  # BERT
        ((24, False, 0), 48**0.25, 192**-0.25),  # GPT
        ((6, False, 6), 0.81 * 6 ** (5 / 16), 0.87 * 6 ** (-5 / 16)),  # an encoder
        ((18, False, 2), 0.81 * 1.0443 * 18**0.25, 0.87 / 1.0443 / 18**0.25),
        ((6, True, 0), 18**0.25, 72**-0.25),  # its decoder
    ],
)
def test_deepnorm_has_the_constants_of_the_paper(sizes, alpha, beta):
    found = deepnorm_for(*sizes)
    np.testing.assert_allclose([found.alpha, found.beta], [alpha, beta], rtol=1e-4)


def test_each_stack_of_a_model_has_its_own_constants():
    sizes = dict(encoder_layers=2, decoder_layers=3, norm="deepnorm")
    tokens = jnp.ones((1, 2), jnp.int32)
    seen = {}

    def note(call, args, kwargs, context):
        if hasattr(context.module, "deepnorm"):
            seen[context.module.path[0]] = context.module.deepnorm
        return call(*args, **kwargs)

    for module, inputs in (
        (Seq2Seq(config(**sizes)), (tokens, tokens)),
        (LanguageModel(config(**sizes)), (tokens,)),
    ):
        with nn.intercept_methods(note):
            jax.eval_shape(module.init, jax.random.key(0), *inputs)
        if len(inputs) == 2:
            assert seen["encoder"] == deepnorm_for(2, False, 3)
            assert seen["decoder"] == deepnorm_for(3, True, 0)
    assert seen["decoder"] == deepnorm_for(3, False, 0)


def test_deepnorm_begins_as_the_paper_says():
    """Xavier's normal: gain β for values, outputs and feed-forward, 1 for the rest."""
    wide = config(norm="deepnorm", d_model=96, d_ff=160, num_heads=3)
    module = Stack(wide, LAYERS)
    x = jnp.ones((1, 2, 96))
    params = module.init(jax.random.key(0), x, ORDER[:, :2], None)["params"]
    beta = 24**-0.25
    for name, p in params["layer_1"]["self_attention"].items():
        gain = 1.0 if name in ("query", "key") else beta
        check_normal(p["kernel"], gain)
    for p in params["layer_1"]["feed_forward"].values():
        check_normal(p["kernel"], beta)


def check_normal(kernel, gain):
    z = np.asarray(kernel) / (gain * np.sqrt(2 / sum(kernel.shape)))
    assert abs(z.var() - 1) < 5 * np.sqrt(2 / z.size)
    assert abs((z**4).mean() - 3) < 5 * np.sqrt(96 / z.size)  # a uniform draw has 1.8


def test_shared_layers_have_one_set_of_parameters_which_learns_from_all():
    module, params, inputs, _ = stack_of(shared_layers="all")
    assert set(params) == {"layer_0"}
    plain, copies = stack_of()[0], {f"layer_{i}": params["layer_0"] for i in range(3)}

    def loss(module, params):
        return jnp.sin(module.apply({"params": params}, *inputs)[0]).sum()

    one = jax.grad(functools.partial(loss, module))(params)["layer_0"]
    each = jax.grad(functools.partial(loss, plain))(copies)
    total = jax.tree.map(lambda *g: sum(g), *each.values())
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-3), one, total)


@pytest.mark.parametrize("remat", ["attention", "dots", "full"])
def test_shared_layers_may_be_recomputed(remat):
    def slopes(remat):
        changes = dict(shared_layers="universal", remat=remat, dropout_residual=0.3)
        module, params, inputs, _ = stack_of(**changes)
        rngs = {"dropout": jax.random.key(3)}

        def loss(params):
            out = module.apply({"params": params}, *inputs, train=True, rngs=rngs)[0]
            return jnp.sin(out).sum()

        return jax.grad(loss)(params)

    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=1e-3),
        slopes("none"), slopes(remat),
    )  # fmt: skip


def run_dropped(seeds=60, **changes):
    """The outputs of a stack with dropped layers, by key."""
    module, params, inputs, _ = stack_of(norm="pre", dropout_layers=0.4, **changes)

    @jax.jit
    def run(key):
        rngs = {"dropout": key}
        return module.apply({"params": params}, *inputs, train=True, rngs=rngs)[0]

    keys = jax.random.split(jax.random.key(0), seeds)
    return np.stack([run(key) for key in keys]), params, inputs


def test_a_layer_is_dropped_entirely_and_at_the_given_rate():
    found, params, inputs = run_dropped()
    exact = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
    outcomes = {}
    for kept in np.ndindex(*[2] * LAYERS):
        x = np.asarray(inputs[0], np.float64)
        for i in np.flatnonzero(kept):
            p = exact[f"layer_{i}"]
            for name, f in sublayers(p, None).items():
                x = pre(p, x, f, name)
        outcomes[kept] = norm(exact["norm"], x)
    kept = []
    for one in found:
        far = {k: np.abs(one - out).max() for k, out in outcomes.items()}
        best = min(far, key=far.__getitem__)
        assert far[best] < 1e-3
        kept.append(best)
    share, count = np.mean(kept, axis=0), len(kept)
    np.testing.assert_allclose(share, 0.6, atol=4 * np.sqrt(0.24 / count))
    assert len(set(kept)) > 4  # each layer draws for itself


def test_no_layer_is_dropped_when_answering():
    module, params, inputs, _ = stack_of(norm="pre", dropout_layers=0.4)
    plain = stack_of(norm="pre")[0]
    answers = [m.apply({"params": params}, *inputs)[0] for m in (module, plain)]
    np.testing.assert_array_equal(*answers)


def test_scanned_layers_are_dropped_when_unrolled_ones_are():
    one, other = (run_dropped(5, scan_layers=scan)[0] for scan in (False, True))
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_the_round_tells_shared_layers_apart():
    """By the sinusoid of its number, from 1; positions come in with the embeddings."""
    module = Stack(config(shared_layers="universal"), LAYERS)
    signal = functools.partial(module._round_signal, positions=ORDER)
    first, second = signal(0), signal(1)
    one = sinusoid(jnp.ones((1, T), jnp.int32), D)
    np.testing.assert_allclose(first, one, atol=1e-6)
    expected = sinusoid(2 * jnp.ones((1, T), jnp.int32), D) + sinusoid(ORDER, D)
    np.testing.assert_allclose(second, expected, atol=1e-6)


def test_incompatible_settings_are_refused():
    with pytest.raises(UserError, match="scan_layers = True with .*'all'.*'none'"):
        configs.load(
            "quickstart",
            {"model.scan_layers": "True", "model.shared_layers": "all"},
        )
    config = configs.base()
    with config.unlocked():
        config.model.update(
            d_model=15, num_heads=3, shared_layers="universal", positions="none"
        )
    problems = find_problems(config, Longest(5, 5, ""))
    assert any("d_model 15 is odd" in problem for problem in problems)
