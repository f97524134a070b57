"""Attention kernels that keep no weights in memory, and the choice between them.

    einsum      the reference (`attention.attend`): any hardware, weights, dropout
    cudnn       cuDNN's fused kernel: NVIDIA GPUs, 16-bit numbers
    splash      a Pallas kernel: TPUs
    blockwise   plain JAX, one block of scores at a time: any hardware, long rows

All except the einsum need memory that is linear in the length, not quadratic. A kernel
is a file of this folder with a function `attend(query, key, value, mask, bias)`;
`find_problem` knows its limits.
"""

import dataclasses
import importlib
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from transformer_jax import sharding
from transformer_jax.base.errors import UserError

KERNELS = ("auto", "einsum", "cudnn", "splash", "blockwise")
HARDWARE = {"cudnn": "gpu", "splash": "tpu"}
# The most scores per head that the einsum may hold at a time. Beyond this, blockwise is
# faster, even on a CPU (benchmarks/attention.py).
MOST_SCORES = 1024 * 1024
LANES = 128  # of a TPU: shorter rows would be padded to this length


@dataclasses.dataclass(frozen=True)
class Case:
    """An attention for which to choose a kernel; 0 and "any" mean unknown."""

    platform: str = "any"  # cpu | gpu | tpu
    dtype: Any = jnp.float32
    d_k: int = 0
    d_v: int = 0
    kv_heads: int = 0
    dropout: float = 0.0
    bias: bool = False  # whether scores have a bias by distance
    packed: bool = False  # whether a row has several sequences
    window: int = 0  # keys that a query sees at most; here 0 means all
    queries: int = 0
    keys: int = 0
    tensor: int = 1  # devices that heads are split over
    sequence: int = 1  # devices that positions are split over


@dataclasses.dataclass(frozen=True)
class Choice:
    """A kernel, with the reason for choosing it if it is not obvious."""

    kernel: str
    reason: str = ""


def choose(kernel: str, case: Case, strict: bool = True) -> Choice:
    """Choose the kernel that `model.attention` asks for in a case.

    If the kernel asked for cannot run, raise an error if `strict` (in training);
    otherwise choose another, so that a run answers on any hardware.
    """
    if kernel != "auto":
        problem = find_problem(kernel, case)
        if not problem:
            return Choice(kernel)
        if strict:
            raise UserError(f"{problem}, or model.attention to 'auto'")
    reasons = []
    for name, hardware in HARDWARE.items():
        if hardware == case.platform:
            if not (problem := find_problem(name, case)):
                if name != "splash" or min(case.queries, case.keys) >= LANES:
                    return Choice(name)
                problem = f"rows are shorter than splash's {LANES} lanes"
            reasons.append(problem)
    if case.queries * case.keys > MOST_SCORES and not find_problem("blockwise", case):
        lengths = f"{case.queries:,} × {case.keys:,} scores per head"
        return Choice("blockwise", "; ".join([lengths, *reasons]))
    return Choice("einsum", "; ".join(reasons))


def find_problem(kernel: str, case: Case) -> str | None:
    """Return why a kernel cannot run in a case and what to set, or None if it can."""
    if kernel == "einsum":
        return None
    this, only = f"model.attention = {kernel!r}", HARDWARE.get(kernel, case.platform)
    if case.platform not in ("any", only):
        return f"{this} runs on a {only}, not on a {case.platform}: set it to 'einsum'"
    if case.dropout:
        return (
            f"{this} makes no weights that model.dropout_attention {case.dropout} "
            "could drop: set model.dropout_attention to 0.0"
        )
    if case.sequence > 1:
        return f"{this} needs whole rows: set mesh.sequence {case.sequence} to 1"
    if case.kv_heads % case.tensor:
        return (
            f"{this} needs heads of keys that divide over mesh.tensor {case.tensor}, "
            f"not {case.kv_heads}: set model.kv_heads"
        )
    if case.bias and kernel in HARDWARE:
        return f"{this} adds no bias to scores: set model.positions to another choice"
    if kernel == "cudnn":
        return _find_cudnn_problem(this, case)
    return None


def _find_cudnn_problem(this: str, case: Case) -> str | None:
    if case.window:
        return (
            f"{this} reads whole rows, not a window of {case.window}: set "
            "model.attention_window to 0"
        )
    if jnp.dtype(case.dtype).itemsize != 2:
        return f"{this} takes 16-bit numbers: set model.dtype to 'bfloat16'"
    if case.d_k != case.d_v or case.d_k % 8 or case.d_k > 128:
        return (
            f"{this} takes keys and values of one size, a multiple of 8 up to 128, not "
            f"{case.d_k} and {case.d_v}: set model.d_k and model.d_v"
        )
    if case.queries % 2 or case.keys % 2:  # in training, as JAX 0.10 checks it
        return f"{this} needs rows of even length: set data.length_multiple to 2"
    return None


def describe(choice: Choice, platform: str) -> str:
    """Describe a chosen kernel in the header of a training."""
    reason = f": {choice.reason}" if choice.reason else ""
    return f"{choice.kernel} ({platform}{reason})"


def attend(
    kernel: str,
    query: Float[Array, "B T N K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G H"],
    mask: Any = None,
    bias: Any = None,
) -> Float[Array, "B T N H"]:
    """Attend with a kernel; each device attends for its own rows and heads.

    `mask` is a `Mask` and `bias` a `DistanceBias`; only the einsum takes arrays.
    Queries n·N/G … (n+1)·N/G - 1 share the keys and values of head n. The output of a
    query that sees no key is finite but otherwise undefined.
    """
    try:
        function = importlib.import_module(f"{__name__}.{kernel}").attend
    except ImportError as error:
        raise UserError(
            f"model.attention = {kernel!r}: {error}: use 'einsum', or an older jax "
            f"than {jax.__version__}"
        ) from None
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return function(query, key, value, mask, bias)
    heads = PartitionSpec(sharding.ROWS, None, "tensor", None)

    def by_rows(x):
        return PartitionSpec(sharding.ROWS if len(x) > 1 else None)

    places = jax.tree.map(by_rows, (mask, bias))
    if bias is not None and bias.table is not None:
        places = places[0], places[1].replace(table=PartitionSpec())
    return jax.shard_map(
        function,
        in_specs=(heads, heads, heads, *places),
        out_specs=heads,
        check_vma=False,
    )(query, key, value, mask, bias)


def with_weights(module: Any) -> Any:
    """Return the module with the einsum in place of any other attention kernel.

    It has the same parameters and outputs, and also returns attention weights.
    """
    config: Any = getattr(module, "config", None)
    if getattr(config, "attention", None) not in KERNELS:
        return module
    return module.clone(config=dataclasses.replace(config, attention="einsum"))
