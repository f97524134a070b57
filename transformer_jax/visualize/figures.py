"""Draw positions, masks and attention as matplotlib figures.

The values come from the package's own functions, or are given; nothing is computed a
second time here. A notebook shows a returned figure by itself; `figure.savefig(path)`
writes it. The trap: pyplot keeps every figure in memory, so it is not used.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from transformer_jax.models.attention import Mask
from transformer_jax.models.positions import sinusoid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Distinct in any kind of colour blindness, and in grey (Okabe and Ito).
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
AMOUNTS = "viridis"  # nothing to much
SIGNED = "RdBu_r"  # below and above zero
YES_NO = ("#E4E4E4", "#0072B2")
CELL = 0.24  # inches of a row or column that has a label


def positional_encoding(length: int, d_model: int, interleave: bool = True) -> "Figure":
    """Draw the sinusoids: a row for each position, a column for each dimension."""
    values = _encoding(length, d_model, interleave)
    figure = _make_figure(8.0, 4.5)
    axes = figure.subplots()
    image = axes.imshow(
        values, cmap=SIGNED, vmin=-1, vmax=1, aspect="auto", interpolation="nearest"
    )
    order = "sine and cosine in turn" if interleave else "all sines, then all cosines"
    axes.set(title=f"Positional encoding, {order}", xlabel="depth", ylabel="position")
    figure.colorbar(image, ax=axes, label="PE(position, depth)")
    return figure


def length_histogram(sides: dict[str, np.ndarray]) -> "Figure":
    """Draw how many examples have each number of pieces, a line for each side."""
    figure = _make_figure(8.0, 4.0)
    axes = figure.subplots()
    longest = max(int(lengths.max()) for lengths in sides.values())
    step = max(1, longest // 100)
    edges = np.arange(0.5, longest + step + 0.5, step)
    for color, (name, lengths) in zip(LINES, sides.items(), strict=False):
        counts, _ = np.histogram(lengths, edges)
        label = f"{name}, mean {lengths.mean():.1f}"
        axes.stairs(counts, edges, color=color, label=label, linewidth=1.5)
    axes.set(title="Lengths of examples", xlabel="pieces", ylabel="examples")
    axes.set_xlim(0, edges[-1])
    axes.grid(color="0.9")
    axes.legend(frameon=False)
    return figure


def positional_slices(
    length: int, d_model: int = 512, depths: Sequence[int] = (1, 5, 15, 20)
) -> "Figure":
    """Draw the sinusoids along the positions, a strip for each of a few depths."""
    values = _encoding(length, d_model, interleave=True)
    figure = _make_figure(8.0, 1.0 + 1.1 * len(depths))
    strips = figure.subplots(len(depths), 1, sharex=True, sharey=True, squeeze=False)
    for i, (axes, depth) in enumerate(zip(strips[:, 0], depths, strict=True)):
        color = LINES[i % len(LINES)]
        axes.plot(values[:, depth], color=color, marker="o", markersize=2.5)
        axes.set(ylabel=f"depth {depth}", xlim=(0, length - 1), ylim=(-1.15, 1.15))
        axes.grid(color="0.9")
    figure.suptitle(f"Positional encoding at single depths of {d_model}")
    figure.supylabel("PE(position, depth)", fontsize="medium")
    strips[-1, 0].set_xlabel("position")
    return figure


def mask(
    mask: Any,
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    title: str = "Which query may see which key",
) -> "Figure":
    """Draw the mask of one sentence: a `Mask`, or an array [queries, keys].

    A mask that all queries share is repeated in each row.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    allowed = mask.dense() if isinstance(mask, Mask) else mask
    allowed = _as_matrix(allowed, len(query_labels), len(key_labels))
    figure = _make_figure(
        CELL * len(key_labels) + 3.2, max(CELL * len(query_labels) + 1.8, 2.4)
    )
    axes = figure.subplots()
    axes.imshow(allowed, cmap=ListedColormap(YES_NO), vmin=0, vmax=1)
    axes.set(title=title, xlabel="key", ylabel="query")
    _label_ticks(axes, query_labels, key_labels)
    _separate_cells(axes, allowed.shape)
    names = ("hidden", "visible")
    handles = [
        Patch(facecolor=c, edgecolor="0.6", label=n)
        for c, n in zip(YES_NO, names, strict=True)
    ]
    axes.legend(
        handles=handles, loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False
    )
    return figure


def attention(
    weights: Any,
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    layer: int | None = None,
) -> "Figure":
    """Draw weights [layers, heads, queries, keys]: a row a layer, a column a head.

    `layer` draws that one alone, and larger.
    """
    weights = np.asarray(weights, np.float32)
    expected = (len(query_labels), len(key_labels))
    if weights.ndim != 4 or weights.shape[2:] != expected:
        raise ValueError(
            f"attention weights of shape {weights.shape}: expected [layers, heads, "
            f"{expected[0]} queries, {expected[1]} keys] to match the labels"
        )
    layers = list(range(len(weights))) if layer is None else [layer]
    heads = weights.shape[1]
    cell = CELL if layer is None else CELL * 1.4
    width = heads * max(cell * expected[1], 1.6) + 2.4
    height = len(layers) * (max(cell * expected[0], 1.6) + 0.4) + 1.4
    figure = _make_figure(width, height)
    grid = figure.subplots(len(layers), heads, sharex=True, sharey=True, squeeze=False)
    for row, i in zip(grid, layers, strict=True):
        for head, axes in enumerate(row):
            image = axes.imshow(
                weights[i, head], cmap=AMOUNTS, vmin=0, vmax=1, aspect="auto"
            )
            axes.set_title(f"layer {i}, head {head}", fontsize=9)
            _label_ticks(axes, query_labels, key_labels)
            axes.label_outer()
    figure.supxlabel("key")
    figure.supylabel("query")
    figure.colorbar(image, ax=grid, label="weight", fraction=0.8 / width, pad=0.01)
    return figure


def reach(curves: dict[str, Sequence[float]]) -> "Figure":
    """Draw how much of a gradient arrives 1, 2, … tokens back, a line for each model.

    The scale is logarithmic: a constant loss at every token is a straight line.
    """
    figure = _make_figure(8.0, 4.5)
    axes = figure.subplots()
    for i, (name, amounts) in enumerate(curves.items()):
        color = LINES[i % len(LINES)]
        axes.plot(range(1, len(amounts) + 1), amounts, color=color, label=name)
    axes.set(
        title="Gradient that reaches a token of the source",
        xlabel="tokens read since then, by encoder and decoder",
        ylabel="mean norm of ∂ log p / ∂ embedding",
        yscale="log",
    )
    axes.grid(color="0.9")
    axes.legend(frameon=False)
    return figure


def _make_figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure  # costs a second, and only pictures need it

    return Figure(figsize=(width, height), layout="constrained")


def _encoding(length: int, d_model: int, interleave: bool) -> np.ndarray:
    return np.asarray(sinusoid(jnp.arange(length)[None], d_model, interleave)[0])


def _as_matrix(array: Any, queries: int, keys: int) -> np.ndarray:
    """Broadcast [#B, #N, #T, S] of one sentence, or [#T, S], to [T, S]."""
    array = np.asarray(array, bool)
    if array.size != array.shape[-1] * (array.shape[-2] if array.ndim > 1 else 1):
        raise ValueError(
            f"a mask of shape {array.shape} is of several sentences or heads: "
            "draw one of them"
        )
    array = array.reshape(-1, array.shape[-1])
    if array.shape[0] not in (1, queries) or array.shape[1] != keys:
        raise ValueError(
            f"a mask of {array.shape[0]} queries and {array.shape[1]} keys does not "
            f"fit {queries} query labels and {keys} key labels"
        )
    return np.broadcast_to(array, (queries, keys))


def _label_ticks(
    axes: "Axes", query_labels: Sequence[str], key_labels: Sequence[str]
) -> None:
    axes.set_xticks(range(len(key_labels)), key_labels, rotation=90, fontsize=8)
    axes.set_yticks(range(len(query_labels)), query_labels, fontsize=8)
    axes.tick_params(length=2)


def _separate_cells(axes: "Axes", shape: tuple[int, ...]) -> None:
    """Draw white lines between cells, so that a block of one colour shows its rows."""
    rows, columns = shape
    axes.set_xticks(np.arange(1, columns) - 0.5, minor=True)
    axes.set_yticks(np.arange(1, rows) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="minor", length=0)
