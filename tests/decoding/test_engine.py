"""The engine: batches that shrink and grow change no answer; large vocabularies."""

import collections
import dataclasses
import itertools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import sharding
from transformer_jax.decoding import Options, engine, searching
from transformer_jax.decoding.engine import (
    DecodeRequest,
    Engine,
    Shape,
    collate,
    shape_of,
)
from transformer_jax.decoding.forward import PairScorer
from transformer_jax.decoding.memory import bound_state
from transformer_jax.decoding.searches.rules import largest
from transformer_jax.decoding.searching import row_sizes
from transformer_jax.models.transformer import Seq2Seq
from transformer_jax.models.transformer_config import TransformerConfig

VOCAB = 640  # so large that the best are searched in blocks
CONFIG = TransformerConfig(
    vocab_size=VOCAB, vocab_rows=VOCAB, source_vocab_size=VOCAB,
    source_vocab_rows=VOCAB, encoder_layers=1, decoder_layers=2, d_model=16, d_ff=22,
    num_heads=2, d_k=8, d_v=6,
)  # fmt: skip
KINDS = {
    "greedy": Options(beams=1, extra_length=21),
    "beam": Options(beams=3, n_best=2, extra_length=21),
    "sample": Options(sample=True, n_best=2, top_k=9, extra_length=21),
}


@pytest.fixture(scope="module")
def model(model_of):
    return model_of(CONFIG)


def ask():
    rng = np.random.default_rng(8)
    return [
        DecodeRequest(
            [*rng.integers(4, VOCAB, size=n % 11 + 1).tolist(), 3], (), seed=n
        )
        for n in range(13)
    ]


def search(model, asked, options, rows, multiple, mesh=None):
    engine = Engine(model[0], mesh or sharding.local_mesh(), rows, multiple)
    found = dict(engine.search(model[1], asked, options))
    assert sorted(found) == list(range(len(asked)))
    return [found[i] for i in range(len(asked))]


def assert_same(one, other):
    for mine, theirs in zip(one, other, strict=True):
        assert [h.tokens for h in mine] == [h.tokens for h in theirs]
        scores = [[h.score for h in found] for found in (mine, theirs)]
        np.testing.assert_allclose(*scores, rtol=5e-5)  # such weights exaggerate


def kinds(*usual):
    """All cases; by default only some, because each compiles a dozen programs."""
    return [k if k in usual else pytest.param(k, marks=pytest.mark.slow) for k in KINDS]


@pytest.mark.system
@pytest.mark.parametrize("kind", kinds("beam"))
def test_answers_are_those_of_the_plain_loop_for_each_request_alone(model, kind):
    asked, options = ask()[:3], KINDS[kind]
    found = search(model, asked, options, rows=4, multiple=2)
    plain = Engine(model[0], sharding.local_mesh(), 1, 1)._make_search(options)
    bound = searching.bind(model[0], model[1])
    for request, mine in zip(asked, found, strict=True):
        shape = shape_of(request, options)
        arrays = collate([(request, options)], 1, shape)
        batch = {
            name: jnp.asarray(x) for name, x in arrays.items() if name != "numbers"
        }
        names = ("prompt", "prompt_lengths", "limits", "seeds")
        inputs = searching.DecodeInputs(**{name: batch[name] for name in names})
        run = jax.jit(
            lambda batch, inputs, length=shape.length: searching.run(
                plain, bound, batch, inputs, length
            )
        )
        alone = engine._unpack(jax.device_get(run(batch, inputs)), 0, options)
        assert_same([mine], [alone])


@pytest.mark.system
@pytest.mark.parametrize("kind", kinds("beam"))
def test_batches_that_shrink_change_no_answer(model, kind):
    asked = ask()
    together = search(model, asked, KINDS[kind], rows=8, multiple=2)
    lengths = {len(h.tokens) for found in together for h in found}
    assert len(lengths) > 2, "answers of one length would leave no batch early"
    assert_same(together, search(model, asked, KINDS[kind], rows=1, multiple=1))


@pytest.mark.parametrize("kind", kinds("beam"))
@pytest.mark.system
def test_a_search_that_outgrows_its_room_continues_unchanged(model, kind, monkeypatch):
    asked = ask()[:8]
    roomy = search(model, asked, KINDS[kind], rows=8, multiple=8)
    assert max(len(found[0].tokens) for found in roomy) > 3
    monkeypatch.setattr(Shape, "first_step_limit", 3)
    assert_same(roomy, search(model, asked, KINDS[kind], rows=8, multiple=8))


@pytest.mark.system
def test_slots_double_for_a_long_answer_and_are_freed_after_it(model, monkeypatch):
    limits, plain = collections.defaultdict(lambda: [8]), ask()
    outlier = dataclasses.replace(plain[0], limit=60)
    asked = [*plain[:4], outlier, *plain[4:]]
    options = dataclasses.replace(KINDS["greedy"], extra_length=60)
    monkeypatch.setattr(Shape, "first_step_limit", 8)
    limit_steps = engine.Batch._limit_steps

    def note(batch, limit):
        limit_steps(batch, limit)
        limits[id(batch)].append(batch.step_limit)

    monkeypatch.setattr(engine.Batch, "_limit_steps", note)
    found = search(model, asked, options, rows=4, multiple=4)
    steps = [pair for each in limits.values() for pair in itertools.pairwise(each)]
    assert any(after < before for before, after in steps)
    assert all(after <= 2 * before for before, after in steps)
    assert any(after == 2 * before > 8 for before, after in steps)
    monkeypatch.undo()
    assert_same(found, search(model, asked, options, rows=1, multiple=1))


@pytest.mark.parametrize("kind", kinds("greedy", "beam", "sample"))
def test_a_step_changes_no_type_so_that_it_is_compiled_once(model, kind):
    """A weak type would do, as that of a constant."""
    engine_ = Engine(model[0], sharding.local_mesh(), 4, 4)
    states = engine_.states(model[1], ask()[3], KINDS[kind])
    first, second = (
        [jax.typeof(x) for x in jax.tree.leaves(next(states))] for _ in "ab"
    )
    assert first == second
    assert [x.weak_type for x in first] == [x.weak_type for x in second]


@pytest.mark.parametrize(
    ("fsdp", "tensor", "sequence"),
    [  # a source of 12 is divisible by 2 only
        pytest.param(1, 1, 2, marks=pytest.mark.system),
        pytest.param(1, 1, 8, marks=pytest.mark.slow),
        pytest.param(4, 2, 1, marks=pytest.mark.system),
    ],
)
def test_a_mesh_finds_what_one_device_does(model, fsdp, tensor, sequence):
    asked = [
        dataclasses.replace(one, prefix=[9, 8][: i % 3])
        for i, one in enumerate(ask()[:5])
    ]
    mesh = sharding.make_mesh(
        {"data": -1, "fsdp": fsdp, "tensor": tensor, "sequence": sequence}
    )
    places = sharding.shardings(model[1], mesh)
    split = model[0], jax.device_put(model[1], places)
    together = search(split, asked, KINDS["greedy"], rows=4, multiple=4, mesh=mesh)
    assert_same(together, search(model, asked, KINDS["greedy"], rows=4, multiple=4))


def test_a_model_that_recomputes_its_layers_finds_the_same(model):
    module = Seq2Seq(dataclasses.replace(CONFIG, remat="full"))
    asked = ask()[:3]
    recomputed = search((module, model[1]), asked, KINDS["greedy"], rows=4, multiple=4)
    assert_same(recomputed, search(model, asked, KINDS["greedy"], rows=4, multiple=4))


def test_a_few_requests_need_no_full_batch(model):
    read, mesh = [], sharding.local_mesh()
    few, full = (PairScorer(model[0], 8, n) for n in (2, 8))
    encode = few._encode._compiled(mesh)

    def count(params, batch):
        read.append(len(batch["source"]))
        return encode(params, batch)

    few._encode._compiled = lambda mesh: count
    sources = [one.source for one in ask()]
    for number, rows in ((1, [1]), (2, [2]), (3, [4]), (5, [8]), (9, [8, 2])):
        found = dict(few.vectors(model[1], sources[:number], mesh))
        assert read == rows
        read.clear()
        expected = dict(full.vectors(model[1], sources[:number], mesh))
        assert found.keys() == expected.keys() == set(range(number))
        for i, vector in expected.items():
            np.testing.assert_allclose(found[i], vector, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("most", "multiple", "sizes"),
    [(128, 8, [128, 64, 32, 16, 8]), (130, 24, [120, 48, 24]), (12, 16, [12])],
)
def test_every_size_of_a_batch_divides_by_the_smallest(most, multiple, sizes):
    assert row_sizes(most, multiple) == sizes


@pytest.mark.parametrize(
    ("most", "multiple", "devices", "sizes"),
    [(128, 8, 16, [128, 64, 32, 16]), (128, 8, 256, [256]), (12, 8, 7, [14])],
)
def test_every_size_of_a_batch_divides_over_the_devices(most, multiple, devices, sizes):
    assert row_sizes(most, multiple, devices) == sizes


@pytest.mark.parametrize("vocab", [640, 8000, 7 * 16, 6])
def test_the_largest_equal_those_of_top_k_and_ties_keep_their_order(vocab):
    rng = np.random.default_rng(vocab)
    scores = rng.integers(0, vocab // 3, size=(29, vocab)).astype(np.float32)
    scores[3], scores[4, 1:] = -np.inf, -np.inf
    for count in (1, 4):
        found = largest(jnp.asarray(scores), count)
        expected = jax.lax.top_k(jnp.asarray(scores), count)
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize(
    ("others", "name", "values"),
    [
        ({"sample": True}, "seed", (0, 1, 2**32 - 1)),
        ({"sample": True}, "temperature", (1.0, 0.3, 9.0)),
        ({"sample": True, "temperature": 4.0}, "top_p", (0.999, 0.4, 0.001)),
        ({"sample": True}, "min_p", (0.01, 0.3, 0.8)),
        ({"beams": 1}, "alpha", (0.6, 0.0, -1.0)),
        ({"beams": 3}, "alpha", (0.6, 0.0, -1.0)),
        ({"beams": 3}, "coverage", (0.1, 0.5, 2.0)),
    ],
)
def test_another_number_searches_otherwise_by_the_same_programs(
    model, others, name, values
):
    engine = Engine(model[0], sharding.local_mesh(), 8, 8)
    found, sizes = [], set()
    for value in (*values, values[0]):
        options = Options(extra_length=4, **others, **{name: value})
        by_number = dict(engine.search(model[1], ask()[:3], options))
        found.append([(h.tokens, h.score) for n in range(3) for h in by_number[n]])
        programs = engine._begin.jitted, engine._advance.jitted
        sizes.add(tuple(program._cache_size() for program in programs))
    assert found[0] == found[3]
    assert len({tuple(one) for one in found}) == 3
    assert len(sizes) == 1


def test_an_abandoned_search_leaves_no_thread(model):
    before = threading.active_count()
    engine = Engine(model[0], sharding.local_mesh(), 1, 1)
    found = engine.search(model[1], ask(), KINDS["greedy"])
    next(found)
    assert threading.active_count() > before
    found.close()
    assert threading.active_count() == before


def ask_many(prefix):
    """Sources of two shapes, and answers that begin with some of these pieces."""
    rng = np.random.default_rng(3)
    return [
        DecodeRequest(
            [*rng.integers(4, VOCAB, size=i % 9 + 6).tolist(), 3],
            prefix[: i % 3 + 1],
            seed=i,
            limit=[0, 7][i % 7 == 0],
        )
        for i in range(23)
    ]


@pytest.mark.parametrize(
    "options",
    [
        Options(beams=1, extra_length=17),
        Options(beams=3, n_best=2, extra_length=17, coverage=0.3),
        Options(sample=True, n_best=2, top_k=9, extra_length=17, no_repeat=2),
    ],
    ids=["greedy", "coverage", "sample"],
)
def test_rows_that_are_given_to_other_sentences_change_no_answer(
    model, options, monkeypatch
):
    asked, filled = ask_many([9, 8, 7] if options.sample else ()), []
    for name in ("_replace_rows", "_widen"):
        watch_refills(monkeypatch, name, filled)
    refilled = search(model, asked, options, rows=4, multiple=4)
    assert set(filled) == {"_replace_rows", "_widen"}
    assert_same(refilled, search(model, asked, options, rows=23, multiple=23))


def test_a_request_that_comes_alone_has_no_other_rows(model):
    searches, rows = Engine(model[0], sharding.local_mesh(), 8, 4), []
    begin, asked, options = searches._begin, ask()[5:7], KINDS["greedy"]

    def watched(params, batch, **static):
        rows.append(len(batch["limits"]))
        return begin(params, batch, **static)

    searches._begin = watched
    for request in asked[0], dataclasses.replace(asked[0], limit=1):
        [(_, [alone])] = searches.search(model[1], [request], options)
        both = dict(searches.search(model[1], [request, asked[1]], options))
        assert_same([[alone]], [both[0]])
    assert rows == [1, 4] * 2


def watch_refills(monkeypatch, name, seen):
    """Record when an engine gives rows to other sentences."""
    made = Engine.__init__

    def make(self, *args):
        made(self, *args)
        replace = getattr(self, name)

        def watched(*arguments, **options):
            seen.append(name)
            return replace(*arguments, **options)

        setattr(self, name, watched)

    monkeypatch.setattr(Engine, "__init__", make)


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_of_a_search_holds(model, kind):
    """A search that the bound lets through is not looked at again."""
    options = KINDS[kind].without_numbers()
    engine = Engine(model[0], sharding.local_mesh(), 8, 8)
    asked = ask()[:8]
    shape = max((shape_of(one, options) for one in asked), key=lambda s: s.source)
    arrays = collate([(one, options) for one in asked], 8, shape)
    carry = engine._begin.jitted.eval_shape(
        model[1], arrays, shape=shape, slots=shape.length, options=options
    )
    needed = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(carry))
    assert needed <= bound_state(model[0], 8, shape, options) < 3 * needed
    assert bound_state(object(), 8, shape, options) == np.inf


def test_no_request_is_no_answer_on_any_mesh(model):
    mesh = sharding.make_mesh({"data": -1, "fsdp": 1, "tensor": 1, "sequence": 1})
    for where in (sharding.local_mesh(), mesh):
        engine = Engine(model[0], where, 8, 8)
        assert not list(engine.search(model[1], [], KINDS["greedy"]))


def test_memory_is_checked_for_the_longest_request(model, monkeypatch):
    checked = []
    monkeypatch.setattr(Engine, "_check_memory", lambda *given: checked.append(given))
    asked = [DecodeRequest([7] * n + [3]) for n in (2, 3, 99, 4, 5)]
    engine = Engine(model[0], sharding.local_mesh(), 2, 2)

    list(engine.search(model[1], asked, Options(beams=1, max_length=3)))
    assert {given[-2].source for given in checked} == {12, 128}  # of two shares


def test_an_exit_of_a_search_reaches_the_caller(model, monkeypatch):
    def leave(*_):
        raise SystemExit(3)

    monkeypatch.setattr(Engine, "_search", leave)
    engine = Engine(model[0], sharding.local_mesh(), 8, 8)
    with pytest.raises(SystemExit):
        list(engine.search(model[1], ask(), KINDS["greedy"]))
