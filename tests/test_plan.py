"""The command that plans: what it prints, and for which configs it can."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from transformer_jax import config as configs
from transformer_jax import plan, sharding
from transformer_jax.planning import forecast, targets
from transformer_jax.training import workload


def test_the_command_plans_with_the_real_data(tiny, tmp_path):
    overrides = [f"--config.{k}={v}" for k, v in tiny(data__shapes=2).items()]
    output = tmp_path / "plan.json"
    done = subprocess.run(
        [sys.executable, "-m", "transformer_jax.plan", "--config", "quickstart"]
        + ["--target", "cpu", "--every_shape", f"--output={output}", *overrides],
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "padding " in done.stdout and " 2 shapes: " in done.stdout
    found = json.loads(output.read_text())
    assert len(found["steps"]) == 2 and 0 < found["batches"]["padding"] < 1


@pytest.mark.parametrize("spec", ["language", "masked", "opinions", "recurrent:gru"])
def test_every_kind_of_task_opens_without_data(spec):
    config = configs.load(spec, data=False)
    load, mesh = workload.without_data(config), sharding.local_mesh()
    assert load.abstract(load.largest, mesh)
    heads = plan.compare_heads(config, load)
    assert heads is None or heads["one"] == heads["several"]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "h200", "v5e"])
def test_every_shipped_config_compiles_for_its_targets(target, capfd):
    name = {"h200": "h200x1", "v5e": "v5e-8"}.get(target, target)
    try:
        targets.devices(targets.find(name))
    except targets.UserError as error:
        pytest.skip(str(error))
    assert plan.plan_all(target, "") == 0


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
