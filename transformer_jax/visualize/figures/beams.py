"""Follow a beam search step by step, and draw it as a tree."""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import EOS
from transformer_jax.runs.run import Run, decode_options
from transformer_jax.tasks.protocols import Writes
from transformer_jax.visualize.style import LINES, make_figure
from transformer_jax.visualize.viewer.trace import Step, trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {  # kind of branch → colour, dashes, label
    "best": (LINES[1], "-", "the answer"),
    "finished": (LINES[2], "-", "finished"),
    "kept": (LINES[0], "-", "kept, later given up"),
    "discarded": ("0.6", ":", "discarded"),
}


@dataclasses.dataclass(frozen=True)
class Branch:
    """A hypothesis that a search considered: its tokens and its outcome."""

    tokens: tuple[int, ...]
    pieces: tuple[str, ...]
    log_prob: float  # of all its tokens
    chance: float  # of its last token, given the tokens before it
    kind: str  # best, finished, kept or discarded: see KINDS
    score: float | None = None  # with the length penalty, if it is finished


def search(run: Run, line: str, candidates: int = 2, **options: Any) -> list[Branch]:
    """Search for the answer to a line; return all branches considered, parents first.

    For each live hypothesis these are the `candidates` likeliest next tokens, and those
    that the search took. The options are those of `run.predict`.
    """
    inference = run.task.inference
    if not isinstance(inference, Writes):
        raise UserError(f"the task {run.config.task!r} writes nothing step by step")
    chosen = decode_options(run.config, **options)
    request = inference.parse(line, options=chosen)
    engine = inference.writer.engine(run.mesh)
    steps = trace(engine, run.params, request, chosen, candidates)
    return branches(steps, inference.writer.tokenizer)


def branches(steps: Sequence[Step], tokenizer: Any) -> list[Branch]:
    """List the hypotheses of a traced search, parents before children."""
    found: dict[tuple[int, ...], tuple[str, float, float | None]] = {}
    for step in steps:
        for one in step.living:
            found[one.tokens] = ("kept", one.log_prob, None)
            for token, gain in one.candidates:
                tokens = (*one.tokens, token)
                found.setdefault(tokens, ("discarded", one.log_prob + gain, None))
    for place, one in enumerate(steps[-1].finished):
        found[one.tokens] = ("finished", one.log_prob, one.score)
        for end in range(len(one.tokens) + 1 if place == 0 else 0):
            if one.tokens[:end] in found:
                found[one.tokens[:end]] = ("best", *found[one.tokens[:end]][1:])
    found.pop((), None)
    listed = []
    for tokens in sorted(found, key=lambda t: (len(t), -found[t][1])):
        kind, log_prob, score = found[tokens]
        before = found[tokens[:-1]][1] if len(tokens) > 1 else 0.0
        pieces, chance = tuple(tokenizer.pieces(tokens)), math.exp(log_prob - before)
        listed.append(Branch(tokens, pieces, log_prob, chance, kind, score))
    return listed


def beam_tree(branches: Sequence[Branch], steps: int = 0) -> "Figure":
    """Draw hypotheses as a tree that grows to the right; `steps` cuts it off.

    The number after a piece is its probability, given the pieces before it. What to
    look for: the search keeps a few branches alive, and drops most of them a few tokens
    after they diverge from the answer. A finished branch ends in </s> with its score,
    log p divided by the length penalty.
    """
    shown = [b for b in branches if not steps or len(b.tokens) <= steps]
    rows = _rows(shown)
    deepest = max(len(b.tokens) for b in shown)
    figure = make_figure(1.25 * deepest + 1.6, 0.26 * max(rows.values()) + 1.4)
    axes = figure.subplots()
    for branch in sorted(shown, key=lambda b: list(KINDS)[::-1].index(b.kind)):
        x, y = len(branch.tokens), rows[branch.tokens]
        color, dashes, _ = KINDS[branch.kind]
        x_from, y_from = x - 1, rows[branch.tokens[:-1]]
        best, discarded = branch.kind == "best", branch.kind == "discarded"
        axes.plot(
            [x_from + 0.62 * (x > 1), x - 0.08],
            [y_from, y],
            linestyle=dashes,
            color=color,
            linewidth=1.8 if best else 1.0,
        )
        chance = f"{branch.chance:.2f}".replace("0.", ".", 1)
        chance = chance if branch.chance >= 0.005 else "<.01"
        text = f"{_word(branch.pieces)} {chance}"
        if branch.score is not None and branch.tokens[-1] == EOS:
            text += f"  score {branch.score:.2f}"
        axes.text(
            x - 0.05,
            y,
            text,
            fontsize=7.5,
            va="center",
            color="0.35" if discarded else color,
            weight="bold" if best else "normal",
        )
    for color, dashes, name in KINDS.values():
        axes.plot([], [], color=color, linestyle=dashes, label=name)
    axes.set(xlim=(-0.1, deepest + 1.2), ylim=(max(rows.values()) + 0.8, -0.8))
    axes.set_xticks(range(1, deepest + 1))
    axes.set_yticks([])
    axes.set_xlabel("tokens written")
    axes.spines[["left", "right", "top"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    return figure


def _rows(branches: Sequence[Branch]) -> dict[tuple[int, ...], float]:
    """Give each leaf its own row, and each parent the row of its best child."""
    known = {b.tokens for b in branches}
    children: dict[tuple[int, ...], list[Branch]] = {}
    for branch in branches:
        children.setdefault(branch.tokens[:-1], []).append(branch)
    rows: dict[tuple[int, ...], float] = {}
    order = list(KINDS)

    def place(tokens: tuple[int, ...], row: int) -> int:
        """Place a subtree, starting at this row; return the first free row below it."""
        rows[tokens] = row
        below = children.get(tokens, [])
        for child in sorted(below, key=lambda b: (order.index(b.kind), -b.log_prob)):
            row = place(child.tokens, row)
        return row if below else row + 1

    place((), 0)
    assert known <= set(rows), "a branch without its parent"
    return rows


def _word(pieces: Sequence[str]) -> str:
    return pieces[-1].replace("▁", " ").strip() or "␣"
