"""Draw the picture of the README: which source words a translator attends to.

    python docs/draw_attention.py --workdir runs/quickstart

Writes docs/attention.svg: the cross-attention of the last decoder layer, averaged over
its heads, while the model of configs/quickstart.py writes its translation.
"""

import argparse
import pathlib

import numpy as np

import transformer_jax
from transformer_jax.visualize import style

SENTENCE = "A menina não leu o livro vermelho ontem."
OUTPUT = pathlib.Path(__file__).parent / "attention.svg"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workdir", default="runs/quickstart")
    parser.add_argument("--sentence", default=SENTENCE)
    args = parser.parse_args()
    run = transformer_jax.load(args.workdir)
    translation = run.predict([args.sentence])[0]
    maps = run.attention(args.sentence, translation)
    weights, labels = maps["cross"][-1].mean(axis=0), style.axis_labels(maps, "cross")
    draw(weights, *labels).savefig(OUTPUT, metadata={"Date": None})
    print(f"wrote {OUTPUT.name}: {args.sentence} → {translation}")


def draw(weights: np.ndarray, rows: list[str], columns: list[str]):
    """Draw weights [rows, columns] as a heat map with a piece on each side."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "transformer_jax"  # the same bytes each time
    figure = Figure(figsize=(5.6, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.xaxis.tick_top()
    for label in axes.get_xticklabels():
        label.set(rotation=45, ha="left", rotation_mode="anchor")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return figure


if __name__ == "__main__":
    main()
