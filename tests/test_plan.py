"""The command that plans: what it prints, and for which configs it can."""

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from absl import flags

from transformer_jax import config as configs
from transformer_jax import hardware as targets
from transformer_jax import plan, sharding, tasks
from transformer_jax.base.errors import UserError
from transformer_jax.planning import forecast, workload
from transformer_jax.tasks import translation

KEY = jax.random.key(0)


@pytest.fixture
def command(monkeypatch):
    """A function: the command with these flags, in this process."""
    values = flags.FlagValues()
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("string", "integer", "float", "bool"):
            define = getattr(flags, f"DEFINE_{kind}")
            define = functools.partial(define, flag_values=values)
            patch.setattr(flags, f"DEFINE_{kind}", define)
        plan.define_flags()
    monkeypatch.setattr(flags, "FLAGS", values)

    def run(overrides, *words):
        values(["plan", *words])
        return plan.main(overrides)

    return run


@pytest.mark.system
def test_the_command_plans_with_the_real_data(tiny, tmp_path, command, capsys):
    output = tmp_path / "plan.json"
    words = ["--config=quickstart", "--target=cpu", "--every_shape"]
    assert command(tiny(), *words, f"--output={output}") == 0
    shown = capsys.readouterr().out
    assert "padding " in shown and ", shapes 1: " in shown
    found = json.loads(output.read_text())
    assert len(found["steps"]) == 1 and 0 < found["batches"]["padding"] < 1


def test_fit_finds_the_largest_batch(tiny, command, capsys, monkeypatch):
    """Of a device whose memory a batch of five times as many rows would fill."""
    small = targets.Hardware("cpu", ("cpu",), memory=1000)
    monkeypatch.setitem(targets.HARDWARE, "cpu", small)

    def compile_step(config, *_):
        rows = config.data.batch_tokens // (65 * 8)
        return {"memory": {"total": 170 * rows}, "shape": f"{8 * rows} × 65"}

    monkeypatch.setattr(plan, "compile_step", compile_step)
    words = ["--config=quickstart", "--target=cpu", "--no_data", "--fit"]
    assert command(tiny(), *words) == 0
    assert capsys.readouterr().out.endswith("--config.data.batch_tokens=2600\n")
    monkeypatch.setitem(
        targets.HARDWARE, "cpu", targets.Hardware("cpu", ("cpu",), memory=100)
    )
    assert command(tiny(), *words) == 1
    assert "not even 520 tokens fit" in capsys.readouterr().out


KINDS = {(c.task, c.model.name): c for _, c in reversed(plan.shipped_variants())}


@pytest.mark.parametrize("kind", KINDS, ids=" by ".join)
def test_every_kind_of_task_opens_without_data(kind):
    config = KINDS[kind]
    if not workload.opens_without_data(config):
        pytest.skip("it learns its sizes from the data")
    load, mesh = workload.without_data(config), sharding.local_mesh()
    assert load.abstract(load.largest, mesh)
    heads = plan.compare_heads(config, load)
    assert heads is None or heads["one"] == heads["several"]


@pytest.mark.parametrize(
    "spec, shape, parameters",
    [
        ("images:vit_s", (1024, 197), 22_050_664),  # with 1,000 classes
        ("images:mnist", (128, 50), 629_194),
    ],
)
def test_configs_for_data_of_your_own_are_planned_without_it(spec, shape, parameters):
    load = workload.without_data(configs.load(spec, data=False))
    assert (load.largest.rows, *load.largest.lengths) == shape
    params = jax.eval_shape(load.task.objective.init, jax.random.key(0))
    assert sum(x.size for x in jax.tree.leaves(params)) == parameters
    assert load.abstract(load.largest, sharding.local_mesh())


def test_images_without_data_are_those_of_the_data():
    pytest.importorskip("sklearn")
    config = configs.load("images:digits")
    real, without = workload.from_data(config, print), workload.without_data(config)
    assert [*real.batches] == [*without.batches]
    sizes = [
        jax.tree.map(jnp.shape, jax.eval_shape(x.task.objective.init, KEY))
        for x in (real, without)
    ]
    assert sizes[0] == sizes[1]


def test_a_task_that_learns_its_sizes_from_the_data_is_not_planned_without(
    command, tmp_path, monkeypatch
):
    task = dataclasses.replace(translation.TASK, open_empty=None)
    monkeypatch.setattr(tasks, "_others", {"their.task": task})
    file = tmp_path / "their_config.py"
    file.write_text(
        "from transformer_jax.config import base\n"
        "def get_config():\n"
        "    return base(task='their.task')\n"
    )
    config = configs.load(str(file), {"data.source": "phrasebook"}, data=False)
    assert not workload.opens_without_data(config)
    words = [f"--config={file}", "--target=cpu", "--no_data"]
    with pytest.raises(UserError, match="cannot be planned without its data: leave"):
        command({}, *words)


@pytest.mark.system
@pytest.mark.parametrize("spec", ["quickstart", "language"])
def test_a_small_config_compiles_and_fits(spec, command, capsys):
    few = ["--no_data", "--rows=8", "--length=16"]
    assert command({}, f"--config={spec}", "--target=cpu-8", *few) == 0
    shown = capsys.readouterr().out
    assert "compiled   8 × 16" in shown and "compiled   decoding" in shown
    assert "sent " in shown  # over a mesh, here of eight devices


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "h200", "v5e"])
def test_every_shipped_config_compiles_for_its_targets(target, capfd):
    name = {"h200": "h200x1", "v5e": "v5e-8"}.get(target, target)
    try:
        targets.devices(targets.find(name))
    except UserError as error:
        pytest.skip(str(error))
    assert plan.plan_all(target, "", "") == 0


def test_a_plan_that_does_not_fit_says_so():
    program = {"memory": {"total": 95, "arguments": 5, "temporary": 90}}
    found = {"memory_of_a_device": 100, "steps": [program], "decoding": []}
    assert not forecast.fits(found)
    assert "DOES NOT FIT" in forecast._describe_memory("training", program, found)[0]
    assert forecast.fits({**found, "memory_of_a_device": 0})


SCRIPT = pathlib.Path(__file__).parents[1] / "benchmarks" / "accelerator.py"


@pytest.mark.slow
def test_the_sitting_at_an_accelerator_has_been_tried_at_tiny_sizes(tmp_path):
    root = SCRIPT.parents[1]
    done = subprocess.run(
        [sys.executable, SCRIPT, "--tiny", "--output", tmp_path],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root), "JAX_NUM_CPU_DEVICES": "1"},
    )
    assert done.returncode == 0, done.stderr
    for part in ("kernels", "quickstart", "base", "big", "350m", "torch", "decoding"):
        found = json.loads((tmp_path / f"{part}.json").read_text())
        assert "failed" not in found, (part, found)


def test_a_plan_for_a_tpu_has_the_shapes_of_a_run_that_begins_on_one():
    tpu, gpu = targets.find("v5e-8"), targets.find("h200x8")
    config = configs.load("quickstart")
    plan.settle_shapes(config, gpu)
    assert config.data.shapes_for == "auto"
    plan.settle_shapes(config, tpu)
    assert config.data.shapes_for == "tpu"
    length = workload.without_data(config).largest.lengths[0]
    assert length % 128 == 0
    fixed = configs.load("quickstart", {"data.shapes_for": "any"})
    plan.settle_shapes(fixed, tpu)
    assert fixed.data.shapes_for == "any"
