"""The batch plan: the examples and the shape of each batch, from the seed and the step.

The plan sees only lengths (and repeats). `Buckets` pads examples of like length to few
static shapes; `Packed` (`packing.py`) puts several into a row. Every example comes
exactly once an epoch, or as often as its repeats say, and all epochs have equally many
steps.
"""

import abc
import dataclasses
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from transformer_jax.data.store import Ragged
from transformer_jax.keys import key

BATCHINGS = ("buckets", "packed")
TPU_SHAPES, TPU_LENGTHS = 4, 128  # each shape takes minutes; tiles have 128 columns
GRID = 512  # distinct lengths of a side that are tried when shapes are chosen


@dataclasses.dataclass(frozen=True)
class BatchKeys:
    """Form the batches: the keys of `config.data` that all forms of data share."""

    batch_tokens: int = key(
        4096, "Tokens a batch, padding too, of its longer side.", least=1, most=10**9
    )
    max_length: int = key(128, "Pieces; longer training examples are dropped.", least=1)
    batching: str = key(
        "buckets", "Examples of like length, or rows of several.", choices=BATCHINGS
    )
    shapes: int = key(8, "buckets: shapes at most; each is compiled.", least=1)
    pack_length: int = key(256, "packed: tokens a row, of the longer side.", least=1)
    row_multiple: int = key(
        8, "A batch's rows divide by this, on any hardware.", least=1
    )
    length_multiple: int = key(
        1, "Its lengths divide by this; 128 suits a TPU.", least=1
    )
    shapes_for: str = key(
        "auto",
        "tpu: 4 shapes at most, lengths by 128; auto: so if a run begins on one.",
        choices=("auto", "any", "tpu"),
    )


def limits(data: ConfigDict) -> tuple[int, int]:
    """Return (shapes at most, what lengths divide by) for `data.shapes_for`."""
    if data.shapes_for != "tpu":
        return data.shapes, data.length_multiple
    return min(data.shapes, TPU_SHAPES), math.lcm(data.length_multiple, TPU_LENGTHS)


@dataclasses.dataclass(frozen=True, order=True)
class Shape:
    """A padded batch: `rows` rows of up to `lengths` tokens a side."""

    rows: int
    lengths: tuple[int, ...]
    packed: bool = False  # several examples a row, each a segment of its own

    @property
    def tokens(self) -> int:
        """The places for tokens, of all sides together."""
        return self.rows * sum(self.lengths)


@dataclasses.dataclass(frozen=True)
class Batch:
    """A planned batch: its shape, and the example in each place."""

    shape: Shape
    examples: np.ndarray  # [rows, slots] of the store; -1 is an empty place
    # Which copy of its example each is, as some come several times in an epoch.
    copies: np.ndarray | None = None

    @property
    def real(self) -> np.ndarray:
        """The examples [n], row by row, without the empty places."""
        return self.examples[self.examples >= 0]

    @property
    def real_copies(self) -> np.ndarray:
        """The number of the copy, from 0, of each of the `real` examples."""
        if self.copies is None:
            return np.zeros(len(self.real), int)
        return self.copies[self.examples >= 0]

    def take(self, rows: Any) -> "Batch":
        """Return the batch of some of these rows."""
        copies = None if self.copies is None else self.copies[rows]
        return Batch(self.shape, self.examples[rows], copies)


def nothing(shape: Shape) -> Batch:
    """Return a batch of empty rows."""
    return Batch(shape, np.full((shape.rows, 1), -1))


class Plan(abc.ABC):
    """All batches of any epoch over examples of the given lengths [examples, sides]."""

    shapes: list[Shape]

    def __init__(
        self,
        lengths: np.ndarray,
        cells: np.ndarray,
        seed: int,
        repeats: np.ndarray | None = None,
    ):
        """`cells` [examples] groups those that may replace each other, from 0: the size
        of each group fixes the shapes of an epoch's batches."""
        self.lengths, self.seed = lengths, seed
        self._cells = cells
        self._repeats = repeats
        self._epoch: tuple[int, list[Batch]] = (-1, [])

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches of an epoch, which is the same for all epochs."""
        return len(self.epoch(0) if self._epoch[0] < 0 else self._epoch[1])

    def batch(self, index: int) -> Batch:
        """Return a batch by its index, counted from 0 over all epochs."""
        epoch, place = divmod(index, self.steps_per_epoch)
        return self.epoch(epoch)[place]

    def epoch(self, epoch: int) -> list[Batch]:
        """Return the batches of an epoch in their order."""
        if self._epoch[0] != epoch:
            random = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            batches = self._arrange(self._draw(random), random)
            order = random.permutation(len(batches))
            batches = [batches[i] for i in order]
            if self._repeats is not None:
                batches = number_copies(batches)
            self._epoch = (epoch, batches)
        return self._epoch[1]

    def padding_share(self, lengths: np.ndarray | None = None) -> float:
        """Return the share of an epoch's places that hold no token.

        `lengths` [examples, sides] count the tokens, if the plan leaves room for more.
        """
        sizes = (self.lengths if lengths is None else lengths).sum(axis=1)
        places = sum(b.shape.tokens for b in self.epoch(0))
        return 1.0 - float(sum(sizes[b.real].sum() for b in self.epoch(0))) / places

    def room(self, batch: Batch) -> np.ndarray:
        """Return how long each of a batch's examples may be [examples, sides]."""
        if batch.shape.packed:
            return self.lengths[batch.real]
        return np.tile(batch.shape.lengths, (len(batch.real), 1))

    @property
    def largest(self) -> Shape:
        """The shape with the most tokens, which is compiled and run first."""
        return max(self.shapes, key=lambda s: s.tokens)

    @abc.abstractmethod
    def _arrange(
        self, examples: np.ndarray, random: np.random.Generator
    ) -> list[Batch]:
        """Form batches of the drawn examples, which come sorted by cell."""

    def _draw(self, random: np.random.Generator) -> np.ndarray:
        """Draw an epoch's examples: cells in order, shuffled within each."""
        examples = np.arange(len(self.lengths))
        if self._repeats is not None:
            examples = np.repeat(examples, self._repeats)
        examples = random.permutation(examples)
        return examples[np.argsort(self._cells[examples], kind="stable")]


def number_copies(batches: Sequence[Batch]) -> list[Batch]:
    """Count the copies of each example over the batches of an epoch, from 0."""
    examples = np.concatenate([batch.real for batch in batches])
    order = np.argsort(examples, kind="stable")
    first = np.searchsorted(examples[order], examples[order])
    numbers = np.empty(len(examples), np.int64)
    numbers[order] = np.arange(len(examples)) - first
    found, begin = [], 0
    for batch in batches:
        copies = np.zeros(batch.examples.shape, np.int64)
        end = begin + len(batch.real)
        copies[batch.examples >= 0] = numbers[begin:end]
        found.append(dataclasses.replace(batch, copies=copies))
        begin = end
    return found


class Buckets(Plan):
    """Batches of examples of like length, in few static shapes with least padding.

    Examples that do not fill a batch of their own shape go on to the next larger one;
    the last batch is filled up with empty rows.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        batch_tokens: int,
        shapes: int,
        row_multiple: int,
        length_multiple: int,
        seed: int,
        repeats: np.ndarray | None = None,
    ):
        boxes = cut_boxes(lengths, shapes, length_multiple)
        self.shapes = [
            Shape(max(batch_tokens // max(box) // row_multiple, 1) * row_multiple, box)
            for box in boxes
        ]
        super().__init__(lengths, assign_boxes(lengths, boxes), seed, repeats)

    def _arrange(self, examples, random):
        edges = np.searchsorted(self._cells[examples], np.arange(len(self.shapes) + 1))
        batches, waiting = [], examples[:0]
        for shape, begin, end in zip(self.shapes, edges, edges[1:], strict=False):
            # The leftovers of smaller shapes come first.
            ready = np.concatenate([waiting, examples[begin:end]])
            full = len(ready) // shape.rows * shape.rows
            batches += [
                Batch(shape, rows) for rows in ready[:full].reshape(-1, shape.rows, 1)
            ]
            waiting = ready[full:]
        if len(waiting):
            filler = np.full(shape.rows - len(waiting), -1, waiting.dtype)
            batches.append(Batch(shape, np.concatenate([waiting, filler])[:, None]))
        return batches


def cut_boxes(lengths: np.ndarray, boxes: int, multiple: int) -> list[tuple[int, ...]]:
    """Choose up to `boxes` boxes of side lengths that hold all examples with little
    padding, each box inside the next.

    A new box goes where it saves most padding; then each is moved to where it saves
    most between its neighbours, until none moves. A test compares this with an
    exhaustive search.
    """
    multiple *= -(-int(lengths.max(initial=1)) // (GRID * multiple))
    cells = -(-np.maximum(lengths, 1) // multiple)
    top = cells.max(axis=0)
    held = np.zeros(top + 1, np.int64)  # examples that a box of each size holds
    np.add.at(held, tuple(cells.T), 1)
    for axis in range(held.ndim):
        held = held.cumsum(axis=axis)
    size = np.indices(held.shape).sum(axis=0)

    def best_between(low, high):
        view = tuple(slice(a, b + 1) for a, b in zip(low, high, strict=True))
        saved = (held[view] - held[tuple(low)]) * (high.sum() - size[view])
        best = saved.argmax()
        return int(saved.flat[best]), np.array(
            np.unravel_index(best, saved.shape)
        ) + low

    def saved_by(low, box, high):
        return (held[tuple(box)] - held[tuple(low)]) * (high.sum() - box.sum())

    chain = [np.zeros_like(top), top]
    while len(chain) <= boxes:
        found = [best_between(a, b) for a, b in zip(chain, chain[1:], strict=False)]
        gap = max(range(len(found)), key=lambda i: found[i][0])
        if found[gap][0] <= 0:
            break
        chain.insert(gap + 1, found[gap][1])
        moved = True
        while moved:
            moved = False
            for k in range(1, len(chain) - 1):
                saved, box = best_between(chain[k - 1], chain[k + 1])
                if saved > saved_by(*chain[k - 1 : k + 2]):
                    chain[k], moved = box, True
    return [tuple(int(n) * multiple for n in box) for box in chain[1:]]


def assign_boxes(lengths: np.ndarray, boxes: list[tuple[int, ...]]) -> np.ndarray:
    """Return the number of the smallest box that holds each example [examples]."""
    chosen = np.full(len(lengths), len(boxes) - 1, np.int16)
    for i in reversed(range(len(boxes))):
        chosen[(lengths <= np.asarray(boxes[i])).all(axis=1)] = i
    return chosen


def pad_or_pack(column: Ragged, batch: Batch, length: int) -> dict[str, np.ndarray]:
    """Lay out a side of a batch: tokens [rows, length], 0 where there is none.

    A packed batch also has segments (0 is padding), and positions that begin anew with
    each example. A test compares this with a loop over rows and examples.
    """
    filled = batch.examples >= 0
    lengths = np.zeros(filled.shape, np.int64)
    lengths[filled] = column.lengths
    begins = np.cumsum(lengths, axis=1) - lengths
    begins += np.arange(len(filled))[:, None] * length
    inside = np.arange(len(column.values)) - np.repeat(
        np.cumsum(column.lengths) - column.lengths, column.lengths
    )
    places = np.repeat(begins[filled], column.lengths) + inside
    parts = {"tokens": column.values}
    if batch.shape.packed:
        slots = np.broadcast_to(np.arange(filled.shape[1]) + 1, filled.shape)[filled]
        parts |= {"segments": np.repeat(slots, column.lengths), "positions": inside}
    arrays = {}
    for name, values in parts.items():
        arrays[name] = np.zeros((len(filled), length), np.int32)
        arrays[name].flat[places] = values
    return arrays


def prefetch(make: Callable[[int], Any], steps: range, depth: int = 2) -> Iterator[Any]:
    """Yield make(step) for each step, made ahead by a thread; raise its errors here."""
    waiting = iter(steps)
    pool = ThreadPoolExecutor(1, "prefetch")
    try:
        ahead = deque(pool.submit(make, step) for step in islice(waiting, depth + 1))
        while ahead:
            item = ahead.popleft().result()
            ahead.extend(pool.submit(make, step) for step in islice(waiting, 1))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)
