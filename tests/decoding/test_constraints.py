"""Searching among trees, and without some tokens: all else can be written.

The model's next token depends on everything that it has read. The best trees must equal
those of an enumeration of all trees.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.base.ids import BOS, EOS
from transformer_jax.decoding import Options
from transformer_jax.decoding.searches.beam import BeamSearch
from transformer_jax.decoding.searches.constraints import Suppression, TreeConstraint
from transformer_jax.decoding.searches.sampling import SamplingSearch
from transformer_jax.decoding.searching import BoundModel, DecodeInputs, run

A, B, CLOSE_A, CLOSE_B, X, Y, LEAD, INNER = range(4, 12)
PAIRS = ((A, CLOSE_A), (B, CLOSE_B))
V, STATES = 13, 10_007
RNG = np.random.default_rng(3)
TABLE = np.float32(RNG.normal(size=(STATES, V)) * 2)
# Rows: tokens between brackets, whether a bracket may precede each, the limit.
ROWS = [
    ((X,), (True,), 7),
    ((X, Y), (True, True), 7),
    ((X, Y), (True, True), 5),  # room for the smallest tree only
    ((LEAD, X, INNER, Y), (False, True, False, True), 9),
    ((X, INNER), (True, False), 8),
]


def start(batch, length):
    return {}, jnp.zeros((batch["rows"].shape[0], 1), jnp.int32)


def extend(tokens, positions, static, state):
    """The state is a hash of what was read."""
    codes = []
    for token in jnp.moveaxis(tokens, -1, 0):
        state = (state * 31 + token + 7) % STATES
        codes.append(state)
    return jnp.asarray(TABLE)[jnp.stack(codes, axis=-1)], state


def question(rows):
    width = max(len(outline) for outline, _, _ in rows)
    outline = np.zeros((len(rows), width), np.int32)
    begins = np.zeros((len(rows), width), bool)
    for i, (tokens, flags, _) in enumerate(rows):
        outline[i, : len(tokens)], begins[i, : len(flags)] = tokens, flags
    return DecodeInputs(
        jnp.full((len(rows), 1), BOS),
        jnp.ones(len(rows), jnp.int32),
        jnp.asarray([limit for _, _, limit in rows]),
        jnp.arange(len(rows)),
        {"outline": jnp.asarray(outline), "begins": jnp.asarray(begins)},
    )


@functools.cache
def compiled(search):
    def call(asked):
        batch = {"rows": asked.limits}
        return run(search, BoundModel(start, extend), batch, asked, 9)

    return jax.jit(call)


def search(rows, **options):
    kind = (
        SamplingSearch if options.get("sample") or options["beams"] == 1 else BeamSearch
    )
    return jax.device_get(
        compiled(kind(Options(**options), TreeConstraint(PAIRS)))(question(rows))
    )


def written(found, row):
    return [
        tuple(map(int, found.tokens[row, k, : found.lengths[row, k]]))
        for k, score in enumerate(found.scores[row])
        if np.isfinite(score)
    ]


def is_tree(tokens, outline, begins):
    """Whether tokens are one tree over the outline, then an end; a slow reference."""
    *body, end = tokens
    openers, closers = dict(PAIRS), {b: a for a, b in PAIRS}
    if end != EOS or EOS in body:
        return False
    stack, left, flags, whole = [], list(outline), list(begins), False
    for i, token in enumerate(body):
        if whole:
            return False
        bracket = token in openers or token in closers
        if bracket and left and not flags[0]:
            return False  # inside a word, or before the text begins
        if token in openers:
            if not left:
                return False
            stack.append(token)
        elif token in closers:
            if not stack or stack.pop() != closers[token] or body[i - 1] in openers:
                return False
            whole = not stack
        else:
            if not left or token != left.pop(0) or (flags.pop(0) and not stack):
                return False
    return whole and not left


@functools.cache
def trees(outline, begins, limit):
    """All trees, by trying every sequence of their possible tokens."""
    tokens = sorted({*outline, *itertools.chain(*PAIRS)})
    return [
        (*body, EOS)
        for size in range(len(outline) + 2, limit)
        for body in itertools.product(tokens, repeat=size)
        if tuple(t for t in body if t in outline) == outline
        and is_tree((*body, EOS), outline, begins)
    ]


def log_prob(tokens, outline, begins):
    """The log-probability of a tree given its words: of each choice of a bracket."""
    state, total, words = (BOS + 7) % STATES, 0.0, 0
    brackets = [*itertools.chain(*PAIRS)]
    for token in tokens:
        chances = np.exp(np.float64(TABLE[state]))
        chances /= chances.sum()
        if token in (*brackets, EOS):
            total += np.log(chances[token])
        else:
            if begins[words]:  # otherwise there is no choice
                total += np.log(1 - chances[[*brackets, EOS]].sum())
            words += 1
        state = (state * 31 + token + 7) % STATES
    return total


SMALL = {  # and how many trees there are, counted by hand
    ((X,), (True,), 7): 6,
    ((X, Y), (True, True), 7): 14,
    ((X, Y), (True, True), 5): 2,
    ((LEAD, X), (False, True), 8): 6,
    ((X, INNER), (True, False), 8): 6,
}


@pytest.mark.parametrize("alpha", [0.0, 0.8])
@pytest.mark.parametrize("row", SMALL)
def test_a_beam_as_wide_as_there_are_trees_finds_all_in_their_order(row, alpha):
    all_trees = trees(*row)
    assert len(all_trees) == SMALL[row]
    found = search([row], beams=64, n_best=64, alpha=alpha)
    answers = written(found, 0)
    scores = {t: log_prob(t, *row[:2]) / ((5 + len(t)) / 6) ** alpha for t in all_trees}
    assert set(answers) == set(all_trees)
    assert answers == sorted(all_trees, key=lambda t: -scores[t])
    best = [scores[t] for t in answers]
    np.testing.assert_allclose(found.scores[0, : len(best)], best, rtol=1e-5)


@pytest.mark.parametrize("options", [
    {"beams": 1}, {"beams": 3}, {"beams": 1, "sample": True, "n_best": 5},
])  # fmt: skip
def test_every_search_writes_only_trees(options):
    rows = ROWS * 7
    found = search(rows, **options)
    for i, (outline, begins, limit) in enumerate(rows):
        answers = written(found, i)
        assert answers
        for answer in answers:
            assert is_tree(answer, outline, begins) and len(answer) <= limit


@pytest.mark.parametrize("sample", [False, True])
def test_a_trees_probability_is_conditioned_on_the_given_words(sample):
    found = search(ROWS, beams=1, sample=sample)
    for i, (outline, begins, _) in enumerate(ROWS):
        [answer] = written(found, i)
        expected = log_prob(answer, outline, begins)
        assert found.log_probs[i, 0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_suppressed_token_is_not_written_or_not_begun_with(beams):
    never = [[A, X], [B, INNER], [Y, 0]]
    first = [[EOS, B, Y, 0], [Y, LEAD, CLOSE_A, 0], [0, 0, 0, 0]]
    asked = question([((), (), 7)] * 3).replace(
        constraint={"never": jnp.asarray(never), "first": jnp.asarray(first)}
    )
    kind = SamplingSearch if beams == 1 else BeamSearch
    options = Options(beams=beams, n_best=beams, alpha=0.0)
    found = jax.device_get(compiled(kind(options, Suppression()))(asked))
    for row in range(3):
        texts = written(found, row)
        assert len(texts) == beams
        for text in texts:
            assert not {*text} & {*never[row]} and text[0] not in first[row]
        if beams == 1:
            assert texts == [greedy([*never[row], 0], first[row])]


def greedy(never, first):
    """The likeliest tokens one after the other, of those that may follow."""
    state, token, text = 0, BOS, []
    while token != EOS and len(text) < 7:
        state = (state * 31 + token + 7) % STATES
        scores = TABLE[state].copy()
        scores[[*never, *(first if not text else ())]] = -np.inf
        token = EOS if len(text) == 6 else int(scores.argmax())
        text.append(token)
    return tuple(text)
