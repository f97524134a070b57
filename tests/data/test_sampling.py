"""Subword sampling: other pieces of the same text, by (seed, epoch, example)."""

import numpy as np
import pytest

from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import EOS
from transformer_jax.data import store
from transformer_jax.data.batches import Batch, Buckets, Shape
from transformer_jax.data.columns import TextColumns
from transformer_jax.data.reading.records import Generated
from transformer_jax.data.sampling import Sampler
from transformer_jax.data.text import learning
from transformer_jax.data.text.foreign import Foreign
from transformer_jax.data.text.tokenizer import Bytes, PlainTokenizer

TEXTS = [f"O gato número {i} dorme na casa da Maria." for i in range(67)]
RECORDS = Generated(lambda: [{"source": t, "target": t[::-1]} for t in TEXTS], "")


@pytest.fixture(scope="module")
def bpe():
    return learning.train([*TEXTS, *(t[::-1] for t in TEXTS)], "bpe", 420)


@pytest.fixture(scope="module")
def encoded(bpe, tmp_path_factory):
    def encode(records):
        return [{k: [*bpe.encode(v), EOS] for k, v in r.items()} for r in records]

    def keep_odd():
        return lambda record, columns: None if "3" in record["source"] else "no 3"

    columns = {"source": store.Column("uint16"), "target": store.Column("uint16")}
    root = tmp_path_factory.mktemp("store")
    return store.build(root, RECORDS, columns, encode, "a", keep_odd)


def sampler(bpe, strength=0.3, seed=5, limit=99):
    texts = TextColumns({"source": bpe, "target": bpe})
    return Sampler(texts, RECORDS, strength, seed, limit - 1)


def draw(sampler, encoded, examples, epoch=0, room=99):
    batch = Batch(Shape(len(examples), (room, room)), np.asarray(examples)[:, None])
    columns = encoded.take(batch.real)
    limits = np.full((len(batch.real), 2), room)
    drawn, kept = sampler.resample(columns, batch, epoch, limits)
    rows = {side: [list(r) for r in drawn[side].rows()] for side in sampler.tokenizers}
    return rows, kept


def test_a_tokenizer_with_one_segmentation_is_refused(bpe):
    """Such as that of a model from elsewhere, which would be sampled without effect."""
    for other in (Bytes(), learning.train(TEXTS, "char", 300)):
        texts = TextColumns({"source": bpe, "target": other})
        with pytest.raises(UserError, match="the tokenizer of the target has one segm"):
            Sampler(texts, RECORDS, 0.1, 5, 99)
    assert bpe.has_segmentations and issubclass(Foreign, PlainTokenizer)
    assert learning.train(TEXTS, "unigram", 400).has_segmentations


def test_samples_spell_the_text_of_their_own_record(bpe, encoded):
    rows, kept = draw(sampler(bpe), encoded, [3, 0, 5])
    numbers = encoded.column(store.RECORD)[[3, 0, 5]]
    assert kept == 0
    for side in ("source", "target"):
        assert [bpe.decode(row) for row in rows[side]] == [
            RECORDS[int(n)][side] for n in numbers
        ]
        assert all(row[-1] == EOS for row in rows[side])


def test_a_sample_depends_on_seed_epoch_and_example_only(bpe, encoded):
    one, _ = draw(sampler(bpe), encoded, [3, 0, 5])
    alone, _ = draw(sampler(bpe), encoded, [5, -1])
    assert one["source"][2] == alone["source"][0]
    assert one["target"][2] == alone["target"][0]
    other, _ = draw(sampler(bpe), encoded, [3, 0, 5], epoch=1)
    seeded, _ = draw(sampler(bpe, seed=6), encoded, [3, 0, 5])
    assert one != other and one != seeded and other != seeded


def test_copies_of_an_example_have_segmentations_of_their_own(bpe, encoded):
    lengths = np.stack([encoded.lengths(s) for s in ("source", "target")], axis=1)
    repeats = np.full(len(lengths), 3)
    plan = Buckets(lengths * 5, 4096, 2, 8, 1, seed=0, repeats=repeats)
    drawing, seen = sampler(bpe), {}
    for batch in plan.epoch(0):
        columns = encoded.take(batch.real)
        drawn, _ = drawing.resample(columns, batch, 0, plan.room(batch))
        rows = [tuple(row) for row in drawn["source"].rows()]
        for example, copy, row in zip(batch.real, batch.real_copies, rows, strict=True):
            seen.setdefault(int(example), {})[int(copy)] = row
    assert all(sorted(found) == [0, 1, 2] for found in seen.values())
    assert sum(len({*found.values()}) == 3 for found in seen.values()) > len(seen) / 2
    first, _ = draw(drawing, encoded, [5])  # as where there are no copies
    assert seen[5][0] == tuple(first["source"][0])


def test_a_sample_that_exceeds_its_room_is_replaced_by_the_stored_one_and_counted(
    bpe, encoded
):
    stored = [list(encoded.row("source", i)) for i in range(7)]
    room = len(stored[0])
    rows, kept = draw(sampler(bpe, 0.9), encoded, range(7), room=room)
    assert kept == 14
    assert rows["source"] == stored


def test_no_sample_is_longer_than_its_limit_whatever_the_padding(bpe, encoded):
    stored = [list(encoded.row("source", i)) for i in range(7)]
    rows, kept = draw(sampler(bpe, 0.9, limit=3), encoded, range(7), room=99)
    assert kept == 14 and rows["source"] == stored


def test_the_plan_leaves_room_for_most_samples(bpe, encoded):
    stored = np.stack([encoded.lengths(s) for s in ("source", "target")], axis=1)
    drawn = sampler(bpe, 0.1, limit=17)
    growth = drawn.growth(encoded)
    assert (growth > 1.02).all() and (growth < 1.6).all()
    planned = drawn.room(stored, growth)
    assert (planned >= stored).all() and stored.max() < planned.max() <= 17
    assert (sampler(bpe, 0.1, limit=3).room(stored, growth) == stored).all()
    plan = Buckets(planned, 512, 3, 8, 1, seed=0)
    counts = []
    for batch in plan.epoch(0):
        columns = encoded.take(batch.real)
        counts.append(drawn.resample(columns, batch, 0, plan.room(batch))[1])
    assert sum(counts) < 0.5 * stored.size


def test_a_process_without_examples_has_nothing_to_draw(bpe, encoded):
    batch = Batch(Shape(2, (9, 9)), np.full((2, 1), -1))
    columns = encoded.take(batch.real)
    assert sampler(bpe).resample(columns, batch, 0, np.zeros((0, 2)))[1] == 0
