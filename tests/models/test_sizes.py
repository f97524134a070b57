"""The paper's models at full size, by shape alone: nothing here is ever allocated."""

import functools
import math

import jax
import jax.numpy as jnp
import pytest

from transformer_jax import config as configs
from transformer_jax import sharding
from transformer_jax.data import tokenizer
from transformer_jax.tasks import classification, images, translation
from transformer_jax.tasks.classification import Scale

VOCAB = 40_960  # a multiple of the rows' 64, so that no row is padding
BIG = {"d_model": 1024, "d_ff": 4096, "num_heads": 16}


@functools.cache
def parameters(kind="transformer", **model):
    """Shape of every parameter of a base model with changes, by path."""
    config = configs.base(model=kind)
    with config.unlocked():
        config.model.update(model)
    module = translation.build(config, VOCAB, VOCAB)
    assert module.config.vocab_rows == VOCAB
    tokens = jnp.ones((1, 1), jnp.int32)
    shapes = jax.eval_shape(
        module.init, jax.random.key(0), tokens, tokens, tokens, tokens
    )
    leaves = jax.tree_util.tree_leaves_with_path(shapes["params"])
    return {sharding.path_name(path): leaf for path, leaf in leaves}


@pytest.mark.parametrize(
    ("count", "model"),
    [
        (65_110_016, {}),
        (58_018_304, {"d_k": 16}),
        (60_382_208, {"d_k": 32}),
        (35_684_352, {"encoder_layers": 2, "decoder_layers": 2}),
        (50_397_184, {"encoder_layers": 4, "decoder_layers": 4}),
        (79_822_848, {"encoder_layers": 8, "decoder_layers": 8}),
        (27_848_704, {"d_model": 256}),
        (167_944_192, {"d_model": 1024}),
        (52_514_816, {"d_ff": 1024}),
        (90_300_416, {"d_ff": 4096}),
        (218_300_416, BIG),
    ],
    ids=lambda value: (
        " ".join(f"{k}={v}" for k, v in value.items()) or "base"
        if isinstance(value, dict)
        else f"{value:,}"
    ),
)
def test_the_models_of_table_3_have_exactly_this_many_parameters(count, model):
    assert sum(math.prod(p.shape) for p in parameters(**model).values()) == count


MODELS = (
    {}, BIG, {"tie": "none"}, {"positions": "learned"}, {"norm": "pre"},
    {"kind": "recurrent"}, {"kind": "recurrent", "cell": "gru", "attention": "dot"},
)  # fmt: skip


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_every_parameter_has_a_rule_that_splits_it_evenly(model):
    for name, leaf in parameters(**model).items():
        spec = sharding.spec_of(name, leaf)
        assert len(spec) in (0, leaf.ndim), name
        for size, axes in zip(leaf.shape, spec, strict=False):
            assert axes is None or size % 8 == 0, name


def test_matrices_are_split_both_ways_and_each_pair_meets_on_one_axis():
    shapes = parameters(tie="none")
    specs = {name: sharding.spec_of(name, leaf) for name, leaf in shapes.items()}
    kernels = {n: s for n, s in specs.items() if shapes[n].ndim == 2}
    for name, spec in kernels.items():
        if name.endswith("embedding"):
            assert tuple(spec) == (("tensor", "fsdp"), None)  # rows stay whole
            continue
        assert set(spec) == {"fsdp", "tensor"}
        if name.endswith(("out/kernel", "outer/kernel")):
            assert spec[0] == "tensor", name  # what the kernel before it has split
        elif name.endswith("kernel"):
            assert spec[1] == "tensor", name


def test_no_rule_is_idle():
    used = set()
    every = [*(parameters(**model) for model in MODELS), *with_heads()]
    for name, leaf in {n: p for shapes in every for n, p in shapes.items()}.items():
        used.add(first_rule(name, leaf))
    assert used == set(range(len(sharding.RULES)))


def with_heads():
    """The parameters of models that classify: text, and images."""
    text = classification.Task(
        configs.base("classification"), tokenizer.Bytes(), Scale(("no", "yes"))
    )
    about = images.About(8, 8, 1, ("0", "1"))
    for task in (text, images.Task(configs.base("images"), about)):
        shapes = jax.eval_shape(task.init, jax.random.key(0))
        leaves = jax.tree_util.tree_leaves_with_path(shapes)
        yield {sharding.path_name(path): leaf for path, leaf in leaves}


def first_rule(name, leaf):
    """Which rule places a parameter, found by taking the rules away one by one."""
    rules = sharding.RULES
    for i in range(len(rules)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sharding, "RULES", rules[: i + 1])
            try:
                sharding.spec_of(name, leaf)
            except ValueError:
                continue
            return i
    raise AssertionError(name)


def test_a_parameter_without_a_rule_is_refused_by_name():
    leaf = jax.ShapeDtypeStruct((3, 5), jnp.float32)
    mesh = sharding.local_mesh()
    with pytest.raises(ValueError, match=r"decoder/gate/kernel.*\(3, 5\)"):
        sharding.shardings({"decoder": {"gate": {"kernel": leaf}}}, mesh)


def test_optimizer_moments_follow_their_parameter_and_scalars_are_replicated():
    kernel = jax.ShapeDtypeStruct((3, 5), jnp.float32)
    count = jax.ShapeDtypeStruct((), jnp.int32)
    parameter = {
        "encoder": {"layer_0": {"feed_forward": {"inner": {"kernel": kernel}}}}
    }
    state = {"opt": ({"mu": parameter, "count": count},)}
    placed = sharding.shardings(state, sharding.local_mesh())["opt"][0]
    assert tuple(placed["count"].spec) == ()
    [spec] = jax.tree.leaves(placed["mu"])
    assert tuple(spec.spec) == ("fsdp", "tensor")
