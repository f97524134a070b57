"""The machines of users: interpreters that do not start, names that libraries drop."""

import ast
import importlib
import os
import pathlib
import subprocess
import sys
from importlib import metadata

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax
from transformer_jax import hardware as targets
from transformer_jax import sharding
from transformer_jax.base.errors import UserError
from transformer_jax.hosts import clusters
from transformer_jax.models import kernels, scanning
from transformer_jax.training.steps import programs

PACKAGE = pathlib.Path(transformer_jax.__file__).parent

# Names of other packages that are private, experimental, or not documented: what they
# are called, and the one file that may use them.
BORROWED = {
    "jax._src.clusters": (
        "hosts/clusters.py",
        "GkeTpuCluster GceTpuCluster SlurmCluster OmpiCluster",
    ),
    "jax._src.config": (
        "base/programs.py",
        "persistent_cache_min_compile_time_secs",
    ),
    "jax.experimental.mesh_utils": ("sharding.py", "create_hybrid_device_mesh"),
    "jax.experimental.multihost_utils": (
        "hosts/agreement.py",
        "broadcast_one_to_all process_allgather sync_global_devices "
        "reached_preemption_sync_point",
    ),
    "jax.experimental.pallas.ops.tpu.splash_attention": (
        "models/kernels/splash.py",
        "CausalMask FullMask BlockSizes MultiHeadMask SegmentIds "
        "make_splash_mha_single_device",
    ),
    "jax.experimental.serialize_executable": (
        "base/programs.py",
        "serialize deserialize_and_load",
    ),
    "jax.experimental.topologies": ("hardware.py", "get_topology_desc"),
    "jax.interpreters.partial_eval": ("training/steps/programs.py", "dce_jaxpr"),
    "flax.linen.dtypes": ("models/layers/dense.py", "promote_dtype"),
}


@pytest.mark.parametrize("module", BORROWED)
def test_a_name_that_is_not_public_is_there(module):
    user, names = BORROWED[module]
    library = module.partition(".")[0]
    about = f"{library} {metadata.version(library)} has no {module}"
    try:
        found = importlib.import_module(module)
    except ImportError:
        pytest.fail(f"{about}, used by {user}")
    for name in names.split():
        assert hasattr(found, name), f"{about}.{name}, used by {user}"


def test_orbax_has_the_interface_that_its_version_1_replaces():
    """The names of `runs/checkpoint.py`, on which all checkpoints depend."""
    orbax = importlib.import_module("orbax.checkpoint")
    text = (PACKAGE / "runs" / "checkpoint.py").read_text(encoding="utf-8")
    names = {
        node.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "ocp"
    }
    assert "CheckpointManager" in names
    version = metadata.version("orbax-checkpoint")
    for name in names:
        assert hasattr(orbax, name), f"orbax-checkpoint {version} has no {name}"


def test_what_is_not_public_is_used_in_one_file_each():
    used = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                hidden = {"experimental", "interpreters"} & set(name.split("."))
                if hidden or "._" in name:
                    where = str(path.relative_to(PACKAGE))
                    used.setdefault(name, set()).add(where)
    listed = {name: {user} for name, (user, _) in BORROWED.items()}
    del listed["flax.linen.dtypes"]
    assert used == listed


class Draws(nn.Module):
    """Two random numbers, below a module of the name `inner`."""

    @nn.compact
    def __call__(self):
        return [self.make_rng("dropout") for _ in range(2)]


class Outer(nn.Module):
    """What has the random numbers of another module."""

    @nn.compact
    def __call__(self):
        return Draws(name="inner")(), scanning.stream_of(self, ["inner"])


def test_flax_draws_random_numbers_by_the_hash_that_is_copied():
    root = jax.random.key(7)
    (drawn, (key, paths)), _ = Outer().init_with_output({"dropout": root})
    for number, one in enumerate(drawn, start=1):
        place = scanning.hash_path((*paths[0], number))
        own = jax.random.fold_in(key, np.uint32(place))
        said = f"flax {metadata.version('flax')} hashes paths in another way"
        assert jax.random.key_data(own).tolist() == (
            jax.random.key_data(one).tolist()
        ), said + ", used by models/scanning.py"


def test_a_jax_without_these_names_says_what_to_do_instead(monkeypatch):
    monkeypatch.setattr(clusters, "jax_clusters", None)
    assert clusters.find_place(1, {}) is None
    alone = {"NUM_PROCESSES": "2", "PROCESS_ID": "1", "COORDINATOR_ADDRESS": "a:1"}
    assert clusters.find_place(1, alone).index == 1
    with pytest.raises(UserError, match="does not read the processes of a SLURM job"):
        clusters.find_place(1, {"SLURM_STEP_NODELIST": "a,b"})
    monkeypatch.setattr(sharding, "mesh_utils", None)
    monkeypatch.setattr(sharding, "slice_shape", lambda *_: [2, 1, 1, 1])
    with pytest.raises(UserError, match="which arranges the devices of several slices"):
        sharding.make_mesh({"data": -1, "fsdp": 1, "tensor": 1, "sequence": 1})
    monkeypatch.setattr(targets, "topologies", None)
    with pytest.raises(UserError, match="has no jax.experimental.topologies, which"):
        targets._topology(targets.find("h100x1"), "cuda", {})
    monkeypatch.setitem(sys.modules, "transformer_jax.models.kernels.splash", None)
    with pytest.raises(UserError, match="'splash': import of .*: use 'einsum', or an"):
        kernels.attend("splash", *[jnp.zeros((1, 2, 1, 4))] * 3)


def test_operations_are_counted_without_pruning_the_program(monkeypatch):
    product = [np.zeros((3, 5), np.float32), np.zeros((5, 7), np.float32)]
    count = lambda: programs.count(lambda a, b: a @ b, *product)  # noqa: E731
    pruned = count()
    monkeypatch.delattr(programs.partial_eval, "dce_jaxpr")
    assert count() == pruned == 2 * 3 * 5 * 7


@pytest.mark.system
def test_a_flag_that_jaxlib_does_not_know_is_said_in_words():
    environment = {k: v for k, v in os.environ.items() if "PYTEST" not in k}
    environment["XLA_FLAGS"] = "--xla_no_such_flag=1"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__]
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    said = run.stdout + run.stderr
    assert run.returncode == 3
    assert "no test can run" in said and "xla_no_such_flag" in said
    assert "node down" not in said


def test_windows_is_refused_in_words():
    script = "import sys; sys.platform = 'win32'; import transformer_jax"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 1
    assert "does not run on Windows itself: install it in WSL2" in run.stderr
