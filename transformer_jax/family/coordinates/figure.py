"""Draw the pictures of coordinate networks, and their PSNR over steps and seconds."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from transformer_jax import tasks
from transformer_jax.base.errors import UserError
from transformer_jax.family.coordinates import pixels
from transformer_jax.runs import run as runs
from transformer_jax.runs.run import Run
from transformer_jax.training.log import read_entries
from transformer_jax.visualize.style import clean, line, make_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Entries = Sequence[Mapping[str, Any]]  # of a metrics.jsonl
Picture = Float[np.ndarray, "H W 3"]


def painting(
    picture: Picture, painted: Mapping[str, Picture], metrics: Mapping[str, Entries]
) -> "Figure":
    """Draw a picture and what networks made of it, above their PSNR during training.

    What to look for: from raw coordinates a network paints broad, smooth areas without
    detail, however long it trains; from waves it paints edges, stripes and letters
    within seconds. PSNR is computed on held-out pixels; seconds count training only.
    """
    figure = make_figure(3.0 * (1 + len(painted)), 6.4)
    # Nested grids; subfigures would cut off the titles at the edge of the figure.
    above, below = figure.add_gridspec(2, 1, height_ratios=(3.2, 3.0))
    panels: Any = above.subgridspec(1, 1 + len(painted)).subplots()
    held_out = pixels.hold_out(picture.shape[:2])
    for axes, (name, image) in zip(
        panels, {"the picture": picture, **painted}.items(), strict=True
    ):
        axes.imshow(np.clip(image, 0, 1), interpolation="nearest")
        axes.set_axis_off()
        error = np.square(image - picture)[held_out].mean()
        axes.set_title(f"{name}, {pixels.psnr(error):.1f} dB" if error else name)
    curves: Any = below.subgridspec(1, 2).subplots(sharey=True)
    by_step, by_second = curves
    for i, (name, entries) in enumerate(metrics.items()):
        steps, seconds, found = read_psnr(entries)
        by_step.plot(steps, found, label=name, **line(i))
        by_second.plot(seconds, found, label=name, **line(i))
    by_step.set(xlabel="update", ylabel="PSNR of held-out pixels, dB", xlim=(0, None))
    by_second.set(xlabel="seconds of training", xlim=(0, None))
    by_second.legend(frameon=False)
    for axes in (by_step, by_second):
        clean(axes)
    return figure


def read_psnr(entries: Entries) -> tuple[list[int], list[float], list[float]]:
    """Return the steps, seconds of training so far and PSNRs of the validations."""
    steps, seconds, found, passed = [], [], [], 0.0
    for entry in entries:
        if entry["kind"] == "train":
            passed += entry["seconds"]
        elif entry["kind"] == "validation" and entry["step"] not in steps:
            steps.append(entry["step"])
            seconds.append(passed)
            found.append(entry["psnr"])
    return steps, seconds, found


def read(
    opened: Sequence[Run],
) -> tuple[Picture, dict[str, Picture], dict[str, Entries]]:
    """Return the picture of the runs, and each run's painting and metrics by name."""
    pictures, painted, metrics = [], {}, {}
    for run in opened:
        place, config = str(run.folder.place), run.config
        if config.task != "coordinates":
            raise UserError(
                f"{place} is a run of the task {config.task}: name runs of "
                "configs/coordinates.py"
            )
        source: Any = tasks.find(config.task).source(config)
        picture = source.image
        pictures.append(picture)
        name = place if config.model.features in painted else config.model.features
        painted[name] = paint(run, picture.shape[:2])
        metrics[name] = read_entries(run.folder.path / "metrics.jsonl")
    if any(not np.array_equal(one, pictures[0]) for one in pictures):
        raise UserError(
            "these runs paint different pictures: draw only one of them at a time"
        )
    return pictures[0], painted, metrics


def paint(run: Run, size: tuple[int, int]) -> Picture:
    """Colour all pixels of a picture."""
    places = pixels.places_of(size).reshape(-1, 2)
    inference: Any = run.task.inference
    return inference.paint(run.params, places, run.mesh).reshape(*size, 3)


def draw_painting(args: Any) -> "Figure":
    """Draw what RUNs of coordinate networks have painted, and their PSNR."""
    if not args.run:
        raise UserError("name runs of configs/coordinates.py after 'painting'")
    return painting(*read([runs.load(path) for path in args.run]))
