"""Compile training steps for hardware that is not present, and report their needs.

    python benchmarks/compile_attention.py --case gpu_350m

The real step of a language model (`train.train_step`) is compiled ahead of time for one
H200 or TPU v5e: its kernels are read from the compiled program, and its memory is the
compiler's estimate. Nothing is run. This needs the plugin for that hardware
(`pip install "jax[cuda13]"` or `"jax[tpu]"`), but no device.
`python -m transformer_jax.plan` does the same for a config.
"""

import time

import jax
from absl import app, flags

from transformer_jax import config as configs
from transformer_jax import hardware as targets
from transformer_jax import plan, train
from transformer_jax.planning import workload
from transformer_jax.training.steps import programs as compiled

FLAGS = flags.FLAGS
flags.DEFINE_enum("case", "gpu_350m", [
    "gpu_350m", "gpu_packed", "gpu_long", "gpu_long_blockwise", "tpu_350m", "tpu_long",
    "tpu_packed",
], "The program to compile.")  # fmt: skip
flags.DEFINE_integer("layers", 0, "Fewer layers, to compile sooner; 0: the case's.")
flags.DEFINE_string("remat", "", "Another model.remat than the case's.")
flags.DEFINE_bool("scan_layers", False, "Scan the layers: model.scan_layers.")
flags.DEFINE_string("dump", "", "A file for the compiled program.")

LARGE = {"layers": 24, "d_model": 1024, "heads": 16, "rows": 8, "length": 2048,
         "vocabulary": 32_000}  # fmt: skip
SMALL = {"layers": 6, "d_model": 512, "heads": 8, "rows": 1, "length": 16_384,
         "vocabulary": 20_000}  # fmt: skip
CASES = {  # of each, the target, the sizes, and keys of config.model
    "gpu_350m": ("h200x1", LARGE, {"remat": "full"}),
    "gpu_packed": ("h200x1", LARGE | {"packed": True}, {"remat": "full"}),
    "gpu_long": ("h200x1", SMALL, {"remat": "full"}),
    "gpu_long_blockwise": (
        "h200x1",
        SMALL,
        {"remat": "full", "attention": "blockwise"},
    ),
    "tpu_350m": ("v5e-1", LARGE | {"rows": 1}, {"remat": "full"}),
    "tpu_packed": ("v5e-1", SMALL | {"rows": 8, "length": 2048, "packed": True}, {}),
    "tpu_long": ("v5e-1", SMALL, {"remat": "full"}),
}


def make_config(sizes: dict, keys: dict):
    """Make the config of a language model of these sizes."""
    config = configs.base(task="language")
    with config.unlocked():
        config.model.update(
            decoder_layers=sizes["layers"], d_model=sizes["d_model"],
            d_ff=4 * sizes["d_model"], num_heads=sizes["heads"], norm="pre",
            positions="rotary", activation="gelu_tanh", dtype="bfloat16", **keys,
        )  # fmt: skip
        config.data.row_multiple = sizes["rows"]
        if sizes.get("packed"):
            config.data.batching = "packed"
    return config


def main(_) -> None:
    """Compile one case, and print its memory and its kernels."""
    name, sizes, keys = CASES[FLAGS.case]
    sizes = sizes | {"layers": FLAGS.layers or sizes["layers"]}
    if FLAGS.remat:
        keys = keys | {"remat": FLAGS.remat}
    if FLAGS.scan_layers:
        keys = keys | {"scan_layers": True}
    targets.prepare(name)
    config, target = make_config(sizes, keys), targets.find(name)
    mesh = plan.make_mesh(config, target)
    shape = sizes["rows"], sizes["length"]
    load = workload.without_data(config, *shape, sizes["vocabulary"])
    _, state, update = train.make_update(config, load.task, mesh)
    began = time.monotonic()
    with jax.set_mesh(mesh):
        step = update.lower(state, load.abstract(load.largest, mesh))
        program = step.compile(target.options)
    seconds, text = time.monotonic() - began, program.as_text() or ""
    if FLAGS.dump:
        with open(FLAGS.dump, "w", encoding="utf-8") as file:
            file.write(text)
    count = sum(x.size for x in jax.tree.leaves(state.params))
    words = f"{shape[0]} × {shape[1]:,} tokens, {sizes['layers']} layers"
    print(f"{FLAGS.case}: {count / 1e6:.0f} M parameters, {words}, {keys}, on 1 × "
          f"{mesh.devices.flat[0].device_kind}: compiled in {seconds:.0f} s, not run",
    )  # fmt: skip
    memory = compiled.read_memory(program)
    assert memory is not None
    print(f"memory: state and batch {memory.arguments / 1e9:.2f} GB, temporary "
          f"{memory.temporary / 1e9:.2f} GB, together {memory.total / 1e9:.2f} GB",
    )  # fmt: skip
    print(f"kernels: {compiled.read_kernels(text)}")


if __name__ == "__main__":
    app.run(main)
