"""Pack several examples into one row, each as its own segment.

All batches have one shape, with little padding. Which *lengths* share a row is decided
once, from the number of examples with each pair of lengths; which *examples* of those
lengths share it is drawn again in every epoch.
"""

import numpy as np

from transformer_jax.data.batches import Batch, Plan, Shape

FINENESS = 24  # lengths are rounded up by under a 24th, to try fewer kinds


class Packed(Plan):
    """Rows of `row_length` tokens on the longer side, filled with complete examples."""

    def __init__(
        self,
        lengths: np.ndarray,
        batch_tokens: int,
        row_length: int,
        row_multiple: int,
        length_multiple: int,
        seed: int,
        repeats: np.ndarray | None = None,
    ):
        """Plan rows of at most `row_length` tokens on the longer side, in one shape.

        The other arguments are those of `Buckets`.
        """
        kinds, cells = _kinds(lengths)
        super().__init__(lengths, cells, seed, repeats)
        counts = np.bincount(
            cells[self._draw(np.random.default_rng(0))], minlength=len(kinds)
        )
        sides = _row_sides(kinds, counts, row_length, length_multiple)
        rows = max(batch_tokens // max(sides) // row_multiple, 1) * row_multiple
        self.shapes = [Shape(rows, sides, packed=True)]
        patterns = fill_rows(kinds, counts, np.asarray(sides))
        rows_of = [times for _, times in patterns]
        sizes = np.repeat([len(members) for members, _ in patterns], rows_of)
        members = np.concatenate([np.tile(m, n) for m, n in patterns])
        # The slots of all rows, sorted by the cell of their example.
        self._slots = np.argsort(members, kind="stable")
        self._ends = np.cumsum(sizes)

    def _arrange(self, examples, random):
        flat = np.empty_like(examples)
        flat[self._slots] = examples
        begins = np.concatenate([[0], self._ends[:-1]])
        sizes = self._ends - begins
        order = random.permutation(len(sizes))
        (shape,) = self.shapes
        batches = []
        for i in range(0, len(order), shape.rows):
            chosen = order[i : i + shape.rows]
            slots = np.arange(sizes[chosen].max())
            packed = np.full((shape.rows, len(slots)), -1, flat.dtype)
            filled = slots < sizes[chosen][:, None]
            packed[: len(chosen)][filled] = flat[
                (begins[chosen][:, None] + slots)[filled]
            ]
            batches.append(Batch(shape, packed))
        return batches


def _kinds(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rounded lengths [kinds, sides], and each example's kind."""
    step = np.maximum(lengths // FINENESS, 1)
    lengths = np.minimum(-(-lengths // step) * step, lengths.max(axis=0, initial=0))
    base = int(lengths.max(initial=0)) + 1
    codes = lengths[:, 0].astype(np.int64)
    for side in range(1, lengths.shape[1]):
        codes = codes * base + lengths[:, side]
    _, first, cells = np.unique(codes, return_index=True, return_inverse=True)
    return lengths[first], cells.astype(np.int32)


def _row_sides(
    kinds: np.ndarray, counts: np.ndarray, row_length: int, multiple: int
) -> tuple[int, ...]:
    """Return row lengths in proportion to the sides' tokens that fit every example."""
    tokens = (kinds * counts[:, None]).sum(axis=0)
    sides = np.ceil(row_length * tokens / tokens.max())
    sides = np.maximum(sides, kinds.max(axis=0)).astype(int)
    return tuple(int(n) for n in -(-sides // multiple) * multiple)


def fill_rows(
    kinds: np.ndarray, counts: np.ndarray, sides: np.ndarray
) -> list[tuple[np.ndarray, int]]:
    """Return patterns: (kinds of examples that share a row, number of such rows).

    A row starts with the largest remaining kind; then the largest kind that fits and
    keeps the sides in balance is added, until none fits. A pattern is repeated as long
    as its kinds last, so the work depends on the number of distinct lengths, not of
    examples. Examples of 7 and 3 tokens fill rows of 10: [([0, 1], their number)].
    This is greedy, not optimal; tests have cases whose optimum is known.
    """
    share = kinds / sides  # of a row
    order = np.argsort(-share.max(axis=1), kind="stable")
    kinds, share, left = kinds[order], share[order], counts[order].astype(np.int64)
    patterns = []
    while True:
        alive = np.flatnonzero(left)
        if not len(alive):
            return patterns
        # Exhausted kinds are dropped, so that later rows are found faster.
        order, kinds, share, left = (a[alive] for a in (order, kinds, share, left))
        used = np.zeros(len(left), np.int64)
        room, gap, chosen = sides.copy(), np.zeros(share.shape[1]), 0
        while True:
            used[chosen] += 1
            room = room - kinds[chosen]
            gap = gap + share[chosen]
            fits = np.flatnonzero((kinds <= room).all(axis=1) & (used < left))
            if not len(fits):
                break
            after = gap + share[fits]  # a row whose sides differ will waste one
            value = share[fits].sum(axis=1) - 2 * np.ptp(after, axis=1)
            chosen = fits[value.argmax()]
        members = np.repeat(np.arange(len(left)), used)
        times = int((left[used > 0] // used[used > 0]).min())
        patterns.append((order[members].astype(np.int32), times))
        left = left - times * used
