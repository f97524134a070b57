"""The feed hands out the plan's batches, each with the number of its step."""

import copy
import dataclasses

import jax
import numpy as np
import pytest

from transformer_jax import config, sharding
from transformer_jax.runs.folder import Folder
from transformer_jax.training import prepare as preparing
from transformer_jax.training.steps.feed import Feed, assemble, fill_up


@pytest.fixture(scope="module")
def feed(tiny, tmp_path_factory):
    keys = {"tokenizer__kind": "bpe", "tokenizer__sampling": 0.2}
    loaded = config.load("quickstart", tiny(data__shapes=2, **keys))
    folder = Folder(tmp_path_factory.mktemp("feed"))
    prepared = preparing.prepare(loaded, folder, lambda line: None)
    planned = preparing.make_plan(loaded, prepared.task, prepared.train)
    store = prepared.train.store
    return Feed(prepared.task, store, planned, sharding.local_mesh())


def test_step_k_applies_the_planned_batch_before_k(feed):
    found = list(feed.batches(3, 7))
    assert [step for step, _ in found] == [4, 5, 6, 7]
    for step, batch in found:
        again = feed.place(step - 1)
        assert batch.shape == again.shape == feed.plan.batch(step - 1).shape
        assert batch.samples_too_long == again.samples_too_long
        for name, array in batch.arrays.items():
            np.testing.assert_array_equal(array, again.arrays[name])


def test_a_run_that_is_at_its_end_gets_no_batch(feed):
    assert list(feed.batches(7, 7)) == []


def test_a_batch_has_segmentations_that_were_drawn_for_it(feed):
    drawn = feed.place(0).arrays
    stored, _ = assemble(feed.task, feed.store, feed.plan.batch(0), feed.mesh)
    assert drawn["source"].shape == stored["source"].shape
    assert (drawn["source"] != stored["source"]).any()


def test_a_batch_that_is_filled_up_keeps_the_numbers_of_its_copies(feed):
    batch = feed.plan.batch(0)
    copies = np.arange(batch.examples.size).reshape(batch.examples.shape)
    numbered = dataclasses.replace(batch, copies=copies)
    seen = []

    def note(columns, part):
        seen.append(part.real_copies)
        return columns, 0

    assemble(feed.task, feed.store, numbered, feed.mesh, note, parts=3)
    np.testing.assert_array_equal(seen[0], copies[batch.examples >= 0])


def test_an_empty_batch_is_what_its_shape_is_compiled_for(feed):
    for shape in feed.plan.shapes:
        empty, expected = feed.empty(shape), feed.abstract(shape)
        assert empty.keys() == expected.keys() == feed.place(0).arrays.keys()
        assert not empty["target"].any()
        for name, array in empty.items():
            assert jax.typeof(array).shape == expected[name].shape
            assert array.dtype == expected[name].dtype
            assert array.sharding == expected[name].sharding


@pytest.mark.parametrize("multiple", [1, 3, 16, 256])
def test_a_batch_is_filled_up_and_keeps_its_places(feed, multiple):
    """Row r of an accumulation is in the part r modulo their number, as before."""
    planned = feed.plan.batch(0)
    found = fill_up(planned, multiple)
    rows = planned.shape.rows
    assert found.shape.rows == len(found.examples) == -(-rows // multiple) * multiple
    assert found.shape.lengths == planned.shape.lengths
    np.testing.assert_array_equal(found.examples[:rows], planned.examples)
    assert (found.examples[rows:] == -1).all()


def test_any_number_of_devices_gets_the_planned_batch(feed):
    seven = copy.copy(feed)
    seven.mesh, seven.multiple = sharding.local_mesh(7), 7
    one, found = feed.place(2), seven.place(2)
    assert found.shape == one.shape
    shape = seven.abstract(one.shape)
    for name, array in one.arrays.items():
        assert not len(found.arrays[name]) % 7
        assert shape[name].shape == found.arrays[name].shape
        np.testing.assert_array_equal(found.arrays[name][: len(array)], array)
        assert not np.any(found.arrays[name][len(array) :])
