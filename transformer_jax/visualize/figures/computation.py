"""Draw one attention computation with its numbers."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.visualize.explain import Computation
from transformer_jax.visualize.style import (
    AMOUNTS,
    SIGNED,
    YES_NO,
    label_ticks,
    make_figure,
    separate_cells,
    write_numbers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def computation(found: Computation, columns: int = 6) -> "Figure":
    """Draw a head's computation as matrices from left to right, with their numbers.

    The first `columns` numbers of queries, keys and values are drawn, while scores are
    computed from all of them. What to look for:
    each score is the dot product of a row of queries and a row of keys; each row of
    weights adds up to 1; each row of the result is a weighted mean of the values.
    """
    panels = _panels(found, columns)
    across = len(panels) if len(panels) <= 4 else -(-len(panels) // 2)
    down = -(-len(panels) // across)
    labels = [_short(n) for n in (*found.query_labels, *found.key_labels)]
    label = 0.07 * max(map(len, labels)) + 0.3
    widest = max(values.shape[1] for _, values, *_ in panels)
    height = 0.3 * max(max(values.shape[0] for _, values, *_ in panels), 2)
    figure = make_figure(
        across * (0.44 * max(widest, 3) + label + 0.1),
        down * (height + label + 0.4) + 0.4,
    )
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes, panel in zip(grid.flat, panels, strict=False):
        _draw(axes, *panel)
    figure.suptitle(found.title, fontsize=11)
    return figure


def _draw(axes: "Axes", title, values, rows, names, colors) -> None:
    """Draw a matrix with its numbers and labels."""
    most = float(np.abs(np.ma.filled(np.ma.asarray(values), 0)).max()) or 1.0
    least, largest = (0.0, 1.0) if colors == AMOUNTS else (-most, most)
    image = axes.imshow(values, cmap=colors, vmin=least, vmax=largest, aspect="auto")
    axes.set_facecolor(YES_NO[0])
    write_numbers(axes, image, [[_text(x) for x in row] for row in values], 6.5)
    label_ticks(axes, list(map(_short, rows)), list(map(_short, names)))
    axes.set_title(title, fontsize=9)
    separate_cells(axes, values.shape)


def _short(label: str) -> str:
    return label if len(label) <= 18 else f"{label[:17]}…"


def _panels(found: Computation, columns: int) -> list[tuple]:
    """List (title, values, row labels, column labels, colours) of the matrices."""
    queries, keys = found.query_labels, found.key_labels
    panels = []
    if found.queries is not None and found.keys is not None:
        panels += [
            _vectors("queries q", found.queries, queries, columns),
            _vectors("keys k", found.keys, keys, columns),
        ]
    panels.append(("scores q · k", found.scores, queries, keys, SIGNED))
    if found.d_k > 1:
        scaled = f"scaled, / √{found.d_k} = {math.sqrt(found.d_k):.3g}"
        panels.append((scaled, found.scaled, queries, keys, SIGNED))
    if not found.allowed.all():
        hidden = np.ma.masked_array(found.scaled, ~found.allowed)
        panels.append(("masked", hidden, queries, keys, SIGNED))
    panels.append(("weights: softmax", found.weights, queries, keys, AMOUNTS))
    if found.values is not None and found.attended is not None:
        panels += [
            _vectors("values v", found.values, keys, columns),
            _vectors("weights · v", found.attended, queries, columns),
        ]
    return panels


def _vectors(title: str, values: np.ndarray, rows: Sequence[str], most: int) -> tuple:
    """Cut vectors off after `most` numbers; the title says so."""
    size = values.shape[1]
    title = title if size <= most else f"{title}, {most} of {size}"
    cut = values[:, :most]
    return title, cut, rows, [str(i) for i in range(cut.shape[1])], SIGNED


def _text(x: float) -> str:
    if np.ma.is_masked(x):
        return "−∞"
    return f"{x:.2f}" if abs(x) < 9.995 else f"{x:.1f}"
