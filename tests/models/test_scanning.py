"""A scanned stack: the same numbers and dropout, by a program that does not grow."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from transformer_jax import sharding
from transformer_jax.models import scanning
from transformer_jax.models.classifier import Classifier
from transformer_jax.models.transformer import LanguageModel, Seq2Seq
from transformer_jax.models.transformer_config import TransformerConfig

V = 19
SOURCE = jnp.array([[4, 9, 6, 11, 3], [5, 8, 3, 0, 0]])
TARGET = jnp.array([[1, 7, 12], [1, 13, 0]])
CONFIG = TransformerConfig(
    vocab_size=V, encoder_layers=2, decoder_layers=2, d_model=14, d_ff=11, num_heads=7,
    dropout_words=0.1, dropout_residual=0.2, dropout_attention=0.3,
    dropout_feed_forward=0.4, norm="pre",
)  # fmt: skip
MODELS = {
    "seq2seq": (Seq2Seq, (SOURCE, TARGET, SOURCE, TARGET), {"positions": "relative"}),
    "language": (LanguageModel, (TARGET, TARGET), {"positions": "rotary", "d_k": 4}),
    "classifier": (
        functools.partial(Classifier, outputs=3),
        (SOURCE, SOURCE),
        {"positions": "alibi", "dtype": "float32", "norm": "post"},
    ),
}


def module_of(kind, **changes):
    make, inputs, own = MODELS[kind]
    return make(dataclasses.replace(CONFIG, **own, **changes)), inputs


@functools.cache
def params_of(kind, **changes):
    module, inputs = module_of(kind, **changes)
    return jax.jit(module.init)(jax.random.key(0), *inputs)["params"]


@functools.cache
def learnt(kind, **changes):
    """The loss of a step with dropout, and its gradient."""
    module, inputs = module_of(kind, **changes)

    def loss(params):
        rngs = {"dropout": jax.random.key(7)}
        out = module.apply({"params": params}, *inputs, train=True, rngs=rngs)
        return (out.logits[..., :3] ** 2).sum()

    value, slopes = jax.jit(jax.value_and_grad(loss))(params_of(kind))
    return float(value), slopes


def assert_alike(first, second):
    """Equal within float32 rounding of the largest number, per array and overall."""
    largest = max(float(np.abs(one).max()) for one in jax.tree.leaves(first))
    for one, other in zip(*map(jax.tree.leaves, (first, second)), strict=True):
        scale = np.abs(one).max() + 0.01 * largest  # in theory, some gradients are 0
        np.testing.assert_allclose(other / scale, one / scale, atol=1e-5)


@pytest.mark.system
@pytest.mark.parametrize(
    "kind", ["seq2seq", "language", pytest.param("classifier", marks=pytest.mark.slow)]
)
def test_scanned_layers_compute_and_learn_what_unrolled_ones_do(kind):
    """Each layer draws the same dropout as when unrolled."""
    assert_alike(learnt(kind), learnt(kind, scan_layers=True))


@pytest.mark.parametrize("remat", ["attention", "dots", "full"])
def test_scanned_layers_may_be_recomputed(remat):
    again = learnt("language", scan_layers=True, remat=remat)
    assert_alike(learnt("language"), again)


@pytest.mark.parametrize("remat", ["attention", "dots"])
def test_layers_may_be_recomputed_in_part(remat):
    assert_alike(learnt("language"), learnt("language", remat=remat))


def test_scanned_parameters_begin_and_are_named_as_unrolled_ones():
    """So all readers of parameters and checkpoints need only know one form."""
    scanned = params_of("seq2seq", scan_layers=True)
    jax.tree.map(np.testing.assert_array_equal, params_of("seq2seq"), scanned)


def test_scanned_layers_show_the_weights_of_each():
    out = []
    for scan in (False, True):
        module, inputs = module_of("seq2seq", scan_layers=scan)
        run = jax.jit(lambda params, module=module, inputs=inputs: module.apply(
            {"params": params}, *inputs))  # fmt: skip
        out.append(run(params_of("seq2seq")))
    kinds = ("self_attention", "cross_attention", "encoder_attention")
    assert [len(getattr(out[1], kind)) for kind in kinds] == [2, 2, 2]
    assert_alike(*out)


def test_a_search_through_a_scanned_model_is_that_of_an_unrolled_one():
    found = []
    for scan in (False, True):
        module, _ = module_of("seq2seq", scan_layers=scan)
        bound = module.bind({"params": params_of("seq2seq")})
        batch = {"source": SOURCE, "source_segments": SOURCE}
        static, state = bound.start(batch, 3)
        places = jnp.broadcast_to(jnp.arange(3), (2, 1, 3))
        found.append(bound.extend(TARGET[:, None], places, static, state))
    assert_alike(*found)


def operations(layers, **changes):
    """The number of operations in the program of a step, with the bodies of loops."""
    module, inputs = module_of("language", decoder_layers=layers, **changes)
    params = jax.eval_shape(module.init, jax.random.key(0), *inputs)

    def loss(params):
        rngs = {"dropout": jax.random.key(7)}
        return module.apply(params, *inputs, train=True, rngs=rngs).logits.sum()

    text = str(jax.make_jaxpr(jax.grad(loss))(params))
    return text.count("dot_general["), text.count("random_fold_in")


@pytest.mark.system
def test_a_scanned_program_multiplies_no_more_often_if_it_has_more_layers():
    assert operations(5, scan_layers=True) == operations(2, scan_layers=True)
    assert operations(5)[0] > operations(2)[0] > operations(2, scan_layers=True)[0]


def test_the_axis_of_layers_is_never_split():
    mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2, "sequence": 1})
    layer = {"feed_forward": {"inner": {"kernel": jnp.ones((6, 8))}}}
    with jax.set_mesh(mesh):
        stacked = jax.jit(scanning.stack_layers)([layer] * 4)
    kernel = stacked["feed_forward"]["inner"]["kernel"]
    assert kernel.shape == (4, 6, 8)
    assert kernel.sharding.spec == PartitionSpec(None, "fsdp", "tensor")
