"""T5: distances in buckets, no biases, scores that are not scaled."""

import math
from typing import Any

from transformer_jax.base.errors import UserError
from transformer_jax.convert.huggingface import links
from transformer_jax.convert.huggingface.architecture import (
    APART,
    NEUTRAL,
    Given,
    Options,
)
from transformer_jax.convert.huggingface.links import Link, Vocabulary


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
