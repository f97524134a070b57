"""Draw attention weights: all heads, one word, words of two languages, patches.

The weights are [layers, heads, queries, keys], as `Run.attention` returns them. All
numbers come from `measures.py` or from the model; nothing is computed here.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from transformer_jax.visualize import measures
from transformer_jax.visualize.style import (
    AMOUNTS,
    CELL,
    LINES,
    MARKERS,
    clean,
    label_points,
    label_ticks,
    make_figure,
    write_numbers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def attention(
    weights: Any,
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    layer: int | None = None,
) -> "Figure":
    """Draw weights [layers, heads, queries, keys]: layers are rows, heads columns.

    `layer` draws that layer alone, and larger. What to look for: each row adds up to 1.
    Some heads look at the previous or next word, some at the same word for every query,
    and some heads of cross-attention follow the alignment of the words.
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
    figure = make_figure(width, height)
    grid = figure.subplots(len(layers), heads, sharex=True, sharey=True, squeeze=False)
    for row, i in zip(grid, layers, strict=True):
        for head, axes in enumerate(row):
            image = axes.imshow(
                weights[i, head], cmap=AMOUNTS, vmin=0, vmax=1, aspect="auto"
            )
            axes.set_title(f"layer {i}, head {head}", fontsize=9)
            label_ticks(axes, query_labels, key_labels)
            axes.label_outer()
    figure.supxlabel("key")
    arrows = any(" → " in label for label in query_labels)
    figure.supylabel("query (read → written)" if arrows else "query")
    figure.colorbar(image, ax=grid, label="weight", fraction=0.8 / width, pad=0.01)
    return figure


def heads(weights: np.ndarray, title: str = "All heads at a glance") -> "Figure":
    """Draw an unlabelled thumbnail of each head, with layers from top to bottom.

    What to look for: diagonals (the head looks at the same or a neighbouring position),
    columns (all queries look at one position, often the end token or a full stop), and
    blurs.
    """
    layers, number = weights.shape[:2]
    figure = make_figure(0.95 * number + 1.4, 0.95 * layers + 1.1)
    panels = figure.subplots(layers, number, squeeze=False)
    for (layer, head), axes in np.ndenumerate(panels):
        image = axes.imshow(
            weights[layer, head], cmap=AMOUNTS, vmin=0, vmax=1, aspect="auto"
        )
        axes.set(xticks=[], yticks=[])
        if layer == 0:
            axes.set_title(str(head), fontsize=9)
        if head == 0:
            axes.set_ylabel(str(layer), rotation=0, ha="right", va="center", fontsize=9)
    figure.suptitle(title)
    figure.supxlabel("head (inside: keys from left to right)", fontsize=9)
    figure.supylabel("layer (inside: queries downwards)", fontsize=9)
    figure.colorbar(image, ax=panels, label="weight", pad=0.02)
    return figure


def arcs(weights: np.ndarray, words: Sequence[str], query: int) -> "Figure":
    """Draw where one word looks, as arcs over the sentence, with one colour per head.

    `weights` [heads, keys] belong to one layer and to the word at index `query`. Wider
    arcs mean larger weights; weights below 0.05 are left out, and a dot under the word
    is the weight it gives to itself. What to look for: heads that look at different
    words for different reasons, as in the paper's figures 3 to 5.
    """
    number = len(weights)
    figure = make_figure(max(0.75 * len(words) + 0.8, 5.0), 3.2)
    axes = figure.subplots()
    bow = np.sin(np.linspace(0, np.pi, 60))
    for head, row in enumerate(weights):
        color = LINES[head % len(LINES)]
        shift = (head - (number - 1) / 2) * min(0.5 / number, 0.1)
        for key, weight in enumerate(row):
            if weight < 0.05:
                continue
            size = 0.5 + 5 * float(weight)
            if key == query:
                axes.plot(key + shift, -0.12, "o", color=color, markersize=size + 1)
                continue
            x = np.linspace(query, key, len(bow)) + shift
            y = bow * (0.3 + 0.7 * abs(key - query))
            axes.plot(x, y, color=color, linewidth=size, alpha=0.75)
        axes.plot([], [], color=color, linewidth=3, label=f"head {head}")
    axes.set(xlim=(-0.6, len(words) - 0.4), ylim=(-0.3, None))
    axes.set_xticks(range(len(words)), words, rotation=45, ha="right")
    axes.get_xticklabels()[query].set(fontweight="bold")
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title(f"Where “{words[query].lstrip('·')}” looks")
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside upper center",
        ncols=min(number, 8),
        frameon=False,
        fontsize=9,
    )
    return figure


def word_links(
    weights: np.ndarray,
    source_words: Sequence[str],
    target_words: Sequence[str],
    least: float = 0.2,
) -> "Figure":
    """Draw which words of a translation belong to which words of its source.

    `weights` are [target words, source words]; links below `least` are left out. What
    to look for: words aligned to several others stand out in colour, and crossing lines
    show words that changed places.
    """
    links = [tuple(pair) for pair in np.argwhere(np.asarray(weights) >= least)]
    by_target, by_source = (Counter(pair[i] for pair in links) for i in (0, 1))
    kinds = {
        "one to one": (LINES[0], "-"),
        "one source word to several": (LINES[1], "--"),
        "several source words to one": (LINES[2], "-."),
    }
    longest = max(len(source_words), len(target_words))
    figure = make_figure(max(0.85 * longest + 1.0, 6.8), 3.0)
    axes = figure.subplots()
    places = [_spread(len(words), longest) for words in (target_words, source_words)]
    for target, source in links:
        kind = "one to one"
        if by_source[source] > 1:
            kind = "one source word to several"
        if by_target[target] > 1:
            kind = "several source words to one"
        color, dashes = kinds[kind]
        axes.plot(
            [places[1][source], places[0][target]],
            [1, 0],
            linestyle=dashes,
            color=color,
            linewidth=0.8 + 3.5 * float(weights[target, source]),
        )
    style: dict[str, Any] = dict(ha="center", fontsize=10)
    for x, word in zip(places[1], source_words, strict=True):
        axes.text(x, 1.06, word, va="bottom", **style)
    for x, word in zip(places[0], target_words, strict=True):
        axes.text(x, -0.06, word, va="top", **style)
    for kind, (color, dashes) in kinds.items():
        axes.plot([], [], color=color, linestyle=dashes, linewidth=2.5, label=kind)
    axes.set(xlim=(-0.7, longest - 0.3), ylim=(-0.25, 1.25), xticks=[])
    axes.set_yticks([0, 1], ["translation", "source"])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _spread(count: int, longest: int) -> np.ndarray:
    """Spread `count` words over the width of the longer side."""
    return (np.arange(count) + 0.5) * longest / max(count, 1) - 0.5


def entropy_and_distance(weights: np.ndarray) -> "Figure":
    """Draw a mark for each self-attention head: how far and how widely it looks.

    What to look for: heads at the lower left look at one nearby word, heads at the
    upper right at much of the sentence. Numbers are heads, and the shape of a mark is
    its layer.
    """
    bits, apart = measures.entropy(weights), measures.distance(weights)
    figure = make_figure(5.6, 4.2)
    axes = figure.subplots()
    for layer in range(len(weights)):
        color, marker = LINES[layer % len(LINES)], MARKERS[layer % len(MARKERS)]
        axes.plot(
            apart[layer],
            bits[layer],
            marker,
            color=color,
            markersize=7,
            label=f"layer {layer}",
        )
    most = np.log2(weights.shape[-1])
    axes.axhline(most, color="0.6", linewidth=1, linestyle=":")
    axes.annotate(
        "all words alike",
        (0, most),
        (4, -10),
        textcoords="offset points",
        fontsize=8,
        color="0.4",
    )
    axes.set(
        title="How far and how widely heads look",
        xlabel="mean distance of key and query, in pieces",
        ylabel="entropy of the weights, in bits",
    )
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    clean(axes)
    axes.legend(frameon=False, fontsize=9)
    names = [str(head) for _, head in np.ndindex(bits.shape)]
    label_points(axes, list(zip(apart.flat, bits.flat, strict=True)), names)
    return figure


def rollout(weights: np.ndarray, words: Sequence[str]) -> "Figure":
    """Draw the mean weights of the last layer next to the rollout of all layers.

    What to look for: a layer's weights apply to vectors that the layers below have
    already mixed. The rollout follows them down to the words themselves; it is
    smoother, and each word stays visible at its own position.
    """
    size = max(CELL * len(words), 2.0)
    figure = make_figure(2 * size + 2.6, size + 1.6)
    panels = figure.subplots(1, 2, sharey=True)
    parts = (
        ("last layer, mean of its heads", weights[-1].mean(axis=0)),
        ("rollout of all layers", measures.rollout(weights)[-1]),
    )
    for axes, (title, values) in zip(panels, parts, strict=True):
        image = axes.imshow(values, cmap=AMOUNTS, vmin=0, vmax=1)
        axes.set_title(title, fontsize=10)
        label_ticks(axes, words, words)
        axes.label_outer()
    figure.supxlabel("key")
    figure.supylabel("query")
    figure.colorbar(image, ax=panels, label="share", pad=0.01)
    return figure


def patches(
    weights: np.ndarray, picture: np.ndarray, grid: tuple[int, int]
) -> "Figure":
    """Draw what the class token looks at, over the picture's patches.

    `weights` are [layers, heads, T, T] with T = 1 + patches, `picture` [height, width,
    channels] in 0..1. There is one row per layer and one column per head, after the
    picture itself. What to look for: the brightness of a patch is its weight relative
    to the head's largest. The number above is the weight that the class token gives to
    patches rather than to itself.
    """
    layers, number = weights.shape[:2]
    figure = make_figure(1.25 * (number + 1) + 1.0, 1.45 * layers + 0.8)
    panels = figure.subplots(layers, number + 1, squeeze=False)
    extent = (-0.5, picture.shape[1] - 0.5, picture.shape[0] - 0.5, -0.5)
    for layer, row in enumerate(panels):
        _draw_picture(row[0], picture)
        row[0].set_ylabel(f"layer {layer}", fontsize=9)
        for head, axes in enumerate(row[1:]):
            seen = weights[layer, head, 0, 1:]
            shares = (seen / max(seen.max(), 1e-9)).reshape(grid)
            _draw_picture(axes, picture)
            image = axes.imshow(
                shares,
                cmap=AMOUNTS,
                vmin=0,
                vmax=1,
                alpha=0.75,
                extent=extent,
                interpolation="nearest",
            )
            axes.set_title(f"head {head}: {seen.sum():.2f}", fontsize=8)
    figure.suptitle("What the class token looks at")
    figure.colorbar(image, ax=panels, label="share of the largest weight", pad=0.02)
    return figure


def _draw_picture(axes: "Axes", picture: np.ndarray) -> None:
    grey = picture.shape[-1] == 1
    span = max(float(np.ptp(picture)), 1e-9)
    shown = (picture - picture.min()) / span  # models read pixels of about unit size
    axes.imshow(shown[..., 0] if grey else shown, cmap="gray" if grey else None)
    axes.set(xticks=[], yticks=[])


def alignment_errors(errors: np.ndarray, examples: int) -> "Figure":
    """Draw the alignment error rate of each head's cross-attention, [layers, heads].

    What to look for: the lower the rate, the more the head works like a dictionary. The
    best head is framed.
    """
    from matplotlib.patches import Rectangle

    layers, number = errors.shape
    figure = make_figure(0.8 * number + 2.4, 0.6 * layers + 1.6)
    axes = figure.subplots()
    image = axes.imshow(errors, cmap=AMOUNTS + "_r", vmin=0, vmax=1, aspect="auto")
    write_numbers(axes, image, [[f"{100 * e:.1f} %" for e in row] for row in errors], 9)
    layer, head = np.unravel_index(errors.argmin(), errors.shape)
    frame = Rectangle(
        (head - 0.47, layer - 0.46),
        0.94,
        0.92,
        fill=False,
        edgecolor=LINES[1],
        linewidth=3,
    )
    axes.add_patch(frame)
    axes.set_xticks(range(number), [str(i) for i in range(number)])
    axes.set_yticks(range(layers), [str(i) for i in range(layers)])
    axes.set(
        title=f"Alignment error rate, {examples:,} sentences",
        xlabel="head",
        ylabel="decoder layer",
    )
    figure.colorbar(image, ax=axes, label="error rate (0 is perfect)")
    return figure
