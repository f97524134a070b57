"""An ensemble: the mean of probabilities, in every search and by the commands."""

import dataclasses
import itertools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax
from transformer_jax import evaluate, predict, sharding
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import BOS, EOS, PAD
from transformer_jax.decoding import DecodeRequest, Options
from transformer_jax.decoding.engine import Engine
from transformer_jax.decoding.ensemble import Ensemble, join_params
from transformer_jax.models.transformer import Seq2Seq
from transformer_jax.models.transformer_config import TransformerConfig

VOCAB = 7
CONFIG = TransformerConfig(
    vocab_size=VOCAB, vocab_rows=VOCAB, source_vocab_size=VOCAB,
    source_vocab_rows=VOCAB, encoder_layers=1, decoder_layers=2, d_model=16, d_ff=22,
    num_heads=2, d_k=8, d_v=6,
)  # fmt: skip
CONFIGS = CONFIG, dataclasses.replace(CONFIG, decoder_layers=1, num_heads=1)
SOURCE = [4, 6, 3]


@pytest.fixture(scope="module")
def members():
    """Two models of different depth and number of heads, with random parameters."""
    some = jnp.ones((2, 3), jnp.int32)

    def make(i):
        module = Seq2Seq(CONFIGS[i])
        params = module.init(jax.random.key(i), some, some, some, some)["params"]
        return module, jax.tree.map(lambda a: a * 3, params)

    return [make(0), make(1)]


def mean_probabilities(members, text):
    """The distributions of a text's tokens and the next one, by full passes."""
    source = jnp.array([SOURCE])
    read = jnp.array([[BOS, *text]])
    inputs = source, read, jnp.ones_like(source), jnp.ones_like(read)

    def one(module, params):
        outputs = module.apply({"params": params}, *inputs)
        logits = outputs.logits[0].at[:, jnp.array([PAD, BOS])].set(-jnp.inf)
        return jax.nn.softmax(logits)

    return np.mean([one(*member) for member in members], axis=0)


@pytest.mark.parametrize("beams", [1, 30])
def test_answers_are_the_best_by_the_mean_of_probabilities(members, beams):
    module = Ensemble(tuple(m for m, _ in members))
    params = join_params([p for _, p in members])
    options = Options(beams=beams, max_length=3, n_best=beams)
    engine = Engine(module, sharding.local_mesh(), 2, 1)
    found = dict(engine.search(params, [DecodeRequest(SOURCE)], options))[0]
    if beams == 1:
        text: list[int] = []
        while len(text) < 2 and EOS not in text:
            text.append(int(mean_probabilities(members, text)[-1].argmax()))
        assert found[0].tokens[: len(text)] == tuple(text)
        return
    # All texts of up to 3 tokens, of which the last must be the end.
    scored = {}
    tokens = [t for t in range(VOCAB) if t not in (PAD, BOS, EOS)]
    for length in range(3):
        for text in itertools.product(tokens, repeat=length):
            probabilities = mean_probabilities(members, text)
            log_prob = np.log(probabilities[range(length + 1), [*text, EOS]]).sum()
            scored[(*text, EOS)] = log_prob / ((6 + length) / 6) ** options.alpha
    best = sorted(scored, key=scored.__getitem__, reverse=True)[:5]
    assert [h.tokens for h in found[:5]] == best
    scores = [scored[text] for text in best]
    np.testing.assert_allclose([h.score for h in found[:5]], scores, rtol=1e-4)


def test_equal_members_write_as_one_with_coverage_and_on_several_devices(members):
    module, params = members[0]
    request = [DecodeRequest(SOURCE), DecodeRequest([5, 3])]
    options = Options(beams=3, coverage=0.4, max_length=9)
    alone = Engine(module, sharding.local_mesh(), 2, 2)
    twice = Engine(Ensemble((module, module)), sharding.local_mesh(2), 2, 2)
    expected = dict(alone.search(params, request, options))
    found = dict(twice.search(join_params([params, params]), request, options))
    for i in (0, 1):
        assert [h.tokens for h in found[i]] == [h.tokens for h in expected[i]]
        scores = [[h.score for h in one[i]] for one in (found, expected)]
        np.testing.assert_allclose(*scores, rtol=1e-4)


@pytest.fixture(scope="module")
def runs(tiny_run, tmp_path_factory):
    """Two runs with one tokenizer: the second has the last parameters, not the mean."""
    other = tmp_path_factory.mktemp("other") / "run"
    shutil.copytree(tiny_run, other)
    shutil.rmtree(other / "averaged")
    return tiny_run, other


@pytest.mark.system
def test_predict_and_evaluate_search_with_several_runs(runs, run_main, tmp_path):
    one, other = map(str, runs)
    text = tmp_path / "text.txt"
    text.write_text("o gato dorme.\na casa.\n")
    flags = f"--workdir={one}", f"--input={text}", f"--output={tmp_path / 'out.txt'}"
    run_main(predict, *flags, f"--ensemble={other}")
    together = transformer_jax.load(one, ensemble=[other])
    lines = text.read_text().splitlines()
    assert (tmp_path / "out.txt").read_text().splitlines() == together.predict(lines)
    scores = [
        transformer_jax.load(one, ensemble=others).replies(lines[0]).score
        for others in ([], [other])
    ]
    assert scores[0] != scores[1]
    kept = (runs[0] / "scores.json").read_text()
    said = run_main(evaluate, f"--workdir={one}", f"--ensemble={other}", "--split=test")
    assert "answers by an ensemble of 2 runs; the loss is that of" in said
    assert (runs[0] / "scores.json").read_text() == kept


def test_matrices_of_8_bits_write_together(runs):
    one, other = map(str, runs)
    run = transformer_jax.load(one, engine="int8", ensemble=[other])
    alone = transformer_jax.load(one, engine="int8")
    assert run.replies("a casa.").score != alone.replies("a casa.").score


@pytest.mark.system
def test_runs_that_cannot_write_together_are_refused(
    runs, quick_run_of, run_main, capsys
):
    one, other = map(str, runs)
    classifier = quick_run_of("opinions")
    with pytest.raises(UserError, match="its task is classification, not translation"):
        transformer_jax.load(one, ensemble=[classifier])
    similar = quick_run_of("similarity")
    with pytest.raises(UserError, match="task similarity are neither texts that"):
        transformer_jax.load(similar, ensemble=[similar])
    different = quick_run_of("quickstart", **{"tokenizer.vocab_size": "410"})
    with pytest.raises(UserError, match="its tokenizer is another one"):
        transformer_jax.load(one, ensemble=[different])
    run, shorter = transformer_jax.load(one), transformer_jax.load(other)
    with shorter.config.unlocked():
        shorter.config.model.update(positions="learned", max_positions=9)
    with pytest.raises(UserError, match="it has 9 positions .*, too few"):
        run.join([shorter])
    run.task.inference.writer.other = object()
    with pytest.raises(UserError, match="another library searches .engine."):
        run.join([transformer_jax.load(other)])
    with pytest.raises(SystemExit):
        groups = f"--workdir={one},{other}"
        run_main(evaluate, groups, f"--ensemble={other}", "--split=test")
    assert "--ensemble writes with one run" in capsys.readouterr().err
