"""The batch plan: every example once, few shapes, nothing but (seed, step)."""

import numpy as np
import pytest

from transformer_jax.data import batches
from transformer_jax.data.batches import Plan


@pytest.fixture(scope="module")
def lengths():
    random = np.random.default_rng(7)
    source = random.integers(3, 41, 1009)
    return np.stack([source, np.clip(source + random.integers(-5, 6, 1009), 1, 47)], 1)


def make(lengths, **changes):
    settings = dict(
        batch_tokens=512, shapes=5, row_multiple=8, length_multiple=1, seed=3
    )
    return Plan(lengths, **{**settings, **changes})


def test_an_epoch_holds_every_example_exactly_once(lengths):
    plan = make(lengths)
    for epoch in (0, 1, 5):
        seen = np.concatenate([b.examples for b in plan.epoch(epoch)])
        assert sorted(seen[seen >= 0]) == list(range(len(lengths)))


def test_examples_fit_their_batch_and_rows_are_a_multiple_of_the_constant(lengths):
    plan = make(lengths, length_multiple=4)
    for batch in plan.epoch(0):
        real = batch.examples[batch.examples >= 0]
        assert (lengths[real] <= np.asarray(batch.shape.lengths)).all()
        assert len(batch.examples) == batch.shape.rows
        assert batch.shape.rows % 8 == 0
        assert batch.shape.rows * max(batch.shape.lengths) <= 512
        assert all(n % 4 == 0 for n in batch.shape.lengths)


def test_the_number_of_shapes_is_bounded_and_more_shapes_pad_less(lengths):
    few, many = make(lengths, shapes=2), make(lengths, shapes=8)
    assert len(few.shapes) <= 2 and len(many.shapes) <= 8 + 1
    assert {b.shape for b in many.epoch(0)} <= set(many.shapes)
    assert many.padding_share() < few.padding_share()


def test_a_batch_is_a_function_of_seed_and_step(lengths):
    plan, again = make(lengths), make(lengths)
    steps = [0, 1, plan.steps_per_epoch, 3 * plan.steps_per_epoch + 2]
    for step in reversed(steps):  # in any order of asking
        assert (plan.batch(step).examples == again.batch(step).examples).all()
    other = make(lengths, seed=4)
    assert any(
        not np.array_equal(plan.batch(s).examples, other.batch(s).examples)
        for s in range(5)
    )


def test_epochs_reshuffle_and_have_equally_many_steps(lengths):
    plan = make(lengths)
    assert len({len(plan.epoch(e)) for e in range(6)}) == 1
    first, second = (
        [tuple(b.examples) for b in plan.epoch(e)] for e in (0, 1)
    )  # fmt: skip
    assert set(first) != set(second)


def test_padding_share_counts_both_sides_and_empty_rows(lengths):
    plan = make(lengths)
    places = real = 0
    for batch in plan.epoch(0):
        places += batch.shape.rows * sum(batch.shape.lengths)
        real += lengths[batch.examples[batch.examples >= 0]].sum()
    assert plan.padding_share() == pytest.approx(1 - real / places)


def test_one_example_makes_one_batch():
    plan = make(np.array([[5, 3]]))
    (batch,) = plan.epoch(0)
    assert list(batch.examples) == [0] + [-1] * (batch.shape.rows - 1)


def test_cutting_never_pads_more_than_one_box_and_covers_all(lengths):
    one = batches.cut_boxes(lengths, 1, 1)
    assert one == [tuple(lengths.max(axis=0))]
    boxes = batches.cut_boxes(lengths, 6, 1)
    chosen = batches.assign_boxes(lengths, boxes)
    assert (lengths <= np.asarray(boxes)[chosen]).all()


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
    import threading

    stream = batches.prefetch(lambda s: s, range(1000))
    next(stream)
    stream.close()
    assert not any(t.name == "prefetch" for t in threading.enumerate())
