"""Searches that share batches: many callers, the same answers as an engine's."""

import collections
import dataclasses
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from waiting import wait_for

from transformer_jax import sharding
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import EOS
from transformer_jax.base.programs import Program
from transformer_jax.decoding import Options, engine, live
from transformer_jax.decoding.engine import DecodeRequest, Engine
from transformer_jax.decoding.live import Live
from transformer_jax.models.transformer_config import TransformerConfig

VOCAB = 61
CONFIG = TransformerConfig(
    vocab_size=VOCAB, vocab_rows=VOCAB, source_vocab_size=VOCAB,
    source_vocab_rows=VOCAB, encoder_layers=1, decoder_layers=2, d_model=16, d_ff=22,
    num_heads=2, d_k=8, d_v=6,
)  # fmt: skip
GREEDY = Options(beams=1, extra_length=13)
BEAM = Options(beams=3, n_best=2, extra_length=13)
SAMPLE = Options(sample=True, n_best=2, top_k=9, extra_length=13)

KINDS = [
    pytest.param(GREEDY, id="greedy"),
    pytest.param(BEAM, id="beam"),
    pytest.param(SAMPLE, id="sample", marks=pytest.mark.system),
]


@pytest.fixture(scope="module")
def model(model_of):
    return model_of(CONFIG)


@pytest.fixture(scope="module")
def plain(model):
    return Engine(model[0], sharding.local_mesh(), 16, 8)


@pytest.fixture
def shared(plain):
    found = Live(plain)
    yield found
    found.close()


def ask(count=29, longest=11):
    rng = np.random.default_rng(8)
    return [
        DecodeRequest(
            [*rng.integers(4, VOCAB, size=n % longest + 1).tolist(), EOS], (), seed=n
        )
        for n in range(count)
    ]


def assert_same(one, other):
    assert sorted(one) == sorted(other)
    for number, mine in one.items():
        theirs = other[number]
        assert [h.tokens for h in mine] == [h.tokens for h in theirs]
        scores = [[h.score for h in found] for found in (mine, theirs)]
        np.testing.assert_allclose(*scores, rtol=3e-4)  # such weights exaggerate


@pytest.mark.parametrize("options", KINDS)
def test_callers_that_come_and_go_get_the_answers_of_a_search(
    model, plain, shared, options
):
    asked = ask()
    expected = dict(plain.search(model[1], asked, options))

    def call(i):
        time.sleep(0.003 * i)
        (found,) = shared.search(model[1], [asked[i]], options)
        return found[1]

    with ThreadPoolExecutor(len(asked)) as pool:
        found = dict(enumerate(pool.map(call, range(len(asked)))))
    assert_same(found, expected)


def test_a_request_that_comes_alone_has_a_batch_of_one_row_until_others_come(
    model, plain, monkeypatch
):
    monkeypatch.setattr(live, "IN_FLIGHT", 1)  # another thread would take the others
    shared = Live(plain)
    rows, seen, advance = [], threading.Event(), engine.Batch.advance
    asked = ask()[7:10]
    expected = dict(plain.search(model[1], asked, GREEDY))

    def watched(self, least, most):
        found = list(advance(self, least, 1))  # time for the others to come
        rows.append(self.rows)
        if rows == [1]:
            seen.set()
            assert come.wait(60)
        return iter(found)

    def call(part):
        return dict(shared.search(model[1], part, GREEDY))

    come = threading.Event()
    monkeypatch.setattr(engine.Batch, "advance", watched)
    try:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(call, asked[:1])
            assert seen.wait(60)
            others = pool.submit(call, asked[1:])
            wait_for(lambda: shared._waiting)
            come.set()
            found = {0: first.result(60)[0]}
            found |= {number + 1: one for number, one in others.result(60).items()}
    finally:
        shared.close()
    assert_same(found, expected)
    assert rows[0] == 1 and 8 in rows


@pytest.mark.system
def test_more_requests_than_rows_and_long_beside_short_sources(model, plain, shared):
    asked = ask(count=61, longest=39)
    expected = dict(plain.search(model[1], asked, GREEDY))
    assert_same(dict(shared.search(model[1], asked, GREEDY)), expected)


def test_callers_with_other_numbers_share_a_batch(model, plain, shared, monkeypatch):
    begun = []
    begin = engine.Batch.begin
    monkeypatch.setattr(
        engine.Batch, "begin", lambda self, m: (begun.append(m), begin(self, m))[1]
    )
    monkeypatch.setattr(live, "_rounded", wait_for_all := Gate(live._rounded, 4))
    asked, alphas = ask(count=4), (0.0, 0.4, 0.9, 2.0)
    mixed = [dataclasses.replace(BEAM, alpha=alpha) for alpha in alphas]

    def call(i):
        return dict(shared.search(model[1], [asked[i]], mixed[i]))[0]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(call, range(4)))
    assert wait_for_all.passed == 4
    assert len(begun) < 4  # some were together
    for i, options in enumerate(mixed):
        expected = dict(plain.search(model[1], [asked[i]], options))
        assert_same({0: found[i]}, expected)


class Gate:
    """Call a function in several threads, and return when all have."""

    def __init__(self, function, count):
        self.function, self.passed = function, 0
        self.barrier = threading.Barrier(count)

    def __call__(self, *args):
        found = self.function(*args)
        self.passed += 1
        self.barrier.wait(10)
        return found


@pytest.mark.parametrize("options", KINDS)
def test_a_watched_answer_only_grows_and_ends_as_the_answer(model, shared, options):
    asked, seen, ends = ask(count=7), {i: [] for i in range(7)}, {}

    def watch(request, tokens, ended):
        if ended:
            ends[request.seed] = tokens
        else:
            seen[request.seed].append(tokens)

    with live.Caller(watch).searching():
        found = dict(shared.search(model[1], asked, options))
    assert any(len(texts) > 1 for texts in seen.values())
    for number, texts in seen.items():
        for before, after in zip([[], *texts], texts, strict=False):
            assert after[: len(before)] == before
        assert ends[number] == found[number][0].tokens
        for hypothesis in found[number]:
            written = texts[-1] if texts else []
            assert list(hypothesis.tokens[: len(written)]) == written


def test_a_caller_is_cancelled_by_another_thread(model, shared):
    caller = live.Caller()
    with caller.searching():
        searching = shared.search(model[1], ask(count=24), GREEDY)
        next(searching)
        threading.Thread(target=caller.cancel).start()
        with pytest.raises(live.Cancelled):
            list(searching)
            list(shared.search(model[1], ask(count=2), GREEDY))  # or the next one
    assert len(dict(shared.search(model[1], ask(count=2), GREEDY))) == 2


def test_a_caller_that_leaves_frees_its_rows(model, plain, shared):
    asked = ask(count=24)
    expected = dict(plain.search(model[1], asked[:3], GREEDY))
    for _ in range(3):
        leaving = shared.search(model[1], asked, GREEDY)
        next(leaving)
        leaving.close()
    assert_same(dict(shared.search(model[1], asked[:3], GREEDY)), expected)
    assert not any(shared._waiting.values())


@pytest.mark.system
def test_lengths_that_callers_choose_are_limits_of_rows_and_not_programs(
    model, plain, shared
):
    asked = ask(count=9)
    for most in (2, 5, 11):
        options = dataclasses.replace(GREEDY, max_length=most)
        expected = dict(plain.search(model[1], asked, options))
        found = dict(shared.search(model[1], asked, options))
        assert_same(found, expected)
        assert max(len(h[0].tokens) for h in found.values()) <= most
    kinds = {live._rounded(asked[0], dataclasses.replace(GREEDY, max_length=n))[1]
             for n in range(1, 13)}  # fmt: skip
    assert len(kinds) == 1


@pytest.mark.slow
def test_many_kinds_of_searches_all_get_their_turn(model, plain, shared):
    kinds = [dataclasses.replace(GREEDY, no_repeat=n) for n in (0, 2, 3, 4, 5)]

    def call(options):
        return dict(shared.search(model[1], ask(count=5), options))

    with ThreadPoolExecutor(len(kinds)) as pool:
        found = list(pool.map(call, kinds))
    for options, mine in zip(kinds, found, strict=True):
        assert_same(mine, dict(plain.search(model[1], ask(count=5), options)))


def test_turns_of_a_sliding_window_are_not_ended(model, plain, shared):
    options = dataclasses.replace(GREEDY, max_length=10)
    turn = [dataclasses.replace(one, limit=11) for one in ask(count=5)]
    expected = dict(plain.search(model[1], turn, options))
    assert any(found[0].tokens[-1] != EOS for found in expected.values())
    assert_same(dict(shared.search(model[1], turn, options)), expected)


def waiting(model, asked, sizes=(4, 4)):
    """A search without threads, in which requests wait by their kinds."""
    shared = object.__new__(Live)
    shared.engine = Engine(model[0], sharding.local_mesh(), *sizes)
    shared._held = [collections.Counter(), collections.Counter()]
    shared._waiting = {}
    for kind, count in asked.items():
        request = DecodeRequest([5] * max(kind.source - 1, 1) + [EOS], (), seed=0)
        told = queue.SimpleQueue()
        shared._waiting[kind] = collections.deque(
            live._Entry(request, GREEDY, model[1], i, told, False) for i in range(count)
        )
    return shared


def kind_of(name, source=32):
    return live._Kind(name, GREEDY, None, source)


def given(shared, batches=()):
    found = shared._give(batches)
    return [(batch.kind.params, len(entries)) for batch, entries in found]


def test_kinds_that_are_always_full_leave_room_for_others(model):
    shared = waiting(model, {kind_of(i): 9 for i in range(6)})
    assert given(shared) == [(i, 4) for i in range(4)]
    assert given(shared) == [(i, 4) for i in (4, 5, 0, 1)]


def test_threads_share_what_waits_and_what_is_answered_evenly(model):
    shared = waiting(model, {kind_of(0): 11}, sizes=(16, 2))
    assert given(shared) == [(0, 6)]
    shared._held[0][kind_of(0)] = 6
    assert given(shared) == [(0, 5)]
    shared = waiting(model, {kind_of(0): 1}, sizes=(16, 2))  # with others, if there are
    shared._held[1][kind_of(0)] = 5
    assert given(shared) == [(0, 1)]


def test_short_sources_join_the_next_longer_ones_if_they_are_no_more(model):
    short, long, longest = (kind_of(0, n) for n in (32, 64, 128))

    def batches_of(counts, held=()):
        shared = waiting(model, counts, sizes=(16, 8))
        shared._held[1].update(dict(held))
        found = shared._give([])
        return [(batch.kind.source, len(entries)) for batch, entries in found]

    assert batches_of({short: 2, long: 3, longest: 1}) == [(64, 5), (128, 1)]
    assert batches_of({short: 4, long: 3}) == [(32, 4), (64, 3)]
    assert batches_of({short: 4}, {long: 4}) == [(64, 4)]
    assert batches_of({short: 4}, {short: 9, long: 4}) == [(32, 4)]


def test_a_busy_thread_leaves_few_requests_to_a_small_batch_of_another(model):
    kind, other = kind_of(0), kind_of(1)

    def taken_by(count, busy, held):
        shared = waiting(model, {kind: count}, sizes=(16, 4))
        shared._held[1][kind] = held
        return given(shared, [live._Shared(shared.engine, other)] if busy else [])

    assert taken_by(2, busy=True, held=2) == []
    assert taken_by(2, busy=False, held=2) == [(0, 2)]
    assert taken_by(2, busy=True, held=0) == [(0, 2)]
    assert taken_by(3, busy=True, held=2) == [(0, 3)]


def test_a_batch_with_idle_rows_looks_more_often_for_requests(model, monkeypatch):
    steps, advance = [], engine.Batch.advance

    def note(batch, least, most):
        steps.append(most)
        return advance(batch, least, most)

    monkeypatch.setattr(engine.Batch, "advance", note)
    made = Engine(model[0], sharding.local_mesh(), 4, 4)
    for count in (4, 2):
        entries = [
            live._Entry(
                *live._rounded(one, GREEDY), model[1], i, queue.SimpleQueue(), False
            )
            for i, one in enumerate(ask(count=count))
        ]
        batch = live._Shared(made, entries[0].kind)
        with jax.set_mesh(made.mesh):
            batch.take(entries)
            batch.advance()
    assert steps == [live.STEPS, live.FEW]


def test_few_requests_wait_for_others_but_not_for_long(model):
    """To read one source takes as long as to read several."""
    kind = kind_of(0)
    shared = waiting(model, {kind: 1}, sizes=(16, 2))
    batch = live._Shared(shared.engine, kind)
    batch._batch = engine.Batch(shared.engine, model[1], {}, GREEDY, 16)
    batch._batch.places = np.full(16, -1)
    for _ in range(live.PATIENCE):
        assert given(shared, [batch]) == []
    assert given(shared, [batch]) == [(0, 1)]


def test_no_program_is_compiled_after_those_of_a_kind_were(model, monkeypatch):
    fresh, used = Engine(model[0], sharding.local_mesh(), 16, 8), set()
    call = Program.__call__

    def note(program, *args, **static):
        used.add((program._function.__name__, program._key(args, static)))
        return call(program, *args, **static)

    monkeypatch.setattr(Program, "__call__", note)
    shared = Live(fresh)
    try:
        asked = ask(count=40, longest=20)
        shared.compile(model[1], asked[0], GREEDY)
        before = set(used)
        names = [name for name, _ in before]
        assert names.count("_advance_search") == 2 * len(fresh.live_sizes)
        with ThreadPoolExecutor(len(asked)) as pool:
            found = pool.map(
                lambda r: dict(shared.search(model[1], [r], GREEDY)), asked
            )
            assert all(len(hypotheses[0]) == 1 for hypotheses in found)
        assert {name for name, _ in used - before} == set()
    finally:
        shared.close()


def test_sources_are_read_with_few_idle_rows():
    split = [len(part) for part in live._split(list(range(77)), [8, 32, 128])]
    assert split == [32, 32, 8, 5]


def test_an_error_reaches_its_caller_and_the_next_one_is_answered(
    model, shared, monkeypatch
):
    def refuse(*args):
        raise UserError("too little memory")

    with monkeypatch.context() as patched:
        patched.setattr(engine.Batch, "check_memory", refuse)
        with pytest.raises(UserError, match="too little memory"):
            list(shared.search(model[1], ask(count=2), GREEDY))
    with monkeypatch.context() as patched:
        patched.setattr(engine.Batch, "begin", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            list(shared.search(model[1], ask(count=2), GREEDY))
    assert len(dict(shared.search(model[1], ask(count=2), GREEDY))) == 2


def test_a_closed_search_refuses_requests_and_ends_its_threads(model, plain):
    shared = Live(plain)
    assert len(dict(shared.search(model[1], ask(count=2), GREEDY))) == 2
    shared.close()
    assert not any(worker.is_alive() for worker in shared._workers)
    with pytest.raises(UserError, match="has been closed: it takes no requests"):
        list(shared.search(model[1], ask(count=2), GREEDY))


def test_several_devices_are_refused(model):
    several = Engine(model[0], sharding.local_mesh(2), 16, 8)
    with pytest.raises(UserError, match="are searched on one device, but the mesh"):
        Live(several)
