"""Draw what residual connections do: a picture of docs/transformer.md.

    python docs/draw_residuals.py

Writes docs/residuals.png: an untrained encoder reads twelve vectors, with its residual
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

OUTPUT = pathlib.Path(__file__).parent / "residuals.png"
WORDS, WIDTH, LAYERS, SEEDS = 12, 128, 16, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.parse_args()
    figure = draw(*measure())
    figure.savefig(OUTPUT, dpi=100, metadata={"Software": None})
    print(f"wrote {OUTPUT.name}")


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
