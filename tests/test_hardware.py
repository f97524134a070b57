"""Hardware by name: what a target may be, and what a device that JAX finds can do."""

import os
import subprocess
import sys

import jax
import pytest

from transformer_jax import config as configs
from transformer_jax import hardware as targets
from transformer_jax import plan
from transformer_jax.base.errors import UserError


@pytest.mark.parametrize(
    "name, platform, count",
    [
        ("cpu", "cpu", 1), ("cpu-8", "cpu", 8), ("h200x8", "gpu", 8),
        ("v5e-256", "tpu", 256),
    ],
)  # fmt: skip
def test_a_target_is_hardware_and_a_number_of_devices(name, platform, count):
    found = targets.find(name)
    assert (found.hardware.platform, found.count) == (platform, count)
    assert found.peak("bfloat16") == count * found.hardware.peak.get("bfloat16", 0)


@pytest.mark.parametrize(
    "name", ["h200-8", "v5ex8", "v5e-7", "h200", "gpu", "", "h200x0"]
)
def test_a_name_that_is_no_target_is_refused_with_some_that_are(name):
    with pytest.raises(UserError, match="is not a target: choose "):
        targets.find(name)


def test_a_config_that_names_an_unknown_target_is_refused():
    with pytest.raises(
        UserError, match=r"targets = \('h20x8',\): 'h20x8' is not a target"
    ):
        configs.load("quickstart", {"targets": "h20x8"})


def test_libtpu_is_told_that_there_is_no_tpu_unless_the_environment_knows(monkeypatch):
    """Otherwise it warns of a device that it does not find, above every plan."""
    for name in ("TPU_ACCELERATOR_TYPE", "TPU_SKIP_MDS_QUERY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "t1v-n-0,t1v-n-1")
    targets.prepare("here")
    assert "TPU_ACCELERATOR_TYPE" not in os.environ
    targets.prepare("v5e-8")
    assert os.environ["TPU_ACCELERATOR_TYPE"] == "v5litepod-8"
    assert os.environ["TPU_SKIP_MDS_QUERY"] == "1"
    assert os.environ["TPU_WORKER_HOSTNAMES"] == "t1v-n-0,t1v-n-1"


def test_a_topology_of_tpus_is_made_without_a_word(tmp_path):
    pytest.importorskip("libtpu")
    program = (
        "from transformer_jax import hardware as targets; targets.prepare('v5e-8'); "
        "print(len(targets.devices(targets.find('v5e-8'))))"
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TPU_")}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=kept
    )
    assert (done.stdout, done.stderr) == ("8\n", "")


@pytest.mark.parametrize("spec", ["opinions:score", "language:stories", "images:vit_b"])
def test_every_variant_is_planned(spec):
    assert spec in [name for name, _ in plan.shipped_variants(spec.split(":")[0])]


def test_every_shipped_config_names_targets_that_there_are():
    for name in configs.shipped():
        for variant in configs.variants(name):
            spec = f"{name}:{variant}".rstrip(":")
            assert configs.load(spec, data=False).targets, spec


@pytest.mark.parametrize(
    "kind, name",
    [
        ("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("TPU v5e", "v5e"),
        ("TPU v5 lite", "v5e"), ("TPU v5p", "v5p"), ("TPU v5", "v5p"),
        ("TPU v6 lite", "v6e"), ("TPU v4", "v4"), ("cpu", "cpu"),
    ],
)  # fmt: skip
def test_a_device_is_recognised_by_what_jax_calls_it(kind, name):
    assert targets.recognise(kind) is targets.HARDWARE[name]


@pytest.mark.parametrize(
    "kind, gigabytes, peak",
    [
        ("NVIDIA A100-SXM4-40GB", 43, 312), ("NVIDIA A100-SXM4-80GB", 86, 312),
        ("NVIDIA H100 PCIe", 86, 756), ("NVIDIA H100 NVL", 94, 835),
        ("NVIDIA GH200 480GB", 96, 989), ("NVIDIA H200", 141, 989),
        ("NVIDIA H200 NVL", 141, 835),
    ],
)  # fmt: skip
def test_a_device_is_not_taken_for_another_of_a_similar_name(kind, gigabytes, peak):
    found = targets.recognise(kind)
    assert found is not None
    assert round(found.memory / 1e9) == gigabytes
    assert found.peak["bfloat16"] == peak * 1e12


def test_every_kind_of_device_is_in_one_place():
    kinds = [k for h in (*targets.HARDWARE.values(), *targets.OTHERS) for k in h.kinds]
    assert len(kinds) == len(set(kinds))


@pytest.mark.parametrize("kind", ["NVIDIA H100", "NVIDIA H20", "GH200", "TPU v5x", ""])
def test_an_unknown_device_is_taken_for_none(kind):
    assert targets.recognise(kind) is None


def test_a_peak_that_is_not_known_is_0():
    assert targets.recognise("Quantum 3") is None
    assert targets.find("here").peak("bfloat16") == 0 == targets.find("cpu").peak("x")


def test_without_the_plugin_the_error_names_what_to_install(monkeypatch):
    def fail(**_):
        raise RuntimeError("no plugin\nmore")

    monkeypatch.setattr(targets.topologies, "get_topology_desc", fail)
    for name, extra in (("h200x8", "cuda"), ("v5e-8", "tpu")):
        with pytest.raises(UserError) as caught:
            targets.devices(targets.find(name))
        assert f"pip install 'transformer_jax[{extra}]'" in str(caught.value)
        assert "(no plugin)" in str(caught.value)


def test_more_cpu_devices_than_there_are_say_how_to_get_them():
    with pytest.raises(UserError, match="set JAX_NUM_CPU_DEVICES=64"):
        targets.devices(targets.find("cpu-64"))
    assert len(targets.devices(targets.find("cpu-8"))) == jax.device_count()
