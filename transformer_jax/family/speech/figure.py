"""Draw a spectrogram and the attention of each written piece to it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from transformer_jax.base.errors import UserError
from transformer_jax.visualize import commands, style
from transformer_jax.visualize.style import AMOUNTS, CELL, make_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SECONDS = 0.01  # from a frame to the next


def spectrogram(
    frames: Float[np.ndarray, "S bands"],
    weights: Float[np.ndarray, "T Q"],
    pieces: Sequence[str],
) -> "Figure":
    """Draw a log-mel spectrogram above the attention of the pieces that are written.

    What to look for: words that only the sound can tell, such as colours and things,
    attend to the time at which they are spoken, in order. Words that follow from the
    grammar, such as "the", attend to nothing in particular.
    """
    end = len(frames) * SECONDS
    figure = make_figure(8.0, 2.2 + CELL * len(pieces))
    above, below = figure.subplots(
        2, 1, sharex=True, height_ratios=[1.8, CELL * len(pieces)]
    )
    where = 0.0, end, 0.0, float(frames.shape[1])
    above.imshow(
        frames.T,
        origin="lower",
        aspect="auto",
        extent=where,
        cmap=AMOUNTS,
        vmin=-2.0,
        vmax=3.0,
    )
    above.set(title="What is heard", ylabel="mel band")
    where = 0.0, end, len(pieces) - 0.5, -0.5
    image = below.imshow(weights, aspect="auto", extent=where, cmap=AMOUNTS, vmin=0.0)
    below.set_yticks(range(len(pieces)), pieces, fontsize=8)
    below.set(
        title="When the model looks, while it writes each piece",
        xlabel="seconds",
        ylabel="piece written",
    )
    figure.colorbar(image, ax=below, label="weight", pad=0.01)
    return figure


def draw_spectrogram(args: Any) -> "Figure":
    """Draw a spectrogram and the attention of each written piece to it."""
    run, line, _, maps = commands.read(args)
    if run.config.task != "speech":
        raise UserError("a spectrogram is of sound: use a run of configs/speech.py")
    weights = maps["cross"][commands.layer_of(args, maps, "cross")]
    weights = weights.mean(axis=0) if args.head < 0 else weights[args.head]
    frames = run.task.inference.parse(line).source
    return spectrogram(frames, weights, style.readable(maps.written))
