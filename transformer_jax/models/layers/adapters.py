"""Low-rank adapters of linear maps (LoRA: Hu et al. 2021).

    y = x W + (alpha / rank) · drop(x) A B,   A [D, rank], B [rank, F]

W stays as it is; A and B are trained. They are parameters below `adapters/`, by the
path of their map, and no model has code for them: while a loss is traced, an
interceptor adds the second term to each `nn.Dense` that has one. B begins at 0, so that
training starts from the function of W. Before a run answers, the product is added to W.
"""

import dataclasses
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from transformer_jax.base.errors import UserError
from transformer_jax.base.schema import option
from transformer_jax.sharding import Params

NAME = "adapters"  # of their subtree among the parameters


@dataclasses.dataclass(frozen=True)
class LoraOptions:
    """Low-rank adapters, for fine-tuning: the options of `config.lora`."""

    rank: int = option(
        0, "Columns of A, rows of B; 0 means no adapters. Freezes the rest.", least=0
    )
    alpha: float = option(16.0, "alpha / rank multiplies the product A B.", above=0)
    dropout: float = option(0.0, "Of the inputs of A.", least=0, below=1)
    matrices: str = option(
        "attention/(query|value)$",
        "Which linear maps have one: a regular expression for their paths.",
    )


def find_problems(config: ConfigDict) -> list[str]:
    """Return the mistake in the pattern `lora.matrices`, or []."""
    try:
        re.compile(config.lora.matrices)
    except re.error as error:
        return [
            f"lora.matrices = {config.lora.matrices!r} is no regular expression: "
            f"{error}; write one such as attention/(query|value)$"
        ]
    return []


def add(params: Params, config: ConfigDict, key: Array) -> Params:
    """Add the adapters that a config asks for to new parameters."""
    settings = config.lora
    if not settings.rank:
        return params
    found = {
        path: kernel
        for path, kernel in _kernels(params)
        if re.search(settings.matrices, path)
    }
    if not found:
        paths = [path for path, _ in _kernels(params)]
        raise UserError(
            f"lora.matrices = {settings.matrices!r} is found in no path of a linear "
            f"map, such as {paths[0]} or {paths[-1]}: correct it"
        )
    adapters = {}
    for path, kernel in found.items():
        inner, outer = kernel.shape
        spread, own = inner**-0.5, _key_of(path, key)
        adapters[path] = {
            "down": jax.random.uniform(
                own, (inner, settings.rank), kernel.dtype, -spread, spread
            ),
            "up": jnp.zeros((settings.rank, outer), kernel.dtype),
        }
    return {**params, NAME: flax.traverse_util.unflatten_dict(adapters, sep="/")}


def _kernels(params: Params) -> Iterator[tuple[str, Any]]:
    """Yield the path and the matrix of each linear map."""
    flat: dict[str, Any] = flax.traverse_util.flatten_dict(params, sep="/")
    for path, leaf in flat.items():
        if path.endswith("/kernel") and leaf.ndim == 2:
            yield path.removesuffix("/kernel"), leaf


def split(params: Params) -> tuple[Params, dict[str, dict[str, Any]]]:
    """Separate the parameters of the model from the adapters, by path of their map."""
    others = {name: leaf for name, leaf in params.items() if name != NAME}
    flat = flax.traverse_util.flatten_dict(params.get(NAME, {}))
    found: dict[str, dict[str, Any]] = {}
    for (*path, part), leaf in flat.items():
        found.setdefault("/".join(path), {})[part] = leaf
    return others, found


def adapt(loss: Callable, config: ConfigDict) -> Callable:
    """Return a loss whose linear maps include their adapters."""
    if not config.lora.rank:
        return loss

    def adapted(params: Params, batch: Mapping[str, Array], key: Array | None = None):
        others, added = split(params)
        used = set()

        def intercept(next_call, args, kwargs, context):
            product = next_call(*args, **kwargs)
            module, path = context.module, "/".join(context.module.path)
            if context.method_name != "__call__" or path not in added:
                return product
            if not isinstance(module, nn.Dense):
                return product
            used.add(path)
            term = _product(args[0].astype(product.dtype), added[path], path, key)
            return product + term.astype(product.dtype)

        def _product(x: Any, adapter: Mapping[str, Any], path: str, key: Array | None):
            rate = config.lora.dropout
            if rate and key is not None:
                keep = jax.random.bernoulli(_key_of(path, key), 1 - rate, x.shape)
                x = jnp.where(keep, x / (1 - rate), 0)
            down, up = (adapter[name].astype(x.dtype) for name in ("down", "up"))
            return scale(config) * ((x @ down) @ up)

        with nn.intercept_methods(intercept):
            sums = loss(others, batch, key)
        if unused := sorted(added.keys() - used):
            raise UserError(
                f"lora.matrices = {config.lora.matrices!r} names {unused[0]}, which "
                "this model does not apply as a linear map of its own: name others; "
                "with model.scan_layers or mesh.tensor there can be no adapters"
            )
        return sums

    return adapted


def _key_of(path: str, key: Array) -> Array:
    return jax.random.fold_in(key, zlib.crc32(f"{NAME}/{path}".encode()))


def scale(config: ConfigDict) -> float:
    """Return the factor of the product A B."""
    return config.lora.alpha / config.lora.rank


def merge(params: Params, config: ConfigDict) -> Params:
    """Return the parameters of the model, with each adapter added to its matrix."""
    others, added = split(params)
    if not added:
        return params
    flat = dict(flax.traverse_util.flatten_dict(others, sep="/"))
    for path, adapter in added.items():
        name = f"{path}/kernel"
        flat[name] = _add_product(flat[name], adapter, jnp.float32(scale(config)))
    return flax.traverse_util.unflatten_dict(flat, sep="/")


@jax.jit
def _add_product(
    kernel: Float[Array, "D F"], adapter: Mapping[str, Any], factor: Float[Array, ""]
) -> Float[Array, "D F"]:
    return kernel + factor * (adapter["down"] @ adapter["up"])
