"""A recurrent run does what any translation run does, or says why it cannot."""

import numpy as np
import pytest

import transformer_jax
from transformer_jax.base.errors import UserError
from transformer_jax.convert import ctranslate2
from transformer_jax.runs import bundle

pytestmark = pytest.mark.system
LINES = ["O gato dorme.", "A menina lê."]
SMALL = {"model.layers": "1", "optim.warmup_steps": "5"}


@pytest.fixture(scope="module")
def attending(quick_run_of):
    spec = "recurrent:lstm_attention"
    return transformer_jax.load(quick_run_of(spec, **SMALL))


@pytest.fixture(scope="module")
def plain(quick_run_of):
    return transformer_jax.load(quick_run_of("recurrent:gru", **SMALL))


@pytest.mark.parametrize("name", ["attending", "plain"])
def test_a_run_answers_scores_and_embeds(name, request):
    run = request.getfixturevalue(name)
    assert len(run.predict(LINES, beams=3)) == 2
    (score,) = run.score(LINES[:1], ["The cat sleeps."])
    assert np.isfinite(score) and score < 0
    vectors = run.encode(LINES)
    assert vectors.shape == (2, 16) and np.isfinite(vectors).all()
    np.testing.assert_allclose(run.encode(LINES[:1])[0], vectors[0], atol=1e-5)


def test_attention_aligns_words_and_can_be_shown(attending):
    ((first, *_),) = attending.align(LINES[:1], ["The cat sleeps."])
    assert first[1] == 0
    found = attending.attention(*LINES)
    assert set(found) == {"cross"}
    source, target = attending.task.inspector.pieces(*LINES)
    assert found["cross"].shape == (1, 1, len(target), len(source))
    attending.predict(LINES, coverage=0.2, beams=2)


def test_without_attention_commands_that_need_it_are_refused(plain):
    for ask in (
        lambda: plain.align(LINES[:1], ["The cat sleeps."]),
        lambda: plain.attention(*LINES),
    ):
        with pytest.raises(UserError, match="model.attention is 'none'"):
            ask()
    with pytest.raises(UserError, match="coverage = 0.2: a model without attention"):
        plain.predict(LINES, coverage=0.2)


def test_it_can_be_bundled_but_not_exported_to_ctranslate2(attending, tmp_path):
    bundle.export(attending, tmp_path / "bundle")
    again = transformer_jax.load(tmp_path / "bundle")
    assert again.predict(LINES) == attending.predict(LINES)
    pytest.importorskip("ctranslate2")
    with pytest.raises(
        UserError,
        match="Transformer translators and language models, not a recurrent",
    ):
        ctranslate2.export(attending, tmp_path / "other")
