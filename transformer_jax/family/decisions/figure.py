"""Draw the returns that models of decisions reach against those they are asked for."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from transformer_jax.base.errors import UserError
from transformer_jax.family.decisions.task import CHOSEN, Asked
from transformer_jax.runs import run as runs
from transformer_jax.runs.run import Run
from transformer_jax.visualize.style import LINES, MARKERS, clean, line, make_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Reached = Float[np.ndarray, "asked episodes"]


def returns(asked: Sequence[float], reached: Mapping[str, Reached]) -> "Figure":
    """Draw the mean return of episodes over the return asked for, for each model.

    What to look for: a decision transformer follows the diagonal as far as its examples
    go; a model that does not read returns reaches the same whatever is asked for. A bar
    goes from the 10 % of the episodes with the smallest return to the 10 % with the
    largest.
    """
    figure = make_figure(5.6, 4.4)
    axes = figure.subplots()
    most = max(asked)
    axes.plot([0, most], [0, most], color="0.6", linewidth=1, label="as asked for")
    for i, (name, found) in enumerate(reached.items()):
        aside = (i - (len(reached) - 1) / 2) * most / 80  # so that bars do not overlap
        mean = found.mean(axis=1)
        ends = np.quantile(found, (0.1, 0.9), axis=1)
        places = np.asarray(asked) + aside
        axes.vlines(places, *ends, color=LINES[i % len(LINES)], alpha=0.45, linewidth=3)
        marker = MARKERS[i % len(MARKERS)]
        axes.plot(places, mean, marker=marker, markersize=5, label=name, **line(i))
    axes.set(xlabel="return asked for", ylabel="return reached", xlim=(0, None))
    axes.set_ylim(0, None)
    figure.legend(loc="outside upper center", ncols=1 + len(reached), frameon=False)
    clean(axes)
    return figure


def play(opened: Sequence[Run]) -> tuple[list[float], dict[str, Reached]]:
    """Return the returns that the first run is judged by, and what each run reaches."""
    for run in opened:
        if run.config.task != "decisions":
            raise UserError(
                f"{run.folder.place} is of the task {run.config.task}: name runs of "
                "configs/decisions.py"
            )
    asked = [float(goal) for goal in opened[0].config.data.asked]
    reached: dict[str, Any] = {}
    for run in opened:
        reads = run.config.model.returns
        name = "decision transformer" if reads else "behaviour cloning"
        name += f", {CHOSEN[bool(run.config.eval.greedy)]}"
        inference: Any = run.task.inference
        found = inference.play(run.params, [Asked(goal) for goal in asked], run.mesh)
        reached[str(run.folder.place) if name in reached else name] = found
    return asked, reached


def draw_returns(args: Any) -> "Figure":
    """Draw what RUNs of decisions reach against what they are asked for."""
    if not args.run:
        raise UserError("name runs of configs/decisions.py after 'returns'")
    return returns(*play([runs.load(path) for path in args.run]))
