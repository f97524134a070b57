"""The batch plan: every example once, few shapes, a function of (seed, step)."""

import threading

import numpy as np
import pytest

from transformer_jax.data import batches
from transformer_jax.data.batches import Batch, Buckets, Shape, pad_or_pack
from transformer_jax.data.packing import Packed, fill_rows
from transformer_jax.data.store import Ragged


@pytest.fixture(scope="module")
def lengths():
    random = np.random.default_rng(7)
    source = random.integers(3, 41, 1009)
    return np.stack([source, np.clip(source + random.integers(-5, 6, 1009), 1, 47)], 1)


def make(lengths, kind=Buckets, **changes):
    size = {"shapes": 5} if kind is Buckets else {"row_length": 64}
    settings = dict(batch_tokens=512, row_multiple=8, length_multiple=1, seed=3)
    return kind(lengths, **{**settings, **size, **changes})


both = pytest.mark.parametrize("kind", [Buckets, Packed])


@both
def test_an_epoch_holds_every_example_exactly_once(lengths, kind):
    plan = make(lengths, kind)
    for epoch in (0, 1, 5):
        seen = np.concatenate([b.real for b in plan.epoch(epoch)])
        assert sorted(seen) == list(range(len(lengths)))


def test_examples_fit_their_batch_and_rows_are_a_multiple_of_the_constant(lengths):
    plan = make(lengths, length_multiple=4)
    for batch in plan.epoch(0):
        assert (lengths[batch.real] <= np.asarray(batch.shape.lengths)).all()
        assert len(batch.examples) == batch.shape.rows
        assert batch.shape.rows % 8 == 0
        assert batch.shape.rows * max(batch.shape.lengths) <= 512
        assert all(n % 4 == 0 for n in batch.shape.lengths)


def test_batches_in_order_hold_every_example_in_the_smallest_shape_that_fits(lengths):
    shapes = make(lengths, shapes=3).shapes
    found = batches.in_order(lengths, shapes)
    assert np.concatenate([b.real for b in found]).tolist() == list(range(1009))
    assert {b.shape for b in found} <= set(shapes)
    for batch in found:
        assert batch.examples.shape == (batch.shape.rows, 1)
        assert (lengths[batch.real] <= np.asarray(batch.shape.lengths)).all()
        for smaller in shapes[: shapes.index(batch.shape)]:
            first = np.arange(batch.real[0], batch.real[0] + smaller.rows)
            assert (lengths[first[first < 1009]] > np.asarray(smaller.lengths)).any()
    assert batches.in_order(lengths[:0], shapes) == []


def test_the_number_of_shapes_is_bounded_and_more_shapes_pad_less(lengths):
    few, many = make(lengths, shapes=2), make(lengths, shapes=8)
    assert len(few.shapes) <= 2 and len(many.shapes) <= 8
    assert {b.shape for b in many.epoch(0)} <= set(many.shapes)
    assert many.padding_share() < few.padding_share()


@both
def test_a_batch_is_a_function_of_seed_and_step(lengths, kind):
    plan, again = make(lengths, kind), make(lengths, kind)
    steps = [0, 1, plan.steps_per_epoch, 3 * plan.steps_per_epoch + 2]
    for step in reversed(steps):  # whichever is asked for first
        assert (plan.batch(step).examples == again.batch(step).examples).all()
    other = make(lengths, kind, seed=4)
    assert any(
        not np.array_equal(plan.batch(s).examples, other.batch(s).examples)
        for s in range(5)
    )


@both
def test_epochs_reshuffle_and_have_equally_many_steps(lengths, kind):
    plan = make(lengths // 9 + 3, kind)  # so few lengths that there is a choice
    assert len({len(plan.epoch(e)) for e in range(6)}) == 1
    first, second = (
        {frozenset(row) for b in plan.epoch(e) for row in b.examples.tolist()}
        for e in (0, 1)
    )
    if kind is Packed:  # different examples share a row
        assert len(first & second) < 0.1 * len(first)
    order = [[tuple(b.real) for b in plan.epoch(e)] for e in (0, 1)]
    assert set(order[0]) != set(order[1])


@both
def test_padding_share_counts_both_sides_and_empty_rows(lengths, kind):
    plan = make(lengths, kind)
    places = real = 0
    for batch in plan.epoch(0):
        places += batch.shape.rows * sum(batch.shape.lengths)
        real += lengths[batch.real].sum()
    assert plan.padding_share() == pytest.approx(1 - real / places)


@both
def test_repeats_say_how_often_an_example_occurs(lengths, kind):
    repeats = np.where(np.arange(len(lengths)) % 3 == 0, 3, 1)
    plan = make(lengths, kind, repeats=repeats)
    for epoch in range(3):
        seen = np.concatenate([b.real for b in plan.epoch(epoch)])
        assert (np.bincount(seen, minlength=len(lengths)) == repeats).all()
    assert len({len(plan.epoch(e)) for e in range(5)}) == 1


def test_copies_of_an_example_are_spread_over_the_epoch(lengths):
    plan = make(lengths[:200], repeats=np.full(200, 3))
    together = [len(b.real) - len(set(b.real)) for b in plan.epoch(0)]
    assert sum(together) < 0.5 * sum(len(b.real) for b in plan.epoch(0))


def test_packed_rows_hold_their_examples_and_little_else(lengths):
    plan = make(lengths, Packed)
    (shape,) = plan.shapes
    assert shape.packed and max(shape.lengths) == 64 and shape.rows == 8
    for batch in plan.epoch(0):
        sizes = np.where(batch.examples[..., None] < 0, 0, lengths[batch.examples])
        assert (sizes.sum(axis=1) <= np.asarray(shape.lengths)).all()
    buckets = make(lengths, shapes=12)
    assert plan.padding_share() < 0.06 < buckets.padding_share()


def test_packed_rows_are_long_enough_for_the_longest_example(lengths):
    (shape,) = make(lengths, Packed, row_length=20, length_multiple=8).shapes
    assert (np.asarray(shape.lengths) >= lengths.max(axis=0)).all()
    assert all(n % 8 == 0 for n in shape.lengths)


def test_rows_are_filled_like_an_exhaustive_search_would():
    """Four kinds in rows of (10, 10): three rows are the optimum."""
    kinds = np.array([[7, 7], [5, 5], [3, 3], [5, 4]])
    patterns = fill_rows(kinds, np.array([1, 1, 1, 3]), np.array([10, 10]))
    used = np.zeros(4, int)
    for members, times in patterns:
        assert (kinds[members].sum(axis=0) <= 10).all()
        used += times * np.bincount(members, minlength=4)
    assert used.tolist() == [1, 1, 1, 3]
    assert sum(times for _, times in patterns) == 3


def test_one_sided_examples_are_planned_too(lengths):
    for kind in (Buckets, Packed):
        plan = make(lengths[:, :1], kind)
        assert all(len(shape.lengths) == 1 for shape in plan.shapes)
        assert plan.padding_share() < 0.25


LAYOUT = ("tokens", "segments", "positions")


def test_a_batch_is_laid_out_row_by_row():
    column = Ragged(np.array([5, 6, 7, 8, 9, 4], np.uint16), np.array([2, 3, 1]))
    bucket = Batch(Shape(4, (3,)), np.array([[8], [2], [-1], [5]]))
    assert pad_or_pack(column, bucket, 3)["tokens"].tolist() == [
        [5, 6, 0], [7, 8, 9], [0, 0, 0], [4, 0, 0]
    ]  # fmt: skip
    packed = Batch(Shape(2, (7,), True), np.array([[8, 2, -1], [5, -1, -1]]))
    arrays = {k: v.tolist() for k, v in pad_or_pack(column, packed, 7).items()}
    assert arrays == {
        "tokens": [[5, 6, 7, 8, 9, 0, 0], [4, 0, 0, 0, 0, 0, 0]],
        "segments": [[1, 1, 2, 2, 2, 0, 0], [1, 0, 0, 0, 0, 0, 0]],
        "positions": [[0, 1, 0, 1, 2, 0, 0], [0, 0, 0, 0, 0, 0, 0]],
    }


@pytest.mark.parametrize("kind", [Buckets, Packed])
def test_the_layout_is_that_of_a_loop_over_rows_and_examples(lengths, kind):
    plan = make(lengths[:100], kind)
    random = np.random.default_rng(3)
    for batch in plan.epoch(0):
        sizes = lengths[batch.real, 0]
        column = Ragged(random.integers(4, 99, sizes.sum()).astype(np.uint16), sizes)
        length = batch.shape.lengths[0]
        expected = {n: np.zeros((len(batch.examples), length), int) for n in LAYOUT}
        examples = iter(column.rows())
        for row, slots in enumerate(batch.examples):
            begin = 0
            for slot, example in enumerate(slots):
                if example >= 0:
                    tokens = next(examples)
                    place = row, slice(begin, begin + len(tokens))
                    expected["tokens"][place] = tokens
                    expected["segments"][place] = slot + 1
                    expected["positions"][place] = range(len(tokens))
                    begin += len(tokens)
        found = pad_or_pack(column, batch, length)
        assert set(found) == set(LAYOUT if kind is Packed else LAYOUT[:1])
        for name, array in found.items():
            np.testing.assert_array_equal(array, expected[name])


def test_an_empty_batch_is_laid_out_as_padding():
    nothing = Ragged(np.zeros(0, np.uint16), np.zeros(0, int))
    for packed in (False, True):
        batch = Batch(Shape(2, (3,), packed), np.full((2, 1), -1))
        assert not any(a.any() for a in pad_or_pack(nothing, batch, 3).values())


def test_one_example_makes_one_batch():
    plan = make(np.array([[5, 3]]))
    (batch,) = plan.epoch(0)
    assert batch.examples.tolist() == [[0]] + [[-1]] * (batch.shape.rows - 1)


def test_boxes_hold_everything_and_each_lies_inside_the_next(lengths):
    assert batches.cut_boxes(lengths, 1, 1) == [tuple(lengths.max(axis=0))]
    boxes = batches.cut_boxes(lengths, 6, 1)
    assert (np.diff(boxes, axis=0) >= 0).all()
    chosen = batches.assign_boxes(lengths, boxes)
    assert (lengths <= np.asarray(boxes)[chosen]).all()


def test_boxes_pad_least_of_all_chains():
    """Against an exhaustive search over all chains of three boxes."""
    random = np.random.default_rng(5)
    lengths = random.integers(1, 8, (200, 2))
    top = tuple(lengths.max(axis=0))

    def places(chain):
        sizes = np.asarray(chain).sum(axis=1)
        return sizes[batches.assign_boxes(lengths, list(chain))].sum()

    corners = [(s, t) for s in range(1, 8) for t in range(1, 8)]
    best = min(
        places((a, b, top))
        for a in corners
        for b in corners
        if a[0] <= b[0] and a[1] <= b[1]
    )
    assert places(batches.cut_boxes(lengths, 3, 1)) <= 1.01 * best


def test_very_long_examples_do_not_make_the_search_long():
    lengths = np.array([[3, 4]] * 50 + [[90_001, 4], [5, 80_000]])
    boxes = batches.cut_boxes(lengths, 4, 8)
    assert (np.asarray(boxes[-1]) >= [90_001, 80_000]).all()
    assert all(n % 8 == 0 for box in boxes for n in box)
    assert boxes[0][0] < 400


def test_prefetch_keeps_the_order_and_passes_errors_on():
    assert list(batches.prefetch(lambda s: s * s, range(3, 9))) == [
        9, 16, 25, 36, 49, 64
    ]  # fmt: skip

    def fail(step):
        if step == 2:
            raise ValueError("step 2")
        return step

    stream = batches.prefetch(fail, range(5))
    assert [next(stream), next(stream)] == [0, 1]
    with pytest.raises(ValueError, match="step 2"):
        next(stream)


def test_prefetch_stops_its_thread_when_left_early():
    stream = batches.prefetch(lambda s: s, range(1000))
    next(stream)
    assert any(t.name.startswith("prefetch") for t in threading.enumerate())
    stream.close()
    assert not any(t.name.startswith("prefetch") for t in threading.enumerate())


def test_prefetch_makes_no_more_than_it_was_asked_to_keep_ahead():
    made = []
    stream = batches.prefetch(made.append, range(1000), depth=2)
    for taken in range(1, 6):
        next(stream)
        assert max(made) <= taken + 2
    stream.close()
    assert len(made) <= 8
