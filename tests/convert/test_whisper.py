"""Whisper: the same spectrograms, logits and transcripts here and there."""

import functools
import importlib.util
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax
from transformer_jax import config, train
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import BOS
from transformer_jax.convert.huggingface.architecture import GENERATION, PROCESSOR
from transformer_jax.convert.huggingface.architectures.whisper import describe_whisper
from transformer_jax.convert.huggingface.exporting import export
from transformer_jax.convert.huggingface.importing import convert
from transformer_jax.convert.huggingface.vocabulary import Languages
from transformer_jax.family.speech import log_mel, wav
from transformer_jax.training import warm_start

if importlib.util.find_spec("transformers") is None:
    if os.environ.get("REQUIRE_TORCH"):
        raise ImportError("transformers is not installed")
    pytest.skip("transformers is not installed", allow_module_level=True)

import tokenizers
import torch
import transformers as t

END, START, SILENT = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"
SPECIAL = [END, START, "<|en|>", "<|de|>", "<|transcribe|>", SILENT, "<|0.00|>"]
BANDS, FRAMES = 11, 100
WHISPER = {
    "num_mel_bins": BANDS, "max_source_positions": FRAMES // 2, "d_model": 16,
    "max_target_positions": 31, "encoder_layers": 2, "decoder_layers": 3,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "scale_embedding": False,
}  # fmt: skip
TEXT = "the girl sees a red book in the old house and reads"


def save(folder, several=False):
    """Save a tiny Whisper with random numbers everywhere; return it and its ids."""
    inner = tokenizers.ByteLevelBPETokenizer()
    inner.train_from_iterator([TEXT] * 9, 300)
    inner = tokenizers.Tokenizer.from_str(inner.to_str())
    inner.add_special_tokens(SPECIAL)
    ids = {name: inner.token_to_id(name) for name in SPECIAL}
    t.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=END, unk_token=END, pad_token=END
    ).save_pretrained(folder)
    ends = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), ids[END])
    ends["decoder_start_token_id"] = ids[START]
    torch.manual_seed(0)
    rows = inner.get_vocab_size() + 3
    whisper = t.WhisperConfig(**WHISPER, **ends, vocab_size=rows)
    model = t.WhisperForConditionalGeneration(whisper).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:  # the encoder's sinusoids stay
                scale = parameter.dim() == 1 and name.endswith("weight")
                parameter.normal_(float(scale), 0.3)
    more = {"lang_to_id": {name: ids[name] for name in ("<|en|>", "<|de|>")}}
    more["task_to_id"] = {"transcribe": ids["<|transcribe|>"]}
    model.generation_config = t.GenerationConfig(
        **ends, **(more if several else {}), is_multilingual=several,
        no_timestamps_token_id=ids[SILENT], suppress_tokens=[],
        begin_suppress_tokens=[ids[END]],
    )  # fmt: skip
    model.save_pretrained(folder)
    extractor(BANDS, FRAMES // 100).save_pretrained(folder)
    return model, ids


def extractor(bands, seconds):
    return t.WhisperFeatureExtractor(feature_size=bands, chunk_length=seconds)


def draw_sound(samples, seed=1):
    noise = np.random.default_rng(seed).standard_normal(samples)
    return (noise * np.linspace(0.0, 0.3, samples)).astype(np.float32)


def change(path, **changed):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def both_logits(model, run, sound, text):
    """Their logits and ours of a transcript, of the tokens that both have."""
    tokenizer = run.task.data.tokenizer
    order, absent = np.asarray(tokenizer.theirs), tokenizer.absent
    kept = [i for i in range(tokenizer.vocab_size) if i not in absent]
    ids = jnp.array([[BOS, *tokenizer.encode(text)]])
    frames = run.task.inference.parse(sound).source
    with torch.no_grad():
        theirs = model(
            input_features=torch.tensor(frames.T)[None],
            decoder_input_ids=torch.tensor(order[np.asarray(ids)]),
        ).logits.numpy()
    apply = jax.jit(run.task.objective.module.apply)
    ours = apply({"params": run.params}, jnp.asarray(frames)[None], ids).logits
    assert (np.asarray(ours)[..., list(absent)] <= -1e3).all()
    return theirs[..., order[kept]], np.asarray(ours)[..., kept]


@pytest.mark.parametrize("bands", [80, 128])
@pytest.mark.parametrize("samples", [16_000 * 2, 12_345, 37])
def test_spectrograms_are_those_of_their_extractor(bands, samples):
    sound = draw_sound(samples)
    padded = np.pad(sound, (0, 32_000 - samples))
    found = log_mel.whisper(padded, bands)
    wanted = extractor(bands, 2)(sound, sampling_rate=16_000).input_features[0].T
    assert found.shape == wanted.shape == (log_mel.centred_frames_of(32_000), bands)
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_logits_are_the_same_here_there_and_after_the_way_back(tmp_path):
    model, _ = save(tmp_path / "theirs")
    kind = convert(tmp_path / "theirs", tmp_path / "bundle")
    assert kind.startswith("WhisperForConditionalGeneration")
    run = transformer_jax.load(tmp_path / "bundle")
    sound = draw_sound(11_003)
    theirs, ours = both_logits(model, run, sound, TEXT)
    assert np.abs(theirs).max() > 1
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert export(run, tmp_path / "back") == "WhisperForConditionalGeneration"
    again = t.WhisperForConditionalGeneration.from_pretrained(tmp_path / "back").eval()
    np.testing.assert_allclose(
        both_logits(again, run, sound, TEXT)[0], theirs, atol=1e-5
    )
    for name in (GENERATION, PROCESSOR):
        one, other = (
            json.loads((tmp_path / place / name).read_text())
            for place in ("theirs", "back")
        )
        assert one == other
    words = t.AutoTokenizer.from_pretrained(tmp_path / "back")
    order = np.asarray(run.task.data.tokenizer.theirs)
    assert (
        list(order[run.task.data.tokenizer.encode(TEXT)][1:]) == words(TEXT).input_ids
    )


@pytest.mark.parametrize("language", ["", "de"])
def test_transcripts_are_the_same(language, tmp_path):
    model, ids = save(tmp_path / "theirs", several=bool(language))
    begun = [
        START,
        *([f"<|{language}|>", "<|transcribe|>"] if language else ()),
        SILENT,
    ]
    path, sounds = (
        tmp_path / "theirs" / GENERATION,
        [draw_sound(n) for n in (9001, 16000)],
    )
    heard = extractor(BANDS, 1)(sounds, sampling_rate=16_000, return_tensors="pt")
    words = t.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    rows = model.config.vocab_size  # the last of which are no token
    never, first, made = [*range(256), *range(ids[START], rows)], [ids[END]], []
    for round_ in range(3):  # each forbids what the one before has begun with, or had
        change(path, suppress_tokens=never, begin_suppress_tokens=first)
        given = t.GenerationConfig.from_pretrained(tmp_path / "theirs")
        found = model.generate(
            heard.input_features, generation_config=given, num_beams=1, do_sample=False,
            max_new_tokens=12, **{"language": language} if language else {},
        ).numpy()  # fmt: skip
        place = tmp_path / f"bundle{round_}"
        convert(tmp_path / "theirs", place, Languages("", language))
        run = transformer_jax.load(place)
        order = np.asarray(run.task.data.tokenizer.theirs)
        prefix = run.task.inference.parse(sounds[0]).prefix
        assert [ids[name] for name in begun[1:]] == list(order[[*prefix]])
        theirs = words.batch_decode(found, skip_special_tokens=True)
        made.append([text.strip() for text in theirs])
        assert run.predict(sounds, max_length=13) == made[-1] and all(made[-1])
        first = [*first, *found[:, 0].tolist()]
        never = [*never, *found[:, -1].tolist()] if round_ else never
    assert made[0] != made[1] != made[2]


def test_what_no_text_shows_is_left_out_of_a_transcript(tmp_path):
    save(tmp_path / "theirs", several=True)
    convert(tmp_path / "theirs", tmp_path / "bundle", Languages("", "en"))
    tokenizer = transformer_jax.load(tmp_path / "bundle").task.data.tokenizer
    ids = tokenizer.encode(TEXT)
    shown = tokenizer.pieces(ids)
    assert shown[:3] == ["<|en|>", "<|transcribe|>", SILENT]
    numbers = {them: us for us, them in enumerate(tokenizer.theirs)}
    second = numbers[tokenizer.theirs[ids[2]] + 1]  # <|0.00|>
    assert tokenizer.pieces([second]) == ["<|0.00|>"]
    assert tokenizer.decode([second, *ids, second]) == TEXT


def test_a_model_goes_on_learning_and_back(tmp_path, one_device):
    save(tmp_path / "theirs")
    for i, text in enumerate(("the girl", "a red book", "old house")):
        wav.write(tmp_path / f"{i}.wav", draw_sound(9_000 + 100 * i, i))
        with (tmp_path / "table.tsv").open("a") as table:
            table.write(f"{i}.wav\t{text}\n")
    loaded = config.load(
        "speech",
        {
            "data.source": "tsv", "data.folder": str(tmp_path),
            "data.train_files": "table.tsv", "data.validation_files": "table.tsv",
            "data.max_length": str(FRAMES), "train.steps": "2",
            "optim.warmup_steps": "1", "eval.every": "2", "eval.splits": "()",
            "data.batch_tokens": "816", "data.shapes": "1",
            "checkpoint.every": "2", "checkpoint.average": "1",
        },
        change=functools.partial(warm_start.adopt, path=str(tmp_path / "theirs")),
    )  # fmt: skip
    assert (loaded.data.features, loaded.data.bands) == ("whisper", BANDS)
    assert loaded.data.pad and loaded.data.max_length == FRAMES
    assert loaded.decode.max_length == WHISPER["max_target_positions"] - 1
    assert train.train(loaded, tmp_path / "run") == 0
    run = transformer_jax.load(tmp_path / "run")
    assert run.task.data.tokenizer.opening
    export(run, tmp_path / "back")  # without the layer that learned by CTC
    again = t.WhisperForConditionalGeneration.from_pretrained(tmp_path / "back").eval()
    theirs, ours = both_logits(again, run, draw_sound(8_000), TEXT)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


OWN = {
    "data.train_size": "24", "data.validation_size": "5", "data.test_size": "3",
    "data.batch_tokens": "3208", "data.max_length": "400", "data.bands": "12",
    "data.features": "whisper", "data.pad": "True", "tokenizer.vocab_size": "40",
    "model.positions": "learned", "model.sound_positions": "sinusoid_t2t",
    "model.max_positions": "61", "model.stride": "1", "decode.max_length": "6",
    "model.convolution_activation": "gelu_erf", "model.activation": "gelu_erf",
    "model.norm_epsilon": "1e-5", "model.embedding_scale": "False",
    "eval.splits": "test",
}  # fmt: skip


def test_a_run_of_this_package_opens_there(quick_run_of, tmp_path):
    run = transformer_jax.load(quick_run_of("speech", **OWN))
    assert export(run, tmp_path / "whisper") == "WhisperForConditionalGeneration"
    place = tmp_path / "whisper"
    model = t.WhisperForConditionalGeneration.from_pretrained(place).eval()
    sound = draw_sound(12_007)
    request = run.task.inference.parse(sound)
    heard = t.WhisperFeatureExtractor.from_pretrained(place)
    features = heard(sound, sampling_rate=16_000, return_tensors="pt").input_features
    np.testing.assert_allclose(request.source.T, features[0], atol=1e-5)
    ids = jnp.array([[BOS, *run.task.data.tokenizer.encode("turn on the light")]])
    with torch.no_grad():
        theirs = model(features, decoder_input_ids=torch.tensor(ids.tolist())).logits
    module = run.task.objective.module
    ours = module.apply(
        {"params": run.params}, jnp.asarray(request.source)[None], ids
    ).logits
    ours, rest = np.split(ours, [theirs.shape[-1]], axis=-1)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert (rest < -1e9).all()  # rows of no token
    words = t.AutoTokenizer.from_pretrained(place)
    found = words("turn on the light", add_special_tokens=False).input_ids
    assert found == ids[0, 1:].tolist()


def test_a_run_with_other_spectrograms_is_no_whisper():
    ours = {"data.features": "whisper", "data.pad": True, "data.max_length": 450}
    with pytest.raises(UserError, match="450 frames are no whole seconds, .*: 400 are"):
        describe_whisper(ours)
    with pytest.raises(UserError, match="a Whisper needs data.features = 'whisp"):
        describe_whisper({**ours, "data.pad": False})


def test_a_sound_that_is_too_long_is_refused(tmp_path):
    save(tmp_path / "theirs")
    run = transformer_jax.load(tmp_path / "theirs")
    [whole, long] = run.replies([np.zeros(16_000), np.zeros(16_160)])
    assert not whole.error
    assert "101 frames (1.0 s) are more than the 100 to which sounds" in long.error
    [many] = run.replies([np.zeros(1600)], max_length=40)
    assert "a transcript of 40 pieces, with its beginning, needs 41 pos" in many.error


def test_a_language_is_asked_for_if_the_model_knows_several(tmp_path):
    _, ids = save(tmp_path / "theirs", several=True)
    with pytest.raises(UserError, match="does not say its target language: convert it"):
        convert(tmp_path / "theirs", tmp_path / "bundle")
    with pytest.raises(UserError, match="has no language 'fr'"):
        convert(tmp_path / "theirs", tmp_path / "bundle", Languages("", "fr"))
    path = tmp_path / "theirs" / GENERATION
    change(path, language="<|de|>")
    run = transformer_jax.load(tmp_path / "theirs")
    order = np.asarray(run.task.data.tokenizer.theirs)
    assert order[run.task.data.tokenizer.opening[0]] == ids["<|de|>"]
    change(path, language=None, forced_decoder_ids=[[1, ids["<|en|>"]], [2, 0]])
    run = transformer_jax.load(tmp_path / "theirs")
    assert order[run.task.data.tokenizer.opening[0]] == ids["<|en|>"]
    change(path, is_multilingual=False)
    with pytest.raises(UserError, match="this Whisper knows English alone"):
        convert(tmp_path / "theirs", tmp_path / "bundle", Languages("", "en"))
    with pytest.raises(UserError, match="name the language that a Whisper hears"):
        convert(tmp_path / "theirs", tmp_path / "bundle", Languages("en", ""))


@pytest.mark.parametrize(
    "file, changed, said",
    [
        ("config.json", {"decoder_ffn_dim": 20}, r"inner widths of \[24, 20\]: only"),
        ("config.json", {"tie_word_embeddings": False}, "tie_word_embeddings = False"),
        (PROCESSOR, {"n_fft": 512}, "n_fft = 512 is not supported, only 400"),
        (PROCESSOR, {"chunk_length": 30}, "chunk_length = 30 is not supported, only 1"),
        ("tokenizer.json", {"added_tokens": []}, "the tokenizer has no <|notimest"),
    ],
)
def test_a_whisper_that_is_another_model_here_is_refused(file, changed, said, tmp_path):
    save(tmp_path / "theirs")
    change(tmp_path / "theirs" / file, **changed)
    with pytest.raises(UserError, match=said.replace("|", r"\|")):
        convert(tmp_path / "theirs", tmp_path / "bundle")


def test_positions_of_sound_that_were_changed_are_refused(tmp_path):
    model, _ = save(tmp_path / "theirs")
    with torch.no_grad():
        model.model.encoder.embed_positions.weight[7, 3] += 0.01
    model.save_pretrained(tmp_path / "theirs")
    with pytest.raises(UserError, match="is no table of sinusoids: only those"):
        convert(tmp_path / "theirs", tmp_path / "bundle")
