"""Draw how positions are encoded. All values come from `models.positions`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from transformer_jax.models.positions import sinusoid
from transformer_jax.visualize.style import (
    AMOUNTS,
    CELL,
    LINES,
    SIGNED,
    clean,
    line,
    make_figure,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def positional_encoding(length: int, d_model: int, interleave: bool = True) -> "Figure":
    """Draw the sinusoids: one row per position, one column per dimension.

    What to look for: on the left the waves are short and distinguish neighbours; on the
    right they are so long that they hardly change.
    """
    values = _encoding(length, d_model, interleave)
    figure = make_figure(8.0, 4.5)
    axes = figure.subplots()
    image = axes.imshow(
        values, cmap=SIGNED, vmin=-1, vmax=1, aspect="auto", interpolation="nearest"
    )
    order = "sine and cosine in turn" if interleave else "all sines, then all cosines"
    axes.set(title=f"Positional encoding, {order}", xlabel="depth", ylabel="position")
    figure.colorbar(image, ax=axes, label="PE(position, depth)")
    return figure


def positional_slices(
    length: int, d_model: int = 512, depths: Sequence[int] = (1, 5, 15, 20)
) -> "Figure":
    """Draw the sinusoids along the positions, one strip per depth.

    What to look for: even depths are sines and start at 0, odd depths are cosines and
    start at 1; the greater the depth, the longer the wave.
    """
    values = _encoding(length, d_model, interleave=True)
    figure = make_figure(8.0, 1.0 + 1.1 * len(depths))
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


def waves(
    words: Sequence[str], d_model: int = 512, depths: Sequence[int] = (20, 60, 120, 180)
) -> "Figure":
    """Draw waves of the sinusoids over the words of a sentence, shortest on top.

    What to look for: a word's dots, read from top to bottom, are part of its position
    vector. A short wave distinguishes a word from its neighbours, a long wave the
    beginning of the sentence from its end. The lines between the dots show the same
    waves between the words.
    """
    fine = np.linspace(0, len(words) - 1, 40 * len(words))
    values = _encoding(len(words), d_model, interleave=True)
    figure = make_figure(max(0.6 * len(words) + 2.0, 5.0), 1.3 + 1.0 * len(depths))
    strips = figure.subplots(len(depths), 1, sharex=True, sharey=True, squeeze=False)
    for i, (axes, depth) in enumerate(zip(strips[:, 0], depths, strict=True)):
        color = LINES[i % len(LINES)]
        length = 2 * np.pi * 10_000 ** (2 * (depth // 2) / d_model)
        wave = np.cos if depth % 2 else np.sin
        curve = wave(2 * np.pi * fine / length)
        axes.plot(fine, curve, color=color, linewidth=1, alpha=0.6)
        axes.plot(values[:, depth], "o", color=color, markersize=5)
        axes.set_title(f"wave of {length:,.1f} words", fontsize=9, loc="left")
        axes.set(ylabel=f"depth {depth}", ylim=(-1.2, 1.2))
        clean(axes)
    strips[-1, 0].set_xticks(range(len(words)), words, rotation=45, ha="right")
    figure.suptitle(f"Waves of the positional encoding (d_model {d_model})")
    return figure


def dot_products(
    furthest: int = 100, d_models: Sequence[int] = (64, 128, 512)
) -> "Figure":
    """Draw PE(p) · PE(p + k) against the distance k, as a share of PE(p) · PE(p).

    What to look for: the product depends only on the distance, is the same in both
    directions, and falls, so nearby positions are similar. It does not tell which
    position comes first.
    """
    figure = make_figure(7.0, 4.0)
    axes = figure.subplots()
    distances = np.arange(-furthest, furthest + 1)
    for i, d_model in enumerate(d_models):
        values = _encoding(2 * furthest + 1, d_model, interleave=True)
        products = values @ values[furthest]
        shares = products / products[furthest]
        axes.plot(distances, shares, label=f"d_model {d_model}", **line(i))
    axes.set(
        title="How alike two positions are",
        xlabel="distance k, in positions",
        ylabel="PE(p) · PE(p + k) / PE(p) · PE(p)",
    )
    clean(axes)
    axes.legend(frameon=False)
    return figure


def similarity(table: np.ndarray, title: str = "Similarity of positions") -> "Figure":
    """Draw the cosine of the vectors of each pair of positions [positions, D].

    What to look for: a bright diagonal that fades means that nearby positions have
    similar vectors, which learned tables find by themselves. Positions that never occur
    in training keep their initial values and resemble no others.
    """
    figure = make_figure(5.6, 4.6)
    axes = figure.subplots()
    image = axes.imshow(cosines(table), cmap=SIGNED, vmin=-1, vmax=1)
    axes.set(title=title, xlabel="position", ylabel="position")
    figure.colorbar(image, ax=axes, label="cosine")
    return figure


def patch_similarity(table: np.ndarray, grid: tuple[int, int]) -> "Figure":
    """Draw, for each patch, how similar its learned position is to all others.

    `table` is [patches, D], row by row, without the class token. What to look for: each
    small picture is brightest at its own place. After training on many pictures, a
    patch also resembles those of its row and column, although the model was never told
    about a grid; after a short training on small pictures this is hardly visible.
    """
    rows, columns = grid
    values = cosines(table).reshape(rows, columns, rows, columns)
    size = max(CELL * 2.4, 4.2 / columns)
    figure = make_figure(size * columns + 1.6, size * rows + 1.0)
    panels = figure.subplots(rows, columns, squeeze=False)
    for (row, column), axes in np.ndenumerate(panels):
        image = axes.imshow(values[row, column], cmap=AMOUNTS, vmin=-1, vmax=1)
        axes.set(xticks=[], yticks=[])
        if column == 0:
            axes.set_ylabel(str(row), rotation=0, ha="right", va="center")
        if row == rows - 1:
            axes.set_xlabel(str(column))
    figure.suptitle("Similarity of the learned positions of patches")
    figure.supxlabel("column of the patch")
    figure.supylabel("row of the patch")
    figure.colorbar(image, ax=panels, label="cosine", shrink=0.8)
    return figure


def cosines(table: np.ndarray) -> np.ndarray:
    """Return the cosine of each pair of rows."""
    unit = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    return unit @ unit.T


def _encoding(length: int, d_model: int, interleave: bool) -> np.ndarray:
    return np.asarray(sinusoid(jnp.arange(length)[None], d_model, interleave)[0])
