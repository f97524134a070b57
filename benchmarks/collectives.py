"""How many bytes the devices of a mesh exchange in a training step, beside the least.

    python benchmarks/collectives.py --config configs/wmt14.py --target h200x8 \\
        --config.mesh.data=1 --config.mesh.fsdp=8 --config.model.dtype=bfloat16

The real step is compiled, not run, so no device is needed: a target is h200x8 or so
(JAX with its CUDA plugin), v5e-8 (with libtpu) or cpu-8. Tokenizers are stubs of
--vocab pieces, and every example has --length. Bytes are those that one device sends.
"""

import argparse
import collections
import functools
import math
import os
import re
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all",
         "collective-permute")  # fmt: skip
BYTES = {"f64": 8, "s64": 8, "u64": 8, "f32": 4, "s32": 4, "u32": 4, "bf16": 2,
         "f16": 2, "s16": 2, "u16": 2, "s8": 1, "u8": 1, "pred": 1}  # fmt: skip
SHAPE = re.compile(rf"\b({'|'.join(BYTES)})\[([\d,]*)\]")
TPU = {"v5e-1": "v5e:1x1", "v5e-4": "v5e:2x2", "v5e-8": "v5e:2x4", "v5e-16": "v5e:4x4",
       "v5e-32": "v5e:4x8", "v5e-64": "v5e:8x8", "v5e-256": "v5e:16x16"}  # fmt: skip
H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132
  fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 4800000000000 l2_cache_size: 62914560
  clock_rate_ghz: 1.98 device_memory_size: 150000000000
  shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H200"
"""


class Collective(NamedTuple):
    """A collective operation of a compiled program."""

    kind: str
    group: int  # devices that take part
    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # of its results: dtype and sizes
    times: int  # how often it runs: more than once inside a loop
    name: str  # the operation of the model that it belongs to

    @property
    def sent(self) -> float:
        """Return the bytes that a device sends, all times together, on a ring."""
        size = sum(BYTES[dtype] * math.prod(shape) for dtype, shape in self.shapes)
        share = (self.group - 1) / self.group
        factor = {
            "all-reduce": 2 * share,
            "reduce-scatter": self.group - 1,  # what is left is a part
            "collective-permute": 1,
        }
        return size * factor.get(self.kind, share) * self.times


def main() -> int:
    """Print the bytes by kind beside the least, and the largest collectives."""
    from transformer_jax import cli

    rest, overrides = cli.split_overrides(sys.argv[1:])
    args = parse_arguments(rest)
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    if args.target.startswith("cpu-"):
        os.environ["JAX_NUM_CPU_DEVICES"] = args.target.removeprefix("cpu-")
    from transformer_jax import config as configs

    config = configs.load(args.config, overrides)
    mesh = make_mesh(config, find_devices(args.target))
    began = time.monotonic()
    program, params = compile_step(config, mesh, args.rows, args.length, args.vocab)
    seconds = time.monotonic() - began
    text, memory = program.as_text(), program.memory_analysis()
    if args.dump:
        with open(args.dump, "w") as file:
            file.write(text)
    found = read_collectives(text, mesh.size)
    count = sum(x.size for x in leaves_of(params).values())
    axes = " × ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    print(f"{args.target}, {axes}: {args.rows} × {args.length} tokens, {count:,} "
          f"parameters, {memory.temp_size_in_bytes / 1e9:.2f} GB beside the "
          f"arguments' {memory.argument_size_in_bytes / 1e9:.2f}; compiled in "
          f"{seconds:.0f} s")  # fmt: skip
    totals: dict[tuple, list] = collections.defaultdict(lambda: [0, 0.0])
    for one in found:
        dtypes = "/".join(sorted({dtype for dtype, _ in one.shapes}))
        totals[one.kind, one.group, dtypes][0] += one.times
        totals[one.kind, one.group, dtypes][1] += one.sent
    for (kind, group, dtypes), (times, sent) in sorted(totals.items()):
        print(f"  {kind:18} of {group:3}  {dtypes:9} {times:4} ×  {sent / 1e6:9.2f} MB")
    total = sum(one.sent for one in found)
    least = least_bytes(config, params, mesh, args.rows, args.length)
    for what, sent in least.items():
        print(f"  least: {what:42} {sent / 1e6:9.2f} MB")
    least_total = sum(least.values())
    print(f"  all {total / 1e6:.2f} MB, least {least_total / 1e6:.2f} MB, "
          f"ratio {total / max(least_total, 1):.3f}")  # fmt: skip
    for one in sorted(found, key=lambda c: -c.sent)[: args.show]:
        shapes = " ".join(f"{d}[{','.join(map(str, s))}]" for d, s in one.shapes[:3])
        print(f"    {one.sent / 1e6:9.2f} MB {one.kind} of {one.group} × {one.times} "
              f"{shapes}{' …' * (len(one.shapes) > 3)} {one.name[-90:]}")  # fmt: skip
    return 0


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line, less the overrides of the config."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="configs/wmt14.py")
    parser.add_argument("--target", default="cpu-8", help="h200xN, v5e-N or cpu-N")
    parser.add_argument("--rows", type=int, default=96, help="of the batch")
    parser.add_argument("--length", type=int, default=256, help="of every example")
    parser.add_argument("--vocab", type=int, default=37_000)
    parser.add_argument("--show", type=int, default=12, help="largest ones to list")
    parser.add_argument("--dump", default="", help="a file for the compiled text")
    return parser.parse_args(words)


def find_devices(target: str) -> Sequence[Any]:
    """Return the devices of a target, none of which need be there."""
    import jax
    from jax.experimental import topologies

    if target.startswith("cpu-"):
        return jax.devices()
    if target.startswith("h200x"):
        count = int(target.removeprefix("h200x"))
        return topologies.get_topology_desc(
            platform="cuda",
            topology_name="h200",
            target_config=H200,
            topology=f"1x{max(count // 8, 1)}x{min(count, 8)}",
        ).devices
    if target not in TPU:
        sys.exit(f"error: --target {target}: h200xN, cpu-N or {', '.join(TPU)}")
    topology = topologies.get_topology_desc(platform="tpu", topology_name=TPU[target])
    return topology.devices


def make_mesh(config: Any, devices: Sequence[Any]) -> Any:
    """Make the mesh of a config from these devices."""
    import jax
    from jax.sharding import AxisType

    from transformer_jax import sharding

    shape = sharding.mesh_shape(config.mesh, len(devices))
    auto = (AxisType.Auto,) * len(shape)
    return jax.make_mesh(shape, sharding.AXES, devices=devices, axis_types=auto)


def compile_step(
    config: Any, mesh: Any, rows: int, length: int, vocab: int
) -> tuple[Any, Any]:
    """Compile the training step for a batch of this shape; return it and parameters."""
    import jax
    import jax.numpy as jnp

    from transformer_jax import optim, sharding, train
    from transformer_jax.data.batches import Shape, nothing
    from transformer_jax.runs.checkpoint import TrainState

    task, columns = make_task(config, vocab)
    optimizer = optim.make_optimizer(config)

    def init(key):
        params = task.objective.init(key)
        ema = params if config.optim.ema else None
        return TrainState(jnp.int32(0), params, optimizer.init(params), key, ema)

    state = sharding.abstract(jax.eval_shape(init, jax.random.key(0)), mesh)
    places = jax.tree.map(lambda x: x.sharding, state)
    step = functools.partial(
        train.train_step,
        loss=task.objective.loss,
        optimizer=optimizer,
        micro_batches=config.train.accumulation,
        ema_decay=config.optim.ema,
    )
    update = jax.jit(
        step, donate_argnums=0, out_shardings=(places, sharding.replicated(mesh))
    )
    shape = Shape(rows, (length,) * len(columns))
    batch = task.data.collate(columns, nothing(shape))
    with jax.set_mesh(mesh):
        batch = sharding.abstract_global(batch, mesh, rows)
        return update.lower(state, batch).compile(), state.params


def make_task(config: Any, vocab: int) -> tuple[Any, dict[str, Any]]:
    """Open a task with a tokenizer that is none; return it and columns of nothing."""
    import numpy as np

    from transformer_jax.data.store import Ragged
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.tasks import language, translation

    class Stub(Tokenizer):
        vocab_size, fingerprint, lowercase = vocab, "", False

        def __init__(self):
            pass

    stub = Stub()
    nothing = Ragged(np.zeros(0, np.uint16), np.zeros(0, np.int64))
    if config.task == "translation":
        task = translation.compose(config, stub, stub)
        return task, {"source": nothing, "target": nothing}
    if config.task == "language":
        return language.compose(config, stub), {"text": nothing}
    sys.exit(f"error: the task {config.task!r} is neither translation nor language")


def leaves_of(params: Any) -> dict[str, Any]:
    """Return the parameters by their paths."""
    import jax

    from transformer_jax import sharding

    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {sharding.path_name(path): leaf for path, leaf in leaves}


def least_bytes(
    config: Any, params: Any, mesh: Any, rows: int, length: int, plain: bool = False
) -> dict[str, float]:
    """Return the bytes that a device must send in a step, by what they are.

    - Each parameter is gathered over fsdp once, in the type of the computation: it is
      kept for the backward pass, but for those of layers that are scanned, or computed
      again.
    - Each gradient is reduced once: scattered over fsdp where the parameter is, and the
      parts added up over data (and over sequence); a table's in float32, all others in
      the type of the computation.
    - Over tensor, what a pair of matrices makes of a batch's tokens is added up once
      forward, and its gradient once backward; and so are looked-up vectors, and the
      gradients of what the logits and a cross-attention's keys and values are made of.
    What the axis `sequence` adds to attention is not in it.

    With `plain`, return what a compiler sends that reduces every product by itself and
    scatters nothing, as the CPU's: a gradient is reduced whole over fsdp, a table's
    once for each use, and that of an attention's input once for each of its three maps.
    """
    sizes, width = mesh.shape, 2 if config.model.dtype == "bfloat16" else 4
    fsdp, tensor = sizes["fsdp"], sizes["tensor"]
    replicas = sizes["data"] * sizes["sequence"]
    least = dict.fromkeys(
        ("parameters gathered", "gathered again for the backward pass",
         "gradients reduced", "activations over tensor"), 0.0
    )  # fmt: skip
    tokens = rows * length / (sizes["data"] * fsdp * sizes["sequence"])
    added = 2 * (tensor - 1) / tensor * tokens * config.model.d_model * width
    pairs, tied = config.task == "translation", config.model.tie == "all"
    for path, leaf in leaves_of(params).items():
        axes = {axis for part in leaf.sharding.spec for axis in _names(part)}
        size = leaf.size / (tensor if "tensor" in axes else 1)
        table, split = path.endswith("embedding"), fsdp if "fsdp" in axes else 1
        exact = 4 if table else width
        gathered = size * width * (split - 1) / split
        least["parameters gathered"] += gathered
        again = config.model.remat == "full" or config.model.scan_layers
        if again and "layer_" in path:
            least["gathered again for the backward pass"] += gathered
        copies, uses = replicas * fsdp // split, 2 + (pairs and tied)
        if plain and table:
            reduced = uses * _all_reduced(size, replicas * fsdp)
        elif plain:
            reduced = _all_reduced(size, split) + _all_reduced(size / split, copies)
        else:
            reduced = size * (split - 1) / split + _all_reduced(size / split, copies)
        least["gradients reduced"] += exact * reduced
        if table:
            times = uses
        elif re.search(r"(out|outer)/kernel$", path):
            times = 2 + 2 * (plain and "self_attention" in path)
        else:  # of a source: its layers' keys' and values' gradients are one sum
            first = path.endswith("decoder/layer_0/cross_attention/key/kernel")
            every = re.search(r"cross_attention/(key|value)/kernel$", path) is not None
            times = every if plain else first
        least["activations over tensor"] += times * added
    return least


def _all_reduced(size: float, devices: int) -> float:
    """Return what each device sends to add up so many numbers, on a ring."""
    return 2 * size * (devices - 1) / devices


def _names(part: Any) -> tuple[str, ...]:
    return (part,) if isinstance(part, str) else tuple(part or ())


def read_collectives(text: str, devices: int) -> list[Collective]:
    """Read the collectives of a compiled program, those in loops with their count."""
    counts = _count_turns(text)
    caller: dict[str, str] = {}
    lines, inside = [], ""
    for line in text.split("\n"):
        if not line.startswith(" ") and line.rstrip().endswith("{"):
            inside = re.match(r"(?:ENTRY )?%?([\w.\-]+)", line)[1]
            continue
        called = r"(?:calls|body|to_apply|condition)=%?([\w.\-]+)"
        for name in re.findall(called, line):
            caller.setdefault(name, inside)
        kinds = "|".join(KINDS)
        match = re.match(rf"\s+(?:ROOT )?%?\S+ = (.*?) ({kinds})(-start)?\(", line)
        if match:
            lines.append((inside, line, *match.groups()))

    def times(name: str | None) -> int:
        return 1 if name is None else counts.get(name, 1) * times(caller.get(name))

    found, seen = [], set()
    for inside, line, result, kind, asynchronous in lines:
        # A TPU's text shows the two halves of an asynchronous one with its channel.
        channel = re.search(r"channel_id=(\d+)", line)
        key = kind, channel[1] if channel else line
        if key not in seen:
            seen.add(key)
            if asynchronous and kind != "all-reduce":  # (operands, results, …)
                result = _split_tuple(result)[1]
            shapes = tuple(
                (dtype, tuple(int(n) for n in sizes.split(",") if n))
                for dtype, sizes in SHAPE.findall(result)
            )
            if kind == "all-reduce" and inside.startswith("all-reduce-scatter"):
                kind = "reduce-scatter"  # a TPU's: whole, but a part of it is kept
                shapes = tuple(
                    (dtype, (-(-math.prod(shape) // _group_size(line, devices)),))
                    for dtype, shape in shapes
                )
            name = re.search(r'op_name="([^"]*)"', line)
            group = _group_size(line, devices)
            found.append(
                Collective(kind, group, shapes, times(inside), name[1] if name else "")
            )
    return [one for one in found if one.group > 1]


def _count_turns(text: str) -> dict[str, int]:
    """Return how often the body of each loop runs.

    A TPU's text does not say it: there it is the number that the condition compares
    its counter with.
    """
    known = r'while\([^\n]*?body=%?([\w.\-]+)[^\n]*?"known_trip_count":\{"n":"(\d+)"\}'
    counts = {body: int(times) for body, times in re.findall(known, text)}
    loops = r"while\([^\n]*?condition=%?([\w.\-]+), body=%?([\w.\-]+)"
    for condition, body in re.findall(loops, text):
        begin = re.search(rf"^%?{re.escape(condition)} ", text, re.MULTILINE)
        if body in counts or not begin:
            continue
        block = text[begin.start() : text.index("\n}", begin.start())]
        limits = re.findall(r"s32\[\]\S* constant\((\d+)\)", block)
        if len(limits) == 1:
            counts[body] = int(limits[0])
    return counts


def _split_tuple(shape: str) -> list[str]:
    """Split "(a, (b, c))" into its parts "a" and "(b, c)"."""
    parts, depth = [""], 0
    for character in shape.strip()[1:-1]:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _group_size(line: str, devices: int) -> int:
    if found := re.search(r"replica_groups=mesh\[(.*?)\].*?\{('axis[^}]*)\}", line):
        sizes = dict(re.findall(r"('\w+')=(\d+)", found[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'\w+'", found[2]))
    if found := re.search(r"replica_groups=\[(\d+),(\d+)\]", line):
        return int(found[2])
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return found[1].count(",") + 1
    return devices


if __name__ == "__main__":
    sys.exit(main())
