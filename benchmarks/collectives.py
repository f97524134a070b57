"""List the collectives of a training step, and their bytes next to the least possible.

    python benchmarks/collectives.py --config configs/wmt14.py --target h200x8 \\
        --config.mesh.data=1 --config.mesh.fsdp=8 --config.model.dtype=bfloat16

`python -m transformer_jax.plan` prints the sums; this script lists the largest
operations, to show where they come from. The real step is compiled, not run, so no
device is needed. A target is for example h200x8 (JAX with its CUDA plugin), v5e-8 (with
libtpu) or cpu-8. Every example has --length tokens. Bytes are those that one device
sends.
"""

import argparse
import collections as counting
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from transformer_jax import cli, plan, train
from transformer_jax import config as configs
from transformer_jax import hardware as targets
from transformer_jax.planning import collectives, workload


def main() -> int:
    """Print the bytes by kind next to the least, and the largest collectives."""
    rest, overrides = cli.split_overrides(sys.argv[1:])
    args = parse_arguments(rest)
    targets.prepare(args.target)
    config = configs.load(args.config, overrides, data=False)
    began = time.monotonic()
    step = compile_step(config, args.target, args.rows, args.length, args.vocab)
    seconds = time.monotonic() - began
    text, memory, mesh = (
        step.program.as_text(),
        step.program.memory_analysis(),
        step.mesh,
    )
    if args.dump:
        with open(args.dump, "w") as file:
            file.write(text)
    found = collectives.read(text, mesh.size)
    count = sum(x.size for x in jax.tree.leaves(step.params))
    axes = " × ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    print(f"{args.target}, {axes}: {args.rows} × {args.length} tokens, {count:,} "
          f"parameters, {memory.temp_size_in_bytes / 1e9:.2f} GB in addition to "
          f"the arguments' {memory.argument_size_in_bytes / 1e9:.2f}; compiled in "
          f"{seconds:.0f} s")  # fmt: skip
    totals: dict[tuple, list] = counting.defaultdict(lambda: [0, 0.0])
    for one in found:
        dtypes = "/".join(sorted({dtype for dtype, _ in one.shapes}))
        totals[one.kind, one.group, dtypes][0] += one.times
        totals[one.kind, one.group, dtypes][1] += one.sent
    for (kind, group, dtypes), (times, sent) in sorted(totals.items()):
        print(f"  {kind:18} of {group:3}  {dtypes:9} {times:4} ×  {sent / 1e6:9.2f} MB")
    total = sum(one.sent for one in found)
    least = collectives.find_least(config, step.params, mesh, args.rows, args.length)
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
    """Read the command line, without the overrides of the config."""
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


class Step(NamedTuple):
    """A compiled training step."""

    program: Any
    params: Any  # abstract
    mesh: Any


def compile_step(config: Any, name: str, rows: int, length: int, vocab: int) -> Step:
    """Compile the training step for a batch of this shape, on a target."""
    target = targets.find(name)
    mesh = plan.make_mesh(config, target)
    load = workload.without_data(config, rows, length, vocab)
    _, state, update = train.make_update(config, load.task, mesh)
    with jax.set_mesh(mesh):
        batch = load.abstract(load.largest, mesh)
        program = update.lower(state, batch).compile(target.options)
    return Step(program, state.params, mesh)


if __name__ == "__main__":
    sys.exit(main())
