"""Sampling and the rules: distributions, seeds, lengths, and no repeated n-grams.

The model is a table: its next token depends only on the last one.
"""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.base.ids import BOS, EOS, PAD
from transformer_jax.decoding import Options
from transformer_jax.decoding.searches.beam import BeamSearch
from transformer_jax.decoding.searches.sampling import SamplingSearch, narrow
from transformer_jax.decoding.searching import BoundModel, DecodeInputs, numbers_of, run

V, LENGTH = 11, 7
TABLE = np.random.default_rng(2).normal(size=(V, V)) * 1.5
TABLE[:, [PAD, BOS]] = -np.inf


def start(batch, length):
    return {}, jnp.zeros((batch["rows"].shape[0], 1))


def extend(tokens, positions, static, state):
    return jnp.asarray(TABLE, jnp.float32)[tokens], state


MODEL = BoundModel(start, extend)


def ask(rows, prompts=None, limits=None, seeds=None):
    prompts = np.full((rows, 1), BOS) if prompts is None else np.asarray(prompts)
    return DecodeInputs(
        jnp.asarray(prompts, jnp.int32),
        jnp.full(rows, prompts.shape[1], jnp.int32),
        jnp.full(rows, LENGTH, jnp.int32) if limits is None else jnp.asarray(limits),
        jnp.arange(rows) if seeds is None else jnp.asarray(seeds),
    )


@functools.cache
def compiled(search):
    def call(question):
        batch = {"rows": question.limits}
        return run(search, MODEL, batch, question, LENGTH)

    return jax.jit(call)


def write(question, **options):
    kind = (
        SamplingSearch
        if options.get("sample") or options.get("beams") == 1
        else BeamSearch
    )
    chosen = Options(**options)
    question = question.with_numbers(chosen)
    found = jax.device_get(compiled(kind(chosen.without_numbers()))(question))
    return [
        [tuple(map(int, t[:n])) for t, n in zip(tokens, lengths, strict=True)]
        for tokens, lengths in zip(found.tokens, found.lengths, strict=True)
    ], found


def test_samples_follow_the_distribution_of_the_model():
    texts, found = write(ask(9001), sample=True, temperature=0.7)
    firsts = collections.Counter(text[0] for (text,) in texts)
    scores = TABLE[BOS] / 0.7
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    for token in range(V):
        error = 5 * np.sqrt(chances[token] / 9001) + 1e-9
        assert firsts[token] / 9001 == pytest.approx(chances[token], abs=error)
    # The model's own probability is reported, whatever distribution was drawn from.
    log_probs = TABLE - np.log(np.exp(TABLE).sum(axis=1, keepdims=True))
    for (text,), (total,) in zip(texts[:50], found.log_probs[:50], strict=True):
        steps = zip((BOS, *text), text, strict=False)
        assert total == pytest.approx(sum(log_probs[a, b] for a, b in steps), rel=1e-4)


def test_a_draw_depends_on_its_seed_and_not_on_its_batch():
    options = {"sample": True, "n_best": 3}
    together, _ = write(ask(5, seeds=[7, 8, 9, 10, 11]), **options)
    alone, _ = write(ask(1, seeds=[9]), **options)
    assert alone[0] == together[2]
    assert len({tuple(row) for row in together}) == 5
    assert len(set(together[0] + together[1])) > 3  # those of one row also differ
    other, _ = write(ask(1, seeds=[9]), **options, seed=1)
    assert other != alone


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 3}, [0.4, 0.3, 0.15]),
        ({"top_p": 0.69}, [0.4, 0.3]),
        ({"top_p": 0.71}, [0.4, 0.3, 0.15]),
        ({"top_p": 0.1}, [0.4]),
        ({"min_p": 0.3}, [0.4, 0.3, 0.15]),
        ({"min_p": 1.0}, [0.4]),
        ({"top_k": 4, "min_p": 0.5}, [0.4, 0.3]),
        ({}, [0.4, 0.3, 0.15, 0.1, 0.05]),
    ],
)
def test_unlikely_tokens_can_be_cut_off(options, kept):
    chances = jnp.array([0.05, 0.3, 0.15, 0.4, 0.1])
    chosen = Options(sample=True, **options)
    numbers = numbers_of(chosen, 1)
    scores = narrow(jnp.log(chances)[None, None], chosen.without_numbers(), numbers)
    left = np.asarray(chances)[np.isfinite(np.asarray(scores))[0, 0]]
    assert sorted(left.tolist(), reverse=True) == pytest.approx(kept)


def test_a_draw_at_low_temperature_is_the_most_likely():
    cold, _ = write(ask(13), sample=True, temperature=1e-4)
    greedy, _ = write(ask(13), beams=1)
    assert cold == greedy


@pytest.mark.parametrize("kind", [{"beams": 1}, {"beams": 3}, {"sample": True}])
@pytest.mark.parametrize("rule", ["least", "most", "repeat"])
def test_the_rules_hold_for_every_search(kind, rule):
    limits = np.array([1, 2, 5, LENGTH] * 5)
    options = {"least": {"min_length": 4}, "most": {}, "repeat": {"no_repeat": 2}}[rule]
    texts, found = write(ask(20, limits=limits), **kind, **options)
    for row, limit, scores in zip(texts, limits, found.scores, strict=True):
        for text, score in zip(row, scores, strict=True):
            if not np.isfinite(score):
                continue
            assert text[-1] == EOS and len(text) <= limit
            if rule == "least":
                assert len(text) >= min(4, limit)
            if rule == "repeat":
                pairs = list(zip(text, text[1:-1], strict=False))
                assert len(pairs) == len(set(pairs))


def test_without_the_rule_pairs_do_repeat():
    texts, _ = write(ask(200), sample=True, temperature=0.5)
    pairs = [list(zip(t, t[1:-1], strict=False)) for (t,) in texts]
    assert any(len(p) > len(set(p)) for p in pairs)


def test_no_repetition_takes_the_most_likely_token_that_is_left():
    (text,), _ = write(ask(1), beams=1, no_repeat=1, min_length=LENGTH)
    seen: set[int] = set()
    last, expected = BOS, []
    for _ in range(LENGTH - 1):
        scores = TABLE[last].copy()
        scores[[EOS, *seen]] = -np.inf
        last = int(scores.argmax())
        seen.add(last)
        expected.append(last)
    assert list(text[0]) == [*expected, EOS]


@pytest.mark.parametrize("kind", [{"beams": 1}, {"beams": 3}, {"sample": True}])
def test_n_grams_of_the_prompt_are_not_repeated_either(kind):
    """Prompts of unequal length: their windows end where they do."""
    prompts = np.array([[BOS, 5, 9, 5, 4], [BOS, 7, 4, PAD, PAD], [BOS, 6, 6, 8, PAD]])
    lengths = np.array([5, 3, 4])
    asked = ask(3, prompts=prompts)
    asked = asked.replace(prompt_lengths=jnp.asarray(lengths, jnp.int32))
    for n in (1, 2):
        texts, _ = write(asked, **kind, no_repeat=n)
        for prompt, length, row in zip(prompts, lengths, texts, strict=True):
            given = prompt[1:length].tolist()
            for text in row:
                whole = [*given, *(t for t in text if t != EOS)]
                windows = [tuple(whole[i : i + n]) for i in range(len(whole) - n + 1)]
                own = windows[len(given) - n + 1 :]  # n-grams that end in the answer
                before = windows[: len(given) - n + 1]
                assert len(set(own)) == len(own) and not set(own) & set(before)


def test_a_greedy_score_is_penalised_as_that_of_a_beam_and_a_drawn_one_is_not():
    texts, greedy = write(ask(9), beams=1, alpha=0.7)
    lengths = np.array([len(row[0]) for row in texts])
    penalty = ((5 + lengths) / 6) ** 0.7
    np.testing.assert_allclose(
        greedy.scores[:, 0], greedy.log_probs[:, 0] / penalty, rtol=1e-6
    )
    _, drawn = write(ask(9), sample=True, alpha=0.7)
    np.testing.assert_array_equal(drawn.scores, drawn.log_probs)


def test_an_answer_continues_its_forced_prefix():
    prompts = [[BOS, 5, 9], [BOS, 7, 4]]
    texts, _ = write(ask(2, prompts=prompts), beams=1)
    assert [row[0][0] for row in texts] == [TABLE[9].argmax(), TABLE[4].argmax()]


def test_a_row_with_limit_zero_costs_no_step():
    _, found = write(ask(3, limits=[LENGTH, 0, LENGTH]), beams=1)
    assert found.lengths[:, 0].tolist()[1] == 0
    _, found = write(ask(3, limits=[LENGTH, 0, LENGTH]), beams=3)
    assert not np.isfinite(found.scores[1]).any()
