"""Several classifiers together: the mean of their chances or numbers."""

import numpy as np
import pytest

import transformer_jax
from transformer_jax import evaluate
from transformer_jax.base.errors import UserError
from transformer_jax.tasks.classification import Scale

TEXTS = ["the soup was good .", "the film was never boring .", "the soup was bad ."]


@pytest.fixture(scope="module")
def folders(quick_run_of):
    """Two runs for labels that read other tokens, and one for numbers."""
    test = {"eval.splits": "test"}
    pieces = {"tokenizer.kind": "bpe", "tokenizer.vocab_size": "400"}
    return {
        "words": quick_run_of("opinions", **test),
        "pieces": quick_run_of("opinions", **test, **pieces),
        "numbers": quick_run_of("opinions:score", **test),
    }


def chances_by(run):
    return [reply.details["chances"]["positive"] for reply in run.replies(TEXTS)]


def test_chances_are_the_mean_of_runs_that_read_other_tokens(folders):
    runs = [transformer_jax.load(folders[name]) for name in ("words", "pieces")]
    readers = [run.task.inference.reads for run in runs]
    assert readers[0].fingerprint != readers[1].fingerprint
    alone = [chances_by(run) for run in runs]
    together = transformer_jax.load(folders["words"], ensemble=[folders["pieces"]])
    np.testing.assert_allclose(chances_by(together), np.mean(alone, axis=0), rtol=1e-5)
    assert not np.allclose(*alone, rtol=1e-3)


def test_numbers_are_the_mean(folders):
    one, two = (transformer_jax.load(folders["numbers"]) for _ in range(2))
    two.task.inference.scale = Scale((), 700.0, two.task.inference.scale.deviation)
    alone = [[float(text) for text in run.predict(TEXTS)] for run in (one, two)]
    one.join([two])
    together = [float(text) for text in one.predict(TEXTS)]
    np.testing.assert_allclose(together, np.mean(alone, axis=0), rtol=1e-3)


def test_what_a_partner_cannot_read_is_refused_for_its_line(folders):
    run = transformer_jax.load(folders["words"])
    short = transformer_jax.load(folders["pieces"])
    with short.task.inference.config.unlocked():
        short.task.inference.config.model.update(positions="learned", max_positions=20)
    run.join([short])
    found = run.replies([TEXTS[0], "good " * 30])
    assert not found[0].error
    assert "model.max_positions" in found[1].error


@pytest.mark.system
def test_scores_of_an_ensemble_are_not_kept_by_a_run(folders, run_main):
    path = folders["words"]
    kept = (path / "scores.json").read_text()
    given = f"--workdir={path}", f"--ensemble={folders['pieces']}", "--split=test"
    said = run_main(evaluate, *given)
    assert "answers by an ensemble of 2 runs; the loss is that of" in said
    assert (path / "scores.json").read_text() == kept


def test_runs_with_other_answers_are_refused(folders):
    words = transformer_jax.load(folders["words"])
    numbers = transformer_jax.load(folders["numbers"])
    with pytest.raises(UserError, match="cannot answer with .*: it answers with numb"):
        words.join([numbers])
    with pytest.raises(UserError, match="with negative, positive, not with num"):
        numbers.join([words])
