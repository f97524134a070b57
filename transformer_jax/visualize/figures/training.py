"""Draw what happens in training: learning rates, targets, curves, lengths."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax import losses
from transformer_jax.base.errors import UserError
from transformer_jax.runs.folder import Folder
from transformer_jax.training.log import read_entries
from transformer_jax.visualize import style
from transformer_jax.visualize.style import LINES, clean, line, make_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Entries = Sequence[Mapping[str, Any]]  # of a metrics.jsonl
LABELS = {"loss": "loss, nats", "accuracy": "accuracy", "bleu": "BLEU"}
SCORES = ("bleu", "f1", "filled", "r", "bits_per_character")  # the first is drawn


def length_histogram(sides: Mapping[str, np.ndarray]) -> "Figure":
    """Draw how many examples have each number of pieces, one line per side.

    What to look for: how much `data.max_length` would cut off, and whether one side is
    longer.
    """
    figure = make_figure(8.0, 4.0)
    axes = figure.subplots()
    longest = max(int(lengths.max()) for lengths in sides.values())
    step = max(1, longest // 100)
    edges = np.arange(0.5, longest + step + 0.5, step)
    for color, (name, lengths) in zip(LINES, sides.items(), strict=False):
        counts, _ = np.histogram(lengths, edges)
        label = f"{name}, mean {lengths.mean():.1f}"
        axes.stairs(counts, edges, color=color, label=label, linewidth=1.5)
    axes.set(title="Lengths of examples", xlabel="pieces", ylabel="examples")
    axes.set_xlim(0, edges[-1])
    axes.grid(color="0.9")
    axes.legend(frameon=False)
    return figure


def schedules(rates: Mapping[str, Callable[[Any], Any]], steps: int) -> "Figure":
    """Draw learning rates over the updates; `rates` come from `optim.make_schedule`.

    What to look for: the paper's rate rises linearly for `warmup_steps` updates and
    then falls as 1 / √step. A wider model has a lower rate and a longer warmup a lower
    peak; long after both peaks the warmup makes no difference.
    """
    figure = make_figure(7.0, 4.0)
    axes = figure.subplots()
    counts = np.unique(np.linspace(0, steps - 1, 600).astype(int))
    for i, (name, rate) in enumerate(rates.items()):
        look: dict[str, Any] = {
            "color": LINES[i % len(LINES)],
            "linestyle": style.DASHES[i % 2],
        }
        axes.plot(counts + 1, np.asarray(rate(counts)), label=name, **look)
    axes.set(title="Learning rate", xlabel="update", ylabel="learning rate")
    axes.set_xlim(0, steps)
    axes.set_ylim(bottom=0)
    clean(axes)
    axes.legend(frameon=False, fontsize=9)
    return figure


def smoothed_target(
    words: Sequence[str], truth: int, smoothings: Sequence[float] = (0.0, 0.1)
) -> "Figure":
    """Draw the target of a loss with label smoothing, one panel per ε.

    What to look for: without smoothing all the mass is on the correct word, which no
    finite logits can reach. With smoothing each wrong word has a little, ε / (V - 1).
    """
    figure = make_figure(3.2 * len(smoothings) + 0.6, 0.3 * len(words) + 1.6)
    panels = figure.subplots(1, len(smoothings), sharey=True, squeeze=False)[0]
    for axes, smoothing in zip(panels, smoothings, strict=True):
        target = target_of(len(words), truth, smoothing)
        colors = [LINES[1] if i == truth else LINES[0] for i in range(len(words))]
        bars = axes.barh(range(len(words)), target, color=colors)
        axes.bar_label(bars, [f"{p:.3g}" for p in target], padding=3, fontsize=8)
        axes.set(title=f"ε = {smoothing:g}", xlim=(0, 1.2), xticks=[0, 0.5, 1])
        clean(axes)
    panels[0].set_yticks(range(len(words)), words)
    panels[0].invert_yaxis()
    figure.suptitle("The target of the loss")
    figure.supxlabel("probability")
    return figure


def target_of(size: int, truth: int, smoothing: float) -> np.ndarray:
    """Return the distribution that minimises the loss, computed from its gradient.

    d loss / d logits = softmax(logits) - target.
    """

    def loss(logits):
        targets, weights = jnp.full((1, 1), truth), jnp.ones((1, 1))
        sums = losses.cross_entropy(logits, targets, weights, smoothing, size)
        return sums.loss

    gradient = jax.grad(loss)(jnp.zeros((1, 1, size)))
    return np.asarray(1 / size - gradient[0, 0])


def curves(groups: Mapping[str, Sequence[Entries]]) -> "Figure":
    """Draw loss, accuracy and score over the updates of one or several runs.

    A group is one run, or several that differ only in their seed: the line is their
    mean, and the band spans the lowest to the highest. What to look for: lines are
    training (the mean since the last log line), dots are validation. If the lines keep
    falling while the dots rise, the model is memorising its examples.
    """
    everything = [entry for runs in groups.values() for run in runs for entry in run]
    names = [n for n in ("loss", "accuracy") if any(n in e for e in everything)]
    validated = [e for e in everything if e["kind"] == "validation"]
    names += [n for n in SCORES if any(n in e for e in validated)][:1]
    figure = make_figure(4.2 * len(names), 3.8)
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        for i, (group, runs) in enumerate(groups.items()):
            for kind in ("train", "validation"):
                steps, values = _common(runs, kind, name)
                if not len(steps):
                    continue
                look = line(i)
                if kind == "validation":
                    look |= {"marker": "o", "linestyle": ":", "markersize": 5}
                label = f"{group}, {kind}"
                axes.plot(steps, values.mean(axis=0), label=label, **look)
                if len(values) > 1:
                    axes.fill_between(
                        steps,
                        values.min(axis=0),
                        values.max(axis=0),
                        color=look["color"],
                        alpha=0.2,
                        linewidth=0,
                    )
        axes.set(title=LABELS.get(name, name), xlabel="update")
        axes.set_xlim(left=0)
        clean(axes)
    panels[0].set_ylim(bottom=0)
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=9,
    )
    return figure


def _common(runs: Sequence[Entries], kind: str, name: str):
    """Return the steps that all runs have in common, and the values [runs, steps]."""
    found = [
        {e["step"]: e[name] for e in run if e["kind"] == kind and name in e}
        for run in runs
    ]
    steps = sorted(set.intersection(*map(set, found)))
    return np.array(steps), np.array([[run[s] for s in steps] for run in found])


def read_groups(paths: Sequence[Any]) -> dict[str, list[Entries]]:
    """Read the metrics of runs, grouping those that differ only in their seed."""
    by_config: dict[str, list[Folder]] = {}
    for folder in map(Folder, paths):
        config = folder.config()
        with config.unlocked():
            del config.seed
        by_config.setdefault(config.to_json(), []).append(folder)
    groups: dict[str, list[Entries]] = {}
    for members in by_config.values():
        runs: list[Entries] = [read_entries(f.path / "metrics.jsonl") for f in members]
        for folder, entries in zip(members, runs, strict=True):
            if not entries:
                raise UserError(
                    f"{folder.place} has logged nothing yet (no metrics.jsonl)"
                )
        first = members[0].place
        name = first.resolve().name
        if len(members) > 1:
            name += f" ({len(members)} seeds)"
        groups[name if name not in groups else str(first)] = runs
    return groups


@contextlib.contextmanager
def drawn(workdir: str | os.PathLike) -> Iterator[None]:
    """Write curves.png into a run directory when its training ends, or is preempted.

    If drawing is impossible, refuse at once rather than after an hour of training.
    """
    require_matplotlib()
    yield
    if jax.process_index():
        return
    folder = Folder(workdir)
    if read_entries(folder.path / "metrics.jsonl"):
        style.save(curves(read_groups([workdir])), folder.path / "curves.png", dpi=120)
        folder.push()


def require_matplotlib() -> None:
    """Refuse to draw if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError("figures need matplotlib: pip install matplotlib") from None
