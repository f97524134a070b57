"""Decoders: GPT-2, and LLaMA with those like it."""

import math
from typing import Any

import numpy as np

from transformer_jax.base.errors import UserError
from transformer_jax.convert.huggingface import links
from transformer_jax.convert.huggingface.architecture import (
    NEUTRAL,
    Given,
    Options,
    activation,
    refuse,
    their_activation,
)
from transformer_jax.convert.huggingface.links import Link, Vocabulary

WINDOW = 4096  # pieces that a decoder without a table of positions reads at most


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
        "model.attention_window": _window(given),
        "model.positions": "rotary",
        "model.rotary_base": float(rope.get("rope_theta", 10_000.0)),
        "model.rotary_scaling": SCALINGS[scaling],
        **_scaling(SCALINGS[scaling], rope),
        "data.window": min(given["max_position_embeddings"], WINDOW),
        "model.embedding_scale": False,
        "model.tie": "all" if given.get("tie_word_embeddings") else "none",
    }


# Theirs → ours. The dynamic scaling begins beyond the positions that are read here.
SCALINGS = {"default": "none", "dynamic": "none", "linear": "linear"}
SCALINGS |= {"llama3": "llama3", "yarn": "yarn"}
BANDS = {  # their names of rotary_low and rotary_high
    "llama3": ("low_freq_factor", "high_freq_factor"),
    "yarn": ("beta_slow", "beta_fast"),
}


def _scaling(kind: str, rope: Given) -> Options:
    """Return the options of a scaling of the angles."""
    if kind == "none":
        return {}
    longest = rope["max_position_embeddings"]
    original = int(rope.get("original_max_position_embeddings") or longest)
    made = {"model.rotary_factor": float(rope.get("factor") or longest / original)}
    if kind == "linear":
        return made
    low, high = (rope.get(name) for name in BANDS[kind])
    made |= {
        "model.rotary_low": float(low or 1.0),
        "model.rotary_high": float(high or {"llama3": 4.0, "yarn": 32.0}[kind]),
        "model.rotary_original": original,
    }
    if kind == "yarn":
        refuse(rope, truncate=True)
        made["model.rotary_gain"] = _gain(made["model.rotary_factor"], rope)
    return made


def _gain(factor: float, rope: Given) -> float:
    """Return YaRN's factor of rotated queries and keys, or 0 if it is the usual one."""
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    scale, whole = rope.get("mscale"), rope.get("mscale_all_dim")
    if not (scale and whole):
        return 0.0
    growth = 0.1 * math.log(factor)
    return (growth * scale + 1) / (growth * whole + 1)


def _window(given: Given) -> int:
    """Return how many tokens a token sees at most; 0 if all that a text can have."""
    window = given["model_type"] == "mistral" and given.get("sliding_window") or 0
    return window if window < given["max_position_embeddings"] else 0


def _rope(given: Given) -> Given:
    return given.get("rope_parameters") or {}


def _gated(name: str) -> str:
    if activation(name) != "silu":
        raise UserError(f"hidden_act = {name!r} is not known, only silu")
    return "swiglu"


def describe_llama(ours: Given) -> dict[str, Any]:
    """Return the config.json of LLaMA.

    With biases or norms of queries it is Qwen's, with a window Mistral's.
    """
    kinds = {"none": "qwen3" if ours["model.qk_norm"] else "llama", "qkv": "qwen2"}
    if (bias := ours["model.bias"]) not in kinds:
        raise UserError(f"model.bias = {bias!r} has no counterpart, only none and qkv")
    kind, window = kinds[bias], ours["model.attention_window"]
    if window and kind != "llama":
        raise UserError(
            f"model.attention_window = {window} with biases or norms of queries has no "
            f"counterpart: {kind} has no window"
        )
    head = ours["model.d_model"] // ours["model.num_heads"]
    rope = {"rope_type": "default", "rope_theta": ours["model.rotary_base"]}
    if (scaling := ours["model.rotary_scaling"]) != "none":
        rope |= {"rope_type": scaling, "factor": ours["model.rotary_factor"]}
    if scaling in ("llama3", "yarn"):
        low, high = BANDS[scaling]
        rope |= {
            low: ours["model.rotary_low"],
            high: ours["model.rotary_high"],
            "original_max_position_embeddings": ours["model.rotary_original"],
        }
    if scaling == "yarn" and ours["model.rotary_gain"]:
        rope["attention_factor"] = ours["model.rotary_gain"]
    return {
        "model_type": "mistral" if window else kind,
        **({"sliding_window": window} if window else {}),
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
        "max_position_embeddings": max(WINDOW, window + 1),
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
        made += links.attention(attention, theirs, "o_proj", biased, False)
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
