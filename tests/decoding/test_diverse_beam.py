"""Groups of a beam that differ, against a slow reference."""

import functools

import jax
import numpy as np
import pytest
from test_search import (
    LIMIT,
    QUESTIONS,
    TOY,
    assert_same,
    by_row,
    on_device,
    rank,
    toy_beam,
    toy_log_probs,
)

from transformer_jax.base.ids import EOS, UNK
from transformer_jax.decoding import Options
from transformer_jax.decoding.searches.beam import BeamSearch
from transformer_jax.decoding.searching import DecodeInputs, run


@functools.cache
def apart(beams, groups, diversity, n_best, alpha=0.6):
    batch, *question = on_device(QUESTIONS)
    options = Options(
        beams=beams, groups=groups, diversity=diversity, n_best=n_best, alpha=alpha
    )
    inputs = DecodeInputs(*question)
    return by_row(
        jax.jit(lambda: run(BeamSearch(options), TOY, batch, inputs, LIMIT))()
    )


def reference(row, beams, groups, diversity, alpha=0.6):
    """Diverse beam search as on paper, without stopping early."""
    offset, prompt, length, limit = (a[row] for a in QUESTIONS)
    prompt, size = prompt[:length].tolist(), beams // groups
    living = [[((), 0.0, 0.0)] for _ in range(groups)]  # tokens, total, lost
    finished = [[] for _ in range(groups)]
    for step in range(1, limit + 1):
        taken = []  # by earlier groups in this step
        for group in range(groups):
            extensions = []
            for tokens, total, lost in living[group]:
                log_probs = toy_log_probs(offset, [*prompt, *tokens])
                for t in (EOS,) if step == limit else (UNK, EOS, 4, 5):
                    loss = lost + diversity * taken.count(t)
                    extensions.append(((*tokens, t), total + log_probs[t], loss))
            extensions.sort(key=lambda e: e[2] - e[1])
            best = extensions[: size - len(finished[group])]
            finished[group] += [e for e in best if e[0][-1] == EOS]
            living[group] = [e for e in best if e[0][-1] != EOS]
            taken += [e[0][-1] for e in best]
    found = {e[0]: e[1] for group in finished for e in group}  # each one once
    return rank(list(found.items()), alpha)


@pytest.mark.parametrize(
    ("beams", "groups", "diversity"), [(4, 2, 0.5), (3, 3, 1.0), (6, 3, 0.2)]
)
def test_groups_find_what_the_reference_finds(beams, groups, diversity):
    once = 0
    for row, found in enumerate(apart(beams, groups, diversity, beams)):
        assert_same(found, reference(row, beams, groups, diversity))
        once += len(found) < beams
    assert once  # of some rows, two groups have found the same


def test_stopping_early_never_changes_the_best():
    shortened = 0
    for row, found in enumerate(apart(4, 2, 0.5, 1)):
        expected = reference(row, 4, 2, 0.5)
        assert_same(found[:1], expected[:1])
        shortened += len(found) < len(expected)
    assert shortened


def test_without_a_loss_every_group_is_a_beam_of_its_own():
    for found, narrow in zip(apart(4, 2, 0.0, 4), toy_beam(2, 0.6, 2), strict=True):
        assert_same(found, narrow)


def test_a_larger_loss_makes_answers_that_differ_more():
    def distinct(diversity):
        """Mean share of first tokens that are not those of another answer."""
        firsts = [
            {tokens[0] for tokens, *_ in row} for row in apart(4, 4, diversity, 4)
        ]
        return np.mean([len(first) for first in firsts])

    assert distinct(0.0) == 1 < distinct(0.5) < distinct(5.0)


def test_groups_divide_a_beam_that_searches():
    assert not Options(beams=6, groups=3).find_problems()
    [problem] = Options(beams=4, groups=3).find_problems()
    assert "decode.groups 3 must divide decode.beams 4" in problem
    assert Options(beams=4, groups=2, sample=True).find_problems()
