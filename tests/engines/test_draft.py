"""A small run proposes: the answers of greedy search, in fewer passes; refusals."""

import logging
import math
import re
import shutil
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax
from transformer_jax import sharding
from transformer_jax.base.errors import UserError
from transformer_jax.corpora.phrasebook import generate
from transformer_jax.decoding import Options
from transformer_jax.models.cache import KVCache

LINES = [pair.source for pair in generate("test", 7)]
GREEDY = {"beams": 1, "extra_length": 9}


@pytest.fixture(scope="module")
def small(tiny_run, tmp_path_factory):
    """A run with the same tokenizer, and with parameters that often disagree."""
    other = tmp_path_factory.mktemp("small") / "run"
    shutil.copytree(tiny_run, other)
    shutil.rmtree(other / "averaged")
    return other


def open_with(tiny_run, setting):
    return transformer_jax.load(
        tiny_run, mesh=sharding.local_mesh(), engine=f"draft:{setting}"
    )


def passes(caplog):
    """The tokens and the passes that the log tells of."""
    found = re.findall(r"draft: ([\d,]+) tokens in ([\d,]+) passes", caplog.text)
    return tuple(int(number.replace(",", "")) for number in found[-1])


@pytest.mark.parametrize(
    "changes",
    [{}, {"no_repeat": 2, "min_length": 4}, {"max_length": 3}],
    ids=["plain", "rules", "limit"],
)
def test_answers_are_those_of_greedy_search(tiny_run, small, changes, caplog):
    caplog.set_level(logging.INFO, logger="transformer_jax")
    run = open_with(tiny_run, f"{small},3")
    plain = transformer_jax.load(tiny_run, mesh=sharding.local_mesh())
    options = GREEDY | changes
    found, expected = (one.replies([*LINES, ""], **options) for one in (run, plain))
    assert [reply.text for reply in found] == [reply.text for reply in expected]
    scores = [[reply.score for reply in one] for one in (found, expected)]
    np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-5)
    tokens, rounds = passes(caplog)
    assert tokens == sum(reply.pieces for reply in expected)
    assert tokens / 4 <= rounds <= tokens


def test_an_answer_may_begin_with_a_prefix(tiny_run, small):
    run = open_with(tiny_run, small)
    plain = transformer_jax.load(tiny_run, mesh=sharding.local_mesh())
    prefixes = ["the cat", "", "a"]
    found, expected = (
        one.replies(LINES[:3], prefixes=prefixes, **GREEDY) for one in (run, plain)
    )
    assert [reply.text for reply in found] == [reply.text for reply in expected]


def test_a_model_that_proposes_for_itself_is_never_corrected(tiny_run, caplog):
    caplog.set_level(logging.INFO, logger="transformer_jax")
    run = open_with(tiny_run, f"{tiny_run},4")
    found = run.replies(LINES, **GREEDY)
    wanted = sum(math.ceil(reply.pieces / 5) for reply in found)
    # It does not propose the end that the limit of an answer forces.
    assert wanted <= passes(caplog)[1] <= wanted + len(LINES)


def test_a_caller_that_stops_early_waits_for_no_other_line(tiny_run, small):
    run = open_with(tiny_run, small)
    engine, inference = run.task.inference.writer.other, run.task.inference
    asked, search, searched = (
        [inference.parse(line) for line in LINES],
        engine._answer,
        [],
    )

    def answer(params, request, options):
        searched.append(request)
        return search(params, request, options)

    engine._answer = answer
    found = engine.search(run.params, asked, Options(**GREEDY))
    assert next(found)[0] == 0
    found.close()
    count = len(searched)
    assert count < len(asked)
    # No thread goes on.
    assert not [t for t in threading.enumerate() if "ThreadPool" in t.name]
    assert len(searched) == count


def test_a_cache_forgets_its_newest_slots():
    cache = KVCache.empty(1, 2, 1, 7, (1, 2, 2), jnp.float32)
    layer = cache.layers[0]

    def read(cache, length, first):
        positions = jnp.broadcast_to(first + jnp.arange(length), (2, 1, length))
        begun = cache.begin_step(positions)
        new = jax.tree.map(lambda a: jnp.full((2, 1, length, 2), first), layer)
        return begun.end_step((begun.write(layer, new),), None, positions)

    once = read(cache, 3, 0)
    again = read(once, 2, 3).forget(jnp.int32(2))
    np.testing.assert_array_equal(again.positions, once.positions)
    assert again.next == once.next == 3
    np.testing.assert_array_equal(
        read(again, 1, 3).positions[0], [0, 1, 2, 3, -1, -1, -1]
    )


def test_what_cannot_be_searched_so_is_refused(tiny_run, small):
    for setting in ("", f"{small},0", f"{small},33"):
        with pytest.raises(UserError, match="name the small run, and with it how many"):
            open_with(tiny_run, setting)
    run = open_with(tiny_run, small)
    with pytest.raises(UserError, match="searches greedily, and beams=2 asks for"):
        run.predict("a", beams=2)
    with pytest.raises(UserError, match="searches greedily, and sample asks for"):
        run.predict("a", beams=1, sample=True)
    with pytest.raises(UserError, match="answers on one device, not on 2"):
        transformer_jax.load(
            tiny_run, mesh=sharding.local_mesh(2), engine=f"draft:{small}"
        )


@pytest.mark.system
def test_runs_that_cannot_propose_are_refused(tiny_run, quick_run_of):
    recurrent = quick_run_of("recurrent:gru", **{"tokenizer.vocab_size": "420"})
    with pytest.raises(UserError, match="whose state cannot forget tokens|tokenizer"):
        open_with(recurrent, recurrent)
    with pytest.raises(UserError, match="cannot propose what .* writes: its task is"):
        open_with(tiny_run, quick_run_of("opinions"))
