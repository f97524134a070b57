"""Answers that include given phrases: against every sequence, and a slow reference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_search import (
    ALPHAS,
    EVERYTHING,
    LIMIT,
    QUESTIONS,
    ROWS,
    TOY,
    assert_same,
    by_row,
    exhaustive,
    on_device,
    rank,
    toy_log_probs,
)

from transformer_jax.base.errors import Refused, UserError
from transformer_jax.base.ids import EOS, UNK
from transformer_jax.decoding import Options
from transformer_jax.decoding.requests import DecodeRequest
from transformer_jax.decoding.searches.beam import BeamSearch
from transformer_jax.decoding.searches.inclusion import NUMBERS, PIECES, add_phrases
from transformer_jax.decoding.searching import DecodeInputs, run

PHRASES = [
    [(4,)],
    [(5, 5)],
    [(4, 5), (UNK,)],
    [],
    [(UNK, 4)],
    [(4, 4), (4,)],  # which may overlap
]


def phrases_of(row):
    """The phrases of a row, of fewer pieces than its limit."""
    phrases = PHRASES[row % len(PHRASES)]
    return phrases if sum(map(len, phrases)) < QUESTIONS[3][row] else phrases[:1]


def constraint():
    pieces, numbers = np.zeros((ROWS, 4), np.int32), np.zeros((ROWS, 4), np.int32)
    for row in range(ROWS):
        for at, (piece, number) in enumerate(
            (piece, number)
            for number, phrase in enumerate(phrases_of(row), start=1)
            for piece in phrase
        ):
            pieces[row, at], numbers[row, at] = piece, number
    return {PIECES: jnp.asarray(pieces), NUMBERS: jnp.asarray(numbers)}


@functools.cache
def including(beams, alpha, n_best, **options):
    batch, *question = on_device(QUESTIONS)
    inputs = DecodeInputs(*question, constraint=constraint())
    search = BeamSearch(Options(beams=beams, alpha=alpha, n_best=n_best, **options))
    return by_row(jax.jit(lambda: run(search, TOY, batch, inputs, LIMIT))())


def contains(tokens, phrase):
    size = len(phrase)
    return any(tokens[i : i + size] == phrase for i in range(len(tokens)))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_beam_of_every_prefix_finds_all_texts_with_the_phrases(alpha):
    for row, found in enumerate(including(EVERYTHING, alpha, EVERYTHING)):
        if row % len(PHRASES) == len(PHRASES) - 1:
            continue  # there must be space for phrases that do not overlap
        expected = [
            slot
            for slot in exhaustive(row, alpha)
            if all(contains(slot[0], phrase) for phrase in phrases_of(row))
        ]
        assert expected and len(expected) < EVERYTHING or not phrases_of(row)
        assert_same(found, expected)


def missing(tokens, phrases):
    return [phrase for phrase in phrases if not contains(tokens, phrase)]


def begun(tokens, phrases):
    """How many pieces at the end of a text can be the beginning of a phrase."""
    return max(
        (
            size
            for phrase in phrases
            for size in range(len(phrase) + 1)
            if tokens[len(tokens) - size :] == phrase[:size]
        ),
        default=0,
    )


def owed(tokens, phrases):
    """The pieces of missing phrases, without those that have been begun."""
    left = missing(tokens, phrases)
    return sum(map(len, left)) - begun(tokens, left)


def reference(row, beams, alpha):
    """The search as on paper: the numbers of owed pieces take turns in the beam."""
    offset, prompt, length, limit = (a[row] for a in QUESTIONS)
    prompt, phrases = prompt[:length].tolist(), phrases_of(row)
    living, finished = [((), 0.0)], []
    for step in range(1, limit + 1):
        extensions = []
        for tokens, total in living:
            log_probs = toy_log_probs(offset, [*prompt, *tokens])
            choices = [EOS] if step == limit else [UNK, EOS, 4, 5]
            if owed(tokens, phrases):
                choices.remove(EOS)
            likely = sorted(choices, key=lambda t: -log_probs[t])[:beams]
            for token in choices:
                left = owed((*tokens, token), phrases)
                if token != EOS and left >= limit - step:
                    continue  # no space would be left for the phrases and the end
                asked = begun((*tokens, token), missing(tokens, phrases))
                if token in likely or asked:
                    extension = (*tokens, token), total + log_probs[token]
                    extensions.append((left, extension))
        turns = {}
        for left, extension in sorted(extensions, key=lambda e: -e[1][1]):
            turns.setdefault(left, []).append(extension)
        ordered = sorted(
            (turn, left, extension)
            for left, group in turns.items()
            for turn, extension in enumerate(group)
        )
        best = [e for *_, e in ordered[:beams]][: beams - len(finished)]
        finished += [e for e in best if e[0][-1] == EOS]
        living = [e for e in best if e[0][-1] != EOS]
    return rank(finished, alpha)


@pytest.mark.parametrize(("beams", "alpha"), [(2, 0.6), (3, 0.0), (4, 1.5)])
def test_a_narrow_beam_equals_the_reference_at_every_rank(beams, alpha):
    for row, found in enumerate(including(beams, alpha, beams)):
        assert_same(found, reference(row, beams, alpha))
        for tokens, *_ in found:
            assert all(contains(tokens, phrase) for phrase in phrases_of(row))


class Tokenizer:
    """Pieces are letters, of which z is unknown."""

    def compose(self, text):
        return text

    def find_unknown(self, text):
        return tuple(c for c in text if c == "z")

    def encode_inside(self, text):
        assert text.startswith(" ")  # phrases begin where a word does
        return [ord(c) for c in text[1:]]


def test_phrases_become_arrays_of_the_request_beside_those_that_it_has():
    banned = {"never": np.array([7])}
    request = DecodeRequest((5, 2), constraint=banned)
    found = add_phrases(request, ["ab", "b", "c "], Tokenizer(), Options(), 9)
    assert found.constraint["never"] is banned["never"]
    assert found.constraint[PIECES].tolist() == [97, 98, 99]
    assert found.constraint[NUMBERS].tolist() == [1, 1, 2]


def test_phrases_that_cannot_be_included_are_refused():
    request, tokenizer = DecodeRequest((5, 2)), Tokenizer()
    with pytest.raises(Refused, match="'az' cannot .* does not know 'z'"):
        add_phrases(request, ["az"], tokenizer, Options(), 9)
    with pytest.raises(Refused, match="are 3 pieces, and .* may have 2 besides its en"):
        add_phrases(request, ["ab", "c"], tokenizer, Options(), 3)
    for options in (
        Options(beams=1),
        Options(sample=True),
        Options(beams=4, groups=2),
    ):
        with pytest.raises(UserError, match="set beams to 2 or more"):
            add_phrases(request, ["a"], tokenizer, options, 9)
    given = DecodeRequest((5, 2), constraint={"outline": np.array([1])})
    with pytest.raises(UserError, match="have given words: include none"):
        add_phrases(given, ["a"], tokenizer, Options(), 9)
