"""A plan beside what is measured here, and its words."""

import ctypes
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import pytest

from transformer_jax import config as configs
from transformer_jax import hardware as targets
from transformer_jax import plan, sharding, train
from transformer_jax.data.batches import Shape
from transformer_jax.planning import forecast, workload
from transformer_jax.runs import environment
from transformer_jax.training.steps import programs

SIZES = {
    "model.encoder_layers": "1", "model.decoder_layers": "1", "model.d_model": "160",
    "model.d_ff": "640", "model.num_heads": "4", "data.row_multiple": "8",
}  # fmt: skip
ROWS, LENGTH, VOCAB = 64, 48, 832


@pytest.fixture(scope="module")
def planned():
    """A plan of a small model for one device of this CPU, and its parts."""
    environment.use_compile_cache()  # what is compiled here is run below
    config = configs.load("quickstart", SIZES, data=False)
    mesh, target = sharding.local_mesh(), targets.find("cpu")
    load = workload.without_data(config, ROWS, LENGTH, VOCAB)
    return config, mesh, load, plan.plan(config, target, mesh, load, step_ms=250.0)


def test_parameters_are_exactly_those_of_the_model(planned):
    *_, found = planned
    assert found["parameters"]["embedding"] == VOCAB * 160
    assert found["parameters"]["decoder cross_attention"] == 4 * (160**2 + 160)
    assert found["parameters"]["encoder feed_forward"] == 2 * 160 * 640 + 640 + 160


def test_operations_are_within_2_percent_of_what_xla_counts(planned):
    *_, found = planned
    (step,) = found["steps"]
    assert found["flops"] == pytest.approx(step["xla_flops_a_device"], rel=0.02)


@pytest.mark.slow  # the memory of a process is also what else it has done
@pytest.mark.skipif(not pathlib.Path("/proc/self/clear_refs").exists(), reason="Linux")
def test_memory_is_within_15_percent_of_what_a_step_takes(planned):
    config, mesh, load, found = planned
    init, _, update = train.make_update(config, load.task, mesh)
    shape = load.abstract(load.largest, mesh)
    batch = {k: jnp.full(x.shape, 5, x.dtype) for k, x in shape.items()}
    with jax.set_mesh(mesh):
        state, _ = update(init(jax.random.key(0)), batch)
        held = sum(x.nbytes for x in jax.tree.leaves((state, batch)))
        sizes = [x.size for x in jax.tree.leaves(state.params)]
        assert sum(found["parameters"].values()) == sum(sizes)
        jax.block_until_ready(state)
        ctypes.CDLL(None).malloc_trim(0)  # so that what is freed does not count
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # forget the peak
        before = memory_of("VmRSS")
        jax.block_until_ready(update(state, batch))
        measured = held + memory_of("VmHWM") - before
    forecast_bytes = found["steps"][0]["memory"]["total"]
    assert forecast_bytes == pytest.approx(measured, rel=0.15)


def memory_of(name):
    """A line of the kernel's account of this process, in bytes."""
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{name}:\s+(\d+) kB", status)[1])


def test_one_head_costs_as_much_as_several(planned):
    heads = planned[-1]["heads"]
    assert heads["heads"] == 4 and heads["one"] == heads["several"]


def test_a_plan_is_plain_numbers_and_a_page_of_words(planned):
    *_, found = planned
    assert json.loads(json.dumps(found)) == found
    words = "\n".join(forecast.describe(found))
    for line in (
        "target     cpu: 1 × cpu (cpu), mesh data 1 × fsdp 1 × tensor 1 × sequence 1",
        "heads      4 vs one as wide: parameters × 1.000, flops × 1.000",
        f"batches    {ROWS} × {LENGTH}/{LENGTH} (the largest; padding not known",
        "kernels    none but the compiler's own",
        "time       0.1 hours at 250 ms per step",
    ):
        assert line in words
    assert re.search(r"memory     training: 0\.\d\d GB per device", words)
    assert re.search(r"memory     decoding 128 rows: 0\.\d\d GB per device", words)
    row = forecast.table_row("quickstart", found)
    assert row.count("|") == forecast.TABLE.split("\n")[0].count("|")


def test_operations_are_those_of_the_products_that_are_used():
    a, b = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((3, 5), (5, 7)))

    def function(a, b):
        unused = b @ b.T  # noqa: F841
        looped = jax.lax.scan(lambda c, _: (c, (c @ b).sum()), a, length=4)[1]
        return looped.sum() + jax.checkpoint(lambda x: (x @ b).sum())(a)

    assert programs.count(function, a, b) == 5 * 2 * 3 * 5 * 7


def test_a_convolution_counts_each_output_times_its_part_of_the_kernel():
    x, kernel = jnp.zeros((2, 11, 6)), jnp.zeros((3, 3, 8))  # two groups of channels

    def function(x, kernel):
        numbers = ("NWC", "WIO", "NWC")
        return jax.lax.conv_general_dilated(
            x, kernel, (2,), "SAME", dimension_numbers=numbers, feature_group_count=2
        )

    assert programs.count(function, x, kernel) == 2 * (2 * 6 * 8) * 3 * 3


def test_an_unknown_device_is_said():
    [line] = forecast._describe_unknown("NVIDIA H20")
    assert "'NVIDIA H20' is no device whose memory and peak are known" in line
    assert forecast._describe_unknown("") == []


def test_remat_and_kernels_do_not_change_what_counts():
    counts = set()
    for remat, kernel in (("none", "einsum"), ("full", "blockwise")):
        changes = SIZES | {"model.remat": remat, "model.attention": kernel}
        config = configs.load("quickstart", changes, data=False)
        load = workload.without_data(config, 8, 12, 100)
        task, mesh = load.task, sharding.local_mesh()
        params = jax.eval_shape(task.objective.init, jax.random.key(0))
        batch = load.abstract(load.largest, mesh)
        counts.add(programs.count_step(task.objective, params, batch))
    assert len(counts) == 1


def test_time_energy_and_mfu_follow_from_the_milliseconds_of_a_step():
    found = forecast.expect_time(2e12, 3600, 1e13, 500.0, step_ms=1000.0)
    assert found["hours"] == 1 and found["kwh"] == 0.5 and found["mfu"] == 0.2
    assumed = forecast.expect_time(2e12, 3600, 1e13, 500.0, 0.0)
    assert not assumed["timed"] and assumed["mfu"] == pytest.approx(forecast.LIKELY)
    assert forecast.expect_time(2e12, 3600, 0.0, 0.0, 0.0) == {"timed": False}


@pytest.mark.parametrize("most", [0, 1, 2, 3, 17, 1000])
def test_the_largest_that_fits_is_found_within_a_sixteenth(most):
    tried = []
    found = forecast.search_largest(lambda n: tried.append(n) or n <= most)
    assert most - most // 16 <= found <= most and len(tried) < 20


def test_kernels_are_counted_by_name():
    text = """
      %a = custom-call(x), custom_call_target="__cudnn$fmhaSoftmax"
      %b = custom-call(x), custom_call_target="__cudnn$fmhaSoftmax"
      %c = custom-call(x), custom_call_target="Sharding"
      %d = custom-call(x), custom_call_target="tpu_custom_call", metadata={op_name="jit(step)/splash_mha_fwd/pallas_call"}
    """  # noqa: E501
    found = programs.read_kernels(text)
    assert found == {"__cudnn$fmhaSoftmax": 2, "splash_mha_fwd": 1}


def test_a_shape_is_the_largest_that_a_config_allows():
    config = configs.load("wmt14:en_de_base", data=False)
    load = workload.without_data(config)
    assert load.batches == {Shape(88, (264, 264)): 1}
    packed = configs.load("wmt14:en_de_base_tpu", data=False)
    assert workload.without_data(packed).batches == {Shape(64, (384, 384), True): 1}
    words = configs.load("language_models:350m", data=False)
    assert workload.without_data(words).batches == {Shape(256, (2048,)): 1}


def test_products_are_found_with_their_modules_turns_and_bytes():
    @jax.jit
    def turn(x, _):
        with jax.named_scope("inner"):
            return x @ jnp.ones((3, 3)), None

    def function(x):
        with jax.named_scope("outer"):
            return jax.lax.scan(turn, x, length=5)[0]

    jaxpr = jax.make_jaxpr(function)(jnp.ones((2, 3))).jaxpr
    [found] = programs.find_products(jaxpr)
    assert found.path.index("outer") < found.path.index("inner")
    assert found.operations == 5 * 2 * 2 * 3 * 3
    assert found.bytes == 5 * 4 * (2 * 3 + 3 * 3 + 2 * 3)
