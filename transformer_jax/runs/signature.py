"""Sign checkpoints, so that damage, mix-ups and NaNs are noticed.

    fingerprint(array) = Σ hash(bits of an element, its place)      modulo 2^32

The sum is computed on the devices that hold the array, without a copy, and is equal on
any mesh. Changing one element always changes it, any other change does so with a
probability of 1 - 2^-32. Fingerprints are saved in the checkpoint, with its step and
the identity of its parameters: the tokenizer, and the sizes of the model.
"""

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from transformer_jax.sharding import path_name

ITEM = "signature"  # an item of a checkpoint

# Options of `config.model` with these prefixes do not affect what the parameters mean.
FREE = ("attention", "dropout", "dtype", "remat", "scan", "train_", "word_vectors")


@dataclasses.dataclass(frozen=True)
class Identity:
    """The settings that give parameters their meaning."""

    content: dict[str, Any]  # task, model and tokenizer
    earlier: Mapping[str, list]  # earlier values of the model's options

    def find_difference(self, signed: dict[str, Any]) -> str:
        """Describe a signed value that differs; keys on one side only are ignored."""
        wanted = "the parameters mean something else then. Restore that file"
        if "task" not in signed:
            return ""
        if signed["task"] != self.content["task"]:
            return f"is for the task {signed['task']}, not {self.content['task']}"
        for key, value in self.content["model"].items():
            before = signed["model"].get(key, value)
            if before not in [value, *self.earlier.get(key, [])]:
                return (
                    f"was trained with model.{key} = {before!r}, but config.json has "
                    f"{value!r}: {wanted}"
                )
        for name, digest in signed["tokenizer"].items():
            if self.content["tokenizer"].get(name) != digest:
                return f"was trained with another tokenizer/{name}: {wanted}"
        return ""


def identify(
    task: str,
    model: Mapping[str, Any],
    tokenizer: pathlib.Path,
    earlier: Mapping[str, list] | None = None,
) -> Identity:
    """Return the identity of a run's parameters."""
    files = sorted(f for f in tokenizer.rglob("*") if f.is_file())
    names = {str(f.relative_to(tokenizer)): f for f in files}
    content = {
        "task": task,
        "model": {k: v for k, v in sorted(model.items()) if not k.startswith(FREE)},
        "tokenizer": {name: _digest(f.read_bytes()) for name, f in names.items()},
    }
    return Identity(json.loads(json.dumps(content)), earlier or {})


@dataclasses.dataclass(frozen=True)
class Examined:
    """The fingerprints of a tree's arrays, and the names of the non-finite ones."""

    fingerprints: dict[str, str]  # path of an array → its type and fingerprint
    bad: list[str]  # paths of arrays with a NaN or an infinity


def examine(tree: Any) -> Examined:
    """Read all elements of a tree once, on the devices that hold them."""
    found, types = {}, {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = path_name(path)
        leaf = leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)
        found[name], types[name] = _examine(leaf), leaf.dtype
        if jax.default_backend() == "cpu":  # many at a time can deadlock
            jax.block_until_ready(found[name])
    found = jax.device_get(found)
    return Examined(
        {name: f"{types[name]} {int(value):08x}" for name, (value, _) in found.items()},
        [name for name, (_, good) in found.items() if not good],
    )


def find_problem(items: dict[str, Any], signed: dict[str, Any]) -> str:
    """Return the problem of restored arrays, or ''.

    They may not be finite, or not as signed, if there is a signature.
    """
    for name, tree in items.items():
        found = examine(tree)
        if found.bad:
            return f"{name}/{found.bad[0]} holds numbers that are not finite"
        expected = signed["arrays"].get(name, {}) if signed else found.fingerprints
        for path, value in found.fingerprints.items():
            if expected.get(path) != value:
                return f"{name}/{path} changed since it was saved"
    return ""


def read(folder: epath.PathLike) -> dict[str, Any]:
    """Read the signature of a checkpoint; try again once, as a disk may fail once."""
    import orbax.checkpoint as ocp

    item, handler = epath.Path(folder) / ITEM, ocp.JsonCheckpointHandler()
    try:
        return dict(handler.restore(item))
    except OSError:
        return dict(handler.restore(item))


def as_signed(items: dict[str, Any], signed: dict[str, Any]) -> dict[str, Any]:
    """Return abstract trees with the saved types, to check arrays before a cast."""

    def change(name, path, leaf):
        saved = signed["arrays"].get(name, {}).get(path_name(path), "").split(" ")[0]
        if saved in ("", str(leaf.dtype)):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, saved, sharding=leaf.sharding)

    if not signed:
        return items
    return {
        name: jax.tree_util.tree_map_with_path(functools.partial(change, name), tree)
        for name, tree in items.items()
    }


def cast_like(found: dict[str, Any], items: dict[str, Any]) -> dict[str, Any]:
    """Cast restored arrays to the types of the abstract trees."""
    return jax.tree.map(
        lambda x, like: x if x.dtype == like.dtype else x.astype(like.dtype),
        found,
        items,
    )


@jax.jit
def _examine(leaf: Any) -> tuple[Any, Any]:
    """Return the fingerprint of an array, and whether it is finite."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    hashed = _bits(leaf) ^ (_places(leaf.shape) * jnp.uint32(0x9E3779B9))
    # Each line is one-to-one, so changing an element changes its hash.
    hashed ^= hashed >> 16
    hashed *= jnp.uint32(0x7FEB352D)
    hashed ^= hashed >> 15
    good = jnp.bool_(True)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        good = _reduce(jnp.isfinite(leaf), jnp.all)
    return _reduce(hashed, lambda x, axis: x.sum(axis, dtype=jnp.uint32)), good


def _bits(leaf: Any) -> Any:
    """Return the bits of each element as a 32-bit number."""
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint32)
    size = np.dtype(f"uint{8 * min(leaf.dtype.itemsize, 4)}")
    bits = jax.lax.bitcast_convert_type(leaf, size).astype(jnp.uint32)
    return bits if bits.ndim == leaf.ndim else bits.sum(-1, dtype=jnp.uint32)


def _places(shape: tuple[int, ...]) -> Any:
    """Return the index of each element, modulo 2^32."""
    places, stride = jnp.zeros(shape, jnp.uint32), 1
    for axis in reversed(range(len(shape))):
        along = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        places += along * jnp.uint32(stride % 2**32)
        stride *= shape[axis]
    return places


def _reduce(x: Any, reduce: Any) -> Any:
    """Reduce the first axis, then the others; this is three times faster on a CPU."""
    if x.ndim > 1:
        x = jax.lax.optimization_barrier(reduce(x, axis=0))
    return reduce(x, axis=None)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
