"""Marian, BART and mBART: the paper's encoder-decoder."""

from typing import Any

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


def bart_options(given: Given) -> Options:
    """Return the options of Marian, BART or mBART."""
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
        "model.norm": "pre" if given["model_type"] == "mbart" else "post",
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
    """Return the config.json of Marian, or of BART: with norms before, of mBART."""
    marian = ours["model.positions"] == "sinusoid_concat"
    bart = "mbart" if ours["model.norm"] == "pre" else "bart"
    sides = ("encoder", "decoder")
    return {
        "model_type": "marian" if marian else bart,
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
    """Return the links of Marian, BART or mBART."""
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
        if given["model_type"] == "mbart":
            made += links.norm(f"{side}/norm", f"{theirs}.layer_norm")
        for i in range(given[f"{side}_layers"]):
            here, there = f"{side}/layer_{i}", f"{theirs}.layers.{i}"
            attentions = [("self_attention", "self_attn")]
            attentions += [("cross_attention", "encoder_attn")] * (side == "decoder")
            for ours, their in attentions:
                made += links.attention(
                    f"{here}/{ours}", f"{there}.{their}", "out_proj"
                )
                made += links.norm(f"{here}/{ours}_norm", f"{there}.{their}_layer_norm")
            made += links.dense(f"{here}/feed_forward/inner", f"{there}.fc1")
            made += links.dense(f"{here}/feed_forward/outer", f"{there}.fc2")
            made += links.norm(f"{here}/feed_forward_norm", f"{there}.final_layer_norm")
    return made
