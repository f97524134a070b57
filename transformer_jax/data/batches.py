"""Plan the examples and the shape of each batch, from the seed and the step.

The plan sees only lengths (and repeat counts). `Buckets` pads examples of similar
length to a few static shapes; `Packed` (`packing.py`) puts several examples into a row.
Every example occurs exactly once per epoch, or as often as its repeat count says, and
all epochs have the same number of steps.
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

from transformer_jax.base.schema import option
from transformer_jax.data.store import Ragged

BATCHINGS = ("buckets", "packed")
TPU_SHAPES, TPU_LENGTHS = 4, 128  # shapes compile slowly; tiles are 128 wide
GRID = 512  # distinct lengths per side to try when choosing shapes


@dataclasses.dataclass(frozen=True)
class BatchOptions:
    """Form batches: the options of `config.data` that all forms of data share."""

    batch_tokens: int = option(
        4096,
        "Tokens per batch, with padding, on the longer side.",
        least=1,
        most=10**9,
    )
    max_length: int = option(
        128,
        "Most pieces in a training example; longer ones are dropped.",
        least=1,
        of="lengths",
    )
    batching: str = option(
        "buckets",
        "Pad examples of similar length, or pack several into a row.",
        choices=BATCHINGS,
    )
    shapes: int = option(8, "buckets: most shapes to use; each is compiled.", least=1)
    pack_length: int = option(
        256, "packed: tokens per row, on the longer side.", least=1, of="packing"
    )
    row_multiple: int = option(
        8, "The rows are a multiple of this, on any hardware.", least=1
    )
    length_multiple: int = option(
        1, "Lengths are multiples of this; 128 suits a TPU.", least=1
    )
    shapes_for: str = option(
        "auto",
        "tpu: at most 4 shapes, multiples of 128; auto: tpu if the run starts on one.",
        choices=("auto", "any", "tpu"),
    )


def limits(data: ConfigDict) -> tuple[int, int]:
    """Return (most shapes, multiple of lengths) according to `data.shapes_for`."""
    if data.shapes_for != "tpu":
        return data.shapes, data.length_multiple
    return min(data.shapes, TPU_SHAPES), math.lcm(data.length_multiple, TPU_LENGTHS)


@dataclasses.dataclass(frozen=True, order=True)
class Shape:
    """The shape of a batch: `rows` rows of up to `lengths` tokens per side."""

    rows: int
    lengths: tuple[int, ...]
    packed: bool = False  # several examples per row, each its own segment

    @property
    def tokens(self) -> int:
        """The number of token positions, summed over the sides."""
        return self.rows * sum(self.lengths)


@dataclasses.dataclass(frozen=True)
class Batch:
    """A planned batch: its shape, and the example in each slot."""

    shape: Shape
    examples: np.ndarray  # [rows, slots] store indices; -1 if empty
    # The copy number of each example, because some occur several times in an epoch.
    copies: np.ndarray | None = None

    @property
    def real(self) -> np.ndarray:
        """The examples [n], row by row, without the empty slots."""
        return self.examples[self.examples >= 0]

    @property
    def real_copies(self) -> np.ndarray:
        """The copy number, from 0, of each of the `real` examples."""
        if self.copies is None:
            return np.zeros(len(self.real), int)
        return self.copies[self.examples >= 0]

    def take(self, rows: Any) -> "Batch":
        """Return a batch of some of the rows."""
        copies = None if self.copies is None else self.copies[rows]
        return Batch(self.shape, self.examples[rows], copies)


def nothing(shape: Shape) -> Batch:
    """Return a batch of empty rows."""
    return Batch(shape, np.full((shape.rows, 1), -1))


class Plan(abc.ABC):
    """The batches of all epochs over examples of some lengths [examples, sides]."""

    shapes: list[Shape]

    def __init__(
        self,
        lengths: np.ndarray,
        cells: np.ndarray,
        seed: int,
        repeats: np.ndarray | None = None,
    ):
        """Treat the examples of each of the `cells` [examples] as interchangeable.

        Cells count from 0. Their sizes fix the shapes of an epoch's batches.
        """
        self.lengths, self.seed = lengths, seed
        self._cells = cells
        self._repeats = repeats
        self._epoch: tuple[int, list[Batch]] = (-1, [])

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches per epoch, which is the same for all epochs."""
        return len(self.epoch(0) if self._epoch[0] < 0 else self._epoch[1])

    def batch(self, index: int) -> Batch:
        """Return a batch by its index, counted from 0 over all epochs."""
        epoch, place = divmod(index, self.steps_per_epoch)
        return self.epoch(epoch)[place]

    def epoch(self, epoch: int) -> list[Batch]:
        """Return the batches of an epoch in order."""
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
        """Return the share of an epoch's token positions that are padding.

        `lengths` [examples, sides] gives the real lengths if the plan reserves more.
        """
        sizes = (self.lengths if lengths is None else lengths).sum(axis=1)
        positions = sum(b.shape.tokens for b in self.epoch(0))
        tokens = float(sum(sizes[b.real].sum() for b in self.epoch(0)))
        return 1.0 - tokens / positions

    def room(self, batch: Batch) -> np.ndarray:
        """Return the room for each example of a batch, in tokens [examples, sides]."""
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
        """Form batches from the drawn examples, which are sorted by cell."""

    def _draw(self, random: np.random.Generator) -> np.ndarray:
        """Draw an epoch's examples, cell by cell and shuffled within each."""
        examples = np.arange(len(self.lengths))
        if self._repeats is not None:
            examples = np.repeat(examples, self._repeats)
        examples = random.permutation(examples)
        return examples[np.argsort(self._cells[examples], kind="stable")]


def number_copies(batches: Sequence[Batch]) -> list[Batch]:
    """Assign numbers from 0 to the copies of each example in an epoch's batches."""
    examples = np.concatenate([batch.real for batch in batches])
    order = np.argsort(examples, kind="stable")
    first = np.searchsorted(examples[order], examples[order])
    numbers = np.empty(len(examples), np.int64)
    numbers[order] = np.arange(len(examples)) - first
    numbered, begin = [], 0
    for batch in batches:
        copies = np.zeros(batch.examples.shape, np.int64)
        end = begin + len(batch.real)
        copies[batch.examples >= 0] = numbers[begin:end]
        numbered.append(dataclasses.replace(batch, copies=copies))
        begin = end
    return numbered


class Buckets(Plan):
    """Batches of examples of similar length, in a few shapes with little padding.

    Examples left over from one shape move on to the next larger one; the last batch is
    filled up with empty rows.
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
        """Plan batches of about `batch_tokens` tokens on the longer side.

        They have at most `shapes` shapes. `lengths` [examples, sides] are in tokens.
        The rows of a shape are a multiple of `row_multiple`, its lengths of
        `length_multiple`. `repeats` [examples] are the occurrences of each example per
        epoch; None means one.
        """
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


def in_order(lengths: np.ndarray, shapes: Sequence[Shape]) -> list[Batch]:
    """Arrange all examples in their order; each batch has the smallest shape that fits.

    `lengths` [examples, sides] fit into the last of the nested shapes.
    """
    batches, begin = [], 0
    while begin < len(lengths):
        for shape in shapes:
            taken = np.arange(begin, min(begin + shape.rows, len(lengths)))
            if (lengths[taken] <= np.asarray(shape.lengths)).all():
                break
        rows = np.full(shape.rows, -1)
        rows[: len(taken)] = taken
        batches.append(Batch(shape, rows[:, None]))
        begin += len(taken)
    return batches


def cut_boxes(lengths: np.ndarray, boxes: int, multiple: int) -> list[tuple[int, ...]]:
    """Choose up to `boxes` nested boxes of side lengths that need little padding.

    Each new box goes where it saves the most padding; then every box moves to the best
    place between its neighbours, until none moves. A test compares the result with an
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
        options = [best_between(a, b) for a, b in zip(chain, chain[1:], strict=False)]
        gap = max(range(len(options)), key=lambda i: options[i][0])
        if options[gap][0] <= 0:
            break
        chain.insert(gap + 1, options[gap][1])
        moved = True
        while moved:
            moved = False
            for k in range(1, len(chain) - 1):
                saved, box = best_between(chain[k - 1], chain[k + 1])
                if saved > saved_by(*chain[k - 1 : k + 2]):
                    chain[k], moved = box, True
    return [tuple(int(n) * multiple for n in box) for box in chain[1:]]


def assign_boxes(lengths: np.ndarray, boxes: list[tuple[int, ...]]) -> np.ndarray:
    """Return the index of the smallest box that holds each example [examples]."""
    chosen = np.full(len(lengths), len(boxes) - 1, np.int16)
    for i in reversed(range(len(boxes))):
        chosen[(lengths <= np.asarray(boxes[i])).all(axis=1)] = i
    return chosen


def pad_or_pack(column: Ragged, batch: Batch, length: int) -> dict[str, np.ndarray]:
    """Lay out one side of a batch: tokens [rows, length], with 0 for padding.

    A packed batch also has segments (0 is padding), and positions that restart with
    each example. A test compares this with a loop over rows and examples.
    """
    filled = batch.examples >= 0
    lengths = np.zeros(filled.shape, np.int64)
    lengths[filled] = column.lengths
    begins = np.cumsum(lengths, axis=1) - lengths
    begins += np.arange(len(filled))[:, None] * length
    offsets = np.arange(len(column.values)) - np.repeat(
        np.cumsum(column.lengths) - column.lengths, column.lengths
    )
    targets = np.repeat(begins[filled], column.lengths) + offsets
    parts = {"tokens": column.values}
    if batch.shape.packed:
        slots = np.broadcast_to(np.arange(filled.shape[1]) + 1, filled.shape)[filled]
        parts |= {"segments": np.repeat(slots, column.lengths), "positions": offsets}
    arrays = {}
    for name, values in parts.items():
        arrays[name] = np.zeros((len(filled), length), np.int32)
        arrays[name].flat[targets] = values
    return arrays


def fill_rows(values: np.ndarray, batch: Batch, empty: int = 0) -> np.ndarray:
    """Return the values [n, …] of a batch's examples by row; others are `empty`."""
    rows = np.full((len(batch.examples), *values.shape[1:]), empty, values.dtype)
    rows[batch.examples[:, 0] >= 0] = values
    return rows


def prefetch(make: Callable[[int], Any], steps: range, depth: int = 2) -> Iterator[Any]:
    """Yield make(step) for each step, made ahead in a thread; re-raise its errors."""
    remaining = iter(steps)
    pool = ThreadPoolExecutor(1, "prefetch")
    try:
        ahead = deque(pool.submit(make, step) for step in islice(remaining, depth + 1))
        while ahead:
            item = ahead.popleft().result()
            ahead.extend(pool.submit(make, step) for step in islice(remaining, 1))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)
