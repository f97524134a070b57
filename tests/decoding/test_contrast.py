"""Contrastive search against full forward passes over each text with each candidate."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_search import (
    BEAMS,
    LENGTH,
    LIMITS,
    LONG,
    SEGMENTS,
    SOURCE,
    B,
    by_row,
    network,
    prompts,
)

import transformer_jax
from transformer_jax import sharding
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import BOS, EOS, PAD
from transformer_jax.decoding import Options
from transformer_jax.decoding.requests import DecodeRequest
from transformer_jax.decoding.searches.contrast import ContrastiveSearch
from transformer_jax.decoding.searches.sampling import SamplingSearch
from transformer_jax.decoding.searching import DecodeInputs, bind, run


def search(kind, form, **options):
    lengths = [len(prompt) for prompt in prompts(kind)]
    prompt = jnp.array([p + [PAD] * (max(lengths) - len(p)) for p in prompts(kind)])
    batch = {"source": SOURCE, "source_segments": SEGMENTS, "prompt": prompt}
    inputs = DecodeInputs(prompt, jnp.array(lengths), jnp.array(LIMITS))
    model, searched = bind(*network(kind)), form(Options(**options))
    return by_row(jax.jit(lambda: run(searched, model, batch, inputs, LENGTH))())


@functools.cache
def forward(kind):
    """Log-probabilities and vectors by the uncached model, for B × BEAMS texts."""
    module, params = network(kind)

    @jax.jit
    def read(tokens):
        ones = jnp.ones_like(tokens)
        inputs = (tokens, ones)
        if kind == "seq2seq":
            source, segments = (jnp.repeat(a, BEAMS, 0) for a in (SOURCE, SEGMENTS))
            inputs = (source, tokens, segments, ones)
        found = module.apply({"params": params}, *inputs)
        logits = found.logits.at[..., jnp.array([PAD, BOS])].set(-jnp.inf)
        return jax.nn.log_softmax(logits), found.hidden

    def read_texts(texts):
        padded = np.zeros((B * BEAMS, LONG), np.int32)
        for row, text in zip(padded, texts, strict=True):
            row[: len(text)] = text
        return [np.asarray(a, np.float64) for a in read(jnp.asarray(padded))]

    return read_texts


def reference(kind, weight):
    """The search as on paper, with BEAMS candidates."""
    texts, totals = [list(prompt) for prompt in prompts(kind)], np.zeros(B)
    begun = [len(text) for text in texts]
    for step in range(LENGTH):
        known, _ = forward(kind)([t for t in texts for _ in range(BEAMS)])
        last = [known[r * BEAMS, len(t) - 1] for r, t in enumerate(texts)]
        likely = [np.argsort(-row, kind="stable")[:BEAMS] for row in last]
        tried = [
            [*t, int(v)] for t, row in zip(texts, likely, strict=True) for v in row
        ]
        _, vectors = forward(kind)(tried)
        vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
        for row, text in enumerate(texts):
            if EOS in text[begun[row] :]:
                continue
            scores = []
            for k, token in enumerate(likely[row]):
                own = vectors[row * BEAMS + k]
                closest = (own[: len(text)] @ own[len(text)]).max()
                chance = np.exp(last[row][token])
                scores.append((1 - weight) * chance - weight * closest)
            token = int(likely[row][int(np.argmax(scores))])
            token = EOS if step + 1 == LIMITS[row] else token
            text.append(token)
            totals[row] += last[row][token]
    return [tuple(t[n:]) for t, n in zip(texts, begun, strict=True)], totals


@pytest.mark.parametrize(
    ("kind", "weight"), [("seq2seq", 0.3), ("language model", 0.6)]
)
def test_tokens_are_those_that_full_forward_passes_choose(kind, weight):
    found = search(kind, ContrastiveSearch, contrast=weight, top_k=BEAMS)
    texts, totals = reference(kind, weight)
    assert [slots[0][0] for slots in found] == texts
    np.testing.assert_allclose([slots[0][1] for slots in found], totals, rtol=1e-4)


def test_the_weight_decides_and_hardly_any_is_greedy_search():
    kind = "language model"
    greedy = search(kind, SamplingSearch, beams=1)
    slight, strong = (
        search(kind, ContrastiveSearch, contrast=weight, top_k=BEAMS)
        for weight in (1e-6, 0.6)
    )
    for one, other in zip(slight, greedy, strict=True):
        assert one[0][0] == other[0][0]
        np.testing.assert_allclose(one[0][1:], other[0][1:], rtol=1e-5)
    assert [slots[0][0] for slots in strong] != [slots[0][0] for slots in greedy]


def test_a_run_answers_by_it_whatever_its_batch(run):
    lines = ["O gato dorme.", "A menina lê um livro na escola.", "Sim."]
    options = {"contrast": 0.6, "top_k": 4, "max_length": 9}
    together = run.replies(lines, **options)
    for line, reply in zip(lines, together, strict=True):
        alone = run.replies(line, **options)
        assert reply.text == alone.text
        assert reply.score == pytest.approx(alone.score, abs=1e-5)
    greedy = run.replies(lines, beams=1, max_length=9)
    unlike = run.replies(lines, contrast=1.0, top_k=4, max_length=9)
    assert [r.score for r in unlike] != pytest.approx([r.score for r in greedy])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"top_k": 1}, "compares decode.top_k pieces, of which 1 are asked for"),
        ({"top_k": 4, "n_best": 2}, "writes one text, without a beam or draws"),
        ({"top_k": 4, "sample": True}, "leave out sample, n_best, mbr and groups"),
    ],
)
def test_options_that_contradict_it_are_refused(run, options, says):
    with pytest.raises(UserError, match=says):
        run.replies("Sim.", contrast=0.5, **options)


def test_a_model_without_one_decoder_is_refused(tiny_run):
    together = transformer_jax.load(tiny_run, ensemble=[str(tiny_run)])
    with pytest.raises(UserError, match="contrast needs the vectors of one Transform"):
        together.replies("Sim.", contrast=0.5, top_k=4)


def test_a_search_knows_how_many_hypotheses_it_reads(run):
    widths = [
        Options(beams=3).width,
        Options(beams=3, sample=True, n_best=7).width,
        Options(beams=3, contrast=0.5, top_k=5).width,
    ]
    assert widths == [3, 7, 5]
    engine = run.task.inference.writer.engine(sharding.local_mesh(1))
    options = Options(contrast=0.5, top_k=5)
    states = engine.states(run.params, DecodeRequest((5, EOS)), options)
    assert next(states).tokens.shape[1] == 1
