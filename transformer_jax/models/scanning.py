"""Run the layers of a stack as one scanned layer, so depth adds no compile time.

    for i in layers: x = layer(params[i], x)    becomes    scan(layer, x, stack(params))

The parameters are stacked only here, inside the compiled step: states, checkpoints and
every reader of parameters see the layers one by one, scanned or not.
Pitfall: the number of the layer is traced, so flax, which hashes the path of a module
at trace time, cannot derive the layer's dropout key. `LayerKeys` derives the same keys.
"""

import collections
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer_jax import sharding
from transformer_jax.models.layers import Dropout

Path = tuple[str, ...]


def scan_layers(
    run: Callable[[Any, Array], tuple[Array, Any]],
    params: Sequence[Any],
    x: Float[Array, "R T D"],
    stream: tuple[Array | None, Sequence[Path]],
    wrap: Callable[[Callable], Callable],
) -> tuple[Float[Array, "R T D"], Any]:
    """Run `x, made = run(params, x)` for each layer's parameters, one after another.

    Return the last `x` and the stacked `made` of all layers. `stream` is the dropout
    key and the paths of the layers; `wrap` may add rematerialisation to the body.
    """
    key, paths = stream

    def body(x, layer):
        number, own = layer
        own = constrain_layer(own)
        with nn.intercept_methods(LayerKeys(key, paths, number)):
            return run(own, x)

    numbers = jnp.arange(len(params), dtype=jnp.int32)
    return jax.lax.scan(wrap(body), x, (numbers, stack_layers(params)))


def stream_of(stack: nn.Module, names: Sequence[str]) -> tuple[Array, list[Path]]:
    """Return the key from which a module's dropouts draw, and its layers' paths."""
    scope: Any = stack.scope
    lazy = scope.rngs["dropout"]
    return lazy.rng, [(*lazy.suffix, name) for name in names]


def stack_layers(params: Sequence[Any]) -> Any:
    """Stack the parameters of equal layers, [layers, …].

    The first axis is never split over devices; the others are split as in each layer.
    """
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
    return sharding.constrain_params(stacked, stacked_axes=1)


def constrain_layer(params: Any) -> Any:
    """Keep one layer's parameters, and thus their gradients, split by the rules."""
    return sharding.constrain_params(params)


class LayerKeys:
    """Give the dropouts inside a scanned layer the same keys as in an unrolled one.

    An interceptor of `Dropout.draw_key`, for one call of one layer. Flax folds into the
    root key a hash of the module's path and of the number of draws so far. Here the
    hashes of all layers form a table, which is indexed by the number of the layer.
    """

    def __init__(self, key: Array | None, paths: Sequence[Path], number: Array):
        """Prepare one call of one layer.

        `key` is the root key of dropout, None outside training; `paths` are those of
        all layers when unrolled, and `number` is the index of this layer among them.
        """
        self.key, self.paths, self.number = key, paths, number
        self.drawn: collections.Counter = collections.Counter()

    def __call__(self, call, args, kwargs, context):
        """Draw a key if the call is `Dropout.draw_key`; pass on all other calls."""
        if not isinstance(context.module, Dropout) or context.method_name != "draw_key":
            return call(*args, **kwargs)
        inside = context.module.path
        self.drawn[inside] += 1
        place = *inside, self.drawn[inside]
        hashes = np.array([hash_path((*p, *place)) for p in self.paths], np.uint32)
        assert self.key is not None  # only training draws
        return jax.random.fold_in(self.key, jnp.asarray(hashes)[self.number])


def hash_path(path: tuple[str | int, ...]) -> int:
    """Hash the path of a random number as flax does (`flax.core.scope`)."""
    digest = hashlib.sha1()
    for part in path:
        if flax.config.flax_fix_rng_separator:
            digest.update(b"\00")
        text = isinstance(part, str)
        size = 0 if text else (part.bit_length() + 7) // 8
        digest.update(part.encode() if text else part.to_bytes(size, "big"))
    return int.from_bytes(digest.digest()[:4], "big")
