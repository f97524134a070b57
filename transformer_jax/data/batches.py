"""The batch plan: (seed, epoch) → which examples form each batch, in which shape.

A batch is a function of the seed and the step alone; the plan sees only lengths. Few
static shapes [rows, S, T] are cut so that padding is least. What does not fill a batch
of its own shape goes on to a larger one; the last batches are filled up with empty rows
(-1). So every example comes exactly once an epoch, and all epochs have equally many
steps.
"""

import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, order=True)
class Shape:
    """A padded batch: `rows` examples of up to `lengths` tokens a side."""

    rows: int
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return self.rows * sum(self.lengths)


@dataclasses.dataclass(frozen=True)
class Batch:
    shape: Shape
    examples: np.ndarray  # [rows] of the store; -1 is an empty row


class Plan:
    """All batches of any epoch over examples of the given lengths [examples, sides]."""

    def __init__(
        self,
        lengths: np.ndarray,
        batch_tokens: int,
        shapes: int,
        row_multiple: int,
        length_multiple: int,
        seed: int,
    ):
        boxes = cut_boxes(lengths, shapes, length_multiple)
        self.lengths = lengths
        self.seed = seed
        self.shapes = [
            Shape(max(batch_tokens // max(box) // row_multiple, 1) * row_multiple, box)
            for box in boxes
        ]
        self._box = assign_boxes(lengths, boxes)
        self._epoch: tuple[int, list[Batch]] = (-1, [])
        # The number of examples in each box fixes the batches, whatever their order.
        self.steps_per_epoch = len(self.epoch(0))

    def batch(self, step: int) -> Batch:
        """The batch of update number `step`, counted from 0."""
        epoch, index = divmod(step, self.steps_per_epoch)
        return self.epoch(epoch)[index]

    def epoch(self, epoch: int) -> list[Batch]:
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self._plan(epoch))
        return self._epoch[1]

    def padding_share(self) -> float:
        """The share of a batch's places, over an epoch, that hold no token."""
        places = sum(b.shape.tokens for b in self.epoch(0))
        return 1.0 - float(self.lengths.sum()) / places

    @property
    def largest(self) -> Shape:
        return max(self.shapes, key=lambda s: s.tokens)

    def _plan(self, epoch: int) -> list[Batch]:
        random = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
        order = random.permutation(len(self.lengths))
        batches, waiting = [], [[] for _ in self.shapes]
        by_box = np.argsort(self._box[order], kind="stable")
        edges = np.searchsorted(
            self._box[order][by_box], np.arange(len(self.shapes) + 1)
        )
        for i, shape in enumerate(self.shapes):
            own = order[by_box[edges[i] : edges[i + 1]]]
            # Those that a smaller shape could not place come first: they have waited.
            examples = np.concatenate([np.asarray(waiting[i], order.dtype), own])
            full = len(examples) // shape.rows * shape.rows
            batches += [
                Batch(shape, e) for e in examples[:full].reshape(-1, shape.rows)
            ]
            rest = examples[full:]
            larger = self._next_larger(i)
            if larger is None and len(rest):
                filler = np.full(shape.rows - len(rest), -1, order.dtype)
                batches.append(Batch(shape, np.concatenate([rest, filler])))
            elif larger is not None:
                waiting[larger].extend(rest)
        return [batches[i] for i in random.permutation(len(batches))]

    def _next_larger(self, i: int) -> int | None:
        """The first later shape that holds all that shape i holds."""
        own = self.shapes[i].lengths
        for j in range(i + 1, len(self.shapes)):
            if all(a <= b for a, b in zip(own, self.shapes[j].lengths, strict=True)):
                return j
        return None


def cut_boxes(lengths: np.ndarray, boxes: int, multiple: int) -> list[tuple[int, ...]]:
    """At most `boxes` boxes of side lengths that hold all examples with least padding.

    Greedy: cut the box whose best cut saves most places, until there are enough. The
    boxes come smallest first, and the last holds every example.
    """
    rounded = -(-np.maximum(lengths, 1) // multiple) * multiple
    parts = [rounded]
    while len(parts) < boxes:
        cuts = [_best_cut(part) for part in parts]
        best = max(range(len(parts)), key=lambda i: cuts[i][0])
        saved, side, edge = cuts[best]
        if saved <= 0:
            break
        part = parts.pop(best)
        low = part[:, side] <= edge
        parts += [part[low], part[~low]]
    found = {tuple(int(n) for n in part.max(axis=0)) for part in parts}
    found.add(tuple(int(n) for n in rounded.max(axis=0)))
    return sorted(found, key=lambda box: (sum(box), box))


def _best_cut(part: np.ndarray) -> tuple[int, int, int]:
    """(places saved, side, last length of the lower half) of a box's best cut."""
    best = (0, 0, 0)
    whole = len(part) * int(part.max(axis=0).sum())
    for side in range(part.shape[1]):
        ordered = part[np.argsort(part[:, side], kind="stable")]
        edges = np.flatnonzero(np.diff(ordered[:, side]))  # last index of a lower half
        below = np.maximum.accumulate(ordered, axis=0).sum(axis=1)[edges]
        above = np.maximum.accumulate(ordered[::-1], axis=0)[::-1].sum(axis=1)[
            edges + 1
        ]
        costs = below * (edges + 1) + above * (len(part) - edges - 1)
        if len(costs) and whole - costs.min() > best[0]:
            i = int(costs.argmin())
            best = (int(whole - costs[i]), side, int(ordered[edges[i], side]))
    return best


def assign_boxes(lengths: np.ndarray, boxes: list[tuple[int, ...]]) -> np.ndarray:
    """For each example the first (smallest) box that holds it."""
    chosen = np.full(len(lengths), len(boxes) - 1)
    for i in reversed(range(len(boxes))):
        chosen[(lengths <= np.asarray(boxes[i])).all(axis=1)] = i
    return chosen


def prefetch(make: Callable[[int], Any], steps: range, depth: int = 2) -> Iterator[Any]:
    """make(step) for each step, made ahead by one thread; its errors surface here."""
    ready: queue.Queue = queue.Queue(depth)
    stop = threading.Event()

    def work():
        try:
            for step in steps:
                item = (make(step), None)
                while not stop.is_set():
                    try:
                        ready.put(item, timeout=0.1)
                        break
                    except queue.Full:
                        continue
                if stop.is_set():
                    return
        except BaseException as error:  # handed to the consumer, whatever it is
            ready.put((None, error))

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        for _ in steps:
            item, error = ready.get()
            if error is not None:
                raise error
            yield item
    finally:
        stop.set()
        thread.join(timeout=5)
