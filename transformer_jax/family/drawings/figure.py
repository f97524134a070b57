"""Draw sheets of pictures that a model drew, each row by one caption."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, UInt8

from transformer_jax.base.errors import UserError
from transformer_jax.family.drawings import regions, task
from transformer_jax.runs.run import Run
from transformer_jax.visualize import commands
from transformer_jax.visualize.style import LINES, make_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES = 8  # pictures drawn for each caption
Pictures = UInt8[np.ndarray, "captions samples H W 3"]


def drawings(
    captions: Sequence[str],
    pictures: Pictures,
    right: Bool[np.ndarray, "captions samples"],
) -> "Figure":
    """Draw several pictures for each caption; a frame marks those that are wrong.

    What to look for: colours, shapes and relation are those of the caption, while
    places and sizes, which no caption names, differ from one picture to the next.
    """
    rows, columns = right.shape
    figure = make_figure(1.7 + 0.9 * columns, 0.92 * rows)
    panels = figure.subplots(rows, columns, squeeze=False)
    for i, caption in enumerate(captions):
        label = "\n".join(textwrap.wrap(caption, 18))
        panels[i, 0].set_ylabel(
            label, rotation=0, ha="right", va="center", fontsize=8, labelpad=4
        )
        for j, axes in enumerate(panels[i]):
            axes.imshow(pictures[i, j], interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            for side in axes.spines.values():
                side.set_color("0.8" if right[i, j] else LINES[1])
                side.set_linewidth(0.8 if right[i, j] else 3)
    return figure


def sample(
    run: Run, captions: Sequence[str], count: int
) -> tuple[Pictures, Bool[np.ndarray, "captions samples"]]:
    """Let a run draw so many pictures for each caption, and judge them."""
    check(run)
    scoring: Any = run.task.scoring
    lines = [caption for caption in captions for _ in range(count)]
    found = []
    for reply in run.replies(lines):
        if reply.error:
            raise UserError(f"--text={reply.line} cannot be drawn: {reply.error}")
        found.append(task.as_picture(scoring.book, reply.text))
    right = [
        regions.judge(picture, line).right
        for picture, line in zip(found, lines, strict=True)
    ]
    shape = len(captions), count
    return np.stack(found).reshape(*shape, *found[0].shape), np.reshape(right, shape)


def choose(run: Run, split: str, count: int) -> list[str]:
    """Return the first so many different captions of a split."""
    check(run)
    captions = (record["source"] for record in run.records(split))
    return [*dict.fromkeys(captions)][:count]


def check(run: Run) -> None:
    """Refuse a run that does not draw."""
    if run.config.task != "drawings":
        raise UserError(
            f"{run.folder.place} is of the task {run.config.task}: name a run of "
            "configs/drawings.py"
        )


def draw_drawings(args: Any) -> "Figure":
    """Draw pictures that a run draws for --text, or for --count captions of --split."""
    run = commands.open_run(args)
    captions = [args.text] if args.text else choose(run, args.split, args.count)
    return drawings(captions, *sample(run, captions, SAMPLES))
