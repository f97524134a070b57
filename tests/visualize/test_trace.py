"""A trace ends with the answer of the engine, and shows how it was found."""

import numpy as np
import pytest

from transformer_jax.runs import run as runs
from transformer_jax.visualize.viewer.trace import trace


@pytest.fixture(scope="module")
def run(tiny_run):
    from transformer_jax import sharding

    return runs.load(tiny_run, mesh=sharding.local_mesh(1))


LINE = "O gato dorme no sofá."


def traced(run, **changes):
    options = runs.decode_options(run.config, **changes)
    request = run.task.inference.parse(LINE, options=options)
    engine = run.task.inference.writer.engine(run.mesh)
    steps = trace(engine, run.params, request, options, candidates=5)
    [(_, found)] = engine.search(run.params, [request], options)
    return steps, found, options


@pytest.mark.parametrize(
    "changes",
    [
        {"beams": 3, "n_best": 2},
        {"beams": 1},
        {"sample": True, "n_best": 3, "seed": 5},
        # Room for 12 + 16 tokens at first; the cache grows.
        {"beams": 2, "min_length": 30, "max_length": 31},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_the_last_step_has_the_hypotheses_that_the_engine_finds(run, changes):
    steps, found, options = traced(run, **changes)
    assert list(steps[-1].finished[: len(found)]) == found
    assert len(found) == options.n_best


def test_a_step_continues_the_one_before_by_the_likeliest_candidates(run):
    steps, _, _ = traced(run, beams=3)
    assert steps[0].living[0].tokens == () and len(steps[0].living) == 1
    for before, after in zip(steps, steps[1:], strict=False):
        totals = {
            (*one.tokens, token): one.log_prob + gain
            for one in before.living
            for token, gain in one.candidates
        }
        finished = set(after.finished) - set(before.finished)
        chosen = [*after.living, *finished]
        for one in chosen:
            np.testing.assert_allclose(totals[one.tokens], one.log_prob, rtol=1e-5)
        width = 3 - len(before.finished)
        best = sorted(totals.values(), reverse=True)[:width]
        if after.living:  # the last step may empty a beam that is decided
            written = sorted((one.log_prob for one in chosen), reverse=True)
            np.testing.assert_allclose(written, best, rtol=1e-5)


def test_candidates_are_likeliest_first(run):
    steps, _, _ = traced(run, beams=2)
    for step in steps[:5]:  # before the limit, where a text must end
        for one in step.living:
            gains = [gain for _, gain in one.candidates]
            assert len(gains) == 5 and gains == sorted(gains, reverse=True)
            assert np.exp(gains).sum() < 1 + 1e-5
