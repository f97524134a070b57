"""The types of all computations: the table of docs/variants.md, from the programs."""

import dataclasses
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import config as configs
from transformer_jax import losses, optim
from transformer_jax.base.ids import EOS
from transformer_jax.models.attention import attend
from transformer_jax.models.layers import dense, layer_norm
from transformer_jax.models.transformer import LanguageModel
from transformer_jax.models.transformer_config import TransformerConfig

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "variants.md"
TOKENS = jnp.array([[7, 9, 5, EOS], [8, 4, EOS, 0]])
CONFIG = TransformerConfig(
    vocab_size=19, decoder_layers=1, d_model=14, d_ff=11, num_heads=7, dtype="bfloat16"
)


def operations(function, *arguments):
    """(name, types of the inputs, type of the output) of each operation, loops' too."""
    found = []

    def read(program):
        for one in program.eqns:
            inner = [p for p in one.params.values() if hasattr(p, "jaxpr")]
            for part in inner:
                read(part.jaxpr)
            types = [v.aval.dtype.name for v in one.invars if hasattr(v.aval, "dtype")]
            if one.outvars and not inner:
                found.append(
                    (one.primitive.name, types, one.outvars[0].aval.dtype.name)
                )

    read(jax.make_jaxpr(function)(*arguments).jaxpr)
    return found


def outputs_of(kind, found):
    return {out for name, _, out in found if name == kind}


def inputs_of(kind, found):
    return {one for name, types, _ in found if name == kind for one in types}


def measure():
    """The types of the table's rows, as a step has them."""
    module = LanguageModel(CONFIG)
    params = jax.eval_shape(module.init, jax.random.key(0), TOKENS)["params"]

    def loss(params):
        out = module.apply({"params": params}, TOKENS)
        weights = jnp.ones(TOKENS.shape)
        sums = losses.cross_entropy(out.logits, TOKENS, weights, 0.1, 19)
        return sums.loss, (out, sums)

    grads, (out, sums) = jax.eval_shape(jax.grad(loss, has_aux=True), params)
    optimizer = optim.make_optimizer(configs.base())
    state = jax.eval_shape(optimizer.init, params)
    updates, _ = jax.eval_shape(optimizer.update, grads, state, params)
    rows = jnp.ones((2, 3, 7, 2), jnp.bfloat16)
    attention = operations(attend, rows, rows, rows)
    dots = [(types, out) for name, types, out in attention if name == "dot_general"]
    norm = layer_norm(1e-6, jnp.bfloat16)
    scale = {"params": {"scale": jnp.ones(14), "bias": jnp.ones(14)}}
    normed = operations(norm.apply, scale, jnp.ones((2, 14), jnp.bfloat16))
    return {
        "parameters, their update and their running mean": names(params, updates),
        "an optimizer's moments": names(state[0].mu, state[0].nu),
        "linear maps and the residual stream": names(out.hidden)
        | {dense_gradient("same")[0]},
        "scores and softmax of attention": {dots[0][1]} | inputs_of("exp", attention),
        "attention weights, as they are multiplied with values": {*dots[1][0]},
        "statistics of a norm": outputs_of("rsqrt", normed),
        "logits and loss": names(out.logits, sums),
        "gradients of a layer's matrices, also as devices add them up": {
            dense_gradient("same")[1]
        },
        "gradient of a table of embeddings": names(grads["embedding"]),
        "sums of gradients over micro-batches": names(grads),
    }


def names(*trees):
    return {leaf.dtype.name for leaf in jax.tree.leaves(trees)}


def dense_gradient(gradient_dtype, dtype="bfloat16"):
    """The types of a linear map's product, and of its matrix's gradient."""
    layer = dense(5, jnp.dtype(dtype), gradient_dtype=gradient_dtype)
    x = jnp.ones((2, 3, 7), dtype)
    params = layer.init(jax.random.key(0), x)

    def total(params):
        return layer.apply(params, x).astype(jnp.float32).sum()

    found = operations(jax.grad(total), params)
    product, gradient, *_ = (out for name, _, out in found if name == "dot_general")
    return product, gradient


@pytest.mark.system
def test_the_table_of_types_is_what_is_computed():
    section = PAGE.read_text().split("\n## Types\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| ([^|]+) \| (float32|bfloat16)\b", section, re.M))
    assert {what: {kind} for what, kind in rows.items()} == measure()


@pytest.mark.parametrize(
    ("dtype", "gradient_dtype", "expected"),
    [
        ("bfloat16", "same", "bfloat16"), ("bfloat16", "float32", "float32"),
        ("bfloat16", "bfloat16", "bfloat16"), ("float32", "same", "float32"),
        ("float32", "bfloat16", "bfloat16"),
    ],
)  # fmt: skip
def test_gradients_are_added_up_in_the_type_that_is_asked_for(
    dtype, gradient_dtype, expected
):
    """Each device has partial sums, so results of products are added over devices."""
    assert dense_gradient(gradient_dtype, dtype) == (dtype, expected)


def test_gradients_in_float32_are_those_of_bfloat16_but_for_their_rounding():
    grads = []
    for kind in ("same", "float32"):
        module = LanguageModel(dataclasses.replace(CONFIG, gradient_dtype=kind))
        params = module.init(jax.random.key(0), TOKENS)
        total = lambda p, m=module: (m.apply(p, TOKENS).logits ** 2).sum()  # noqa: E731
        grads.append(jax.jit(jax.grad(total))(params))
    differs = False
    for one, other in zip(*map(jax.tree.leaves, grads), strict=True):
        scale = np.abs(one).max() + 1e-3
        np.testing.assert_allclose(other / scale, one / scale, atol=0.03)
        differs |= bool((one != other).any())
    assert differs
