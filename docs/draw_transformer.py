"""Draw the pictures of docs/transformer.md that no command draws.

    python docs/draw_transformer.py

Writes docs/transformer.svg, the way from a sentence to an output, and
docs/residuals.png: an untrained encoder reads twelve vectors, with its residual
connections and without them. Left: how alike its outputs are. Right: the gradient from
a word's output to the word itself, as a multiple of that to another word.
"""

import argparse
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.models import Encoder, TransformerConfig
from transformer_jax.visualize import style

PLAN = pathlib.Path(__file__).parent / "transformer.svg"
OUTPUT = pathlib.Path(__file__).parent / "residuals.png"
WORDS, WIDTH, LAYERS, SEEDS = 12, 128, 16, 3

# (left, bottom, width, height, text, colour); the encoder on the left.
READS, WRITES, STREAM = "#DCEBF5", "#FBE3D4", "#F1F1F1"
BOXES = (
    (0.2, 0.0, 3.2, 0.6, "O gato dorme .", STREAM),
    (0.2, 1.0, 3.2, 0.8, "embedding + positions\n[S, D]", READS),
    (0.2, 2.3, 3.2, 0.7, "self-attention, add, norm", READS),
    (0.2, 3.2, 3.2, 0.7, "feed-forward, add, norm", READS),
    (0.2, 4.5, 3.2, 0.6, "memory [S, D]", STREAM),
    (5.0, 0.0, 3.2, 0.6, "<s> The cat", STREAM),
    (5.0, 1.0, 3.2, 0.8, "embedding + positions\n[T, D]", WRITES),
    (5.0, 2.3, 3.2, 0.7, "masked self-attention, add, norm", WRITES),
    (5.0, 3.2, 3.2, 0.7, "cross-attention, add, norm", WRITES),
    (5.0, 4.1, 3.2, 0.7, "feed-forward, add, norm", WRITES),
    (5.0, 5.4, 3.2, 0.7, "a score for every piece [T, V]", STREAM),
    (5.0, 6.5, 3.2, 0.6, "The cat sleeps", STREAM),
)
UP = ((1.8, 0.6, 1.0), (1.8, 1.8, 2.3), (1.8, 3.0, 3.2), (1.8, 3.9, 4.5))
UP += ((6.6, 0.6, 1.0), (6.6, 1.8, 2.3), (6.6, 3.0, 3.2), (6.6, 3.9, 4.1))
UP += ((6.6, 4.8, 5.4), (6.6, 6.1, 6.5))
STACKS = (
    (0.05, 2.15, 3.5, 1.9, "encoder, N ×"),
    (4.85, 2.15, 3.5, 2.8, "decoder, N ×"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.parse_args()
    draw_plan().savefig(PLAN, metadata={"Date": None})
    draw(*measure()).savefig(OUTPUT, dpi=100, metadata={"Software": None})
    print(f"wrote {PLAN.name} and {OUTPUT.name}")


def draw_plan():
    """Draw encoder and decoder, from a sentence to the next piece."""
    from matplotlib import rcParams
    from matplotlib.patches import FancyBboxPatch

    rcParams["svg.hashsalt"] = "transformer_jax"  # the same bytes each time
    figure = style.make_figure(7.6, 5.6)
    axes = figure.subplots()
    for left, bottom, width, height, name in STACKS:
        shape = FancyBboxPatch((left, bottom), width, height, "round,pad=0.02")
        axes.add_patch(shape)
        shape.set(facecolor="none", edgecolor="#888888", linestyle="--")
        place = left + width, bottom + height + 0.08
        axes.text(*place, name, fontsize=9, color="#555555", ha="right")
    for left, bottom, width, height, text, color in BOXES:
        shape = FancyBboxPatch((left, bottom), width, height, "round,pad=0.02")
        axes.add_patch(shape)
        shape.set(facecolor=color, edgecolor="#555555", linewidth=0.8)
        middle = left + width / 2, bottom + height / 2
        axes.text(*middle, text, ha="center", va="center", fontsize=8.5)
    arrow = {"arrowstyle": "-|>", "color": "#333333", "shrinkA": 0, "shrinkB": 0}
    for x, begin, end in UP:
        axes.annotate("", (x, end), (x, begin), arrowprops=arrow)
    curved = {**arrow, "connectionstyle": "angle,angleA=0,angleB=90,rad=8"}
    axes.annotate(
        "", (4.2, 3.55), (3.42, 4.8), arrowprops={**curved, "arrowstyle": "-"}
    )
    axes.annotate("", (4.98, 3.55), (4.2, 3.55), arrowprops=arrow)
    axes.text(3.6, 5.0, "keys, values", fontsize=9, color="#555555")
    back = {**arrow, "linestyle": ":", "connectionstyle": "bar,fraction=-0.2"}
    axes.annotate("", (8.22, 0.3), (8.22, 6.8), arrowprops=back)
    axes.text(9.9, 3.3, "in use:\nread what\nwas written", fontsize=9, color="#555555")
    axes.set(xlim=(-0.1, 11.3), ylim=(-0.1, 7.2))
    axes.axis("off")
    return figure


def measure() -> tuple[np.ndarray, np.ndarray]:
    """Return mean cosines and ratios of gradients, [without or with, layers]."""
    found = [[by_layer(seed, add) for add in (0.0, 1.0)] for seed in range(SEEDS)]
    likeness, ratios = np.moveaxis(np.array(found).mean(axis=0), 1, 0)
    return likeness, ratios


def by_layer(seed: int, add: float) -> tuple[list[float], list[float]]:
    """Run the layers one by one on random vectors; `add` scales the residual stream."""
    config = TransformerConfig(
        vocab_size=4,
        encoder_layers=LAYERS,
        decoder_layers=0,
        d_model=WIDTH,
        d_ff=4 * WIDTH,
        num_heads=4,
        norm="pre",
    )
    key = jax.random.key(seed)
    encoder = Encoder(config)
    layers = encoder.bind(encoder.init(key, jnp.zeros((1, 1), int))).encoder.layer

    def run(x, count):
        for layer in layers[:count]:
            x = add * x + layer.self_attention(layer.self_attention_norm(x))[0]
            x = add * x + layer.feed_forward(layer.feed_forward_norm(x))
        return x[0]

    x = jax.random.normal(key, (1, WORDS, WIDTH))
    likeness, ratios = [], []
    for count in range(1, LAYERS + 1):
        y = run(x, count)
        y /= jnp.linalg.norm(y, axis=-1, keepdims=True)
        likeness.append(mean_of_pairs(y @ y.T))
        slopes = jax.jacrev(lambda x, n=count: run(x, n).mean(axis=-1))(x)[:, 0]
        sizes = jnp.linalg.norm(slopes, axis=-1)  # [output word, input word]
        ratios.append(float(jnp.diag(sizes).mean()) / mean_of_pairs(sizes))
    return likeness, ratios


def mean_of_pairs(table: jax.Array) -> float:
    """Average a table [words, words] over pairs of different words."""
    count = len(table)
    return float((table.sum() - jnp.trace(table)) / (count * (count - 1)))


def draw(likeness: np.ndarray, ratios: np.ndarray):
    """Draw both measures over the number of layers."""
    figure = style.make_figure(8.0, 2.9)
    panels = figure.subplots(1, 2)
    names = "without residual connections", "with them"
    titles = "cosine of two words' outputs", "gradient: itself / another word"
    for axes, title, lines in zip(panels, titles, (likeness, ratios), strict=True):
        for number, (name, values) in enumerate(zip(names, lines, strict=True)):
            count = np.arange(1, len(values) + 1)
            axes.plot(count, values, label=name, **style.line(1 - number))
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("layers")
        axes.set_xticks([1, *range(4, LAYERS + 1, 4)])
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylim(0, 1.05)
    panels[1].set_ylim(0, None)
    lines = panels[0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside lower center", ncols=2)
    return figure


if __name__ == "__main__":
    main()
