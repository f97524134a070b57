# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Scale: many devices, their memory, and what a step costs
#
# A model that trains on one device trains on many without code changes: JAX compiles
# one program for all devices, and the package defines how arrays are split over them.
# This notebook answers three questions of every larger training:
#
# 1. Which device holds what?
# 2. Will it fit into memory?
# 3. How many operations does a step need, and how long should it take?
#
# It runs on GPUs, on TPUs, and on a CPU that simulates eight devices. Nothing is
# trained: programs are only compiled, and their sizes reported.

# %% tags=["install"]
# In the notebook, first_cell.py stands here.

# %%
# %matplotlib inline
import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")  # before JAX looks for devices
import jax

count = jax.device_count()
print(count, "×", jax.devices()[0].device_kind)

# %% [markdown]
# ## 1. Which device holds what?
#
# Devices are arranged in a **mesh**, here with four axes:
#
# | axis | splits | costs |
# |---|---|---|
# | `data` | the rows of a batch | one sum of gradients per step |
# | `fsdp` | rows, and all parameters | gathering each layer's parameters |
# | `tensor` | heads, feed-forward columns | two sums of activations per layer |
# | `sequence` | positions | gathering keys and values |
#
# A table of patterns defines which axis of a parameter follows which axis of the mesh.
# The first pattern that matches a parameter's path wins. The model's code knows nothing
# about it.

# %%
from transformer_jax import config as configs
from transformer_jax import hardware as targets
from transformer_jax import sharding, train
from transformer_jax.planning import forecast, workload

for pattern, spec in sharding.RULES[:9]:
    print(f"{pattern:45} {spec}")

# %% [markdown]
# Now a small model, whose parameters have no values yet: `eval_shape` returns only
# their shapes. The picture shows which device holds which part of one matrix. Over
# `data` every device holds all of it; over `fsdp` and `tensor` each device holds a
# share.

# %%
from matplotlib.figure import Figure

config = configs.load("quickstart", data=False)
load = workload.without_data(config, 0, 0, 0)


def meshes():
    """Some ways to arrange these devices."""
    ones = dict.fromkeys(sharding.AXES, 1)
    some = [{"data": count}, {"fsdp": count}, {"tensor": count}]
    if count >= 4 and count % 4 == 0:
        some.append({"fsdp": count // 2, "tensor": 2})
    return [ones | sizes for sizes in some]


def in_words(sizes):
    return ", ".join(f"{axis} {n}" for axis, n in sizes.items() if n > 1) or "1 device"


def draw_places(name, array, arrangements):
    """Draw the parts of a matrix with the devices that hold them."""
    figure = Figure(figsize=(3.2 * len(arrangements), 3.4), layout="constrained")
    axes = figure.subplots(1, len(arrangements), squeeze=False)[0]
    for ax, sizes in zip(axes, arrangements, strict=True):
        mesh = sharding.make_mesh(sizes)
        place = sharding.shardings({name: array}, mesh)[name]
        holders = {}
        for device, index in place.devices_indices_map(array.shape).items():
            part = tuple(
                s.indices(n)[:2] for s, n in zip(index, array.shape, strict=True)
            )
            holders.setdefault(part, []).append(str(device.id))
        for i, (((top, bottom), (left, right)), ids) in enumerate(holders.items()):
            color = f"C{i % 10}"
            box = (left, right, right, left), (top, top, bottom, bottom)
            ax.fill(*box, color=color, alpha=0.35, edgecolor="black")
            label = ids[0] if len(ids) == 1 else f"{ids[0]}-{ids[-1]}"
            ax.text(
                (left + right) / 2, (top + bottom) / 2, label, ha="center", va="center"
            )
        ax.set(xlim=(0, array.shape[1]), ylim=(array.shape[0], 0))
        ax.set_title(in_words(sizes))
    figure.suptitle(f"{name} {array.shape}: the devices of each part")
    return figure


d_model, d_ff = config.model.d_model, config.model.d_ff
matrix = jax.ShapeDtypeStruct((d_model, d_ff), "float32")
draw_places("feed_forward/inner/kernel", matrix, meshes())

# %% [markdown]
# (`jax.debug.visualize_array_sharding(array)` prints the same for an array with
# values.)
#
# ## 2. Will it fit?
#
# The compiler knows before a step is run, because it plans every buffer. Below, the
# same training step is compiled for each mesh. *Arguments* are the parameters, Adam's
# two moments and the batch; *temporary* are activations and gradients.

# %%
from transformer_jax.plan import compile_step

here = targets.find("here")


def measure(sizes, **changes):
    """Compile the step of training; return a line of a table."""
    changed = {"model." + key: str(value) for key, value in changes.items()}
    config = configs.load("quickstart", changed, data=False)
    load = workload.without_data(config, 64, 64, 8000)
    mesh = sharding.make_mesh(sizes)
    _, abstract, update = train.make_update(config, load.task, mesh)
    found = compile_step(config, here, mesh, load, update, abstract, load.largest)
    memory = found["memory"] or {"arguments": 0, "temporary": 0}
    return {
        "mesh": in_words(sizes),
        "arguments, MB": memory["arguments"] / 1e6,
        "temporary, MB": memory["temporary"] / 1e6,
        "sent, MB": sum(found["sent_bytes"].values()) / 1e6,
        "at least, MB": found["least_bytes"] / 1e6,
    }


def show(rows, names):
    """Print some columns of a table."""
    print("  ".join(f"{name:>14}" for name in names))
    for row in rows:
        cells = [f"{x:.1f}" if isinstance(x, float) else x for x in map(row.get, names)]
        print("  ".join(f"{cell:>14}" for cell in cells))


table = [measure(sizes) for sizes in meshes()]
show(table, list(table[0]))

# %% [markdown]
# Over `data` every device keeps all parameters and both moments; over `fsdp` each
# device keeps a share, but sends more. *At least* is the theoretical minimum that the
# mesh must send. The compiler for CPUs sends more: this model uses one table for three
# purposes, and the compiler sums the gradient of each separately. The compilers for
# GPUs and TPUs add the three before sending, and the package's tests check that they
# stay within 1.1 × the minimum.
#
# Depth is the other cost. The backward pass needs the activations of every layer,
# unless they are recomputed. `model.remat` selects which are kept: all (`none`), all
# except the attention weights (`attention`), only the results of matrix products
# (`dots`), or only the inputs of the layers (`full`). JAX can show this without
# compiling: `vjp` returns the backward pass, which holds the values that were kept.

# %%
import math


def kept(remat, layers=6):
    """Return the bytes that the forward pass keeps for the backward pass."""
    changes = {"remat": remat, "encoder_layers": layers, "decoder_layers": layers}
    changed = {f"model.{key}": str(value) for key, value in changes.items()}
    config = configs.load("quickstart", changed, data=False)
    load = workload.without_data(config, 64, 64, 8000)
    mesh = sharding.local_mesh(1)
    params = train.make_update(config, load.task, mesh)[1].params
    batch = load.abstract(load.largest, mesh)
    loss = load.task.objective.loss

    def backward(params, batch):
        return jax.vjp(lambda params: loss(params, batch).loss, params)[1]

    held = jax.tree.leaves(jax.eval_shape(backward, params, batch))
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in held)


for remat in ("none", "attention", "dots", "full"):
    print(f"{remat:10} keeps {kept(remat) / 1e6:6.0f} MB")

# %% [markdown]
# ## 3. What does a step cost?
#
# Nearly all operations are in matrix products. A rule of thumb is 6 per parameter and
# token: 2 forward, 4 backward. The rule ignores attention, and includes tables whose
# rows are looked up, not multiplied. The package counts the products themselves.

# %%
from transformer_jax.training.steps import programs

mesh = sharding.local_mesh(1)
_, abstract, _ = train.make_update(config, load.task, mesh)
shape = load.largest
batch = load.abstract(shape, mesh)
counted = programs.count_step(load.task.objective, abstract.params, batch)
parts = forecast.count_parameters(abstract.params)
rule = 6 * sum(parts.values()) * shape.rows * max(shape.lengths)
print({name: f"{size:,}" for name, size in parts.items()})
print(f"counted {counted:.3g}, by the rule {rule:.3g}: {counted / rule:.2f} ×")

# %% [markdown]
# The share of a device's peak that a training reaches is its **MFU**. With an MFU, a
# data sheet tells how long a training takes. Here is the hardware that the package
# knows:

# %%
for name in ("h200x1", "v5e-8"):
    hardware = targets.find(name).hardware
    peak = ", ".join(f"{x / 1e12:.0f} in {kind}" for kind, x in hardware.peak.items())
    print(f"{name}: {hardware.memory / 1e9:.0f} GB a device; TFLOP/s: {peak}")

# %% [markdown]
# One command does all of this, for hardware that need not be present. The compilers for
# GPUs and TPUs come with `pip install 'jax[cuda]'` and `'jax[tpu]'`, and run on a
# laptop:
#
# ```
# python -m transformer_jax.plan --config configs/wmt14.py:en_de_base \
#   --target h200x8 --no_data
# ```
#
# ## What to change next
#
# - Use `{"sequence": count}` in `meshes()`: what is split then, and what is sent?
# - `model.dtype="bfloat16"` halves the activations, and leaves parameters and moments
#   in float32. Measure it.
# - `model.scan_layers="true"` compiles one layer instead of all. Time `measure` with 12
#   layers, both ways.
# - `--fit` of the command finds the largest batch that fits.
