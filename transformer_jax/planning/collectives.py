"""Read the communication of a compiled program, and compute the least possible.

All bytes are those sent by one device, on a ring.
"""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from transformer_jax import config as configs
from transformer_jax import sharding

KINDS = "all-gather reduce-scatter all-reduce all-to-all collective-permute".split()
SIZES = {8: "f64 s64 u64", 4: "f32 s32 u32", 2: "bf16 f16 s16 u16", 1: "s8 u8 pred"}
BYTES = {dtype: size for size, dtypes in SIZES.items() for dtype in dtypes.split()}
SHAPE = re.compile(rf"\b({'|'.join(BYTES)})\[([\d,]*)\]")


class Collective(NamedTuple):
    """A collective operation of a compiled program."""

    kind: str
    group: int  # the number of participating devices
    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # of its results: dtype and sizes
    times: int  # how often it runs: more than once inside a loop
    name: str  # the operation of the model that it belongs to

    @property
    def sent(self) -> float:
        """The bytes that a device sends on a ring, over all runs together."""
        size = sum(BYTES[dtype] * math.prod(shape) for dtype, shape in self.shapes)
        share = (self.group - 1) / self.group
        factor = {
            "all-reduce": 2 * share,
            "reduce-scatter": self.group - 1,  # its result is one part
            "collective-permute": 1,
        }
        return size * factor.get(self.kind, share) * self.times


def read(text: str, devices: int) -> list[Collective]:
    """Read the collectives of a compiled program, with counts for those in loops."""
    times = _times_of(text)
    found, seen = [], set()
    inside = ""
    for line in text.split("\n"):
        inside = _computation(line) or inside
        match = _COLLECTIVE.match(line)
        if not match:
            continue
        result, kind, asynchronous = match.groups()
        # A TPU's text shows both halves of an asynchronous one, with equal channels.
        channel = re.search(r"channel_id=(\d+)", line)
        key = kind, channel[1] if channel else line
        if key in seen:
            continue
        seen.add(key)
        if asynchronous and kind != "all-reduce":  # (operands, results, …)
            result = _split_tuple(result)[1]
        group = _group_size(line, devices)
        shapes = tuple(
            (dtype, tuple(int(n) for n in sizes.split(",") if n))
            for dtype, sizes in SHAPE.findall(result)
        )
        if kind == "all-reduce" and inside.startswith("all-reduce-scatter"):
            kind = "reduce-scatter"  # a TPU reduces everything and keeps a part
            shapes = tuple((d, (-(-math.prod(s) // group),)) for d, s in shapes)
        name = re.search(r'op_name="([^"]*)"', line)
        found.append(
            Collective(kind, group, shapes, times(inside), name[1] if name else "")
        )
    return [one for one in found if one.group > 1]


_COLLECTIVE = re.compile(rf"\s+(?:ROOT )?%?\S+ = (.*?) ({'|'.join(KINDS)})(-start)?\(")


def _computation(line: str) -> str:
    """Return the name of the computation that begins with a line, if one does."""
    if line.startswith(" ") or not line.rstrip().endswith("{"):
        return ""
    found = re.match(r"(?:ENTRY )?%?([\w.\-]+)", line)
    return found[1] if found else ""


def _times_of(text: str) -> Callable[[str | None], int]:
    """Return a function from the name of a computation to how often it runs."""
    counts = _count_turns(text)
    caller: dict[str, str] = {}
    inside = ""
    for line in text.split("\n"):
        inside = _computation(line) or inside
        called = r"(?:calls|body|to_apply|condition)=%?([\w.\-]+)"
        for name in re.findall(called, line):
            caller.setdefault(name, inside)

    def times(name: str | None) -> int:
        return 1 if name is None else counts.get(name, 1) * times(caller.get(name))

    return times


def _count_turns(text: str) -> dict[str, int]:
    """Return how often the body of each loop runs.

    A TPU's text does not state it, so there it is read from the loop's condition, which
    compares the counter with a constant.
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


def find_least(
    config: Any, params: Any, mesh: Any, rows: int, length: int, plain: bool = False
) -> dict[str, float]:
    """Return the fewest bytes that a device must send in a step, by purpose.

    - Each parameter is gathered over fsdp once, in the computation dtype. It is kept
      for the backward pass, except in layers that are scanned or rematerialised.
    - Each gradient is reduced once: scattered over fsdp where its parameter is split,
      and its parts summed over data (and sequence). Gradients of tables are reduced in
      float32, all others in the computation dtype.
    - Over tensor, the output of each pair of matrices is summed once in the forward
      pass, and its gradient once in the backward pass. The same holds for looked-up
      vectors, and for the gradients of the inputs of the logits and of the keys and
      values of cross-attention.

    The communication of attention over the axis `sequence` is not included.

    With `plain`, return the bytes for a compiler that reduces every product separately
    and never scatters, as for CPUs: a gradient is reduced in full over fsdp, a table's
    gradient once per use, and the source's once per layer that reads it.
    """
    sizes, width = mesh.shape, 2 if configs.dtype_of(config) == "bfloat16" else 4
    fsdp, tensor = sizes["fsdp"], sizes["tensor"]
    replicas = sizes["data"] * sizes["sequence"]
    least: dict[str, float] = dict.fromkeys(
        (
            "parameters gathered",
            "gathered again for the backward pass",
            "gradients reduced",
            "activations over tensor",
        ),
        0.0,
    )
    tokens = rows * length / (sizes["data"] * fsdp * sizes["sequence"])
    added = 2 * (tensor - 1) / tensor * tokens * config.model.d_model * width
    tied = config.model.get("tie") == "all"
    pairs = {"encoder_layers", "decoder_layers"} <= set(config.model)
    for path, leaf in sharding.by_path(params).items():
        axes = {axis for part in leaf.sharding.spec for axis in _names(part)}
        size = leaf.size / (tensor if "tensor" in axes else 1)
        table, split = path.endswith("embedding"), fsdp if "fsdp" in axes else 1
        exact = 4 if table else width
        gathered = size * width * (split - 1) / split
        least["parameters gathered"] += gathered
        model = config.model  # a recurrent one has neither option
        again = model.get("remat") == "full" or model.get("scan_layers")
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
            times = 2
        else:  # the source gets one sum of the gradients of all keys and values
            first = path.endswith("decoder/layer_0/cross_attention/key/kernel")
            every = path.endswith("cross_attention/key/kernel")
            times = every if plain else first
        least["activations over tensor"] += times * added
    return least


def _all_reduced(size: float, devices: int) -> float:
    """Return how much each device sends in an all-reduce of `size` values on a ring."""
    return 2 * size * (devices - 1) / devices


def _names(part: Any) -> tuple[str, ...]:
    return (part,) if isinstance(part, str) else tuple(part or ())
