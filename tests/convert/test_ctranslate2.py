"""The same translations from CTranslate2 as from here, on the exported model."""

import copy
import os

import pytest

import transformer_jax
from transformer_jax.convert import ctranslate2 as convert
from transformer_jax.data.generated.phrasebook import generate
from transformer_jax.errors import UserError

try:
    import ctranslate2
except ImportError:
    assert not os.environ.get("REQUIRE_PEERS"), "ctranslate2 is to be installed here"
    pytest.skip("CTranslate2 is not installed", allow_module_level=True)

LINES = [pair.source for pair in generate("test", 53)]


@pytest.fixture(scope="module")
def run(tiny_run):
    return transformer_jax.load(tiny_run)


@pytest.fixture(scope="module")
def translator(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "model"
    convert.export(run, folder)
    assert (folder / "shared.model").is_file()
    return ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)


@pytest.mark.parametrize("beams", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_the_exported_model_translates_the_same(run, translator, beams):
    tokenizer = run.task.data.source_tokenizer
    pieces = [tokenizer.pieces(tokenizer.encode(line)) for line in LINES]
    found = translator.translate_batch(
        pieces, beam_size=beams, length_penalty=0.0, max_decoding_length=12,
        max_batch_size=1, return_scores=True,
    )  # fmt: skip
    names = tokenizer.pieces(range(tokenizer.vocab_size))
    ids = {name: i for i, name in enumerate(names)}
    theirs = [tokenizer.decode([ids[p] for p in one.hypotheses[0]]) for one in found]
    ours = run.replies(LINES, beams=beams, alpha=0.0, max_length=13)
    same = [
        reply.text == text or reply.score >= one.scores[0] - 1e-4
        for reply, text, one in zip(ours, theirs, found, strict=True)
    ]
    # CTranslate2 has no end of sentence within the limit where ours makes one.
    assert sum(same) >= 0.99 * len(LINES)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("d_k", 3, "heads of d_model / num_heads = 8"),
        ("positions", "rotary", "not exported"),
        ("norm_kind", "rms", "not exported"),
        ("activation", "swiglu", "not exported"),
        ("kv_heads", 1, "shared keys"),
    ],
)
def test_what_it_cannot_do_is_refused(run, tmp_path, key, value, problem):
    other = copy.copy(run)
    other.config = copy.deepcopy(run.config)
    other.config.model[key] = value
    with pytest.raises(UserError, match=problem):
        convert.export(other, tmp_path / "x")
    assert not (tmp_path / "x").exists()
