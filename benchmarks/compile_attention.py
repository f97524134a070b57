"""Compile training steps for hardware that is not here, and say what they need.

    python benchmarks/compile_attention.py --case gpu_350m

The real step of a language model (`train.train_step`) is compiled ahead of time for one
H200 or TPU v5e: its kernels are read off the compiled program, its memory is the
compiler's account. Nothing is run. It needs the plugin of that hardware
(`pip install "jax[cuda13]"` or `"jax[tpu]"`), and no device.
"""

import collections
import functools
import os
import re
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from transformer_jax import config as configs
from transformer_jax import optim, sharding
from transformer_jax.models import registry
from transformer_jax.runs.checkpoint import TrainState
from transformer_jax.tasks import language
from transformer_jax.train import train_step

FLAGS = flags.FLAGS
flags.DEFINE_enum("case", "gpu_350m", [
    "gpu_350m", "gpu_packed", "gpu_long", "gpu_long_blockwise", "tpu_350m", "tpu_long",
    "tpu_packed",
], "What is compiled.")  # fmt: skip
flags.DEFINE_integer("layers", 0, "Fewer layers, to compile sooner; 0: the case's.")
flags.DEFINE_string("remat", "", "Another model.remat than the case's.")
flags.DEFINE_bool("scan_layers", False, "Scan the layers: model.scan_layers.")
flags.DEFINE_string("dump", "", "A file for the compiled program.")

LARGE = {"layers": 24, "d_model": 1024, "heads": 16, "rows": 8, "length": 2048,
         "vocabulary": 32_000}  # fmt: skip
SMALL = {"layers": 6, "d_model": 512, "heads": 8, "rows": 1, "length": 16_384,
         "vocabulary": 20_000}  # fmt: skip
CASES = {  # of each, the hardware, the sizes, and keys of config.model
    "gpu_350m": ("gpu", LARGE, {"remat": "full"}),
    "gpu_packed": ("gpu", LARGE | {"packed": True}, {"remat": "full"}),
    "gpu_long": ("gpu", SMALL, {"remat": "full"}),
    "gpu_long_blockwise": ("gpu", SMALL, {"remat": "full", "attention": "blockwise"}),
    "tpu_350m": ("tpu", LARGE | {"rows": 1}, {"remat": "full"}),
    "tpu_packed": ("tpu", SMALL | {"rows": 8, "length": 2048, "packed": True}, {}),
    "tpu_long": ("tpu", SMALL, {"remat": "full"}),
}
# What the compiler must know of an H200 that is not there: NVIDIA's data sheet.
H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132
  fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 4800000000000 l2_cache_size: 62914560
  clock_rate_ghz: 1.98 device_memory_size: 150000000000
  shared_memory_per_block_optin: 232448 registers_per_core_limit: 65536
  registers_per_block_limit: 65536 cuda_compute_capability { major: 9 minor: 0 }
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H200"
"""


def make_mesh(hardware: str) -> Mesh:
    """Make a mesh of one device that is not there."""
    if hardware == "gpu":
        described = topologies.get_topology_desc(
            platform="cuda", topology_name="h200", target_config=H200, topology="1x1x1"
        )
    else:
        described = topologies.get_topology_desc(
            platform="tpu", topology_name="v5e:2x2"
        )
    device = np.array(described.devices[:1]).reshape((1,) * len(sharding.AXES))
    return Mesh(device, sharding.AXES, axis_types=(AxisType.Auto,) * len(sharding.AXES))


def make_step(sizes: dict, keys: dict, mesh: Mesh):
    """Return (the step, its abstract state and batch, the parameters' count)."""
    config = configs.base(task="language")
    with config.unlocked():
        config.model.update(
            decoder_layers=sizes["layers"], d_model=sizes["d_model"],
            d_ff=4 * sizes["d_model"], num_heads=sizes["heads"], norm="pre",
            positions="rotary", activation="gelu", dtype="bfloat16", **keys,
        )  # fmt: skip
    words = sizes["vocabulary"]
    module = registry.build(config, "language_model", vocab_size=words)
    objective = language.LanguageObjective(config, module, words)
    optimizer = optim.make_optimizer(config)

    def init(key: jax.Array) -> TrainState:
        params = objective.init(key)
        return TrainState(jnp.int32(0), params, optimizer.init(params), key, None)

    state = sharding.abstract(jax.eval_shape(init, jax.random.key(0)), mesh)
    shape = sizes["rows"], sizes["length"]
    names = ["tokens", *["segments", "positions"] * sizes.get("packed", False)]
    batch = {name: np.broadcast_to(np.int32(1), shape) for name in names}
    batch = sharding.abstract_global(batch, mesh, shape[0])
    step = functools.partial(
        train_step, loss=objective.loss, optimizer=optimizer, micro_batches=1
    )
    count = sum(x.size for x in jax.tree.leaves(state.params))
    return jax.jit(step, donate_argnums=0), state, batch, count


def main(_) -> None:
    """Compile one case, and print its memory and its custom calls."""
    hardware, sizes, keys = CASES[FLAGS.case]
    sizes = sizes | {"layers": FLAGS.layers or sizes["layers"]}
    if FLAGS.remat:
        keys = keys | {"remat": FLAGS.remat}
    if FLAGS.scan_layers:
        keys = keys | {"scan_layers": True}
    mesh = make_mesh(hardware)
    step, state, batch, count = make_step(sizes, keys, mesh)
    began = time.monotonic()
    with jax.set_mesh(mesh):
        compiled = step.lower(state, batch).compile()
    seconds, memory = time.monotonic() - began, compiled.memory_analysis()
    text = compiled.as_text() or ""
    if FLAGS.dump:
        with open(FLAGS.dump, "w", encoding="utf-8") as file:
            file.write(text)
    calls = collections.Counter(re.findall(r'custom_call_target="([^"]+)"', text))
    splash = len(set(re.findall(r"splash_\w+", text)))
    shape = f"{sizes['rows']} × {sizes['length']:,} tokens, {sizes['layers']} layers"
    print(f"{FLAGS.case}: {count / 1e6:.0f} M parameters, {shape}, {keys}, on 1 × "
          f"{mesh.devices.flat[0].device_kind}: compiled in {seconds:.0f} s, not run",
    )  # fmt: skip
    both = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    print(f"memory: state and batch {memory.argument_size_in_bytes / 1e9:.2f} GB, "
          f"temporary {memory.temp_size_in_bytes / 1e9:.2f} GB, together "
          f"{both / 1e9:.2f} GB")  # fmt: skip
    print(f"custom calls: {dict(calls)}; names of splash: {splash}")


if __name__ == "__main__":
    app.run(main)
