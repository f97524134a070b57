"""What a config.json of Hugging Face may say, without their package."""

import json

import numpy as np
import pytest
from absl import flags

from transformer_jax import config as configs
from transformer_jax import load
from transformer_jax.base.errors import UserError
from transformer_jax.convert.huggingface import __main__ as command
from transformer_jax.convert.huggingface import importing, tensors
from transformer_jax.convert.huggingface.architectures import ARCHITECTURES
from transformer_jax.convert.huggingface.exporting import export
from transformer_jax.convert.huggingface.importing import convert
from transformer_jax.runs.folder import Folder

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 16,
    "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6, "hidden_act": "silu", "max_position_embeddings": 64,
}  # fmt: skip
T5 = {
    "model_type": "t5", "num_layers": 2, "num_decoder_layers": 2, "d_model": 16,
    "d_ff": 24, "num_heads": 2, "d_kv": 8, "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu", "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
}  # fmt: skip
BERT = {
    "model_type": "bert", "num_hidden_layers": 2, "hidden_size": 16,
    "intermediate_size": 24, "num_attention_heads": 2, "layer_norm_eps": 1e-12,
    "hidden_act": "gelu", "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
BART = {
    "model_type": "bart", "encoder_layers": 2, "decoder_layers": 2, "d_model": 16,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "activation_function": "gelu",
    "scale_embedding": False, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    "kind, given, problem",
    [
        (
            "LlamaForCausalLM",
            {"rope_scaling": {"type": "longrope"}},
            "rope_type = 'longrope' is not known",
        ),
        (
            "LlamaForCausalLM",
            {"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": False}},
            "truncate = False is not supported, only True",
        ),
        (
            "LlamaForCausalLM",
            {"hidden_act": "relu"},
            "hidden_act = 'relu' is not known, only silu",
        ),
        (
            "LlamaForCausalLM",
            {"hidden_act": "mish"},
            "the activation 'mish' is not known",
        ),
        (
            "LlamaForCausalLM",
            {"mlp_bias": True},
            "mlp_bias = True is not supported, only False",
        ),
        (
            "Qwen2ForCausalLM",
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8},
            "use_sliding_window = True is not supported",
        ),
        (
            "T5ForConditionalGeneration",
            {"feed_forward_proj": "gated-silu"},
            "'gated-silu' is not known: relu and gated-gelu are",
        ),
        (
            "BertForSequenceClassification",
            {"id2label": {"0": "LABEL_0"}},
            "the model has one output: a regression is not read",
        ),
        (
            "BertForSequenceClassification",
            {"problem_type": "multi_label_classification"},
            "problem_type = 'multi_label_classification' is not supported",
        ),
        (
            "BartForConditionalGeneration",
            {"decoder_ffn_dim": 32},
            "encoder and decoder have other sizes: only equal",
        ),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_expressed_is_refused(kind, given, problem):
    whole = {"L": LLAMA, "Q": LLAMA, "T": T5, "Ba": BART, "Be": BERT}
    whole = whole.get(kind[0]) or whole[kind[:2]]
    ARCHITECTURES[kind].options(whole)
    with pytest.raises(UserError, match=problem):
        ARCHITECTURES[kind].options({**whole, **given})


@pytest.mark.parametrize(
    "kind, given",
    [
        ("LlamaForCausalLM", LLAMA),
        ("LlamaForCausalLM", {**LLAMA, "tie_word_embeddings": True, "head_dim": 6}),
        ("Qwen2ForCausalLM", {**LLAMA, "model_type": "qwen2"}),
        (
            "MistralForCausalLM",
            {**LLAMA, "model_type": "mistral", "sliding_window": 9},
        ),
        ("T5ForConditionalGeneration", T5),
        ("BartForConditionalGeneration", BART),
    ],
)
def test_options_that_go_there_and_back_are_the_same(kind, given):
    architecture = ARCHITECTURES[kind]
    options = architecture.options(given)
    base = dict(configs.items(configs.base(architecture.task, "transformer")))
    again = architecture.options(architecture.describe({**base, **options}))
    model = {name for name in options if name.startswith("model.")}
    assert {n: again[n] for n in model} == {n: options[n] for n in model}


def test_a_linear_map_with_other_biases_has_no_counterpart():
    ours = dict(configs.items(configs.base("language", "transformer")))
    with pytest.raises(
        UserError, match="model.bias = 'all' has no counterpart, only none"
    ):
        ARCHITECTURES["LlamaForCausalLM"].describe(ours)


def test_a_window_with_biases_has_no_counterpart():
    ours = dict(configs.items(configs.base("language", "transformer")))
    ours |= {"model.bias": "qkv", "model.attention_window": 8}
    with pytest.raises(UserError, match="norms of queries has no counterpart: qwen2"):
        ARCHITECTURES["LlamaForCausalLM"].describe(ours)


def test_numbers_of_other_types_are_refused(tmp_path):
    header = {"w": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + bytes(8)
    (tmp_path / tensors.SINGLE).write_bytes(content)
    with pytest.raises(UserError, match="has w as I64: F32, F16, BF16 are read"):
        tensors.Tensors(tmp_path).read("w")
    (tmp_path / tensors.SINGLE).write_bytes(content[:20])
    with pytest.raises(UserError, match="cannot be read: its header is longer"):
        tensors.Tensors(tmp_path)
    (tmp_path / tensors.SINGLE).unlink()
    with pytest.raises(UserError, match="has neither model.safetensors nor"):
        tensors.Tensors(tmp_path)


def test_tensors_are_written_in_any_order(tmp_path):
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3)}
    arrays["b"] = np.ones(5, np.float16)
    forms = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    path = tmp_path / tensors.SINGLE
    tensors.write(path, forms, reversed(arrays.items()))
    found = tensors.Tensors(tmp_path)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found.read(name), array)


@pytest.mark.system
def test_a_translator_goes_to_marian_and_comes_back(tiny_run, tmp_path, caplog):
    run = load(tiny_run)
    assert export(run, tmp_path / "marian") == "MarianMTModel"
    assert "model.norm_epsilon 1e-06 becomes 1e-05" in caplog.text
    again = load(tmp_path / "marian")
    lines = ["ele vê a casa", "um gato"]
    for beams in (1, 4):
        wanted = run.predict(lines, beams=beams, max_length=9)
        assert again.predict(lines, beams=beams, max_length=9) == wanted
    found, wanted = (r.score(lines, lines) for r in (again, run))
    np.testing.assert_allclose(found, wanted, rtol=1e-3)


@pytest.mark.system
def test_a_run_without_a_counterpart_is_refused_with_the_reason(tiny_run_of, tmp_path):
    tagger = load(tiny_run_of("tagging"))
    with pytest.raises(
        UserError, match="a tagging run has no counterpart: translation"
    ):
        export(tagger, tmp_path / "out")
    rotary = load(tiny_run_of("quickstart", **{"model.positions": "rotary"}))
    with pytest.raises(UserError, match="no architecture of Hugging Face has these"):
        export(rotary, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def write_folder(place, given, **others):
    """A folder of BERT with what is given in its files."""
    place.mkdir(exist_ok=True)
    about = {"architectures": ["BertForMaskedLM"], "vocab_size": 3, **BERT, **given}
    (place / "config.json").write_text(json.dumps(about))
    tokenizer = {"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}}}
    (place / "tokenizer.json").write_text(json.dumps(tokenizer))
    arrays = {"w": np.zeros(1, np.float32)}
    forms = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    tensors.write(place / tensors.SINGLE, forms, arrays.items())
    for name, content in others.items():
        (place / f"{name}.json").write_text(json.dumps(content))


def test_a_folder_that_lacks_something_is_refused_by_name(tmp_path):
    place, out = tmp_path / "theirs", tmp_path / "bundle"
    write_folder(place, {})
    with pytest.raises(UserError, match="does not say its cls_token, with which texts"):
        convert(place, out)
    modules = [{"type": "st.models.Dense", "path": ""}]
    settings = {"cls_token": "a", "sep_token": "b"}
    write_folder(place, {}, modules=modules, tokenizer_config=settings)
    with pytest.raises(UserError, match="the module Dense is not read: Transformer,"):
        convert(place, out)
    (place / "modules.json").unlink()
    write_folder(place, {"vocab_size": None}, tokenizer_config=settings)
    with pytest.raises(UserError, match="cannot be read .TypeError.*or lacks what"):
        convert(place, out)
    assert not out.exists()


def test_a_command_may_ask_which_files_a_folder_has(tmp_path):
    """As `predict` does if its output is a file, so as to overwrite none of them."""
    write_folder(tmp_path / "theirs", {})
    found = set(Folder(tmp_path / "theirs").files())
    assert tmp_path / "theirs" / "config.json" in found


@pytest.mark.system
def test_runs_that_would_lose_something_are_not_written(tiny_run_of, tmp_path):
    numbers = load(tiny_run_of("opinions:score"))
    with pytest.raises(UserError, match="no counterpart|no architecture"):
        export(numbers, tmp_path / "out")
    two = load(tiny_run_of("quickstart", **{"tokenizer.shared": "false",
                                            "model.tie": "none"}))  # fmt: skip
    with pytest.raises(UserError, match="source and target have two vocabularies"):
        export(two, tmp_path / "out")


def test_what_has_changed_since_it_came_does_not_go_back(tiny_run, tmp_path):
    export(load(tiny_run), tmp_path / "marian")
    came = load(tmp_path / "marian")
    with came.config.unlocked():
        came.config.model.norm = "pre"
    with pytest.raises(UserError, match="but it came from MarianMTModel and goes back"):
        export(came, tmp_path / "back")


def test_the_command_has_one_direction(monkeypatch):
    values = flags.FlagValues()
    for name in ("input", "workdir", "output", "weights"):
        flags.DEFINE_string(name, "x", "", values)
    values.mark_as_parsed()
    monkeypatch.setattr(flags, "FLAGS", values)
    with pytest.raises(UserError, match="--input and --workdir are two directions"):
        command.main({})


def test_a_missing_package_is_not_taken_for_a_damaged_file(tmp_path, monkeypatch):
    said = "this tokenizer needs the package `tokenizers`: install it"

    def fail(*_):
        raise UserError(said)

    monkeypatch.setattr(importing, "_convert", fail)
    with pytest.raises(UserError) as found:
        convert(tmp_path, tmp_path / "bundle")
    assert found.value.problems == (said,)
