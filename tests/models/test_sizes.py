"""The paper's models at full size, by shape alone: nothing here is ever allocated."""

import functools
import math
import re
import runpy

import jax
import jax.numpy as jnp
import pytest

from transformer_jax import config as configs
from transformer_jax import plan, sharding, tasks
from transformer_jax.base.errors import UserError
from transformer_jax.models import registry
from transformer_jax.models.vision import VisionConfig, ViT
from transformer_jax.planning import workload

VOCAB = 40_960  # a multiple of the rows' 64, so that no row is padding
BIG = {"d_model": 1024, "d_ff": 4096, "num_heads": 16}


@functools.cache
def parameters(**model):
    """Shape of every parameter of a base model with changes, by path."""
    config = configs.base()
    with config.unlocked():
        config.model.update(model)
    vocabularies = dict(vocab_size=VOCAB, source_vocab_size=VOCAB)
    module = registry.build(config, "seq2seq", **vocabularies)
    assert module.config.vocab_rows == VOCAB
    tokens = jnp.ones((1, 1), jnp.int32)
    shapes = jax.eval_shape(
        module.init, jax.random.key(0), tokens, tokens, tokens, tokens
    )
    leaves = jax.tree_util.tree_leaves_with_path(shapes["params"])
    return {sharding.path_name(path): leaf for path, leaf in leaves}


COUNTS = {  # by hand, with 40,960 rows; other sizes are those of base
    "base": 65_110_016,
    "b_16": 58_018_304,
    "b_32": 60_382_208,
    "c_layers_2": 35_684_352,
    "c_layers_4": 50_397_184,
    "c_layers_8": 79_822_848,
    "c_width_256": 27_848_704,
    "c_width_1024": 167_944_192,
    "c_inner_1024": 52_514_816,
    "c_inner_4096": 90_300_416,
    "e_learned": 65_110_016 + 2 * 512 * 512,
    "big": 218_300_416,
}
TABLE_3 = runpy.run_path(configs.shipped()["table3"])["ROWS"]


@pytest.mark.parametrize("row", TABLE_3)
def test_every_row_of_table_3_has_exactly_its_parameters(row):
    config = configs.load(f"table3:{row}", {"data.source": "phrasebook"})
    shapes = parameters(**config.model)
    found = sum(math.prod(p.shape) for p in shapes.values())
    assert found == COUNTS.get(row, COUNTS["base"])
    stated = TABLE_3[row][3]
    assert stated is None or abs(found / 1e6 - stated) < (6 if row == "big" else 0.6)


@pytest.mark.parametrize("row", TABLE_3)
def test_the_tiny_rows_of_table_3_can_be_trained(row):
    config = configs.load(f"table3:tiny_{row}")
    full = configs.load(f"table3:{row}", {"data.source": "phrasebook"}).model
    assert full.d_model == 8 * config.model.d_model
    assert full.d_k == 8 * config.model.d_k and full.d_v == 8 * config.model.d_v
    assert full.encoder_layers == 2 * config.model.encoder_layers


MODELS = (
    {},
    BIG,
    {"tie": "none"},
    {"positions": "learned"},
    {"positions": "relative", "activation": "swiglu"},
    {"norm": "pre", "norm_kind": "rms", "qk_norm": True, "kv_heads": 2, "d_k": 64},
    {"tie": "inputs", "embedding_norm": True, "output_bias": True},
)
OPTIONAL = {"model.head_transform": True, "model.pooling": "pooler"}  # parts of heads


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
            assert tuple(spec) == (("tensor", "fsdp"), None)  # rows are not split
            continue
        assert set(spec) == {"fsdp", "tensor"}
        if name.endswith(("out/kernel", "outer/kernel")):
            assert spec[0] == "tensor", (
                name
            )  # the axis that the kernel before it splits
        elif name.endswith("kernel"):
            assert spec[1] == "tensor", name


def test_every_parameter_matches_exactly_one_rule_and_no_rule_is_idle():
    used = set()
    muon = {"ns_coeffs": jax.ShapeDtypeStruct((3,), jnp.float32)}
    lora = {f"adapters/encoder/{n}": jnp.ones((2, 3)) for n in ("a/down", "a/up")}
    every = [*(parameters(**model) for model in MODELS), *of_other_tasks(), muon, lora]
    for name in {name for shapes in every for name in shapes}:
        [rule] = [rule for rule, _ in sharding.RULES if re.search(rule, name)]
        used.add(rule)
    assert used == {rule for rule, _ in sharding.RULES}


@pytest.mark.parametrize(
    ("variant", "count"),  # as in docs/deviations.md
    [("en_de_base", 63_111_168), ("en_de_big", 214_302_720)],
)
def test_wmt14_has_37_000_pieces_and_the_parameters_that_the_docs_name(variant, count):
    config = configs.load(f"wmt14:{variant}", data=False)
    assert (pieces := config.tokenizer.vocab_size) == 37_000
    vocabularies = dict(vocab_size=pieces, source_vocab_size=pieces)
    module = registry.build(config, "seq2seq", **vocabularies)
    tokens = jnp.ones((1, 1), jnp.int32)
    shapes = jax.eval_shape(module.init, jax.random.key(0), *[tokens] * 4)
    assert sum(math.prod(p.shape) for p in jax.tree.leaves(shapes["params"])) == count


@pytest.mark.parametrize(
    ("variant", "count"),  # timm's vit_{tiny,small,base}_patch16_224
    [("vit_ti", 5_717_416), ("vit_s", 22_050_664), ("vit_b", 86_567_656)],
)
def test_published_models_have_their_published_sizes(variant, count, tmp_path):
    (tmp_path / "train").mkdir()
    config = configs.load(f"images:{variant}", {"data.folder": str(tmp_path)})
    size = config.data.image_size
    vision = VisionConfig(size, size, 3, config.model.patch, 1000)
    module = registry.build(
        config, "image_classifier", {"transformer": ViT}, vision=vision
    )
    images = jnp.ones((1, size, size, 3))
    params = jax.eval_shape(module.init, jax.random.key(0), images)["params"]
    assert sum(math.prod(p.shape) for p in jax.tree.leaves(params)) == count
    assert config.data.batch_tokens % vision.length == 0


def shipped():
    """Each shipped config, by name, with all its variants."""
    for spec, config in plan.shipped_variants():
        yield pytest.param(config, id=spec)


@pytest.mark.parametrize("config", [*shipped()])
def test_each_parameter_of_a_shipped_config_matches_exactly_one_rule(config):
    with config.unlocked():  # all layers are alike
        for key in {"encoder_layers", "decoder_layers"} & set(config.model):
            config.model[key] = min(config.model[key], 2)
    if not workload.opens_without_data(config):
        pytest.skip("the sizes of its model depend on the data")
    task = workload.open_empty(config, 32_000)
    shapes = jax.eval_shape(task.objective.init, jax.random.key(0))
    for path, _ in jax.tree_util.tree_leaves_with_path(shapes):
        path = sharding.path_name(path)
        found = [rule for rule, _ in sharding.RULES if re.search(rule, path)]
        assert len(found) == 1, path


def of_other_tasks():
    """The parameters of each task with each of its models, if it opens without data."""
    for name in tasks.names():
        kind = tasks.find(name)
        for model in registry.names_for(kind.interface, kind.modules):
            config = configs.base(name, model)
            known = dict(configs.items(config))
            config.update_from_flattened_dict(
                {option: v for option, v in OPTIONAL.items() if option in known}
            )
            if workload.opens_without_data(config):
                init = workload.open_empty(config, 100).objective.init
                shapes = jax.eval_shape(init, jax.random.key(0))
                leaves = jax.tree_util.tree_leaves_with_path(shapes)
                yield {sharding.path_name(path): leaf for path, leaf in leaves}


def test_a_parameter_without_a_rule_is_refused_by_name():
    leaf = jax.ShapeDtypeStruct((3, 5), jnp.float32)
    mesh = sharding.local_mesh()
    with pytest.raises(ValueError, match=r"decoder/other/kernel.*\(3, 5\)"):
        sharding.shardings({"decoder": {"other": {"kernel": leaf}}}, mesh)


def test_a_parameter_that_does_not_divide_is_refused_with_its_size_and_the_axis():
    mesh = sharding.make_mesh({"data": 1, "fsdp": 4, "tensor": 2, "sequence": 1})
    for shape, message in (
        ((512, 1365), r"inner/kernel of shape \(512, 1365\): 1365 .* mesh.tensor 2"),
        ((510, 1364), r"inner/kernel .*: 510 does not divide over mesh.fsdp 4"),
    ):
        leaf = jax.ShapeDtypeStruct(shape, jnp.float32)
        with pytest.raises(UserError, match=message):
            sharding.shardings({"inner": {"kernel": leaf}}, mesh)
    table = {"embedding": jax.ShapeDtypeStruct((12, 5), jnp.float32)}
    with pytest.raises(UserError, match="12 .* mesh.tensor 2 × mesh.fsdp 4"):
        sharding.shardings(table, mesh)


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
