"""Greedy and beam search against exhaustive search, slow references and full forwards.

Most searches run over a toy model, a table indexed by everything it has read: it shows
any history that is gathered, cut or padded wrongly, and takes no time.
"""

import functools
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.base.ids import BOS, EOS, PAD, UNK
from transformer_jax.decoding import Options
from transformer_jax.decoding.searches.beam import BeamSearch
from transformer_jax.decoding.searches.sampling import SamplingSearch
from transformer_jax.decoding.searching import BoundModel, DecodeInputs, bind, run, tile
from transformer_jax.models.transformer import LanguageModel, Seq2Seq
from transformer_jax.models.transformer_config import TransformerConfig

V, LIMIT, ROWS = 6, 4, 61
STATES = 20_011  # so many that all histories differ
RNG = np.random.default_rng(0)
WEIGHTS = RNG.integers(1, STATES, size=64)
TABLE = RNG.normal(size=(STATES, V)) * 2
TABLE[:, [PAD, BOS]] = -np.inf


def toy_start(batch, length):
    return batch["offset"], jnp.zeros((len(batch["offset"]), 1, length), jnp.int32)


def toy_extend(tokens, positions, static, state):
    rows, beams, slots = state.shape
    row, beam = jnp.arange(rows)[:, None, None], jnp.arange(beams)[None, :, None]
    state = state.at[row, beam, positions].set(tokens, mode="drop")
    seen = jnp.arange(slots) <= positions[..., None]
    code = ((state[:, :, None] + 1) * jnp.asarray(WEIGHTS[:slots]) * seen).sum(-1)
    code = (code + static[:, None, None]) % STATES
    return jnp.asarray(TABLE, jnp.float32)[code], state


TOY = BoundModel(toy_start, toy_extend)


def greedy(model, batch, prompt, prompt_lengths, limits, length):
    question = DecodeInputs(prompt, prompt_lengths, limits)
    return run(SamplingSearch(Options(beams=1)), model, batch, question, length)


def beam_search(model, batch, prompt, prompt_lengths, limits, length, *options):
    names = ("beams", "alpha", "n_best")
    search = BeamSearch(Options(**dict(zip(names, options, strict=False))))
    return run(
        search, model, batch, DecodeInputs(prompt, prompt_lengths, limits), length
    )


def toy_log_probs(offset, history):
    """The same model, one history at a time, in float64."""
    code = sum((t + 1) * w for t, w in zip(history, WEIGHTS, strict=False)) + offset
    row = TABLE[code % STATES]
    return row - np.log(np.exp(row).sum())


def toy_questions(rows=ROWS):
    """Offsets, prompts of unequal length, and limits: each row is its own problem."""
    rng = np.random.default_rng(1)
    lengths = np.arange(rows) % 3 + 1
    prompts = rng.integers(4, V, size=(rows, 3))
    prompts[:, 0] = BOS
    prompts[np.arange(3) >= lengths[:, None]] = PAD
    limits = LIMIT - np.arange(rows) % 4 // 3  # every fourth is shorter
    return rng.integers(0, STATES, size=rows), prompts, lengths, limits


QUESTIONS = toy_questions()


def on_device(questions):
    offset, *rest = (jnp.asarray(a, jnp.int32) for a in questions)
    return {"offset": offset}, *rest


def by_row(found):
    """[(tokens, log-probability, score), …] of each row, in order."""
    found = jax.device_get(found)
    columns = (found.tokens, found.lengths, found.log_probs, found.scores)
    rows = []
    for row in zip(*columns, strict=True):
        slots = [
            (tuple(tokens[:length].tolist()), log_prob, score)
            for tokens, length, log_prob, score in zip(*row, strict=True)
        ]
        rows.append([slot for slot in slots if np.isfinite(slot[2])])
    return rows


@functools.cache
def toy_search(*options):
    """A compiled search: beam search with these options, or greedy search with none."""
    search = beam_search if options else greedy
    return jax.jit(lambda *questions: search(TOY, *questions, LIMIT, *options))


@functools.cache
def toy_beam(beams, alpha, n_best):
    return by_row(toy_search(beams, alpha, n_best)(*on_device(QUESTIONS)))


def rank(finished, alpha):
    """Ended hypotheses (tokens, log-probability), best first, with their scores."""
    scored = [(t, p, p / ((5 + len(t)) / 6) ** alpha) for t, p in finished]
    return sorted(scored, key=lambda slot: -slot[2])


def assert_same(found, expected):
    assert [slot[0] for slot in found] == [slot[0] for slot in expected]
    for column in (1, 2):
        np.testing.assert_allclose(
            [slot[column] for slot in found],
            [slot[column] for slot in expected],
            rtol=1e-5,
            atol=1e-5,
        )


def exhaustive(row, alpha):
    """Every sequence that ends within the limit."""
    offset, prompt, length, limit = (a[row] for a in QUESTIONS)
    prompt = prompt[:length].tolist()
    finished = []
    for size in range(limit):
        for words in itertools.product([UNK, 4, 5], repeat=size):
            tokens, total = (*words, EOS), 0.0
            for i, token in enumerate(tokens):
                total += toy_log_probs(offset, [*prompt, *tokens[:i]])[token]
            finished.append((tokens, total))
    return rank(finished, alpha)


ALPHAS = (-1.0, 0.0, 0.6, 1.5)
EVERYTHING = 1 + 3 + 9 + 27  # the sequences of at most 3 tokens, and their end


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_beam_that_holds_every_prefix_is_exhaustive_search(alpha):
    for row, found in enumerate(toy_beam(EVERYTHING, alpha, EVERYTHING)):
        expected = exhaustive(row, alpha)
        assert len(expected) == (EVERYTHING if QUESTIONS[3][row] == LIMIT else 13)
        assert_same(found, expected)


def reference(row, beams, alpha):
    """Beam search as written on paper, without stopping early."""
    offset, prompt, length, limit = (a[row] for a in QUESTIONS)
    prompt = prompt[:length].tolist()
    living, finished = [((), 0.0)], []
    for step in range(1, limit + 1):
        extensions = []
        for tokens, total in living:
            log_probs = toy_log_probs(offset, [*prompt, *tokens])
            choices = (EOS,) if step == limit else (UNK, EOS, 4, 5)
            extensions += [((*tokens, t), total + log_probs[t]) for t in choices]
        extensions.sort(key=lambda extension: -extension[1])
        best = extensions[: beams - len(finished)]
        finished += [e for e in best if e[0][-1] == EOS]
        living = [e for e in best if e[0][-1] != EOS]
    return rank(finished, alpha)


NARROW = [(2, -1.0), (2, 0.6), (3, 0.0), (3, 1.5)]


@pytest.mark.parametrize(("beams", "alpha"), NARROW)
def test_a_narrow_beam_equals_the_reference_at_every_rank(beams, alpha):
    for row, found in enumerate(toy_beam(beams, alpha, beams)):
        assert_same(found, reference(row, beams, alpha))


@pytest.mark.parametrize(("beams", "alpha"), [(2, 0.6), (3, -2.0), (3, 3.0)])
def test_stopping_early_never_changes_the_best(beams, alpha):
    shortened = 0
    for row, found in enumerate(toy_beam(beams, alpha, 1)):
        expected = reference(row, beams, alpha)
        assert_same(found[:1], expected[:1])
        shortened += len(found) < len(expected)
    assert shortened  # some rows did stop before their beam was empty


@pytest.mark.parametrize(
    ("alpha", "first", "after_4", "best"),
    [
        (3.0, {EOS: 0.5, 4: 0.18, 5: 0.16, UNK: 0.16}, 5, (4, 5, UNK, EOS)),
        (-2.0, {EOS: 0.35, 4: 0.6, 5: 0.05}, EOS, (4, EOS)),
    ],
    ids=["the longest", "the shortest"],
)
def test_a_search_continues_while_an_unfinished_hypothesis_could_win(
    alpha, first, after_4, best
):
    # EOS ends first; only the right bound on continuations of 4 keeps the row going.
    chances = np.zeros((V, V))
    chances[BOS, list(first)] = list(first.values())
    chances[4, after_4] = chances[5, UNK] = chances[[UNK, EOS], EOS] = 1
    with np.errstate(divide="ignore"):
        table = jnp.asarray(np.log(chances), jnp.float32)
    model = BoundModel(
        lambda batch, length: (None, jnp.zeros((1, 1))),
        lambda tokens, positions, static, state: (table[tokens], state),
    )
    question = ({}, *(jnp.array(a) for a in ([[BOS]], [1], [LIMIT])))
    [found] = by_row(beam_search(model, *question, LIMIT, 2, alpha, 1))
    assert found[0][0] == best


def test_the_penalty_decides_between_short_and_long():
    sizes = [
        sum(len(found[0][0]) for found in toy_beam(EVERYTHING, alpha, EVERYTHING))
        for alpha in ALPHAS
    ]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]


@functools.cache
def toy_greedy():
    return by_row(toy_search()(*on_device(QUESTIONS)))


def test_greedy_takes_the_likeliest_token_and_ends_at_its_limit():
    for row, found in enumerate(toy_greedy()):
        assert_same(found, reference(row, 1, Options().alpha))


def test_a_beam_of_one_is_greedy_search_with_its_score():
    alpha = Options().alpha
    for found, expected in zip(toy_beam(1, alpha, 1), toy_greedy(), strict=True):
        assert_same(found, expected)
        [(tokens, log_prob, score)] = found
        penalty = ((5 + len(tokens)) / 6) ** alpha
        np.testing.assert_allclose(score, log_prob / penalty, rtol=1e-6)


def test_a_row_ends_within_its_own_limit_and_nothing_follows_its_end():
    found = toy_search(3, 1.5, 3)(*on_device(QUESTIONS))
    for row, limit in enumerate(QUESTIONS[3]):
        for tokens, length in zip(found.tokens[row], found.lengths[row], strict=True):
            assert 1 <= length <= limit
            tokens = tokens.tolist()
            assert tokens.index(EOS) == length - 1
            assert not {PAD, BOS} & set(tokens[:length])
            assert set(tokens[length:]) <= {PAD}
    assert (found.lengths.max(1) == QUESTIONS[3]).any()


@pytest.mark.parametrize("options", [(), (3, 1.5, 1)], ids=["greedy", "beam"])
def test_a_row_alone_is_searched_as_in_a_batch(options):
    search = toy_search(*options)
    together = by_row(search(*on_device(QUESTIONS)))
    for row in range(0, ROWS, 5):
        [alone] = by_row(search(*on_device([a[row : row + 1] for a in QUESTIONS])))
        assert_same(alone[:1], together[row][:1])


class Eager(nn.Module):
    """Prefers padding, then the start of sentence, then token 4, and the end last."""

    def start(self, batch, length):
        return None, jnp.zeros((len(batch["offset"]), 1))

    def extend(self, tokens, positions, static, state):
        liking = jnp.array([9.0, 8.0, 8.5, 2.0, 7.0, 6.0]) - 6 * jnp.eye(V)[UNK]
        return jnp.broadcast_to(liking, (*tokens.shape, V)), state


def test_padding_and_start_are_never_chosen_and_take_no_probability():
    model, questions = bind(Eager(), {}), on_device(toy_questions(2))
    [row, _] = by_row(jax.jit(lambda *q: greedy(model, *q, LIMIT))(*questions))
    assert row[0][0] == (4, 4, 4, EOS)
    choices = np.array([2.0, 2.0, 7.0, 6.0])
    expected = 3 * 7 + 2 - 4 * np.log(np.exp(choices).sum())
    np.testing.assert_allclose(row[0][1], expected, rtol=1e-5)


def test_a_beam_wider_than_the_choices_leaves_ranks_empty():
    model, questions = bind(Eager(), {}), on_device(toy_questions(2))
    beam = jax.jit(lambda *q: beam_search(model, *q, LIMIT, EVERYTHING, 0.6, 5))
    for row in by_row(beam(*questions)):
        assert len(row) == EVERYTHING
        assert not {PAD, BOS} & {t for tokens, *_ in row for t in tokens}


# Real networks: one with a source and a learned table, one without either

B, BEAMS, S, LONG, VOCAB = 2, 3, 5, 12, 11
SOURCE = jnp.array([[4, 9, 6, 3, 0], [5, 8, 10, 7, 3]])
SEGMENTS = (SOURCE != 0).astype(jnp.int32)
MODULES = {  # and a seed whose answers do not repeat one token
    "seq2seq": (Seq2Seq, "learned", 2),
    "language model": (LanguageModel, "sinusoid", 6),
}
KINDS = tuple(MODULES)


@functools.cache
def network(kind):
    """A module with random parameters, large enough for peaked distributions."""
    make, positions, seed = MODULES[kind]
    module = make(
        TransformerConfig(
            vocab_size=VOCAB,
            vocab_rows=13,
            source_vocab_size=VOCAB,
            source_vocab_rows=13,
            encoder_layers=1,
            decoder_layers=2,
            d_model=14,
            d_ff=17,
            num_heads=7,
            d_k=3,
            d_v=5,
            positions=positions,
            max_positions=LONG,
            tie="none",
        )
    )
    pairs = (SOURCE, SOURCE, SEGMENTS, SEGMENTS)
    inputs = pairs if kind == "seq2seq" else pairs[1:3]
    shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)["params"]
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        mean, spread = {"scale": (1, 0.3), "bias": (0, 0.3)}.get(path[-1].key, (0, 0.5))
        return jnp.asarray(mean + spread * rng.normal(size=leaf.shape), jnp.float32)

    return module, jax.tree_util.tree_map_with_path(draw, shapes)


@functools.cache
def forward(kind):
    """Log-probabilities by the uncached model, compiled for B × beams histories."""
    module, params = network(kind)

    @jax.jit
    def run(tokens):
        ones = jnp.ones_like(tokens)
        inputs = (tokens, ones)
        if kind == "seq2seq":
            source, segments = (jnp.repeat(a, BEAMS, 0) for a in (SOURCE, SEGMENTS))
            inputs = (source, tokens, segments, ones)
        logits = module.apply({"params": params}, *inputs).logits
        return jax.nn.log_softmax(logits.at[..., jnp.array([PAD, BOS])].set(-1e30))

    return run


@functools.cache
def cached(kind):
    """The result of `start`, and a compiled `extend`."""
    model = bind(*network(kind))
    prompt = jnp.zeros((B, 1), jnp.int32)
    batch = {"source": SOURCE, "source_segments": SEGMENTS, "prompt": prompt}
    static, state = jax.jit(lambda batch: model.start(batch, LONG))(batch)
    return (static, tile(state, BEAMS)), jax.jit(model.extend)


def choices(log_probs):
    """The entries that may be chosen: no padding, no start, no row past the pieces."""
    return np.asarray(log_probs)[..., EOS:VOCAB]


WORDS = np.random.default_rng(3).integers(3, VOCAB, size=(B, BEAMS, LONG))


@functools.cache
def read_at_once(kind):
    log_probs = forward(kind)(jnp.asarray(WORDS.reshape(B * BEAMS, LONG)))
    return choices(log_probs).reshape(B, BEAMS, LONG, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_reading_in_parts_equals_reading_at_once_from_prompts_of_any_length(kind):
    full = read_at_once(kind)
    (static, state), extend = cached(kind)
    lengths = np.array([4, 2])
    real = np.arange(4) < lengths[:, None, None]
    prompt = jnp.asarray(np.where(real, WORDS[:, :, :4], PAD))
    places = jnp.asarray(np.where(real, np.arange(4), -1))
    places = jnp.broadcast_to(places, prompt.shape)
    logits, state = extend(prompt, places, static, state)
    read = choices(jax.nn.log_softmax(logits))
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(
            read[row, :, :length], full[row, :, :length], rtol=1e-5, atol=2e-5
        )
    for step in range(2):
        place = np.broadcast_to((lengths + step)[:, None, None], (B, BEAMS, 1))
        token = jnp.asarray(np.take_along_axis(WORDS, place, axis=2))
        logits, state = extend(token, jnp.asarray(place), static, state)
        expected = np.take_along_axis(full, place[..., None], axis=2)
        np.testing.assert_allclose(
            choices(jax.nn.log_softmax(logits)), expected, rtol=1e-5, atol=2e-5
        )


@pytest.mark.parametrize("kind", KINDS)
def test_reading_token_by_token_equals_reading_at_once(kind):
    full = read_at_once(kind)
    (static, state), extend = cached(kind)
    for p in range(LONG):
        place = jnp.full((B, BEAMS, 1), p)
        logits, state = extend(jnp.asarray(WORDS[:, :, p, None]), place, static, state)
        read = choices(jax.nn.log_softmax(logits))[:, :, 0]
        np.testing.assert_allclose(read, full[:, :, p], rtol=1e-5, atol=2e-5)


LENGTH = 8  # of an answer, at most
LIMITS = (5, LENGTH)


def prompts(kind):
    """Start tokens below a source, or texts of unequal length to continue."""
    return [[BOS], [BOS]] if kind == "seq2seq" else [[BOS, 7, 5], [BOS]]


def search(kind, *options):
    """The result of greedy search, or of beam search with options, with the cache."""
    lengths = [len(prompt) for prompt in prompts(kind)]
    prompt = jnp.array([p + [PAD] * (max(lengths) - len(p)) for p in prompts(kind)])
    batch = {"source": SOURCE, "source_segments": SEGMENTS, "prompt": prompt}
    inputs = (batch, prompt, jnp.array(lengths), jnp.array(LIMITS))
    model, run = bind(*network(kind)), beam_search if options else greedy
    return by_row(jax.jit(lambda *a: run(model, *a, LENGTH, *options))(*inputs))


def log_probs_along(kind, histories):
    padded = np.zeros((B * BEAMS, LONG), np.int32)
    for row, history in zip(padded, histories, strict=True):
        row[: len(history)] = history
    return np.asarray(forward(kind)(jnp.asarray(padded)))


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_the_argmax_of_repeated_full_forwards(kind):
    found = [slots[0] for slots in search(kind)]
    answers, totals = [[], []], np.zeros(B)
    for step in range(LENGTH):
        histories = [p + a for p, a in zip(prompts(kind), answers, strict=True)]
        known = log_probs_along(kind, [h for h in histories for _ in range(BEAMS)])
        for row, answer in enumerate(answers):
            if EOS in answer:
                continue
            last = known[row * BEAMS, len(histories[row]) - 1]
            token = EOS if step + 1 == LIMITS[row] else int(last.argmax())
            answer.append(token)
            totals[row] += last[token]
    assert [slot[0] for slot in found] == [tuple(answer) for answer in answers]
    np.testing.assert_allclose([slot[1] for slot in found], totals, rtol=1e-4)
    assert len({token for answer in answers for token in answer}) > 3


def test_probabilities_of_a_beam_equal_those_of_full_forwards():
    kind = "language model"
    found = search(kind, BEAMS, 0.6, BEAMS)
    histories = [
        prompt + list(tokens)
        for prompt, slots in zip(prompts(kind), found, strict=True)
        for tokens, *_ in slots
    ]
    assert len(histories) == len({tuple(h) for h in histories}) == B * BEAMS
    for i, known in enumerate(log_probs_along(kind, histories)):
        row, place = divmod(i, BEAMS)
        tokens, total, score = found[row][place]
        start = len(prompts(kind)[row]) - 1
        expected = sum(known[start + j, token] for j, token in enumerate(tokens))
        np.testing.assert_allclose(total, expected, rtol=1e-4)
        penalty = ((5 + len(tokens)) / 6) ** 0.6
        np.testing.assert_allclose(score, expected / penalty, rtol=1e-4)
    for slots in found:
        scores = [score for *_, score in slots]
        assert scores == sorted(scores, reverse=True)
