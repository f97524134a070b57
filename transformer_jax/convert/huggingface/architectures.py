"""Models of Hugging Face that are models here: their options and their tensors.

Each architecture translates its config.json into options of a config here, and back,
and links the parameters. A config that cannot be expressed is refused by name.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transformer_jax.base.errors import UserError
from transformer_jax.convert.huggingface import links
from transformer_jax.convert.huggingface.links import Link, Vocabulary

Given = Mapping[str, Any]  # a config.json of theirs
Options = dict[str, Any]  # of a config here, by dotted name

ACTIVATIONS = {  # their names → ours
    "relu": "relu",
    "gelu": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
APART = "has_lm_head"  # not theirs: whether the folder has a matrix for the logits
WINDOW = 4096  # pieces that a decoder without a table of positions reads at most
NEUTRAL = {  # of an imported model: nothing is dropped or smoothed until it is set
    "model.dropout_embedding": 0.0,
    "model.dropout_residual": 0.0,
}


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One kind of model: what it is here, and where its tensors lie."""

    task: str
    options: Callable[[Given], Options]
    link: Callable[[Given, Vocabulary], list[Link]]
    describe: Callable[[Given], dict[str, Any]]  # our options → their config.json
    # The fields of their config, or the names of their special tokens, that are our
    # pad, unk, start and end.
    special: tuple[str, str, str, str]
    prefix: str = ""  # a special token that begins every text
    ignored: tuple[str, ...] = ()  # beginnings of tensors that have no counterpart
    base: str = ""  # begins all names in files that also have the head of the model


def name_of(given: Given, sentences: bool) -> str:
    """Return the name of the architecture of a config.json, or refuse it.

    `sentences` says that the folder is one of sentence-transformers.
    """
    names = given.get("architectures") or []
    if sentences:  # a folder of sentence-transformers
        names = [f"{given.get('model_type')}-sentences"]
    for name in names:
        if name in ARCHITECTURES:
            return name
    raise UserError(
        f"the model is {' or '.join(map(repr, names)) or 'of no named architecture'}: "
        f"choose one of {', '.join(ARCHITECTURES)}"
    )


def activation(name: str) -> str:
    """Translate the name of an activation, or refuse it."""
    if name not in ACTIVATIONS:
        raise UserError(
            f"the activation {name!r} is not known: {', '.join(ACTIVATIONS)} are"
        )
    return ACTIVATIONS[name]


def their_activation(name: str) -> str:
    """Translate the name of an activation back."""
    for theirs, ours in ACTIVATIONS.items():
        if ours == name:
            return theirs
    raise UserError(f"model.activation = {name!r} has no name there")


def refuse(given: Given, **wanted: Any) -> None:
    """Refuse a config in which a field has another value than the one supported."""
    for name, value in wanted.items():
        if given.get(name, value) not in (value, None):
            raise UserError(
                f"{name} = {given[name]!r} is not supported, only {value!r}"
            )


# BERT and RoBERTa: an encoder with norms after its sublayers.


def bert_options(given: Given) -> Options:
    """Return the options of a BERT or RoBERTa encoder."""
    refuse(given, position_embedding_type="absolute")
    return {
        **NEUTRAL,
        "model.encoder_layers": given["num_hidden_layers"],
        "model.d_model": given["hidden_size"],
        "model.d_ff": given["intermediate_size"],
        "model.num_heads": given["num_attention_heads"],
        "model.norm": "post",
        "model.norm_epsilon": given["layer_norm_eps"],
        "model.activation": activation(given["hidden_act"]),
        "model.positions": "learned",
        "model.max_positions": given["max_position_embeddings"] - _unused(given),
        "model.embedding_scale": False,
        "model.embedding_norm": True,
        "model.dropout_words": 0.0,
        "data.max_length": given["max_position_embeddings"] - _unused(given) - 2,
    }


def masked_bert_options(given: Given) -> Options:
    """Return the options of a masked language model."""
    refuse(given, tie_word_embeddings=True)
    options = bert_options(given)
    del options["data.max_length"], options["model.dropout_words"]
    return {
        **options,
        "data.window": options["model.max_positions"] - 2,
        "model.tie": "all",
        "model.head_transform": True,
        "model.output_bias": True,
        "tokenizer.user_symbols": ("<mask>",),
    }


def _unused(given: Given) -> int:
    """Count the rows of RoBERTa's table of positions before the first position."""
    return given["pad_token_id"] + 1 if given["model_type"] == "roberta" else 0


def describe_bert(ours: Given) -> dict[str, Any]:
    """Return BERT's config.json."""
    return {
        "model_type": "bert",
        "num_hidden_layers": ours["model.encoder_layers"],
        "hidden_size": ours["model.d_model"],
        "intermediate_size": ours["model.d_ff"],
        "num_attention_heads": ours["model.num_heads"],
        "layer_norm_eps": ours["model.norm_epsilon"],
        "hidden_act": their_activation(ours["model.activation"]),
        "max_position_embeddings": ours["model.max_positions"],
        "type_vocab_size": 2,
    }


def describe_roberta(ours: Given) -> dict[str, Any]:
    """Return RoBERTa's config.json, whose padding token is the second."""
    rows = ours["model.max_positions"] + 2
    changed = {"model_type": "roberta", "max_position_embeddings": rows}
    return {**describe_bert(ours), **changed, "type_vocab_size": 1, "pad_token_id": 1}


def bert_links(prefix: str) -> Callable[[Given, Vocabulary], list[Link]]:
    """Return the links of an encoder whose tensors' names begin with `prefix`."""

    def link(given: Given, rows: Vocabulary) -> list[Link]:
        at, unused = f"{prefix}embeddings.", _unused(given)
        types = given.get("type_vocab_size", 2)

        def read(positions, kinds):
            # Every token here is of the first type, so its vector joins the positions.
            return [positions[unused:] + kinds[:1]]

        def write(table):
            kinds = np.zeros((types, table.shape[1]), table.dtype)
            return [np.pad(table, ((unused, 0), (0, 0))), kinds]

        names = (f"{at}position_embeddings.weight", f"{at}token_type_embeddings.weight")
        made = [
            links.table("embedding/embedding", f"{at}word_embeddings.weight", rows),
            Link(("positions/table",), names, read, write),
            *links.norm("embedding_norm", f"{at}LayerNorm"),
        ]
        for i in range(given["num_hidden_layers"]):
            ours, theirs = f"encoder/layer_{i}", f"{prefix}encoder.layer.{i}"
            attention = f"{theirs}.attention"
            for name in ("query", "key", "value"):
                mine = f"{ours}/self_attention/{name}"
                made += links.dense(mine, f"{attention}.self.{name}")
            made += links.dense(
                f"{ours}/self_attention/out", f"{attention}.output.dense"
            )
            made += links.norm(
                f"{ours}/self_attention_norm", f"{attention}.output.LayerNorm"
            )
            made += links.dense(
                f"{ours}/feed_forward/inner", f"{theirs}.intermediate.dense"
            )
            made += links.dense(f"{ours}/feed_forward/outer", f"{theirs}.output.dense")
            made += links.norm(
                f"{ours}/feed_forward_norm", f"{theirs}.output.LayerNorm"
            )
        return made

    return link


def masked_links(prefix: str, head: str, norm: str, dense: str, bias: str) -> Any:
    """Return the links of a masked language model."""

    def link(given: Given, rows: Vocabulary) -> list[Link]:
        return [
            *bert_links(prefix)(given, rows),
            *links.dense("transform", f"{head}.{dense}"),
            *links.norm("transform_norm", f"{head}.{norm}"),
            links.output_bias(bias, rows),
        ]

    return link


def classifier_links(prefix: str, pooler: str, head: str) -> Any:
    """Return the links of a classifier of texts."""

    def link(given: Given, rows: Vocabulary) -> list[Link]:
        return [
            *bert_links(prefix)(given, rows),
            *links.dense("pooler", pooler),
            *links.dense("head", head),
        ]

    return link


def classifier_options(given: Given) -> Options:
    """Return the options of a classifier of texts, of which one label is right."""
    refuse(given, problem_type="single_label_classification")
    if len(labels_of(given)) < 2:
        raise UserError("the model has one output: a regression is not read")
    return {**bert_options(given), "model.pooling": "pooler"}


def labels_of(given: Given) -> tuple[str, ...]:
    """Return the labels of a classifier, in the order of its outputs."""
    names = given.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    return tuple(str(name) for _, name in sorted((int(i), n) for i, n in names.items()))


# Marian and BART: the paper's encoder-decoder.


def bart_options(given: Given) -> Options:
    """Return the options of Marian or BART."""
    marian = given["model_type"] == "marian"
    if given["encoder_attention_heads"] != given["decoder_attention_heads"] or (
        given["encoder_ffn_dim"] != given["decoder_ffn_dim"]
    ):
        raise UserError(
            "encoder and decoder have other sizes: only equal ones are read"
        )
    refuse(given, share_encoder_decoder_embeddings=True, tie_word_embeddings=True)
    length = given["max_position_embeddings"]
    return {
        **NEUTRAL,
        "model.encoder_layers": given["encoder_layers"],
        "model.decoder_layers": given["decoder_layers"],
        "model.d_model": given["d_model"],
        "model.d_ff": given["encoder_ffn_dim"],
        "model.num_heads": given["encoder_attention_heads"],
        "model.norm": "post",
        "model.norm_epsilon": 1e-5,
        "model.activation": activation(given["activation_function"]),
        "model.positions": "sinusoid_concat" if marian else "learned",
        "model.max_positions": length,
        "model.embedding_scale": bool(given["scale_embedding"]),
        "model.embedding_norm": not marian,
        "model.output_bias": True,
        "model.tie": "all",
        "data.max_length": min(length // 2, 256),
        "decode.extra_length": min(length // 4, 50),
    }


def describe_bart(ours: Given) -> dict[str, Any]:
    """Return the config.json of Marian or BART."""
    marian = ours["model.positions"] == "sinusoid_concat"
    sides = ("encoder", "decoder")
    return {
        "model_type": "marian" if marian else "bart",
        "encoder_layers": ours["model.encoder_layers"],
        "decoder_layers": ours["model.decoder_layers"],
        "d_model": ours["model.d_model"],
        **{f"{side}_ffn_dim": ours["model.d_ff"] for side in sides},
        **{f"{side}_attention_heads": ours["model.num_heads"] for side in sides},
        "activation_function": their_activation(ours["model.activation"]),
        "scale_embedding": ours["model.embedding_scale"],
        "max_position_embeddings": ours["model.max_positions"],
        "tie_word_embeddings": True,
    }


def bart_links(given: Given, rows: Vocabulary) -> list[Link]:
    """Return the links of Marian or BART."""
    made = [
        links.table("embedding/embedding", "model.shared.weight", rows),
        links.output_bias("final_logits_bias", rows, axes=2),
    ]
    for side, name in (("encoder", "source"), ("decoder", "target")):
        theirs = f"model.{side}"
        if given["model_type"] != "marian":
            at = f"{theirs}.embed_positions.weight"
            made += [links.learned_positions(f"{name}_positions/table", at, 2)]
            made += links.norm(f"{name}_norm", f"{theirs}.layernorm_embedding")
        for i in range(given[f"{side}_layers"]):
            here, there = f"{side}/layer_{i}", f"{theirs}.layers.{i}"
            attentions = [("self_attention", "self_attn")]
            attentions += [("cross_attention", "encoder_attn")] * (side == "decoder")
            for ours, their in attentions:
                made += _attention(f"{here}/{ours}", f"{there}.{their}", "out_proj")
                made += links.norm(f"{here}/{ours}_norm", f"{there}.{their}_layer_norm")
            made += links.dense(f"{here}/feed_forward/inner", f"{there}.fc1")
            made += links.dense(f"{here}/feed_forward/outer", f"{there}.fc2")
            made += links.norm(f"{here}/feed_forward_norm", f"{there}.final_layer_norm")
    return made


def _attention(
    ours: str, theirs: str, out: str, inputs: bool = True, result: bool = True
) -> list[Link]:
    """Link the four maps of an attention; inputs and result may have biases."""
    made = []
    for name, letter in (("query", "q"), ("key", "k"), ("value", "v")):
        made += links.dense(f"{ours}/{name}", f"{theirs}.{letter}_proj", inputs)
    return made + links.dense(f"{ours}/out", f"{theirs}.{out}", result)


# T5: distances in buckets, no biases, scores that are not scaled.


def t5_options(given: Given) -> Options:
    """Return the options of T5 and of T5 1.1, which has a matrix for the logits."""
    gated, tied = _is_gated(given), not given.get(APART)
    return {
        **NEUTRAL,
        "model.encoder_layers": given["num_layers"],
        "model.decoder_layers": _t5_layers(given)["decoder"],
        "model.d_model": given["d_model"],
        "model.d_ff": given["d_ff"],
        "model.num_heads": given["num_heads"],
        "model.d_k": given["d_kv"],
        "model.d_v": given["d_kv"],
        "model.norm": "pre",
        "model.norm_kind": "rms",
        "model.norm_epsilon": given["layer_norm_epsilon"],
        "model.activation": "geglu" if gated else "relu",
        "model.bias": "none",
        "model.positions": "relative",
        "model.relative_buckets": given["relative_attention_num_buckets"],
        "model.relative_distance": given.get("relative_attention_max_distance", 128),
        # Logits divided by √d_model there: a table / √d_model here, scaled by it.
        "model.embedding_scale": _is_scaled(given),
        "model.tie": "all" if tied else "inputs",
        "data.max_length": 256,
    }


def _t5_layers(given: Given) -> dict[str, int]:
    layers = given["num_layers"]
    return {"encoder": layers, "decoder": given.get("num_decoder_layers") or layers}


def _is_scaled(given: Given) -> bool:
    tied = given.get("tie_word_embeddings", True)
    return bool(given.get("scale_decoder_outputs", tied))


def _is_gated(given: Given) -> bool:
    kind = given.get("feed_forward_proj", "relu")
    if kind not in ("relu", "gated-gelu"):
        raise UserError(
            f"feed_forward_proj = {kind!r} is not known: relu and gated-gelu are"
        )
    return kind == "gated-gelu"


def describe_t5(ours: Given) -> dict[str, Any]:
    """Return T5's config.json."""
    gated = ours["model.activation"] == "geglu"
    return {
        "model_type": "t5",
        "num_layers": ours["model.encoder_layers"],
        "num_decoder_layers": ours["model.decoder_layers"],
        "d_model": ours["model.d_model"],
        "d_ff": ours["model.d_ff"],
        "num_heads": ours["model.num_heads"],
        "d_kv": ours["model.d_k"] or ours["model.d_model"] // ours["model.num_heads"],
        "layer_norm_epsilon": ours["model.norm_epsilon"],
        "feed_forward_proj": "gated-gelu" if gated else "relu",
        "relative_attention_num_buckets": ours["model.relative_buckets"],
        "relative_attention_max_distance": ours["model.relative_distance"],
        "tie_word_embeddings": ours["model.tie"] == "all",
        "scale_decoder_outputs": ours["model.embedding_scale"],
        APART: ours["model.tie"] == "inputs",
    }


def t5_links(given: Given, rows: Vocabulary) -> list[Link]:
    """Return the links of T5."""
    gated, factor = _is_gated(given), 1.0
    if _is_scaled(given):
        factor = given["d_model"] ** -0.5
    made = [links.table("embedding/embedding", "shared.weight", rows, factor)]
    made += [links.output("lm_head.weight", rows, factor)] if given.get(APART) else []
    for side, layers in _t5_layers(given).items():
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        made += [links.same(f"{side}/position_bias/table", bias)]
        made += links.norm(f"{side}/norm", f"{side}.final_layer_norm", bias=False)
        sublayers = [("self_attention", "SelfAttention")]
        sublayers += [("cross_attention", "EncDecAttention")] * (side == "decoder")
        sublayers += [("feed_forward", "DenseReluDense")]
        for i in range(layers):
            for number, (ours, their) in enumerate(sublayers):
                here = f"{side}/layer_{i}/{ours}"
                layer = f"{side}.block.{i}.layer.{number}"
                there = f"{layer}.{their}"
                made += links.norm(f"{here}_norm", f"{layer}.layer_norm", bias=False)
                if ours == "feed_forward":
                    pairs = {"inner": "wi", "outer": "wo"}
                    if gated:
                        pairs = {"gate": "wi_0", "inner": "wi_1", "outer": "wo"}
                else:
                    pairs = {"query": "q", "key": "k", "value": "v", "out": "o"}
                for mine, name in pairs.items():
                    # Scores are divided by √d_k here alone.
                    factor = math.sqrt(given["d_kv"]) if mine == "query" else 1.0
                    made += [
                        links.matrix(
                            f"{here}/{mine}/kernel", f"{there}.{name}.weight", factor
                        )
                    ]
    return made


# GPT-2 and the LLaMA-like: decoders.


def gpt2_options(given: Given) -> Options:
    """Return the options of GPT-2."""
    refuse(given, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    refuse(given, tie_word_embeddings=True)
    return {
        **NEUTRAL,
        "model.decoder_layers": given["n_layer"],
        "model.d_model": given["n_embd"],
        "model.d_ff": given.get("n_inner") or 4 * given["n_embd"],
        "model.num_heads": given["n_head"],
        "model.norm": "pre",
        "model.norm_epsilon": given["layer_norm_epsilon"],
        "model.activation": activation(given["activation_function"]),
        "model.positions": "learned",
        "model.max_positions": given["n_positions"],
        "data.window": given["n_positions"] - 1,
        "model.embedding_scale": False,
        "model.tie": "all",
    }


def describe_gpt2(ours: Given) -> dict[str, Any]:
    """Return GPT-2's config.json."""
    return {
        "model_type": "gpt2",
        "n_layer": ours["model.decoder_layers"],
        "n_embd": ours["model.d_model"],
        "n_inner": ours["model.d_ff"],
        "n_head": ours["model.num_heads"],
        "layer_norm_epsilon": ours["model.norm_epsilon"],
        "activation_function": their_activation(ours["model.activation"]),
        "n_positions": ours["model.max_positions"],
    }


def gpt2_links(given: Given, rows: Vocabulary) -> list[Link]:
    """Return the links of GPT-2, whose linear maps are not transposed."""
    at = "transformer."
    made = [
        links.table("embedding/embedding", f"{at}wte.weight", rows),
        links.same("positions/table", f"{at}wpe.weight"),
        *links.norm("decoder/norm", f"{at}ln_f"),
    ]

    def split(x):
        return np.split(x, 3, axis=-1)

    def join(*parts):
        return [np.concatenate(parts, axis=-1)]

    for i in range(given["n_layer"]):
        here, there = f"decoder/layer_{i}", f"{at}h.{i}"
        names = [f"{here}/self_attention/{name}" for name in ("query", "key", "value")]
        for kind, part in (("kernel", "weight"), ("bias", "bias")):
            ours = tuple(f"{name}/{kind}" for name in names)
            made += [Link(ours, (f"{there}.attn.c_attn.{part}",), split, join)]
            for mine, theirs in {
                "self_attention/out": "attn.c_proj",
                "feed_forward/inner": "mlp.c_fc",
                "feed_forward/outer": "mlp.c_proj",
            }.items():
                made += [
                    links.same(f"{here}/{mine}/{kind}", f"{there}.{theirs}.{part}")
                ]
        made += links.norm(f"{here}/self_attention_norm", f"{there}.ln_1")
        made += links.norm(f"{here}/feed_forward_norm", f"{there}.ln_2")
    return made


def llama_options(given: Given) -> Options:
    """Return the options of LLaMA, Mistral, Qwen 2 and Qwen 3."""
    kind = given["model_type"]
    refuse(given, attention_bias=False, mlp_bias=False, use_sliding_window=False)
    window = given.get("sliding_window")
    if kind == "mistral" and window and window < given["max_position_embeddings"]:
        raise UserError(
            f"sliding_window = {window} is less than the model's "
            f"{given['max_position_embeddings']} positions, and no window is read here"
        )
    rope = {**given, **(given.get("rope_scaling") or {}), **_rope(given)}
    if (scaling := rope.get("rope_type", rope.get("type", "default"))) not in SCALINGS:
        raise UserError(
            f"rope_type = {scaling!r} is not known: {', '.join(SCALINGS)} are"
        )
    head = given.get("head_dim") or given["hidden_size"] // given["num_attention_heads"]
    return {
        **NEUTRAL,
        "model.decoder_layers": given["num_hidden_layers"],
        "model.d_model": given["hidden_size"],
        "model.d_ff": given["intermediate_size"],
        "model.num_heads": given["num_attention_heads"],
        "model.kv_heads": given.get("num_key_value_heads")
        or given["num_attention_heads"],
        "model.d_k": head,
        "model.d_v": head,
        "model.qk_norm": kind == "qwen3",
        "model.norm": "pre",
        "model.norm_kind": "rms",
        "model.norm_epsilon": given["rms_norm_eps"],
        "model.activation": _gated(given["hidden_act"]),
        "model.bias": "qkv" if kind == "qwen2" else "none",
        "model.positions": "rotary",
        "model.rotary_base": float(rope.get("rope_theta", 10_000.0)),
        "model.rotary_scaling": SCALINGS[scaling],
        "model.rotary_factor": float(rope.get("factor") or 1.0),
        "model.rotary_low": float(rope.get("low_freq_factor") or 1.0),
        "model.rotary_high": float(rope.get("high_freq_factor") or 4.0),
        "model.rotary_original": int(
            rope.get("original_max_position_embeddings") or 8192
        ),
        "data.window": min(given["max_position_embeddings"], WINDOW),
        "model.embedding_scale": False,
        "model.tie": "all" if given.get("tie_word_embeddings") else "none",
    }


SCALINGS = {"default": "none", "linear": "linear", "llama3": "llama3"}  # theirs → ours


def _rope(given: Given) -> Given:
    return given.get("rope_parameters") or {}


def _gated(name: str) -> str:
    if activation(name) != "silu":
        raise UserError(f"hidden_act = {name!r} is not known, only silu")
    return "swiglu"


def describe_llama(ours: Given) -> dict[str, Any]:
    """Return the config.json of LLaMA, or of Qwen if there are biases or norms."""
    kinds = {"none": "qwen3" if ours["model.qk_norm"] else "llama", "qkv": "qwen2"}
    if (bias := ours["model.bias"]) not in kinds:
        raise UserError(f"model.bias = {bias!r} has no counterpart, only none and qkv")
    head = ours["model.d_model"] // ours["model.num_heads"]
    rope = {"rope_type": "default", "rope_theta": ours["model.rotary_base"]}
    if (scaling := ours["model.rotary_scaling"]) != "none":
        rope |= {"rope_type": scaling, "factor": ours["model.rotary_factor"]}
    if scaling == "llama3":
        rope |= {
            "low_freq_factor": ours["model.rotary_low"],
            "high_freq_factor": ours["model.rotary_high"],
            "original_max_position_embeddings": ours["model.rotary_original"],
        }
    return {
        "model_type": kinds[bias],
        "num_hidden_layers": ours["model.decoder_layers"],
        "hidden_size": ours["model.d_model"],
        "intermediate_size": ours["model.d_ff"],
        "num_attention_heads": ours["model.num_heads"],
        "num_key_value_heads": ours["model.kv_heads"] or ours["model.num_heads"],
        "head_dim": ours["model.d_k"] or head,
        "rms_norm_eps": ours["model.norm_epsilon"],
        "hidden_act": "silu",
        "rope_parameters": rope,  # of transformers 5; older ones read the next two
        "rope_theta": ours["model.rotary_base"],
        "rope_scaling": None if scaling == "none" else rope,
        "max_position_embeddings": WINDOW,
        "tie_word_embeddings": ours["model.tie"] == "all",
    }


def llama_links(given: Given, rows: Vocabulary) -> list[Link]:
    """Return the links of LLaMA, Mistral, Qwen 2 and Qwen 3."""
    made = [
        links.table("embedding/embedding", "model.embed_tokens.weight", rows),
        *links.norm("decoder/norm", "model.norm", bias=False),
    ]
    if not given.get("tie_word_embeddings"):
        made += [links.output("lm_head.weight", rows)]
    biased = given["model_type"] == "qwen2"
    for i in range(given["num_hidden_layers"]):
        here, there = f"decoder/layer_{i}", f"model.layers.{i}"
        attention, theirs = f"{here}/self_attention", f"{there}.self_attn"
        made += _attention(attention, theirs, "o_proj", biased, False)
        if given["model_type"] == "qwen3":
            for ours, letter in (("query", "q"), ("key", "k")):
                name = f"{theirs}.{letter}_norm"
                made += links.norm(f"{attention}/{ours}_norm", name, bias=False)
        for mine, name in (("gate", "gate"), ("inner", "up"), ("outer", "down")):
            ours = f"{here}/feed_forward/{mine}"
            made += links.dense(ours, f"{there}.mlp.{name}_proj", bias=False)
        for mine, name in (
            ("self_attention", "input_layernorm"),
            ("feed_forward", "post_attention_layernorm"),
        ):
            made += links.norm(f"{here}/{mine}_norm", f"{there}.{name}", bias=False)
    return made


# Special tokens: by a field of config.json (…_id), or by the tokenizer's name of it.
OF_ENCODERS = ("pad_token", "unk_token", "cls_token", "sep_token")
OF_PAIRS = ("pad_token_id", "unk_token", "decoder_start_token_id", "eos_token_id")
OF_DECODERS = ("pad_token", "unk_token", "bos_token_id", "eos_token_id")

_BERT = Architecture(
    "masked",
    masked_bert_options,
    masked_links(
        "bert.",
        "cls.predictions",
        "transform.LayerNorm",
        "transform.dense",
        "cls.predictions.bias",
    ),
    describe_bert,
    OF_ENCODERS,
    ignored=("bert.pooler", "cls.seq_relationship", "cls.predictions.decoder"),
)
_ROBERTA = dataclasses.replace(
    _BERT,
    link=masked_links("roberta.", "lm_head", "layer_norm", "dense", "lm_head.bias"),
    describe=describe_roberta,
    ignored=("roberta.pooler", "lm_head.decoder"),
)
_SENTENCES = Architecture(
    "similarity", bert_options, bert_links(""), describe_bert, OF_ENCODERS,
    ignored=("pooler",),
)  # fmt: skip
_BART = Architecture(
    "translation", bart_options, bart_links, describe_bart, OF_PAIRS,
    ignored=("model.encoder.embed", "model.decoder.embed", "lm_head"),
)  # fmt: skip
_T5 = Architecture(
    "translation", t5_options, t5_links, describe_t5, OF_PAIRS,
    ignored=("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"),
)  # fmt: skip
_LLAMA = Architecture(
    "language", llama_options, llama_links, describe_llama, OF_DECODERS,
    ignored=("lm_head", "model.rotary_emb"),
)  # fmt: skip

ARCHITECTURES: Mapping[str, Architecture] = {
    "BertForMaskedLM": _BERT,
    "BertForPreTraining": _BERT,
    "RobertaForMaskedLM": _ROBERTA,
    "BertForSequenceClassification": Architecture(
        "classification",
        classifier_options,
        classifier_links("bert.", "bert.pooler.dense", "classifier"),
        describe_bert,
        OF_ENCODERS,
    ),
    "RobertaForSequenceClassification": Architecture(
        "classification",
        classifier_options,
        classifier_links("roberta.", "classifier.dense", "classifier.out_proj"),
        describe_roberta,
        OF_ENCODERS,
        ignored=("roberta.pooler",),
    ),
    "bert-sentences": _SENTENCES,
    "roberta-sentences": dataclasses.replace(_SENTENCES, describe=describe_roberta),
    "MarianMTModel": _BART,
    "BartForConditionalGeneration": dataclasses.replace(_BART, prefix="bos_token_id"),
    "T5ForConditionalGeneration": _T5,
    "GPT2LMHeadModel": Architecture(
        "language", gpt2_options, gpt2_links, describe_gpt2, OF_DECODERS,
        ignored=("lm_head",), base="transformer.",
    ),
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": _LLAMA,
    "Qwen3ForCausalLM": _LLAMA,
}  # fmt: skip
CLASSES = {  # the class of a run that was trained here, by model_type
    "marian": "MarianMTModel",
    "bart": "BartForConditionalGeneration",
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
