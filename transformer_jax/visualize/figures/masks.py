"""Draw masks and their effect on scores and weights."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from transformer_jax.models.attention import Mask
from transformer_jax.visualize.style import (
    AMOUNTS,
    CELL,
    SIGNED,
    YES_NO,
    label_ticks,
    make_figure,
    separate_cells,
    write_numbers,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def mask(
    mask: Any,
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    title: str = "Which query may see which key",
) -> "Figure":
    """Draw the mask of one sentence: a `Mask`, or an array [queries, keys].

    A mask shared by all queries is repeated in each row. What to look for: a look-ahead
    mask is a lower triangle; a padding mask hides columns.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    allowed = mask.dense() if isinstance(mask, Mask) else mask
    allowed = _as_matrix(allowed, len(query_labels), len(key_labels))
    figure = make_figure(
        CELL * len(key_labels) + 3.2, max(CELL * len(query_labels) + 1.8, 2.4)
    )
    axes = figure.subplots()
    axes.imshow(allowed, cmap=ListedColormap(YES_NO), vmin=0, vmax=1)
    axes.set(title=title, xlabel="key", ylabel="query")
    label_ticks(axes, query_labels, key_labels)
    separate_cells(axes, allowed.shape)
    names = ("hidden", "visible")
    handles = [
        Patch(facecolor=c, edgecolor="0.6", label=n)
        for c, n in zip(YES_NO, names, strict=True)
    ]
    axes.legend(
        handles=handles, loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False
    )
    return figure


def masking(
    scores: np.ndarray,
    allowed: np.ndarray,
    before: np.ndarray,
    after: np.ndarray,
    query_labels: Sequence[str],
    key_labels: Sequence[str],
) -> "Figure":
    """Draw scores and weights [queries, keys] before and after a mask.

    What to look for: hidden keys get the score -∞ (here a large negative number) and
    therefore the weight 0, and the other weights grow so that each row adds up to 1
    again.
    """
    cell = 2.0 * CELL
    figure = make_figure(
        2 * cell * len(key_labels) + 2.6,
        2 * (cell * len(query_labels) + 0.45) + 1.0,
    )
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    most = float(np.abs(scores).max()) or 1.0
    hidden = np.ma.masked_array(scores, ~allowed)
    rows = (
        ("score", (scores, hidden), SIGNED, -most, most),
        ("weight", (before, after), AMOUNTS, 0.0, 1.0),
    )
    for axes_of_row, (name, both, colors, least, largest) in zip(
        panels, rows, strict=True
    ):
        for axes, values, when in zip(
            axes_of_row, both, ("before the mask", "after it"), strict=True
        ):
            image = axes.imshow(values, cmap=colors, vmin=least, vmax=largest)
            texts = [
                ["−∞" if np.ma.is_masked(v) else f"{v:.2f}" for v in r]
                for r in np.ma.asarray(values)
            ]
            write_numbers(axes, image, texts)
            axes.set_title(f"{name}s {when}", fontsize=10)
            axes.set_facecolor(YES_NO[0])
            label_ticks(axes, query_labels, key_labels)
            axes.label_outer()
            separate_cells(axes, np.shape(values))
        figure.colorbar(image, ax=axes_of_row, label=name, pad=0.01)
    figure.supxlabel("key")
    figure.supylabel("query")
    return figure


def padding(
    alone: np.ndarray,
    masked: np.ndarray,
    unmasked: np.ndarray,
    words: Sequence[str],
    filling: str = "<pad>",
) -> "Figure":
    """Draw the weights of a sentence alone, padded with its mask, and without the mask.

    `alone` is [words, words]; the others have additional rows and columns for padding.
    What to look for: with the mask, the upper left block is the same as for the
    sentence alone; without it, words look at padding, and their weights for each other
    are wrong.
    """
    length = len(unmasked)
    named = [*words, *[filling] * (length - len(words))]
    parts = (
        ("alone", alone, list(words)),
        ("padded, with the mask", masked, named),
        ("padded, without the mask", unmasked, named),
    )
    figure = make_figure(3 * (CELL * length + 1.0) + 0.8, CELL * length + 1.8)
    panels = figure.subplots(1, 3)
    for axes, (title, values, labels) in zip(panels, parts, strict=True):
        image = axes.imshow(values, cmap=AMOUNTS, vmin=0, vmax=1)
        axes.set_title(title, fontsize=10)
        # Words keep their places and sizes; labels are directly below the last word.
        axes.set(xlim=(-0.5, length - 0.5), ylim=(length - 0.5, -0.5))
        axes.spines[:].set_visible(False)
        axes.spines.bottom.set_position(("data", len(labels) - 0.5))  # resets its ticks
        label_ticks(axes, labels, labels)
        if len(labels) > len(words):
            edge = len(words) - 0.5
            axes.axvline(edge, color="white", linewidth=1.2)
            axes.axhline(edge, color="white", linewidth=1.2)
    figure.supxlabel("key")
    figure.supylabel("query")
    figure.colorbar(image, ax=panels, label="weight", pad=0.01)
    return figure


def _as_matrix(array: Any, queries: int, keys: int) -> np.ndarray:
    """Broadcast [#B, #N, #T, S] of one sentence, or [#T, S], to [T, S]."""
    array = np.asarray(array, bool)
    if array.size != array.shape[-1] * (array.shape[-2] if array.ndim > 1 else 1):
        raise ValueError(
            f"a mask of shape {array.shape} covers several sentences or heads: "
            "draw one of them"
        )
    array = array.reshape(-1, array.shape[-1])
    if array.shape[0] not in (1, queries) or array.shape[1] != keys:
        raise ValueError(
            f"a mask of {array.shape[0]} queries and {array.shape[1]} keys does not "
            f"fit {queries} query labels and {keys} key labels"
        )
    return np.broadcast_to(array, (queries, keys))
