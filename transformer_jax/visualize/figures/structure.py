"""Draw the structure of a model: module shapes, embeddings and reach of gradients."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import numpy as np

from transformer_jax.models.cache import KeysValues
from transformer_jax.visualize.style import (
    LINES,
    MARKERS,
    clean,
    label_points,
    line,
    make_figure,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Sizes that occur in no model: where one appears in a shape, it is that axis.
AXES = {100003: "B", 100019: "S", 100043: "T"}


@dataclasses.dataclass(frozen=True)
class Call:
    """A module's call: its class, inputs, output and number of parameters."""

    path: tuple[str, ...]
    kind: str  # the name of its class
    inputs: tuple[str, ...]  # shapes, such as "[B T 128]"
    output: str
    parameters: int


def calls(
    module: nn.Module,
    *arguments: Any,
    depth: int = 3,
) -> list[Call]:
    """List the calls of a model's modules in order, from shapes alone.

    `arguments` are `jax.ShapeDtypeStruct`s whose sizes are keys of AXES. Nothing is
    computed. Modules deeper than `depth` are left out.
    """
    found: list[Call] = []

    def note(call: Callable, args: tuple, kwargs: dict, context: Any):
        place = len(found)
        path = context.module.path
        kind = type(context.module).__name__
        logits = context.method_name == "logits" and not path
        path = ("logits",) if logits else path
        inside = context.method_name == "__call__" and 0 < len(path) <= depth
        wanted = (inside or logits) and kind != "Dropout"
        if wanted:
            found.append(Call((), "", (), "", 0))  # before those that it calls
        result = call(*args, **kwargs)
        if wanted:
            held = jax.tree.leaves(context.module.variables.get("params", {}))
            found[place] = Call(
                path,
                kind,
                _shapes(args),
                ", ".join(_shapes(result if isinstance(result, tuple) else (result,))),
                0 if logits else sum(leaf.size for leaf in held),
            )
        return result

    def run(*arrays):
        with nn.intercept_methods(note):
            return module.init_with_output(jax.random.key(0), *arrays)

    jax.eval_shape(run, *arguments)
    return found


def _shapes(values: Any) -> tuple[str, ...]:
    """Write the shapes of the first two tensors; a `KeysValues` counts as its keys."""
    values = [v.key if isinstance(v, KeysValues) else v for v in values]
    arrays = [a for a in values if getattr(a, "ndim", 0) > 1]
    return tuple(
        f"[{' '.join(AXES.get(size, f'{size:,}') for size in array.shape)}]"
        for array in arrays[:2]
    )


def fold(found: Sequence[Call]) -> list[Call]:
    """Leave out the contents of all layers of a stack except the first."""

    def repeats(call: Call) -> bool:
        return any(re.fullmatch("layer_[1-9][0-9]*", part) for part in call.path[:-1])

    return [call for call in found if not repeats(call)]


def shapes(found: Sequence[Call], title: str = "Shapes through the model") -> "Figure":
    """Draw the modules of a model from top to bottom, with their inputs and outputs.

    Each box is inside the box of the module that calls it. What to look for: every
    layer keeps the shape [B, T, D], and other sizes occur only inside attention and
    feed-forward. B is the batch size, S the source length and T the target length.
    """
    from matplotlib.patches import FancyBboxPatch

    figure = make_figure(8.6, 0.27 * len(found) + 1.0)
    axes = figure.subplots()
    kinds = list(dict.fromkeys(call.kind for call in found))
    for row, call in enumerate(found):
        deep = len(call.path) - 1
        inside = 0
        for later in found[row + 1 :]:
            if later.path[: len(call.path)] != call.path or later.path == call.path:
                break
            inside += 1
        color = LINES[kinds.index(call.kind) % len(LINES)]
        # A box ends above the end of the box around it.
        place = (0.25 * deep, row - 0.36), 8.0 - 0.5 * deep, inside + 0.8 - 0.1 * deep
        rounded = "round,pad=0,rounding_size=0.12"
        for look in (
            {"facecolor": color, "alpha": 0.10},
            {"facecolor": "none", "edgecolor": color, "linewidth": 1.1},
        ):
            axes.add_patch(FancyBboxPatch(*place, boxstyle=rounded, **look))
        text: dict[str, Any] = dict(va="center", fontsize=8)
        axes.text(0.25 * deep + 0.12, row, call.path[-1], fontweight="bold", **text)
        axes.text(2.25, row, call.kind, color="0.35", **text)
        into = ", ".join(call.inputs)
        axes.text(3.7, row, f"{into} → {call.output}", family="monospace", **text)
        if call.parameters:
            count = f"{call.parameters:,}"
            axes.text(7.9 - 0.25 * deep, row, count, ha="right", **text)
    axes.text(7.9, -0.85, "parameters", ha="right", fontsize=8, color="0.35")
    axes.set(xlim=(-0.1, 8.1), ylim=(len(found) - 0.3, -1.2))
    axes.set_title(title)
    axes.axis("off")
    return figure


def neighbours(
    table: np.ndarray, words: Sequence[str], chosen: Sequence[str], count: int = 6
) -> "Figure":
    """Draw words and their nearest neighbours in an embedding table, in two dimensions.

    `table` is [words, D]; nearness is measured by the cosine. The plane is spanned by
    the two largest principal components of the words shown. What to look for: forms of
    a word, and words of one kind, lie together. Words that are close in the plane may
    be far apart in the other dimensions, so lines lead to the true neighbours.
    """
    unit = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    places = {word: i for i, word in enumerate(words)}
    groups = {}
    for word in chosen:
        likeness = unit @ unit[places[word]]
        groups[word] = np.argsort(-likeness, kind="stable")[: count + 1]
    shown = np.unique(np.concatenate(list(groups.values())))
    centred = unit[shown] - unit[shown].mean(axis=0)
    _, sizes, axes_of_plane = np.linalg.svd(centred, full_matrices=False)
    plane = dict(zip(shown.tolist(), centred @ axes_of_plane[:2].T, strict=True))
    share = (sizes[:2] ** 2).sum() / (sizes**2).sum()
    figure = make_figure(7.2, 5.4)
    axes = figure.subplots()
    for i, (word, members) in enumerate(groups.items()):
        color, marker = LINES[i % len(LINES)], MARKERS[i % len(MARKERS)]
        x0, y0 = plane[places[word]]
        for member in members[1:]:
            x, y = plane[int(member)]
            axes.plot([x0, x], [y0, y], color=color, linewidth=0.8, alpha=0.6)
            axes.plot(x, y, marker, color=color, markersize=5)
        axes.plot(x0, y0, marker, color=color, markersize=10, label=word)
    axes.set(
        title=f"Nearest neighbours (the plane holds {share:.0%} of the variance)",
        xlabel="first principal component",
        ylabel="second principal component",
    )
    clean(axes)
    axes.margins(0.12)
    places = [(float(x), float(y)) for x, y in plane.values()]
    label_points(axes, places, [str(words[i]) for i in plane], list(groups))
    return figure


def reach(curves: Mapping[str, Sequence[float]]) -> "Figure":
    """Draw how much of a gradient arrives 1, 2, … tokens back, one line per model.

    The scale is logarithmic, so a constant share lost at every token is a straight
    line. What to look for: a recurrence loses a share at every token, an LSTM the
    smallest because its forget gate starts open; attention has a path of the same
    length to every token.
    """
    figure = make_figure(8.0, 4.5)
    axes = figure.subplots()
    for i, (name, amounts) in enumerate(curves.items()):
        axes.plot(range(1, len(amounts) + 1), amounts, label=name, **line(i))
    axes.set(
        title="Gradient that reaches a token of the source",
        xlabel="tokens read since then, by encoder and decoder",
        ylabel="mean norm of ∂ log p / ∂ embedding",
        yscale="log",
    )
    axes.grid(color="0.9")
    axes.legend(frameon=False)
    return figure
