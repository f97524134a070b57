"""The device mesh, the sharding rules of parameters, and the transfer from the host.

A mesh has the axes data × fsdp × tensor × sequence, any of which may be 1. Batches are
split by rows over data and fsdp; a parameter follows the first rule its path matches.
Pitfall: linen needs Auto axes, while `jax.make_mesh` now makes Explicit ones.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from transformer_jax.base.errors import UserError
from transformer_jax.base.schema import option

try:
    from jax.experimental import mesh_utils
except ImportError:  # it is not public, and may be gone
    mesh_utils: Any = None

Params = Mapping[str, Any]  # a tree of arrays, or of their shapes, by name
AXES = ("data", "fsdp", "tensor", "sequence")
PLATFORMS = ("any", "cpu", "gpu", "tpu")
ROWS = ("data", "fsdp")  # the axes that split the rows of a batch
SHARDS = (*ROWS, "sequence")  # those that split its rows and positions

# (pattern searched in a parameter's path, how its axes are split); the first match
# wins. Optimizer state follows its parameters. Tensor parallelism splits the heads and
# the feed-forward's inner axis, with one all-reduce per pair of matrices.
Rule = tuple[str, PartitionSpec]
RULES: tuple[Rule, ...] = (
    # By rows only, so that a looked-up vector is complete, like the residual stream.
    (r"embedding$", PartitionSpec(("tensor", "fsdp"), None)),
    (r"projection/kernel$", PartitionSpec("fsdp", "tensor")),
    (r"output_bias/bias$", PartitionSpec("tensor")),
    (r"(transform|pooler)/kernel$", PartitionSpec("fsdp", None)),
    (r"(transform|pooler)/bias$", PartitionSpec()),
    (r"positions/table$", PartitionSpec(None, "fsdp")),
    (r"position_bias/table$", PartitionSpec(None, "tensor")),  # one column per head
    (r"(query|key|value|inner|gate|input)/kernel$", PartitionSpec("fsdp", "tensor")),
    (r"(query|key|value|inner|gate|input)/bias$", PartitionSpec("tensor")),
    (r"(out|outer)/kernel$", PartitionSpec("tensor", "fsdp")),
    (r"(out|outer)/bias$", PartitionSpec()),
    (r"norm/(scale|bias)$|class_token$", PartitionSpec()),
    (r"head/(kernel|bias)$", PartitionSpec()),  # one column per label
    (r"adapters/.*/(down|up)$", PartitionSpec()),
    (r"ns_coeffs$", PartitionSpec()),  # Muon's three constants
)


@dataclasses.dataclass(frozen=True)
class MeshOptions:
    """The arrangement of the devices: the options of `config.mesh`."""

    platform: str = option(
        "any", "Stop unless jax finds this platform.", choices=PLATFORMS
    )
    data: int = option(
        -1, "Devices that split a batch's rows; -1 means all that are left.", least=-1
    )
    fsdp: int = option(1, "Devices that split rows and all parameters.", least=-1)
    tensor: int = option(
        1, "Devices that split heads and feed-forward columns.", least=-1
    )
    sequence: int = option(
        1, "Devices that split positions of the residual stream.", least=-1
    )


def find_problems(config: ConfigDict) -> list[str]:
    """List invalid axis sizes, and lengths that do not divide."""
    sizes, problems = [config.mesh[axis] for axis in AXES], []
    if 0 in sizes or sizes.count(-1) > 1:
        problems.append(
            f"mesh {tuple(sizes)}: sizes are at least 1, and at most one is -1"
        )
    multiple, sequence = config.data.length_multiple, config.mesh.sequence
    if multiple % max(sequence, 1):
        problems.append(
            f"data.length_multiple {multiple} does not divide over "
            f"mesh.sequence {sequence}: set it to {sequence}"
        )
    return problems


def make_mesh(sizes: dict[str, int], platform: str = "any") -> Mesh:
    """Make the mesh of all devices; an axis of -1 takes those that the others leave."""
    found = jax.default_backend()
    if platform not in ("any", found):
        raise UserError(
            f"mesh.platform asks for {platform!r}, but jax found {found!r} "
            f"({jax.device_count()} devices): install jax for that hardware, or set "
            "--config.mesh.platform=any"
        )
    shape, types = mesh_shape(sizes, jax.device_count()), (AxisType.Auto,) * len(AXES)
    if (over_slices := slice_shape(shape, jax.devices())) is None:
        return jax.make_mesh(shape, AXES, axis_types=types)
    within = [n // slices for n, slices in zip(shape, over_slices, strict=True)]
    if mesh_utils is None:
        raise UserError(
            f"jax {jax.__version__} has no jax.experimental.mesh_utils, which arranges "
            "the devices of several slices: use an older jax, or a single slice"
        )
    devices = mesh_utils.create_hybrid_device_mesh(within, over_slices, jax.devices())
    return Mesh(devices, AXES, axis_types=types)


def slice_shape(shape: tuple[int, ...], devices: Sequence[Any]) -> list[int] | None:
    """Return how many slices each axis spans; None for one slice or no valid split.

    The network within a slice is fast and between slices slow. So only rows are split
    over slices, which takes one sum of gradients per step at best.
    """
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    by_data = math.gcd(shape[0], slices)
    by_fsdp = slices // by_data
    if slices == 1 or shape[1] % by_fsdp:
        return None
    return [by_data, by_fsdp, 1, 1]


def mesh_shape(sizes: dict[str, int], devices: int) -> tuple[int, ...]:
    """Return the size of each axis; raise if they do not multiply to `devices`."""
    shape = [sizes[axis] for axis in AXES]
    known = math.prod(s for s in shape if s != -1)
    if -1 in shape and devices % known == 0:
        shape[shape.index(-1)] = devices // known
    if math.prod(shape) != devices:
        asked = " × ".join(f"{a} {sizes[a]}" for a in AXES)
        raise UserError(
            f"the mesh {asked} does not fill the {devices} devices: the sizes must "
            f"multiply to {devices}, or one of them be -1 (all that are left)"
        )
    return tuple(shape)


def local_mesh(count: int = 1) -> Mesh:
    """Make a mesh of `count` devices of this process, which split the rows."""
    shape = (count,) + (1,) * (len(AXES) - 1)
    devices = np.array(jax.local_devices()[:count]).reshape(shape)
    return Mesh(devices, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def shardings(tree: Any, mesh: Mesh) -> Any:
    """Return a sharding for each leaf, by the rule that its path matches.

    Scalars and keys are replicated. The path of an optimizer moment ends with that of
    its parameter, so one table serves both. Raise for a leaf that no rule matches or
    that does not divide over the devices.
    """

    def place(path, leaf):
        name = path_name(path)
        spec = spec_of(name, leaf)
        for size, axes in zip(leaf.shape, spec, strict=False):
            axes = (axes,) if isinstance(axes, str) else axes or ()
            over = [axis for axis in axes if mesh.shape[axis] > 1]
            if size % math.prod(mesh.shape[axis] for axis in over):
                sizes = " × ".join(f"mesh.{axis} {mesh.shape[axis]}" for axis in over)
                raise UserError(
                    f"{name} of shape {leaf.shape}: {size} does not divide over "
                    f"{sizes}: change that size of the model, or the mesh"
                )
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(place, tree)


def abstract(tree: Any, mesh: Mesh) -> Any:
    """Return the shapes and types of the leaves with their shardings."""
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
        tree,
        shardings(tree, mesh),
    )


def unsplit_fsdp(params: Any, mesh: Mesh) -> Any:
    """Gather parameters over `fsdp`, for a search that reads them all in every step."""
    if mesh.shape["fsdp"] == 1:
        return params
    places = unsplit_shardings(params, mesh)
    return jax.jit(jax.lax.optimization_barrier, out_shardings=places)(params)


def unsplit_shardings(params: Any, mesh: Mesh) -> Any:
    """Return the shardings of parameters gathered over `fsdp`."""

    def place(path, leaf):
        spec = spec_of(path_name(path), leaf)
        parts = ((part,) if isinstance(part, str) else part or () for part in spec)
        kept = (tuple(axis for axis in part if axis != "fsdp") for part in parts)
        return NamedSharding(mesh, PartitionSpec(*kept))

    return jax.tree_util.tree_map_with_path(place, params)


def add_rules(rules: tuple[Rule, ...]) -> None:
    """Add the rules of a model whose parameters have other names."""
    global RULES
    RULES = (*RULES, *(rule for rule in rules if rule not in RULES))


def spec_of(name: str, leaf: Any) -> PartitionSpec:
    """Return how a leaf is split, by the first rule that matches its path."""
    if leaf.size == 1:  # Adafactor's placeholder for a moment that it does not store
        return PartitionSpec()
    for pattern, spec in RULES:
        if re.search(pattern, name):
            # Adafactor keeps one value per row or column of a matrix: too few to split.
            return spec if len(spec) <= leaf.ndim else PartitionSpec()
    raise ValueError(
        f"no sharding rule matches the parameter {name!r} of shape {leaf.shape}: "
        "add a line to the `rules` of its model or task"
    )


def path_name(path: tuple) -> str:
    """Join the keys of a tree path: "decoder/layer_0/feed_forward/inner/kernel"."""
    return "/".join(str(getattr(k, "key", getattr(k, "name", k))) for k in path)


def by_path(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree by their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {path_name(path): leaf for path, leaf in leaves}


def constrain(x: Any) -> Any:
    """Keep the residual stream [B, T, D] split by rows and sequence, if on a mesh."""
    return _constrain(x, PartitionSpec(ROWS, "sequence", None))


def constrain_params(params: Any, stacked_axes: int = 0) -> Any:
    """Keep parameters split by their rules inside a step, if on a mesh.

    The first `stacked_axes` axes, which index equal layers, are never split.
    """

    def place(path, leaf):
        one = jax.ShapeDtypeStruct(leaf.shape[stacked_axes:], leaf.dtype)
        spec = spec_of(path_name(path), one)
        return _constrain(leaf, PartitionSpec(*[None] * stacked_axes, *spec))

    if on_one_device():
        return params
    return jax.tree_util.tree_map_with_path(place, params)


def constrain_logits(x: Any) -> Any:
    """Keep logits [B, T, V] on the devices of their rows, and split their columns.

    No logit moves; the normaliser of a row is summed over `tensor` instead.
    """
    free = PartitionSpec.UNCONSTRAINED
    return _constrain(x, PartitionSpec(*[free] * (x.ndim - 1), "tensor"))


def gather(table: Any, width: int, dtype: Any) -> Any:
    """Gather a table [V, D = width] or [D, V], in `dtype`, over all axes but `tensor`.

    Its transpose adds up the table's gradient over the devices.
    """
    by_rows = table.shape[-1] == width
    spec = PartitionSpec("tensor", None) if by_rows else PartitionSpec(None, "tensor")
    gathered = _constrain(table.astype(dtype), spec)
    if dtype == table.dtype:
        return gathered
    # Without the barrier, XLA drops the rounding and gathers twice as many bytes.
    return jax.lax.optimization_barrier(gathered)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def copy_to_shards(table: Any, width: int, dtype: Any) -> Any:
    """Gather a parameter, and copy it to each shard of rows and positions: [shards, …].

    The gradients of the copies stay on their devices until they are summed, once.
    """
    if table.ndim == 2:
        table = gather(table, width, dtype).astype(table.dtype)
    copies = jnp.broadcast_to(table, (math.prod(_shards()), *table.shape))
    free = [PartitionSpec.UNCONSTRAINED] * table.ndim
    return _constrain(copies, PartitionSpec(SHARDS, *free))


copy_to_shards.defvjp(
    lambda table, width, dtype: (copy_to_shards(table, width, dtype), None),
    lambda width, _, __, slopes: (slopes.sum(0),),
)


def split_shards(x: Any, first: int) -> Any:
    """Split the axis `first` (rows) and the next (positions) into an axis of shards.

    […, B, T, …] becomes […, shards, B / row shards, T / position shards, …]. Each
    device has one shard, and no data moves.
    """
    rows, positions = _shards()
    lead, (b, t), rest = x.shape[:first], x.shape[first:][:2], x.shape[first + 2 :]
    x = x.reshape(*lead, rows, b // rows, positions, t // positions, *rest)
    x = jnp.moveaxis(x, first + 2, first + 1)
    return x.reshape(*lead, rows * positions, b // rows, t // positions, *rest)


def sum_over_shards(function: Callable) -> Callable:
    """Apply a function to each shard, and sum the results."""
    mapped = jax.vmap(function, spmd_axis_name=SHARDS)
    return lambda *shards: jax.tree.map(lambda x: x.sum(0), mapped(*shards))


def splits_evenly(rows: int, positions: int) -> bool:
    """Return whether rows and positions divide evenly over several shards.

    The positions that a masked model predicts may not divide.
    """
    if on_one_device():
        return False
    by_rows, by_positions = _shards()
    return not rows % by_rows and not positions % by_positions


def _shards() -> tuple[int, int]:
    """Return the number of devices that split rows, and that split positions."""
    sizes = jax.sharding.get_abstract_mesh().shape
    return math.prod(sizes[axis] for axis in ROWS), sizes["sequence"]


def _constrain(x: Any, spec: PartitionSpec) -> Any:
    if on_one_device():
        return x
    return jax.lax.with_sharding_constraint(x, spec)


def on_one_device() -> bool:
    """Return whether nothing is split, so that a step can take its plain form."""
    return row_shards()[1] == 1


def platform() -> str:
    """Return the platform that a step is compiled for: cpu, gpu or tpu."""
    device: Any = jax.sharding.get_abstract_mesh().abstract_device
    if device is None:
        return jax.default_backend()
    if hasattr(device, "platform"):
        return device.platform
    # JAX before 0.10.2 knows only the model, such as "TPU v5e" or "NVIDIA H100".
    kind = device.device_kind.lower()
    return kind if kind == "cpu" else "tpu" if kind.startswith("tpu") else "gpu"


def row_shards() -> tuple[int, int]:
    """Return the number of devices that split rows, and of all devices."""
    mesh = jax.sharding.get_abstract_mesh()
    return (1, 1) if mesh.empty else (row_devices(mesh), mesh.size)


def inner_axes() -> dict[str, int]:
    """Return the number of devices that split heads, and positions, by axis."""
    mesh = jax.sharding.get_abstract_mesh()
    return {axis: mesh.shape.get(axis, 1) for axis in ("tensor", "sequence")}


def row_devices(mesh: Any) -> int:
    """Return the number of devices that split the rows of a batch."""
    return math.prod(mesh.shape[axis] for axis in ROWS)


def process_rows(mesh: Mesh, rows: int) -> np.ndarray:
    """Return the indices of the global rows that this process feeds to its devices."""
    places = NamedSharding(mesh, PartitionSpec(ROWS)).addressable_devices_indices_map(
        (rows,)
    )
    return np.unique(
        np.concatenate([np.arange(rows)[index] for index in places.values()])
    )


def to_global(
    batch: dict[str, np.ndarray], mesh: Mesh, rows: int | None = None
) -> dict[str, jax.Array]:
    """Place this process's rows of a batch in global device arrays of `rows` rows.

    Without `rows`, the given arrays hold all rows of the batch.
    """

    def place(array):
        total = len(array) if rows is None else rows
        own = np.arange(total) if rows is None else process_rows(mesh, total)

        def part(index):
            begin, end, _ = index[0].indices(total)
            first = np.searchsorted(own, begin)
            return array[(slice(first, first + end - begin), *index[1:])]

        return jax.make_array_from_callback(
            (total, *array.shape[1:]), _batch_sharding(array, mesh), part
        )

    return jax.tree.map(place, batch)


def abstract_global(batch: dict[str, np.ndarray], mesh: Mesh, rows: int) -> dict:
    """Return the shapes and shardings of the arrays that `to_global` makes."""

    def describe(array):
        shape, sharding = (rows, *array.shape[1:]), _batch_sharding(array, mesh)
        return jax.ShapeDtypeStruct(shape, array.dtype, sharding=sharding)

    return jax.tree.map(describe, batch)


def _batch_sharding(array: np.ndarray, mesh: Mesh) -> NamedSharding:
    """Split rows, and positions if they divide (a prompt may be one start token)."""
    splits = array.ndim > 1 and array.shape[1] % mesh.shape["sequence"] == 0
    return NamedSharding(mesh, PartitionSpec(ROWS, *["sequence"] * splits))


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding of an array that every device holds in full."""
    return NamedSharding(mesh, PartitionSpec())
