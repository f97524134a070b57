"""Predict what a training run will need, on this hardware or any other.

    python -m transformer_jax.plan --config configs/wmt14.py:en_de_base \\
        --target h200x8 --no_data
    python -m transformer_jax.plan --all --target cpu

The real training step and the real search are compiled for the target but not run.
Targets are `here`, `cpu-8`, `h200x8`, `v5e-8`, … (see hardware.py). Compiling
for GPUs and TPUs needs JAX's plugin for that hardware, but no device. Exit code 1
means that the run does not fit.
"""

import json
import time
from typing import Any

import jax
from absl import flags
from jax.sharding import AxisType, Mesh
from ml_collections import ConfigDict

from transformer_jax import cli, hardware, sharding, tasks, train
from transformer_jax import config as configs
from transformer_jax.base.errors import UserError
from transformer_jax.config import checks
from transformer_jax.data.batches import Shape
from transformer_jax.hardware import Target
from transformer_jax.planning import collectives, forecast, workload
from transformer_jax.planning.forecast import FULL
from transformer_jax.planning.workload import Workload
from transformer_jax.tasks.protocols import Writes
from transformer_jax.training.steps import programs


def define_flags() -> None:
    """Define the flags of the command."""
    flags.DEFINE_string("config", "", "A config file: path.py[:variant], or a name.")
    flags.DEFINE_bool("all", False, "Plan every shipped config for its targets.")
    flags.DEFINE_string("target", "", "Such as h200x8, v5e-8, cpu; default: here.")
    flags.DEFINE_bool("no_data", False, "Take the config's largest shape.")
    flags.DEFINE_integer(
        "rows", 0, "With --no_data, rows of a batch; 0 means the config's."
    )
    flags.DEFINE_integer("length", 0, "With --no_data, length of each side.")
    flags.DEFINE_integer("vocabulary", 0, "With --no_data, pieces of the vocabulary.")
    flags.DEFINE_bool("every_shape", False, "Compile all shapes, not only the largest.")
    flags.DEFINE_float(
        "step_ms", 0.0, "Milliseconds per step, to compute hours, energy and MFU."
    )
    flags.DEFINE_bool("fit", False, "Find the largest data.batch_tokens that fits.")
    flags.DEFINE_string("output", "", "A JSON file for the plan.")


def main(overrides: dict[str, str]) -> int:
    """Plan one config, or all of them; return the exit code."""
    args = flags.FLAGS
    if args.all:
        return plan_all(args.target, args.config, args.output)
    cli.require("config", args.config, "a config file, such as configs/wmt14.py")
    name = args.target or "here"
    hardware.prepare(name)
    config = configs.load(args.config, overrides, data=not args.no_data)
    if args.output:
        read = [configs.find_file(args.config), *configs.named_files(config)]
        cli.refuse_overwriting("output", args.output, read)
    target = hardware.find(name)
    settle_shapes(config, target)
    mesh = make_mesh(config, target)
    if args.fit:
        return fit(config, target, mesh, args)
    load = open_workload(config, args)
    found = plan(config, target, mesh, load, args.step_ms, args.every_shape)
    found = {"config": args.config, "overrides": overrides, **found}
    for line in forecast.describe(found):
        print(line, flush=True)
    write(args.output, found)
    return 0 if forecast.fits(found) else 1


def settle_shapes(config: ConfigDict, target: Target) -> None:
    """Replace "auto" in `data.shapes_for` as a run on this hardware would."""
    if config.data.shapes_for == "auto" and target.hardware.platform == "tpu":
        config.data.shapes_for = "tpu"


def open_workload(config: ConfigDict, args: Any) -> Workload:
    """Plan the batches of the data, or only the largest that the config allows."""
    if args.no_data:
        return workload.without_data(config, args.rows, args.length, args.vocabulary)
    try:
        return workload.from_data(config, print)
    except UserError as error:
        raise UserError(
            *error.problems,
            "without the data, add --no_data to plan for the largest batch",
        ) from None


def write(path: str, found: Any) -> None:
    """Write a plan as JSON, if a path is given."""
    if path:
        with cli.open_file(path, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1, ensure_ascii=False)
            file.write("\n")


def make_mesh(config: ConfigDict, target: Target) -> Mesh:
    """Make the mesh of a config from the devices of a target, which may be absent."""
    devices = hardware.devices(target)
    shape = sharding.mesh_shape(config.mesh, len(devices))
    auto = (AxisType.Auto,) * len(shape)
    return jax.make_mesh(shape, sharding.AXES, devices=devices, axis_types=auto)


def plan(
    config: ConfigDict,
    target: Target,
    mesh: Mesh,
    load: Workload,
    step_ms: float = 0.0,
    every_shape: bool = False,
) -> dict[str, Any]:
    """Compile a training run for a target, and return its plan."""
    device = mesh.devices.flat[0]
    _, abstract, update = train.make_update(config, load.task, mesh)
    params, objective = abstract.params, load.task.objective

    def count(shape: Shape) -> float:
        return programs.count_step(objective, params, load.abstract(shape, mesh))

    counted = {shape: count(shape) for shape in load.batches}
    shapes = list(load.batches) if every_shape else [load.largest]
    steps = [
        compile_step(config, target, mesh, load, update, abstract, shape)
        for shape in shapes
    ]
    found = {
        "target": target.name,
        "devices": f"{mesh.size} × {device.device_kind} ({device.platform})",
        "mesh": dict(mesh.shape),
        "memory_of_a_device": target.hardware.memory,
        "unknown_device": "" if target.hardware.kinds else device.device_kind,
        "dtype": configs.dtype_of(config),
        "parameters": forecast.count_parameters(params),
        "batches": forecast.describe_batches(load.batches, load.padding),
        "flops": load.mean(counted.__getitem__),
        "flops_largest": counted[load.largest],
        "heads": compare_heads(config, load),
        "steps": steps,
        "decoding": compile_decoding(config, target, mesh, load, params),
    }
    peak = target.peak(configs.dtype_of(config))
    watts = target.hardware.watts * mesh.size
    costs = found["flops"], config.train.steps, peak, watts
    return {**found, "time": forecast.expect_time(*costs, step_ms)}


def compile_step(
    config: ConfigDict,
    target: Target,
    mesh: Mesh,
    load: Workload,
    update: Any,
    abstract: Any,
    shape: Shape,
) -> dict[str, Any]:
    """Compile the training step for a shape; return the needs of the program."""
    began = time.monotonic()
    with jax.set_mesh(mesh):
        lowered = update.lower(abstract, load.abstract(shape, mesh))
        traced = time.monotonic()
        program = lowered.compile(target.options)
    ended, text = time.monotonic(), program.as_text() or ""
    found = forecast.describe_program(program, text, mesh.size)
    found["shape"] = forecast.name_of(shape)
    found["seconds"] = {"trace": traced - began, "compile": ended - traced}
    found["least_bytes"] = 0.0
    if mesh.size > 1 and "d_model" in config.model:  # else its products are unknown
        sizes = shape.rows, max(shape.lengths)
        least = collectives.find_least(config, abstract.params, mesh, *sizes)
        found["least_bytes"] = sum(least.values())
    return found


def compile_decoding(
    config: ConfigDict, target: Target, mesh: Mesh, load: Workload, params: Any
) -> list[dict[str, Any]]:
    """Compile the search for a full batch, or the forward pass of a model that only
    reads."""
    found = []
    began = time.monotonic()
    if not isinstance(load.task.inference, Writes):
        rows = config.eval.batch_rows
        shape = Shape(rows, load.largest.lengths, load.largest.packed)
        batch = load.abstract(shape, mesh)
        with jax.set_mesh(mesh):
            read = jax.jit(load.task.objective.loss).lower(params, batch)
            compiled = {"read": read.compile(target.options)}
    else:
        options = tasks.find(config.task).search(**config.decode)
        request = load.task.inference.longest_request(load.largest.lengths[0])
        begin, advance = load.task.inference.writer.engine(mesh).compile(
            params, request, options, **target.options
        )
        compiled = {"begin": begin, "write": advance}
    seconds = time.monotonic() - began
    for name, program in compiled.items():
        described = forecast.describe_program(
            program, program.as_text() or "", mesh.size
        )
        found.append({"program": name, "rows": config.eval.batch_rows, **described})
    found[-1]["seconds"] = {"all": seconds}
    return found


def compare_heads(config: ConfigDict, load: Workload) -> dict[str, Any] | None:
    """Compare one head with the config's number of heads, at the same width (3.2.2)."""
    if "num_heads" not in config.model or "tokenizer" not in config:
        return None
    if not workload.opens_without_data(config):
        return None
    (shape,) = [Shape(8, load.largest.lengths)]
    found = {"heads": config.model.num_heads}
    for name, heads in (("one", 1), ("several", config.model.num_heads)):
        changed = config.copy_and_resolve_references()
        with changed.unlocked():
            changed.model.update(num_heads=heads, d_k=0, d_v=0, kv_heads=0)
            changed.model.positions = "none"  # a position bias has a value per head
        vocabulary = config.tokenizer.vocab_size
        other = workload.without_data(
            changed, shape.rows, max(shape.lengths), vocabulary
        )
        params = jax.eval_shape(other.task.objective.init, jax.random.key(0))
        batch = other.abstract(other.largest, sharding.local_mesh())
        found[name] = {
            "parameters": sum(x.size for x in jax.tree.leaves(params)),
            "flops": programs.count_step(other.task.objective, params, batch),
        }
    return found


def fit(config: ConfigDict, target: Target, mesh: Mesh, args: Any) -> int:
    """Find the largest batch that fits on a device, by doubling and bisection."""
    limit = FULL * target.hardware.memory
    if not limit:
        unknown = not target.hardware.kinds
        name = f"{mesh.devices.flat[0].device_kind!r}" if unknown else target.name
        raise UserError(
            f"--fit: the memory of {name} is not known: name a target, such as h100x1, "
            "or set data.batch_tokens"
        )
    unit = checks.longest_row(config) * config.data.row_multiple

    def needs(rows_of_units: int) -> float:
        changed = config.copy_and_resolve_references()
        with changed.unlocked():
            changed.data.batch_tokens = rows_of_units * unit
        load = open_workload(changed, args)
        _, abstract, update = train.make_update(changed, load.task, mesh)
        parts = changed, target, mesh, load, update, abstract, load.largest
        try:
            found = compile_step(*parts)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            print(f"fit        {rows_of_units * unit:,} tokens: does not compile")
            return float("inf")
        total = found["memory"]["total"]
        print(
            f"fit        {rows_of_units * unit:,} tokens, {found['shape']}: "
            f"{total / 1e9:.2f} of {limit / 1e9:.2f} GB",
            flush=True,
        )
        return total

    best = forecast.search_largest(lambda n: needs(n) <= limit)
    if not best:
        print(
            f"fit        not even {unit:,} tokens fit: shorter rows, model.remat, fsdp"
        )
        return 1
    print(f"fit        --config.data.batch_tokens={best * unit}")
    write(args.output, {"batch_tokens": best * unit, "target": target.name})
    return 0


def plan_all(only_targets: str, only_configs: str, output: str) -> int:
    """Compile every shipped config for each of its targets; print a table.

    Only targets and configs that begin with the given prefixes are planned, such as
    "h200" or "wmt14:en_de".
    """
    rows, bad = [], 0
    if output:
        cli.refuse_overwriting("output", output, configs.shipped().values())
    print(forecast.TABLE, flush=True)
    for spec, config in shipped_variants(only_configs):
        for name in config.targets:
            if not name.startswith(only_targets):
                continue
            hardware.prepare(name)
            target = hardware.find(name)
            settle_shapes(config, target)
            try:
                mesh = make_mesh(config, target)
                load = _load_any(config)
                found = plan(config, target, mesh, load)
            except (UserError, jax.errors.JaxRuntimeError) as error:
                print(f"| `{spec}` | {name} | {str(error).splitlines()[0]} |")
                bad += 1
                continue
            bad += not forecast.fits(found)
            rows.append({"config": spec, **found})
            print(forecast.table_row(spec, found), flush=True)
            write(output, rows)
    return 1 if bad else 0


def _load_any(config: ConfigDict) -> Workload:
    """Plan without data, or from the data that a task such as decisions generates."""
    if workload.opens_without_data(config):
        return workload.without_data(config)
    return workload.from_data(config, lambda line: None)


def shipped_variants(only: str = "") -> list[tuple[str, ConfigDict]]:
    """List the shipped configs and their variants that begin with a prefix."""
    found = []
    for name in configs.shipped():
        for variant in configs.variants(name):
            spec = f"{name}:{variant}" if variant else name
            if spec.startswith(only):
                found.append((spec, configs.load(spec, data=False)))
    return found


if __name__ == "__main__":
    define_flags()
    cli.run(main)
