"""The same translations from CTranslate2 as from here, on the exported model."""

import copy
import dataclasses
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax
from transformer_jax import tasks
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import BOS, PAD
from transformer_jax.convert import ctranslate2 as convert
from transformer_jax.corpora.phrasebook import generate
from transformer_jax.sharding import path_name

try:
    import ctranslate2
except ImportError:
    assert not os.environ.get("REQUIRE_PEERS"), "ctranslate2 is to be installed here"
    pytest.skip("CTranslate2 is not installed", allow_module_level=True)

pytestmark = pytest.mark.system

LINES = [pair.source for pair in generate("test", 53)]


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


@pytest.fixture(scope="module")
def scored(run, tmp_path_factory):
    """What each side gives the same targets, by activation."""
    pairs, found = generate("test", 11), {}
    for name in convert.ACTIVATIONS:
        config = copy.deepcopy(run.config)
        config.model.activation = name
        task = tasks.find("translation").open(config, run.folder.tokenizer)
        # The feed-forward layers weigh more than in a model that is trained.
        params = jax.tree_util.tree_map_with_path(
            lambda path, p: 3 * p if "feed_forward/" in path_name(path) else p,
            task.objective.init(jax.random.key(0)),
        )
        other = dataclasses.replace(run, config=config, task=task, params=params)
        folder = tmp_path_factory.mktemp(name) / "model"
        convert.export(other, folder)
        theirs = ctranslate2.Translator(str(folder), intra_threads=1)
        sides = zip(*((pair.source, pair.target) for pair in pairs), strict=True)
        sources, targets = map(list, sides)
        pieces = [
            [t.pieces(t.encode(line)) for line in lines]
            for t, lines in (
                (task.data.source_tokenizer, sources),
                (task.data.target_tokenizer, targets),
            )
        ]
        sums = [sum(one.log_probs) for one in theirs.score_batch(*pieces)]
        found[name] = other.score(sources, targets), sums
    return found


@pytest.mark.parametrize("name", convert.ACTIVATIONS)
def test_an_exported_activation_is_the_same_function(scored, name):
    ours, theirs = scored[name]
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_the_two_forms_of_gelu_can_be_told_apart(scored):
    ours, theirs = scored["gelu_tanh"][0], scored["gelu_erf"][1]
    assert np.abs(np.subtract(ours, theirs)).max() > 3e-4


VARIANTS = {  # of language models
    "gpt2": {
        "positions": "learned", "max_positions": 97, "norm": "pre",
        "activation": "gelu_tanh", "embedding_scale": False,
    },
    "llama": {
        "positions": "rotary", "norm": "pre", "norm_kind": "rms", "bias": "none",
        "activation": "swiglu", "embedding_scale": False, "num_heads": 4,
        "kv_heads": 2, "d_k": 6, "d_v": 6, "rotary_base": 500.0, "tie": "none",
        "norm_epsilon": 1e-5,
    },
    "qwen2": {
        "positions": "rotary", "norm": "pre", "norm_kind": "rms", "bias": "qkv",
        "activation": "geglu", "rotary_scaling": "linear", "rotary_factor": 3.0,
        "output_bias": True,
    },
    "post": {"positions": "sinusoid", "activation": "reglu"},
}  # fmt: skip


@pytest.fixture(scope="module")
def of_language(tiny_run_of):
    few = {"data.window": "32", "decode.max_length": "20", "eval.every": "12"}
    return transformer_jax.load(tiny_run_of("language", **few, **{"eval.answers": "1"}))


def varied(run, options):
    """The run with another model, of random parameters."""
    config = copy.deepcopy(run.config)
    config.model.update(options)
    task = tasks.find("language").open(config, run.folder.tokenizer)
    keys = iter(jax.random.split(jax.random.key(3), 999))
    params = jax.tree.map(  # also norms and biases
        lambda p: p + 0.2 * jax.random.normal(next(keys), p.shape),
        task.objective.init(jax.random.key(2)),
    )
    return dataclasses.replace(run, config=config, task=task, params=params)


def logits_of(generator, pieces):
    return np.array(generator.forward_batch([["<s>", *pieces]]))


@pytest.mark.parametrize("name", VARIANTS)
def test_a_language_model_continues_the_same(name, of_language, tmp_path):
    run, beginnings = varied(of_language, VARIANTS[name]), ["", "O ga", "Ele vê"]
    convert.export(run, tmp_path / "model")
    assert (tmp_path / "model" / "text.model").is_file()
    generator = ctranslate2.Generator(
        str(tmp_path / "model"), compute_type="float32", intra_threads=1
    )
    tokenizer = run.task.data.tokenizer
    for text in beginnings:
        ids = tokenizer.encode_inside(text)
        [found] = generator.generate_batch(
            [["<s>", *tokenizer.pieces(ids)]], max_length=17, include_prompt_in_result=0
        )
        reply = run.replies(text, sample=False, beams=1, max_length=18)
        assert len(found.sequences_ids[0]) > 3
        theirs = tokenizer.decode([*ids, *found.sequences_ids[0]])
        assert reply.details["text"] == theirs
    [theirs] = logits_of(generator, tokenizer.pieces(ids))
    module, tokens = run.task.objective.module, jnp.asarray([[BOS, *ids]])
    ours = module.apply({"params": run.params}, tokens).logits[0, :, : theirs.shape[-1]]
    allowed = [i for i in range(theirs.shape[-1]) if i not in (PAD, BOS)]
    np.testing.assert_allclose(
        ours[:, allowed], theirs[:, allowed], rtol=1e-4, atol=2e-4
    )


@pytest.mark.parametrize(("kind", "size"), [("int8", 0.45), ("float16", 0.6)])
def test_matrices_of_fewer_bits_answer_nearly_the_same(
    kind, size, of_language, tmp_path
):
    run, sizes, found = varied(of_language, VARIANTS["llama"]), {}, {}
    for name in ("float32", kind):
        convert.export(run, tmp_path / name, name)
        sizes[name] = (tmp_path / name / "model.bin").stat().st_size
        generator = ctranslate2.Generator(str(tmp_path / name), intra_threads=1)
        pieces = run.task.data.tokenizer.pieces(
            run.task.data.tokenizer.encode("O gato")
        )
        found[name] = logits_of(generator, pieces)[..., 4:]
    assert sizes[kind] < size * sizes["float32"]
    assert 0 < np.abs(found[kind] - found["float32"]).max() < 0.5


def test_the_command_checks_the_type_first(run_main, tmp_path, tiny_run):
    given = f"--workdir={tiny_run}", f"--output={tmp_path / 'a'}"
    with pytest.raises(UserError, match="--quantization=int9: choose int8 | .*int8"):
        run_main(convert, *given, "--quantization=int9")
    out = run_main(convert, *given, "--quantization=int8")
    assert out.startswith("exported   ")


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("d_k", 3, "heads of d_model / num_heads = 8"),
        ("qk_norm", True, "not exported"),
        ("positions", "rotary", "not exported"),
        ("norm_kind", "rms", "not exported"),
        ("activation", "swiglu", "not exported"),
        ("activation", "relu2", "not exported"),
        ("kv_heads", 1, "not exported"),
    ],
)
def test_what_it_cannot_do_is_refused(run, tmp_path, key, value, problem):
    other = copy.copy(run)
    other.config = copy.deepcopy(run.config)
    other.config.model[key] = value
    with pytest.raises(UserError, match=problem):
        convert.export(other, tmp_path / "x")
    assert not (tmp_path / "x").exists()
