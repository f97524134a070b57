"""Compare the memory that a computation needs with what there is, before it begins.

A search or a line that needs more is refused in words; the system would end the
process.
"""

import math
import os
import pathlib
from typing import Any

import jax
from jax.sharding import Mesh

from transformer_jax.base.errors import Refused
from transformer_jax.decoding.options import Options

FLOAT = 4  # bytes of a score of attention, which is a float32
# Limits of a container: what its processes may use, and what they do use.
GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)


def free_memory(device: Any) -> float:
    """Return the bytes of a device's memory that are free; infinite if unknown.

    The memory of a CPU is that of the machine, or of the container.
    """
    if device.platform != "cpu":
        about = device.memory_stats() or {}
        return float(about.get("bytes_limit", math.inf) - about.get("bytes_in_use", 0))
    free = [_free_in_machine()]
    for limit, used in GROUPS:
        try:
            free.append(float(_read_number(limit) - _read_number(used)))
        except (OSError, ValueError):  # no such group, or one without a limit ("max")
            continue
    return min(free)


def free_on(mesh: Mesh) -> tuple[float, int]:
    """Return the free bytes of a device and the number of memories of a mesh.

    CPU devices share the memory of the host.
    """
    first = mesh.local_devices[0]
    return free_memory(first), 1 if first.platform == "cpu" else mesh.size


def check_attention(
    config: Any, length: int, what: str, advice: str, copies: int = 0, rows: int = 0
) -> None:
    """Refuse a text whose attention needs more memory than there is.

    Scores are [rows, heads, length, length]. `copies` of them are held where weights
    are asked for; kernels that keep no weights need none. `rows` is the least number
    of rows of a batch, by default that of the config.
    """
    model = config.model
    if not copies and model.get("attention", "auto") != "einsum":
        return
    if "num_heads" not in model:
        return
    rows = rows or min(config.data.row_multiple, config.eval.batch_rows)
    needed = max(copies, 1) * rows * model.num_heads * length**2 * FLOAT
    free = free_memory(jax.local_devices()[0])
    if needed > free:
        raise Refused(
            f"{what} needs {needed / 1e9:,.1f} GB for its attention, but "
            f"{free / 1e9:,.1f} are free: {advice}"
        )


def count_attentions(model: Any) -> int:
    """Count the arrays of attention weights in a forward pass.

    Each layer has one, and a decoder's second attention, to an encoder, another. For a
    model without such layers the count is 1.
    """
    encoder, decoder = (
        model.get(f"{side}_layers", 0) for side in ("encoder", "decoder")
    )
    return max(encoder + decoder * (2 if encoder else 1), 1)


def bound_state(module: Any, rows: int, shape: Any, options: Options) -> float:
    """Bound the bytes of a search's state; infinite if the sizes are unknown.

    Tracing the search says them exactly, but takes longer than a short answer.
    """
    if members := getattr(module, "members", ()):  # of an ensemble
        return sum(bound_state(member, rows, shape, options) for member in members)
    config = getattr(module, "config", None)
    names = "decoder_layers", "num_heads", "d_k", "d_v", "vocab_size"
    if not all(hasattr(config, name) for name in names):
        return math.inf
    layers, heads, d_k, d_v, vocabulary = (getattr(config, name) for name in names)
    slots = shape.prompt + shape.length
    beams = options.width
    read = layers * heads * (d_k + d_v) * (beams * slots + shape.source)
    return float(FLOAT * rows * (read + beams * (vocabulary + 8 * slots)))


def estimate_search(module: Any, rows: int, shape: Any, options: Options) -> int:
    """Estimate from above the bytes of a search besides its state.

    Each hypothesis looks at the slots of all hypotheses of its row, and has the logits
    of all tokens; the source is read at once.
    """
    if members := getattr(module, "members", ()):
        return sum(estimate_search(one, rows, shape, options) for one in members)
    config = getattr(module, "config", None)
    heads = getattr(config, "num_heads", 1)
    vocabulary = getattr(config, "vocab_size", 0)
    beams, slots = options.width, shape.prompt + shape.length
    read = heads * (shape.source**2 + shape.prompt * slots)
    written = beams * (heads * (beams * slots + shape.source) + 8 * vocabulary)
    return 2 * FLOAT * rows * max(read, written)


def needs_of(program: Any) -> int:
    """Return the bytes that a compiled program needs on a device."""
    about = program.memory_analysis()
    if about is None:  # not on this platform
        return 0
    whole = about.argument_size_in_bytes + about.output_size_in_bytes
    return whole + about.temp_size_in_bytes - about.alias_size_in_bytes


def _free_in_machine() -> float:
    try:
        text = pathlib.Path("/proc/meminfo").read_text(encoding="utf-8")
        entries = dict(line.split(":") for line in text.splitlines())
        return 1024.0 * int(entries["MemAvailable"].split()[0])
    except (OSError, ValueError, KeyError):  # not Linux
        pass
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return math.inf


def _read_number(path: str) -> int:
    return int(pathlib.Path(path).read_text(encoding="utf-8"))
