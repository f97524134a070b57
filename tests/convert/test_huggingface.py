"""Models of Hugging Face: the same logits here and there, in both directions."""

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
from transformer_jax.base.ids import BOS, EOS
from transformer_jax.convert import ctranslate2
from transformer_jax.convert.huggingface import tensors
from transformer_jax.convert.huggingface.architecture import PROCESSOR
from transformer_jax.convert.huggingface.architectures import ARCHITECTURES
from transformer_jax.convert.huggingface.exporting import export
from transformer_jax.convert.huggingface.importing import convert
from transformer_jax.convert.huggingface.vocabulary import Languages
from transformer_jax.data.text import foreign, learning
from transformer_jax.data.text.saved import open_saved
from transformer_jax.training import warm_start

if importlib.util.find_spec("transformers") is None:
    if os.environ.get("REQUIRE_TORCH"):
        raise ImportError("transformers is not installed")
    pytest.skip("transformers is not installed", allow_module_level=True)

import tokenizers
import torch
import transformers
from PIL import Image

WORDS = "the a girl boy sees reads book red old house and in garden tree runs".split()
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
SIZE = 24
STACK = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2}
STACK |= {f"{s}_attention_heads": 2 for s in ("encoder", "decoder")}
STACK |= {f"{s}_ffn_dim": 24 for s in ("encoder", "decoder")}
STACK |= {"vocab_size": SIZE, "max_position_embeddings": 64}
ENCODER = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
ENCODER |= {"intermediate_size": 24, "vocab_size": SIZE, "pad_token_id": 0}
T5 = {"vocab_size": SIZE, "d_model": 16, "num_layers": 2, "num_decoder_layers": 2}
T5 |= {"num_heads": 2, "d_kv": 6, "d_ff": 24, "pad_token_id": 0, "eos_token_id": 3}
T5 |= {"decoder_start_token_id": 0}
DECODER = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER |= {"num_key_value_heads": 2, "intermediate_size": 24, "vocab_size": SIZE}
DECODER |= {"max_position_embeddings": 64, "bos_token_id": 2, "eos_token_id": 3}
VIT = {"image_size": 12, "patch_size": 4, "num_channels": 3, "num_labels": 3}
VIT |= {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
VIT |= {"intermediate_size": 24, "layer_norm_eps": 1e-12}
PIXELS = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.3]}
IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
IDS |= {"decoder_start_token_id": 0, "forced_eos_token_id": None}
MBART = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
MBART |= {"forced_eos_token_id": None}
# Tensors with rows that are none of our tokens, or that are added to others.
TABLES = ("embed", "wte", "shared", "lm_head", "logits_bias", "predictions.bias")
t = transformers
MODELS = {
    "marian": lambda: t.MarianMTModel(
        t.MarianConfig(
            **STACK, **IDS, scale_embedding=True, activation_function="swish"
        )
    ),
    "bart": lambda: t.BartForConditionalGeneration(
        t.BartConfig(**STACK, **IDS | {"decoder_start_token_id": 3})
    ),
    "mbart": lambda: t.MBartForConditionalGeneration(
        t.MBartConfig(**{**STACK, "vocab_size": 48}, **MBART, decoder_start_token_id=39)
    ),
    "mbart50": lambda: t.MBartForConditionalGeneration(
        t.MBartConfig(
            **{**STACK, "vocab_size": 80}, **MBART, decoder_start_token_id=2,
            scale_embedding=True,
        )
    ),
    "t5": lambda: t.T5ForConditionalGeneration(t.T5Config(**T5)),
    "t5-1.1": lambda: t.T5ForConditionalGeneration(
        t.T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    ),
    "t5-tied-unscaled": lambda: t.T5ForConditionalGeneration(
        t.T5Config(**T5, feed_forward_proj="relu", tie_word_embeddings=False)
    ),
    "bert": lambda: t.BertForMaskedLM(
        t.BertConfig(**ENCODER, max_position_embeddings=64)
    ),
    "roberta": lambda: t.RobertaForMaskedLM(
        t.RobertaConfig(**ENCODER, max_position_embeddings=66, type_vocab_size=1)
    ),
    "bert-labels": lambda: t.BertForSequenceClassification(
        t.BertConfig(**ENCODER, max_position_embeddings=64, num_labels=3)
    ),
    "roberta-labels": lambda: t.RobertaForSequenceClassification(
        t.RobertaConfig(
            **ENCODER, max_position_embeddings=66, type_vocab_size=1, num_labels=3
        )
    ),
    "gpt2": lambda: t.GPT2LMHeadModel(
        t.GPT2Config(
            vocab_size=SIZE, n_embd=16, n_layer=2, n_head=2, n_positions=64,
            bos_token_id=2, eos_token_id=3,
        )
    ),
    "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**DECODER)),
    "llama-tied": lambda: t.LlamaForCausalLM(
        t.LlamaConfig(
            **DECODER,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
        )
    ),
    "llama-3": lambda: t.LlamaForCausalLM(
        t.LlamaConfig(
            **DECODER,
            head_dim=8,
            rope_parameters={
                "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        )
    ),
    "llama-yarn": lambda: t.LlamaForCausalLM(
        t.LlamaConfig(
            **DECODER,
            head_dim=8,
            rope_parameters={
                "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                "original_max_position_embeddings": 16, "beta_fast": 3.0,
                "mscale": 2.0, "mscale_all_dim": 0.5,
            },
        )
    ),
    "qwen2-yarn": lambda: t.Qwen2ForCausalLM(
        t.Qwen2Config(
            **DECODER,
            rope_scaling={
                "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
            },
        )
    ),
    "qwen3-dynamic": lambda: t.Qwen3ForCausalLM(
        t.Qwen3Config(
            **DECODER,
            head_dim=8,
            rope_parameters={
                "rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0,
            },
        )
    ),
    "mistral": lambda: t.MistralForCausalLM(
        t.MistralConfig(**DECODER, sliding_window=None)
    ),
    "mistral-window": lambda: t.MistralForCausalLM(
        t.MistralConfig(**DECODER, sliding_window=4)
    ),
    "qwen2": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**DECODER)),
    "qwen3": lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**DECODER, head_dim=8)),
    "vit": lambda: t.ViTForImageClassification(t.ViTConfig(**VIT)),
    "vit-tanh": lambda: t.ViTForImageClassification(
        t.ViTConfig(
            **{**VIT, "hidden_act": "gelu_new", "num_channels": 1, "patch_size": [3, 3]}
        )
    ),
}  # fmt: skip


def save(name, folder):
    """Save a tiny model with random numbers everywhere, and a tokenizer of words."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    if name == "t5-1.1":
        model.lm_head.weight = torch.nn.Parameter(torch.randn(SIZE, 16) / 4)
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            if parameter.dim() == 1:
                centre = 1.0 if part.endswith("weight") else 0.0
                parameter.normal_(centre, 0.3)
            elif parameter.requires_grad and ("embed" in part or "shared" in part):
                parameter.normal_(0.0, 0.5)  # sinusoids take no gradient, and stay
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(0.0, 0.3)
    model.save_pretrained(folder)
    if name.startswith("vit"):
        side, channels = model.config.image_size, model.config.num_channels
        t.ViTImageProcessorPil(
            size={"height": side, "width": side},
            **{name: numbers[:channels] for name, numbers in PIXELS.items()},
        ).save_pretrained(folder)
        return model
    if name.startswith("mbart"):
        kind = t.MBart50Tokenizer if name == "mbart50" else t.MBartTokenizer
        pieces = ["<s>", "<pad>", "</s>", "<unk>", *(f"▁{word}" for word in WORDS)]
        words = kind(
            vocab=[(piece, -2.0 * (i > 3)) for i, piece in enumerate(pieces)],
            src_lang="en_XX", tgt_lang="ro_RO",
        )  # fmt: skip
        words.save_pretrained(folder)
        spoken = words.convert_tokens_to_ids(["</s>", *pieces[4:]])
        silent = sorted(set(range(model.config.vocab_size)) - {*spoken})
        model.final_logits_bias[:, silent] = -30.0  # no code within an answer
        model.save_pretrained(folder)
        return model
    numbers = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, "<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", bos_token="<s>",
        eos_token="</s>", cls_token="<s>", sep_token="</s>", mask_token="<mask>",
    ).save_pretrained(folder)  # fmt: skip
    return model


def their_logits(model, run, ids):
    """Their logits for pixels, or rows of our ids in our order of the vocabulary."""
    if run.config.task == "images":
        mean, deviation = (np.array(PIXELS[f"image_{n}"]) for n in ("mean", "std"))
        channels = ids[0].shape[-1]
        pixels = (ids[0] - mean[:channels]) / deviation[:channels]
        pixels = torch.tensor(pixels.transpose(0, 3, 1, 2), dtype=torch.float32)
        with torch.no_grad():
            return model(pixels).logits.numpy()
    order = np.asarray(run.task.data.vocabularies["embedding"].theirs)
    theirs = [torch.tensor(order[np.asarray(x)]) for x in ids]
    with torch.no_grad():
        if len(theirs) == 2:
            found = model(input_ids=theirs[0], decoder_input_ids=theirs[1]).logits
        else:
            found = model(input_ids=theirs[0]).logits
    found = found.numpy()
    return found if found.ndim == 2 else found[..., order[present(run)]]


def present(run):
    """Our ids that are tokens; the others are never predicted."""
    tokenizer = run.task.data.vocabularies["embedding"]
    return [i for i in range(tokenizer.vocab_size) if i not in tokenizer.absent]


def draw(run, name=""):
    """Rows of our ids, of a source and a target or of one text; or pixels."""
    random, size = np.random.default_rng(3), 4 + len(WORDS)
    if run.config.task == "images":
        shape = run.task.objective.module.vision.image
        return (random.random((3, *shape), np.float32),)
    source = random.integers(4, size, (3, 9))
    if run.config.task == "translation":
        target = random.integers(4, size, (3, 7))
        target[:, 0] = BOS
        source[:, -1] = EOS
        return source, target
    source[:, 0] = BOS
    return (source,)


def our_logits(run, ids):
    module, variables = run.task.objective.module, {"params": run.params}
    found = np.asarray(module.apply(variables, *map(jnp.asarray, ids)).logits)
    if found.ndim == 3:
        absent = [i for i in range(found.shape[-1]) if i not in present(run)]
        assert (found[..., absent] <= -1e3).all()
        found = found[..., present(run)]
    return found


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_the_same_here_there_and_after_the_way_back(name, tmp_path):
    model = save(name, tmp_path / "theirs")
    kind = convert(tmp_path / "theirs", tmp_path / "bundle")
    assert kind.startswith(type(model).__name__)
    run = transformer_jax.load(tmp_path / "bundle")
    ids = draw(run, name)
    ours, theirs = our_logits(run, ids), their_logits(model, run, ids)
    assert np.abs(theirs).max() > 0.1
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    export(run, tmp_path / "back")
    again = type(model).from_pretrained(tmp_path / "back").eval()
    np.testing.assert_allclose(their_logits(again, run, ids), theirs, atol=1e-4)
    one, other = (tensors.Tensors(tmp_path / place) for place in ("theirs", "back"))
    for tensor in sorted(other.names()):
        if not any(part in tensor for part in TABLES):
            found, wanted = other.read(tensor), one.read(tensor)
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


def test_every_architecture_is_compared():
    compared = {type(make()).__name__ for make in MODELS.values()}
    sentences = {name for name in ARCHITECTURES if name.endswith("-sentences")}
    elsewhere = {"BertForPreTraining", "WhisperForConditionalGeneration"}
    assert compared == set(ARCHITECTURES) - sentences - elsewhere


@pytest.mark.parametrize("name", ["marian", "bart", "t5", "t5-1.1"])
def test_answers_are_the_same(name, tmp_path):
    model = save(name, tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "bundle")
    run = transformer_jax.load(tmp_path / "bundle")
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    draw = np.random.default_rng(5)
    lines = [" ".join(draw.choice(WORDS, draw.integers(1, 7))) for _ in range(12)]
    starts = "<s> " if name == "bart" else ""
    # A beam that has found an end goes on with fewer hypotheses here alone, so with
    # beams no answer ends before the limit. There, only ours judges the end as well.
    for beams, least in ((1, 0), (4, 12)):
        given = words([f"{starts}{line} </s>" for line in lines], padding=True,
                      return_tensors="pt", add_special_tokens=False)  # fmt: skip
        found = model.generate(
            given["input_ids"], attention_mask=given["attention_mask"], num_beams=beams,
            max_new_tokens=12, min_new_tokens=least, length_penalty=0.0,
            early_stopping=True, do_sample=False, forced_bos_token_id=None,
            suppress_tokens=[0, 2, *range(len(SPECIAL) + len(WORDS), SIZE)],
        )  # fmt: skip
        theirs = words.batch_decode(found, skip_special_tokens=True)
        ours = run.predict(
            lines, beams=beams, alpha=0.0, max_length=13, min_length=least + 1
        )
        scores = [run.score(lines, answers) for answers in (ours, theirs)]
        for here, there, mine, other in zip(ours, theirs, *scores, strict=True):
            assert here == there or (beams > 1 and mine >= other - 0.5)


@pytest.mark.parametrize("name", ["gpt2", "llama-yarn", "mistral-window"])
def test_texts_are_continued_in_the_same_way(name, tmp_path):
    model = save(name, tmp_path / "theirs")
    run = transformer_jax.load(tmp_path / "theirs")
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    draw = np.random.default_rng(5)
    lines = [" ".join(draw.choice(WORDS, draw.integers(1, 9))) for _ in range(5)]
    for line in lines:
        given = words(f"<s> {line}", add_special_tokens=False, return_tensors="pt")
        found = model.generate(
            **given, max_new_tokens=12, min_new_tokens=12, do_sample=False,
            suppress_tokens=[0, 2, *range(len(SPECIAL) + len(WORDS), SIZE)],
        )  # fmt: skip
        theirs = words.decode(found[0], skip_special_tokens=True)
        options = {"beams": 1, "max_length": 13, "min_length": 13, "sample": False}
        assert run.predict(line, **options) == theirs


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_decoder_goes_on_to_ctranslate2(name, tmp_path):
    engine = pytest.importorskip("ctranslate2")
    model = save(name, tmp_path / "theirs")
    run = transformer_jax.load(tmp_path / "theirs")
    ctranslate2.export(run, tmp_path / "exported")
    generator = engine.Generator(str(tmp_path / "exported"), intra_threads=1)
    words = tokenizers.Tokenizer.from_file(str(tmp_path / "exported/tokenizer.json"))
    line = "the girl reads a"
    [found] = generator.generate_batch(
        [["<s>", *words.encode(line, add_special_tokens=False).tokens]],
        max_length=12, min_length=12, include_prompt_in_result=False,
    )  # fmt: skip
    given = torch.tensor([[2, *words.encode(line, add_special_tokens=False).ids]])
    wanted = model.generate(
        given, max_new_tokens=12, min_new_tokens=12, do_sample=False,
        suppress_tokens=[0, 2, *range(len(SPECIAL) + len(WORDS), SIZE)],
    )  # fmt: skip
    new = wanted[0, given.shape[1] :].tolist()
    assert found.sequences[0] == [words.id_to_token(i) for i in new]


@pytest.mark.parametrize("name", ["mbart", "mbart50"])
def test_languages_are_given_to_mbart_as_there(name, tmp_path):
    model = save(name, tmp_path / "theirs")
    words = t.AutoTokenizer.from_pretrained(tmp_path / "theirs", src_lang="de_DE")
    convert(tmp_path / "theirs", tmp_path / "bundle", Languages("de_DE", "cs_CZ"))
    run = transformer_jax.load(tmp_path / "bundle")
    order = np.asarray(run.task.data.source_tokenizer.theirs)
    line, answer = "the girl reads", "a red book"
    [row] = run.task.data.encode([{"source": line, "target": answer}])
    assert list(order[row["source"]]) == words(line)["input_ids"]
    words.tgt_lang = "cs_CZ"
    theirs = torch.tensor([words(text_target=answer)["input_ids"]])
    code = words.convert_tokens_to_ids("cs_CZ")
    if name == "mbart":  # there the code follows, and becomes the start when shifted
        shifted = t.models.mbart.modeling_mbart.shift_tokens_right(theirs, 1)
        assert list(order[[BOS, *row["target"][:-1]]]) == shifted[0, :-1].tolist()
    else:
        assert list(order[row["target"]]) == theirs[0].tolist()
    lines = [line, "a boy", "old house in the garden"]
    given = words(lines, padding=True, return_tensors="pt")
    forced = {"decoder_start_token_id" if name == "mbart" else "forced_bos_token_id":
              code}  # fmt: skip
    found = model.generate(
        **given, **forced, num_beams=1, do_sample=False,
        max_new_tokens=12 + (name == "mbart50"),
    )  # fmt: skip
    theirs = words.batch_decode(found, skip_special_tokens=True)
    assert run.predict(lines, beams=1, max_length=13) == theirs and all(theirs)
    export(run, tmp_path / "back")
    again = t.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert (again.src_lang, again.tgt_lang) == ("de_DE", "cs_CZ")
    assert run.score([line], [answer])[0] < 0


def test_languages_of_an_mbart_are_known_or_refused(tmp_path):
    save("mbart", tmp_path / "theirs")
    with pytest.raises(UserError, match="no language 'de_DD'. Did you mean 'de_DE'"):
        convert(tmp_path / "theirs", tmp_path / "bundle", Languages("de_DD", ""))
    path = tmp_path / "theirs" / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "src_lang": None, "tgt_lang": None}))
    with pytest.raises(UserError, match="does not say its source language: convert it"):
        convert(tmp_path / "theirs", tmp_path / "bundle")
    path.write_text(json.dumps({**settings, "tgt_lang": None}))
    run = transformer_jax.load(tmp_path / "theirs")  # its start is the code of ro_RO
    assert run.task.data.source_tokenizer.theirs[BOS] == 39
    path.write_text(json.dumps({**settings, "tokenizer_class": "Fast"}))
    with pytest.raises(
        UserError, match="tokenizer_class is 'Fast', which does not say"
    ):
        convert(tmp_path / "theirs", tmp_path / "bundle")
    save("marian", tmp_path / "marian")
    with pytest.raises(UserError, match="are for mBART, but the model is of the type"):
        convert(tmp_path / "marian", tmp_path / "bundle", Languages("de_DE", ""))


def test_a_folder_of_another_model_is_refused(tmp_path):
    save("bert", tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    given = json.loads(path.read_text())
    path.write_text(json.dumps({**given, "architectures": ["XLNetLMHeadModel"]}))
    with pytest.raises(UserError, match="the model is 'XLNetLMHeadModel': choose one"):
        convert(tmp_path / "theirs", tmp_path / "bundle")
    path.write_text(json.dumps({**given, "num_hidden_layers": 1}))
    with pytest.raises(UserError, match="tensors without a counterpart here, such as"):
        convert(tmp_path / "theirs", tmp_path / "bundle")
    path.write_text(json.dumps({**given, "num_hidden_layers": 3}))
    with pytest.raises(UserError, match="has no tensor 'bert.encoder.layer.2"):
        convert(tmp_path / "theirs", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_folder_is_loaded_like_a_run_and_converted_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(tmp_path / "cache"))
    save("marian", tmp_path / "theirs")
    first = transformer_jax.load(tmp_path / "theirs")
    assert len(first.predict(["the girl reads"])) == 1
    made = first.folder.path
    assert made.parent == tmp_path / "cache" / "imported"
    written = (made / "weights.safetensors").stat().st_mtime_ns
    again = transformer_jax.load(tmp_path / "theirs")
    assert again.folder.path == made
    assert (made / "weights.safetensors").stat().st_mtime_ns == written
    for i in range(9):  # as of other folders; this one has been used last
        (made.parent / f"old{i}").mkdir()
        os.utime(made.parent / f"old{i}", (i, i))
    save("t5", tmp_path / "theirs")
    other = transformer_jax.load(tmp_path / "theirs")
    assert other.folder.path != made and other.config.model.positions == "relative"
    kept = {path.name for path in made.parent.iterdir() if path.is_dir()}
    assert made.name in kept and "old8" in kept and "old2" not in kept
    assert len(kept) == 8


def test_weights_may_lie_in_several_files_and_be_bfloat16(tmp_path):
    model = save("llama", tmp_path / "theirs").bfloat16()
    model.save_pretrained(tmp_path / "theirs", max_shard_size="8KB")
    (tmp_path / "theirs" / "model.safetensors").unlink(missing_ok=True)
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    convert(tmp_path / "theirs", tmp_path / "bundle")
    run = transformer_jax.load(tmp_path / "bundle")
    ids = draw(run, "llama")
    theirs = their_logits(model.float(), run, ids)
    ours = our_logits(run, ids)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_an_index_names_files_of_its_own_folder(tmp_path):
    save("gpt2", tmp_path / "theirs")
    path = tmp_path / "theirs" / "model.safetensors"
    path.rename(tmp_path / "secret.safetensors")
    index = {"weight_map": {"transformer.wte.weight": "../secret.safetensors"}}
    (tmp_path / "theirs" / tensors.INDEX).write_text(json.dumps(index))
    with pytest.raises(UserError, match="a file of another folder"):
        convert(tmp_path / "theirs", tmp_path / "bundle")


def test_sentences_have_the_mean_vector_of_their_tokens(tmp_path):
    encoder = save("bert", tmp_path / "theirs").bert
    encoder.save_pretrained(tmp_path / "theirs")
    modules = [{"type": f"st.{n}", "path": n} for n in ("Transformer", "Pooling")]
    (tmp_path / "theirs" / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "theirs" / "Pooling").mkdir()
    pooling = tmp_path / "theirs" / "Pooling" / "config.json"
    pooling.write_text(json.dumps({"pooling_mode_cls_token": True}))
    with pytest.raises(UserError, match="only the mean of all tokens"):
        convert(tmp_path / "theirs", tmp_path / "bundle")
    pooling.write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    assert convert(tmp_path / "theirs", tmp_path / "bundle").startswith("bert-sent")
    run = transformer_jax.load(tmp_path / "bundle")
    lines = ["the girl reads a red book", "a tree"]
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    for line, vector in zip(lines, run.encode(lines), strict=True):
        given = words(f"<s> {line} </s>", return_tensors="pt", add_special_tokens=False)
        with torch.no_grad():
            mean = encoder(input_ids=given["input_ids"]).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(vector, mean / mean.norm(), atol=1e-5)


@pytest.mark.parametrize(
    "tokenizer, lines",
    [
        ("bytes", ["the girl", " two  spaces", "maçã 北京", "new\nline"]),
        ("wordpiece", ["the girl reads", "gardens"]),
    ],
)
def test_a_foreign_tokenizer_splits_joins_and_shows_pieces(tokenizer, lines, tmp_path):
    if tokenizer == "bytes":
        inner = tokenizers.ByteLevelBPETokenizer()
        inner.train_from_iterator(lines * 9, 400)
        whole, wanted = inner, ["▁girl", "maçã"]
    else:
        inner = tokenizers.BertWordPieceTokenizer(lowercase=False)
        inner.train_from_iterator(["the girl reads the garden", "gardens"] * 9, 60)
        whole, wanted = inner, ["▁garden", "s"]
    content = json.loads(whole.to_str())
    size = whole.get_vocab_size()
    packed = foreign.pack([-1, -1, -1, -1, *range(size)], {}, [], tokenizer=content)
    path = tmp_path / "text.model"
    path.write_bytes(packed)
    mine = open_saved(path)
    assert mine.vocab_size == size + 4
    for line in lines:
        assert mine.encode(line) == [
            i + 4 for i in whole.encode(line, add_special_tokens=False).ids
        ]
        assert mine.decode(mine.encode(line)) == whole.decode(
            whole.encode(line, add_special_tokens=False).ids
        )
    assert set(wanted) <= set(mine.pieces(range(mine.vocab_size)))
    assert mine.tokens()[4:] == [whole.id_to_token(i) for i in range(size)]
    assert mine.content == content
    path.write_bytes(packed.replace(b"foreign 1", b"foreign 2"))
    with pytest.raises(UserError, match="cannot be read: its form is"):
        open_saved(path)


def test_a_run_of_this_package_opens_there(tiny_run, tmp_path):
    run = transformer_jax.load(tiny_run)
    export(run, tmp_path / "marian")
    model = transformers.MarianMTModel.from_pretrained(tmp_path / "marian").eval()
    source, target = draw(run, "marian")
    with torch.no_grad():
        found = model(
            input_ids=torch.tensor(source), decoder_input_ids=torch.tensor(target)
        ).logits
    wanted = our_logits(run, (source, target))
    # LayerNorm's epsilon is 1e-5 there, and 1e-6 here.
    np.testing.assert_allclose(found, wanted, atol=2e-3)
    words = transformers.MarianTokenizer.from_pretrained(tmp_path / "marian")
    line = "ele vê a casa"
    tokenizer = run.task.data.source_tokenizer
    assert words(line)["input_ids"] == [*tokenizer.encode(line), EOS]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_log_probabilities_are_theirs_where_tokens_are_missing(name, tmp_path):
    """A row without a token, of zeros, would have the logit 0, more than many have."""
    model = save(name, tmp_path / "theirs")
    content = json.loads((tmp_path / "theirs" / "tokenizer_config.json").read_text())
    for token in ("pad_token", "unk_token"):
        del content[token]
    (tmp_path / "theirs" / "tokenizer_config.json").write_text(json.dumps(content))
    path = tmp_path / "theirs" / "tokenizer.json"
    text = path.read_text().replace("<pad>", "x0").replace("<unk>", "x1")
    path.write_text(text.replace('"unk_token": "x1"', '"unk_token": "</s>"'))
    run = transformer_jax.load(tmp_path / "theirs")
    assert set(run.task.data.vocabularies["embedding"].absent) == {0, 1}
    (ids,) = draw(run, name)
    ids[0, 0] = BOS
    order = np.asarray(run.task.data.tokenizer.theirs)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(order[ids])).logits
    # They have rows of no token at the end, which take a share there alone.
    known = sorted(set(order[order >= 0]))
    theirs = torch.log_softmax(logits[..., known], dim=-1).numpy()
    module = run.task.objective.module
    ours = module.apply({"params": run.params}, jnp.asarray(ids)).logits
    ours = np.asarray(jax.nn.log_softmax(ours))
    for column, token in enumerate(known):
        mine = int(np.flatnonzero(order == token)[-1])
        np.testing.assert_allclose(ours[..., mine], theirs[..., column], atol=1e-4)


def test_a_classifier_that_went_on_learning_goes_back(tmp_path, one_device):
    save("bert-labels", tmp_path / "theirs")
    (tmp_path / "train.txt").write_text("LABEL_0 the girl\nLABEL_1 a boy\n" * 30)
    loaded = config.load(
        "opinions",
        {
            "data.source": "labelled",
            "data.train_files": str(tmp_path / "train.txt"),
            "data.validation_files": str(tmp_path / "train.txt"),
            "data.batch_tokens": "512", "data.shapes": "1", "train.steps": "4",
            "model.pooling": "pooler", "optim.warmup_steps": "1", "eval.every": "4",
            "eval.splits": "()", "checkpoint.every": "4", "checkpoint.average": "1",
        },
        change=functools.partial(warm_start.adopt, path=str(tmp_path / "theirs")),
    )  # fmt: skip
    assert train.train(loaded, tmp_path / "run") == 0
    run = transformer_jax.load(tmp_path / "run")
    assert export(run, tmp_path / "back") == "BertForSequenceClassification"
    model = transformers.BertForSequenceClassification.from_pretrained(
        tmp_path / "back"
    )
    ids = draw(run)
    np.testing.assert_allclose(
        our_logits(run, ids), their_logits(model.eval(), run, ids), atol=1e-4
    )
    assert model.config.id2label == {0: "LABEL_0", 1: "LABEL_1"}
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    order = np.asarray(run.task.data.vocabularies["embedding"].theirs)
    line = "the girl reads"
    found = words(line, add_special_tokens=False)["input_ids"]
    assert found == list(order[run.task.data.tokenizer.encode(line)])
    # The same command goes on, also without the folder that it began with.
    (tmp_path / "theirs").rename(tmp_path / "away")
    again = config.load("opinions", change=functools.partial(
        warm_start.adopt, path=str(tmp_path / "theirs"), workdir=str(tmp_path / "run")
    ))  # fmt: skip
    assert again.model.d_model == 16 and again.train.initial == str(tmp_path / "theirs")


def draw_picture(path, height, width):
    pixels = np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return str(path)


def test_images_have_the_probabilities_of_their_pipeline(tmp_path):
    model = save("vit", tmp_path / "theirs")
    processor = t.ViTImageProcessorPil.from_pretrained(tmp_path / "theirs")
    run = transformer_jax.load(tmp_path / "theirs")
    paths = [
        draw_picture(tmp_path / f"{h}x{w}.png", h, w) for h, w in ((12, 12), (31, 17))
    ]
    # Images of another size are scaled by Pillow there as well, without torchvision.
    pipe = t.pipeline("image-classification", model, image_processor=processor)
    for path, reply in zip(paths, run.replies(paths), strict=True):
        chances = {one["label"]: one["score"] for one in pipe(path)}
        assert reply.details["chances"] == pytest.approx(chances, abs=1e-5)
    assert np.ptp(list(chances.values())) > 0.1


@pytest.mark.parametrize(
    "changed, mean, deviation",
    [
        ({"do_normalize": False}, (), ()),
        (
            {"do_rescale": False, "image_mean": [51.0] * 3, "image_std": [102.0] * 3},
            (0.2,) * 3,
            (0.4,) * 3,
        ),
        (
            {
                "rescale_factor": 2 / 255,
                "image_mean": [0.0] * 3,
                "image_std": [1.0] * 3,
            },
            (),
            (0.5,) * 3,
        ),
    ],
)
def test_pixels_are_normalised_as_the_processor_says(
    changed, mean, deviation, tmp_path
):
    save("vit", tmp_path / "theirs")
    path = tmp_path / "theirs" / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    convert(tmp_path / "theirs", tmp_path / "bundle")
    run = transformer_jax.load(tmp_path / "bundle")
    assert run.config.model.pixel_mean == pytest.approx(mean)
    assert run.config.model.pixel_deviation == pytest.approx(deviation)
    export(run, tmp_path / "back")
    picture = Image.open(draw_picture(tmp_path / "x.png", 12, 12))
    one, other = (
        t.ViTImageProcessorPil.from_pretrained(tmp_path / place)(picture)
        for place in ("theirs", "back")
    )
    np.testing.assert_allclose(
        one["pixel_values"], other["pixel_values"], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    "file, changed, said",
    [
        (PROCESSOR, {"size": {"shortest_edge": 12}}, "the model reads 12 x 12: only"),
        (PROCESSOR, {"resample": 3}, "resample = 3 is not supported, only 2"),
        (PROCESSOR, {"do_resize": False}, "do_resize = False is not supported"),
        (PROCESSOR, {"image_processor_type": "ConvNextImageProcessor"},
         "names the ConvNextImageProcessor: only a ViTImageProcessor is read"),
        (PROCESSOR, {"image_mean": [0.5]}, "has 1 numbers, but the images have 3 chan"),
        ("config.json", {"image_size": [12, 8]}, r"\[12, 8\] is not square, and on"),
        ("config.json", {"num_channels": 4}, "num_channels = 4 is not supported"),
        ("config.json", {"qkv_bias": False}, "qkv_bias = False is not supported"),
        ("config.json", {"id2label": {"0": "x"}}, "the ViT has one output: only class"),
    ],
)  # fmt: skip
def test_a_vit_that_is_another_model_here_is_refused(file, changed, said, tmp_path):
    save("vit", tmp_path / "theirs")
    path = tmp_path / "theirs" / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(UserError, match=said):
        convert(tmp_path / "theirs", tmp_path / "bundle")


def test_a_vit_without_its_processor_is_refused(tmp_path):
    save("vit", tmp_path / "theirs")
    (tmp_path / "theirs" / PROCESSOR).unlink()
    with pytest.raises(UserError, match="which says how pixels are scaled: save the"):
        convert(tmp_path / "theirs", tmp_path / "bundle")


def test_a_vit_that_went_on_learning_goes_back(tmp_path, one_device):
    save("vit", tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    given = json.loads(path.read_text())
    given["id2label"] = {"0": "crane", "1": "cat", "2": "crane"}
    path.write_text(json.dumps(given))
    for split, count in (("train", 8), ("validation", 2)):
        for label in ("cat", "crane (0)", "crane (2)"):
            (tmp_path / split / label).mkdir(parents=True)
            for i in range(count):
                draw_picture(tmp_path / split / label / f"{i}.png", 9, 14)
    loaded = config.load(
        "images",
        {
            "data.source": "folder", "data.folder": str(tmp_path),
            "data.batch_tokens": "80", "train.steps": "2", "optim.warmup_steps": "1",
            "eval.every": "2", "eval.splits": "()", "checkpoint.every": "2",
            "checkpoint.average": "1",
        },
        change=functools.partial(warm_start.adopt, path=str(tmp_path / "theirs")),
    )  # fmt: skip
    assert loaded.data.image_size == 12
    assert loaded.model.pixel_mean == pytest.approx(PIXELS["image_mean"])
    assert train.train(loaded, tmp_path / "run") == 0
    run = transformer_jax.load(tmp_path / "run")
    assert export(run, tmp_path / "back") == "ViTForImageClassification"
    model = t.ViTForImageClassification.from_pretrained(tmp_path / "back")
    labels = ("cat", "crane (0)", "crane (2)")
    assert model.config.id2label == dict(enumerate(labels))
    ids = draw(run)
    np.testing.assert_allclose(
        our_logits(run, ids), their_logits(model.eval(), run, ids), atol=1e-4
    )


def test_marian_splits_targets_with_their_own_model(tmp_path):
    lines = {
        "source": ["the girl reads the book"] * 9,
        "target": ["das kind liest"] * 9,
    }
    made = {s: learning.train(text, "unigram", 300) for s, text in lines.items()}
    pieces = ["</s>", "<unk>", ">>de<<"]
    for tokenizer in made.values():
        names = tokenizer.pieces(range(4, tokenizer.vocab_size))
        pieces += [name for name in names if name not in pieces]
    pieces.append("<pad>")
    save("marian", tmp_path / "theirs")
    for name in ("tokenizer.json", "model.safetensors"):
        (tmp_path / "theirs" / name).unlink()
    for side, tokenizer in made.items():
        (tmp_path / "theirs" / f"{side}.spm").write_bytes(tokenizer.model)
    numbers = {piece: i for i, piece in enumerate(pieces)}
    (tmp_path / "theirs" / "vocab.json").write_text(json.dumps(numbers))
    ids = {
        "vocab_size": len(pieces),
        "pad_token_id": len(pieces) - 1,
        "eos_token_id": 0,
    }
    settings = json.loads((tmp_path / "theirs" / "config.json").read_text())
    settings |= {**ids, "decoder_start_token_id": len(pieces) - 1}
    settings["decoder_vocab_size"] = len(pieces)
    model = t.MarianMTModel(t.MarianConfig(**settings))
    model.save_pretrained(tmp_path / "theirs")
    run = transformer_jax.load(tmp_path / "theirs")
    source, target = run.task.data.source_tokenizer, run.task.data.target_tokenizer
    for tokenizer, side in ((source, "source"), (target, "target")):
        (line,) = set(lines[side])
        wanted = made[side].pieces(made[side].encode(line))
        assert tokenizer.pieces(tokenizer.encode(line)) == wanted
    coded = source.pieces(source.encode(">>de<< the girl"))
    assert coded == [">>de<<", *source.pieces(source.encode("the girl"))]
