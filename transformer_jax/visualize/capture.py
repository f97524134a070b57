"""Capture the tensors inside a model while it reads: one head, one layer, one table."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import numpy as np

from transformer_jax.base.errors import UserError
from transformer_jax.models.attention import Mask, MultiHeadAttention
from transformer_jax.models.positions import DistanceBias, rotate
from transformer_jax.models.stack import Layer
from transformer_jax.runs.run import Run
from transformer_jax.visualize.explain import Computation, compute
from transformer_jax.visualize.style import axis_labels, readable

# Where each kind of attention is found: its stack, and its name in a layer.
PLACES = {
    "encoder": ("encoder", "self_attention"),
    "decoder": ("decoder", "self_attention"),
    "cross": ("decoder", "cross_attention"),
}


def follow_head(
    run: Run, source: Any, target: str, kind: str, layer: int, head: int
) -> Computation:
    """Capture one head's computation while the model reads a source and a target."""
    caught = []

    def catch(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        if isinstance(module, MultiHeadAttention):
            parts = _parts(module, *args, **kwargs)
            caught.append((parts, np.asarray(result[1][0])))

    stack, name = PLACES[kind]
    maps = _read(run, source, target, (stack, layer, name), catch)
    check_place(maps, kind, layer, head)
    [((query, key, value, allowed, bias), _)] = caught
    group = head * len(key) // len(query)  # queries may share keys and values
    found = compute(
        query[head],
        key[group],
        value[group],
        _of_head(allowed, head),
        _of_head(bias, head),
        f"{kind} attention, layer {layer}, head {head}",
        *axis_labels(maps, kind),
    )
    return found


def check_place(maps: Mapping[str, np.ndarray], kind: str, layer: int, head: int):
    """Refuse a kind, layer or head that the model does not have."""
    if kind not in maps:
        raise UserError(f"--kind={kind}: this model has {', '.join(maps)}")
    layers, heads = maps[kind].shape[:2]
    for name, asked, count in (("layer", layer, layers), ("head", head, heads)):
        if not 0 <= asked < count:
            raise UserError(f"--{name}={asked}: this model has 0 to {count - 1}")


def _parts(attention, x, memory, mask=None, signal=None, train=False, **_):
    """Return queries [N, T, K], keys [G, S, K], values [G, S, H], mask and bias."""
    query = attention.query(x)
    query = query.reshape(*query.shape[:-1], attention.num_heads, -1)
    if attention.qk_norm:
        query = attention.query_norm(query)
    if signal is not None and signal.turn is not None:
        query = rotate(query, signal.turn)
    shape = (query.shape[1], memory.key.shape[2])
    allowed = mask.dense() if isinstance(mask, Mask) else mask
    bias = signal and signal.bias
    bias = bias.dense() if isinstance(bias, DistanceBias) else bias
    queries = np.asarray(query[0], np.float32).swapaxes(0, 1)
    made = memory.key[0], memory.value[0]
    keys, values = (np.asarray(a, np.float32) for a in made)
    return queries, keys, values, _whole(allowed, shape), _whole(bias, shape)


def _whole(array: Any, shape: tuple[int, int]) -> np.ndarray | None:
    """Broadcast [#B, #N, #T, S] of one sentence to [#N, T, S]."""
    if array is None:
        return None
    array = np.asarray(array)[0]
    return np.broadcast_to(array, (len(array), *shape))


def _of_head(array: np.ndarray | None, head: int) -> np.ndarray | None:
    return None if array is None else array[min(head, len(array) - 1)]


@dataclasses.dataclass(frozen=True)
class Step:
    """A tensor on its way through a layer: its name and its values [T, …]."""

    name: str
    values: np.ndarray


MEANINGS = {  # name of a part → meaning of its output
    "query": "queries of all heads: x W_q + b",
    "key": "keys of all heads: x W_k + b",
    "value": "values of all heads: x W_v + b",
    "out": "attended, heads side by side, · W_o + b",
    "inner": "feed-forward, inner: x W₁ + b₁, before the activation",
    "gate": "feed-forward, gate: x W₀ + b₀",
    "outer": "feed-forward, outer: · W₂ + b₂",
}


def follow_layer(
    run: Run, source: Any, target: str, stack: str, layer: int
) -> tuple[list[str], list[Step]]:
    """Capture a layer: its tokens, and each tensor from its input to its output."""
    steps: list[Step] = []
    own = (stack, layer)

    def note(name: str, values: Any) -> None:
        steps.append(Step(name, np.asarray(values[0], np.float32)))

    def catch(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        if isinstance(module, Layer):
            note("output of the layer", result[0])
            return
        *_, name = module.path
        where = "cross-attention, " * ("cross_attention" in module.path)
        if name in MEANINGS:
            note(where + MEANINGS[name], result)
        elif name.endswith("_output_norm") and len(module.path) == 3:
            part = name.removesuffix("_output_norm").replace("_", "-")
            note(f"normed output of {part}", result)
        elif name.endswith("_norm") and len(module.path) == 3:
            part = name.removesuffix("_norm").replace("_", "-")
            note(f"into the norm of {part}: the residual stream", args[0])
            note(f"normed, of {part}", result)

    def enter(module: nn.Module, args: Any) -> None:
        if isinstance(module, Layer):
            note("input of the layer", args[0])

    maps = _read(run, source, target, own, catch, enter)
    if not steps:
        raise UserError(f"this model has no layer {layer} of the {stack}")
    return readable(maps.tokens[stack][0]), steps


def _read(
    run: Run,
    source: Any,
    target: str,
    place: tuple[Any, ...],
    catch: Callable,
    enter: Callable = lambda module, args: None,
) -> Any:
    """Let the model read, and call `catch` for each module of a layer or of its part.

    `place` is the stack, the number of the layer and, for a part of a layer, its name.
    Layers that share parameters are one module, which runs once for each of them.
    """
    stack, layer, *part = place
    shared = run.config.model.get("shared_layers", "none") != "none"
    path = (stack, f"layer_{0 if shared else layer}", *part)
    runs = 0

    def intercept(call: Callable, args: Any, kwargs: Any, context: Any) -> Any:
        nonlocal runs
        module = context.module
        called = context.method_name == "__call__"
        if called and module.path == path[:2]:
            runs += 1
        below = called and module.path[: len(path)] == path
        below = below and (not shared or runs == layer + 1)
        if below:
            enter(module, args)
        result = call(*args, **kwargs)
        if below:
            catch(module, args, kwargs, result)
        return result

    with nn.intercept_methods(intercept):
        return run.attention(source, target)


def embedding_table(run: Run) -> tuple[np.ndarray, list[str]]:
    """Return the vectors [V, D] of the source embedding, and their pieces."""
    for name in ("embedding", "source_embedding"):
        if name in run.params and name in run.task.data.vocabularies:
            tokenizer = run.task.data.vocabularies[name]
            size = tokenizer.vocab_size
            [table] = run.params[name].values()
            return np.asarray(table)[:size], tokenizer.pieces(range(size))
    raise UserError(f"the task {run.config.task!r} has no embedding of words")


def position_table(run: Run) -> np.ndarray:
    """Return the learned positions [positions, D] of a run."""
    for name in ("positions", "source_positions"):
        if "table" in run.params.get(name, {}):
            return np.asarray(run.params[name]["table"])
    raise UserError(
        f"model.positions is {run.config.model.get('positions', 'none')!r} in this "
        "run: only a run with model.positions = 'learned' has a table of them"
    )
