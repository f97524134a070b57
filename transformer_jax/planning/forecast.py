"""Describe a plan as numbers for JSON and as text for people."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from transformer_jax import sharding
from transformer_jax.data.batches import Shape
from transformer_jax.planning import collectives
from transformer_jax.training.steps import programs

FULL = 0.9  # usable share of a device's memory; fragmentation and the runtime take more
SHOWN = 6  # shapes named in a line
PALLAS = ("tpu_custom_call", "splash_")  # names of Pallas kernels, which do attention
LIKELY = 0.4  # the share of the peak to assume if no step was timed


def count_parameters(params: Any) -> dict[str, int]:
    """Count the parameters of each part of a model, summed over its layers."""
    found: dict[str, int] = {}
    for path, leaf in sharding.by_path(params).items():
        parts = path.split("/")[:-1]
        names = [part for part in parts if not re.fullmatch(r"layers?(_\d+)?", part)]
        part = "norms" if "norm" in names[-1] else " ".join(names[:2])
        found[part] = found.get(part, 0) + leaf.size
    return found


def name_of(shape: Shape) -> str:
    """Write a shape as rows × length, or rows × source/target."""
    packed = " packed" if shape.packed else ""
    return f"{shape.rows} × {'/'.join(map(str, shape.lengths))}{packed}"


def describe_batches(
    batches: Mapping[Shape, int], padding: float | None
) -> dict[str, Any]:
    """Return the shapes with their shares of the steps, and the padding."""
    steps = sum(batches.values())
    return {
        "shapes": {name_of(shape): times / steps for shape, times in batches.items()},
        "steps_per_epoch": steps if padding is not None else None,
        "padding": padding,
    }


def describe_program(program: Any, text: str, devices: int) -> dict[str, Any]:
    """Return the memory, kernels, operations and communication of one device."""
    memory = programs.read_memory(program)
    sent: dict[str, float] = {}
    for one in collectives.read(text, devices):
        sent[one.kind] = sent.get(one.kind, 0.0) + one.sent
    return {
        "memory": memory
        and {
            "total": memory.total,
            "arguments": memory.arguments,
            "temporary": memory.temporary,
        },
        "xla_flops_a_device": programs.read_flops(program),
        "kernels": programs.read_kernels(text),
        "sent_bytes": sent,
    }


def expect_time(
    operations: float, steps: int, peak: float, watts: float, step_ms: float
) -> dict[str, Any]:
    """Return the hours, MFU and kWh of a training run; 0 peak or watts means unknown.

    Without a timed step, LIKELY of the peak is assumed.
    """
    timed = bool(step_ms)
    if not timed:
        if not peak:
            return {"timed": False}
        step_ms = 1000 * operations / (LIKELY * peak)
    hours = steps * step_ms / 3.6e6
    found: dict[str, Any] = {"timed": timed, "step_ms": step_ms, "hours": hours}
    found["mfu"] = operations / (step_ms / 1000) / peak if peak else None
    found["kwh"] = watts * hours / 1000 if watts else None
    return found


def fits(found: Mapping[str, Any]) -> bool:
    """Return whether all programs of a plan fit on a device, as far as known."""
    limit = FULL * found["memory_of_a_device"]
    totals = [
        program["memory"]["total"]
        for program in (*found["steps"], *found["decoding"])
        if program["memory"]
    ]
    return not limit or max(totals, default=0) <= limit


def search_largest(fitting: Callable[[int], bool], most: int = 2**20) -> int:
    """Return the largest fitting number, to within 1/16; 0 means not even 1 fits."""
    low, high = 0, 1
    while high <= most and fitting(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if fitting(middle) else (low, middle)
    return low


def describe(found: Mapping[str, Any]) -> list[str]:
    """Put a plan into words."""
    parts = found["parameters"]
    total = sum(parts.values())
    shares = ", ".join(f"{name} {_short(size)}" for name, size in parts.items())
    axes = " × ".join(f"{axis} {size}" for axis, size in found["mesh"].items())
    largest = _worst(found["steps"])
    return [
        f"target     {found['target']}: {found['devices']}, mesh {axes}; not run",
        *_describe_unknown(found.get("unknown_device", "")),
        f"parameters {total:,}: {shares}",
        *_describe_heads(found["heads"]),
        *_describe_batches(found["batches"]),
        *_describe_flops(found, largest),
        *(_describe_step(step) for step in found["steps"]),
        *_describe_memory("training", largest, found),
        *_describe_bytes(largest),
        f"kernels    {_kernels(largest)}",
        *_describe_decoding(found),
        *_describe_time(found["time"]),
    ]


def _describe_unknown(kind: str) -> list[str]:
    """Say that a device is taken for no other, however alike their names are."""
    if not kind:
        return []
    return [
        f"warning    {kind!r} is no device whose memory and peak are known: whether "
        "this fits, its time and its MFU are not forecast"
    ]


def _worst(compiled: Any) -> Mapping[str, Any]:
    return max(compiled, key=lambda p: p["memory"]["total"] if p["memory"] else 0)


def _describe_heads(heads: Mapping[str, Any] | None) -> list[str]:
    """Compare one head with several: the paper's claim of equal cost (3.2.2)."""
    if heads is None or heads["heads"] == 1:
        return []
    one, several = heads["one"], heads["several"]
    ratios = (f"{what} × {several[what] / one[what]:.3f}" for what in one)
    return [f"heads      {heads['heads']} vs one as wide: {', '.join(ratios)}"]


def _describe_flops(found: Mapping[str, Any], step: Mapping[str, Any]) -> list[str]:
    """Describe the operations of the mathematics, and XLA's count if there is one."""
    counted, line = step["xla_flops_a_device"], f"{_tera(found['flops'])} per step"
    if found["flops_largest"] != found["flops"]:
        line += f", {_tera(found['flops_largest'])} for the largest"
    by_xla = f"; by XLA's count {_tera(counted)} per device" if counted else ""
    return [f"FLOPs      {line}{by_xla}"]


def _describe_batches(batches: Mapping[str, Any]) -> list[str]:
    shapes = list(batches["shapes"])
    more = f" and {len(shapes) - SHOWN} more" if len(shapes) > SHOWN else ""
    named = f"{', '.join(shapes[:SHOWN])}{more}"
    if batches["padding"] is None:
        return [f"batches    {named} (the largest; padding not known without the data)"]
    return [
        f"batches    {batches['steps_per_epoch']:,} per epoch, padding "
        f"{batches['padding']:.1%}, shapes {len(shapes)}: {named}"
    ]


def _describe_step(step: Mapping[str, Any]) -> str:
    seconds = step["seconds"]
    return (
        f"compiled   {step['shape']} in {seconds['trace'] + seconds['compile']:.0f} s "
        "on this machine"
    )


def _describe_memory(
    what: str, program: Mapping[str, Any], found: Mapping[str, Any]
) -> list[str]:
    memory, limit = program["memory"], found["memory_of_a_device"]
    if not memory:
        return [f"memory     {what}: the compiler does not say"]
    of = ""
    if limit:
        state = "fits" if memory["total"] <= FULL * limit else "DOES NOT FIT"
        of = f" of {limit / 1e9:.1f} GB: {state} (up to {FULL:.0%})"
    return [
        f"memory     {what}: {memory['total'] / 1e9:.2f} GB per device "
        f"({memory['arguments'] / 1e9:.2f} held, {memory['temporary'] / 1e9:.2f} "
        f"while it runs){of}"
    ]


def _describe_bytes(step: Mapping[str, Any]) -> list[str]:
    if not step["sent_bytes"]:
        return []
    total, least = sum(step["sent_bytes"].values()), step["least_bytes"]
    kinds = ", ".join(f"{k} {b / 1e6:.1f}" for k, b in step["sent_bytes"].items())
    ratio = f" ({total / least:.2f} × the least)" if least else ""
    return [f"sent       {total / 1e6:.1f} MB per device and step{ratio}: {kinds}"]


def _kernels(program: Mapping[str, Any]) -> str:
    found = ", ".join(f"{name} × {n}" for name, n in program["kernels"].items())
    return found or "none but the compiler's own"


def _describe_decoding(found: Mapping[str, Any]) -> list[str]:
    decoding = found["decoding"]
    largest, last = _worst(decoding), decoding[-1]
    what = f"decoding {largest['rows']} rows"
    lines = _describe_memory(what, largest, found)
    lines.append(f"compiled   decoding in {last['seconds']['all']:.0f} s")
    if last["kernels"]:
        lines.append(f"kernels    decoding: {_kernels(last)}")
    return lines


def _describe_time(time: Mapping[str, Any]) -> list[str]:
    if "hours" not in time:
        return ["time       not known: give --step_ms, the milliseconds of a step"]
    how = "at this speed" if time["timed"] else "assumed"
    mfu = f", MFU {time['mfu']:.1%} ({how})" if time["mfu"] is not None else ""
    energy = f", at most {time['kwh']:,.1f} kWh" if time["kwh"] is not None else ""
    return [
        f"time       {time['hours']:,.1f} hours at {time['step_ms']:,.0f} ms per step"
        f"{mfu}{energy}"
    ]


TABLE = (
    "| config | target | parameters | shape | GB per device, training | decoding | "
    "attention | MB sent | × the least | seconds to compile |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def table_row(spec: str, found: Mapping[str, Any]) -> str:
    """Write a plan as a row of TABLE."""
    step, decoding = _worst(found["steps"]), _worst(found["decoding"])
    total = sum(step["sent_bytes"].values())
    ratio = f"{total / step['least_bytes']:.2f}" if step["least_bytes"] else ""
    seconds = step["seconds"]["trace"] + step["seconds"]["compile"]
    both = f"{seconds:.0f} + {found['decoding'][-1]['seconds']['all']:.0f}"
    cells = [
        f"`{spec}`",
        found["target"],
        _short(sum(found["parameters"].values())),
        step["shape"],
        _giga(step),
        _giga(decoding),
        _attention(step),
        f"{total / 1e6:.0f}" if total else "",
        ratio,
        both,
    ]
    return f"| {' | '.join(cells)} |"


def _attention(program: Mapping[str, Any]) -> str:
    """Name the attention kernel and how often it is called: forward + backward."""
    kernels = program["kernels"]
    if forward := kernels.get("__cudnn$fmhaSoftmax"):
        return f"cuDNN {forward} + {kernels.get('__cudnn$fmhaSoftmaxBackward', 0)}"
    pallas = [n for name, n in kernels.items() if name.startswith(PALLAS)]
    return f"splash {sum(pallas)}" if pallas else "XLA"


def _giga(program: Mapping[str, Any]) -> str:
    memory = program["memory"]
    return f"{memory['total'] / 1e9:.2f}" if memory else "?"


def _short(count: float) -> str:
    for size, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {name}"
    return f"{count:,.0f}"


def _tera(operations: float) -> str:
    if operations >= 1e11:
        return f"{operations / 1e12:,.2f} TFLOP"
    return f"{operations / 1e9:,.3f} GFLOP"
