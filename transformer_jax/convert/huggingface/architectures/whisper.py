"""Whisper: the encoder-decoder that transcribes speech.

The keys of its attentions have no bias. One would add the same number to all scores of
a query, which a softmax does not see: it is 0 here, and left out on the way back.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from transformer_jax.base.errors import UserError
from transformer_jax.convert.huggingface import links
from transformer_jax.convert.huggingface.architecture import (
    NEUTRAL,
    PROCESSOR,
    Given,
    Options,
    activation,
    refuse,
    their_activation,
)
from transformer_jax.convert.huggingface.links import Link, Vocabulary
from transformer_jax.models.positions import sinusoid_t2t

FRAMES = 2  # that a vector of the encoder stands for
SECOND = 100  # frames
SIDES = ("encoder", "decoder")
SPECTROGRAM = {"sampling_rate": 16_000, "hop_length": 160, "n_fft": 400, "dither": 0.0}
NEAR = 1e-3  # of sinusoids that were computed in float16, or in another order


def whisper_options(given: Given) -> Options:
    """Return the options of a Whisper."""
    heads, widths = (
        [given[f"{side}_{name}"] for side in SIDES]
        for name in ("attention_heads", "ffn_dim")
    )
    if len(set(heads)) > 1 or len(set(widths)) > 1:
        raise UserError(
            f"encoder and decoder have {heads} heads and inner widths of {widths}: "
            "only equal ones are read"
        )
    refuse(given, tie_word_embeddings=True)
    frames, bands = FRAMES * given["max_source_positions"], given["num_mel_bins"]
    heard = given.get(PROCESSOR, {})
    seconds = frames // SECOND
    refuse(heard, **SPECTROGRAM, feature_size=bands, chunk_length=seconds)
    return {
        **NEUTRAL,
        "model.encoder_layers": given["encoder_layers"],
        "model.decoder_layers": given["decoder_layers"],
        "model.d_model": given["d_model"],
        "model.d_ff": widths[0],
        "model.num_heads": heads[0],
        "model.norm": "pre",
        "model.norm_epsilon": 1e-5,
        "model.activation": activation(given["activation_function"]),
        "model.positions": "learned",
        "model.max_positions": given["max_target_positions"],
        "model.sound_positions": "sinusoid_t2t",
        "model.stride": 1,
        "model.convolution_activation": "gelu_erf",
        "model.embedding_scale": bool(given["scale_embedding"]),
        "model.tie": "decoder",
        "train.ctc": 0.0,
        "data.features": "whisper",
        "data.bands": bands,
        "data.pad": True,
        "data.max_length": frames,
        "eval.max_length": frames,
        "data.row_multiple": 1,  # sounds of 30 s
        "eval.batch_rows": 8,
        "decode.beams": 1,
        "decode.max_length": given["max_target_positions"] // 2,
    }


def describe_whisper(ours: Given) -> dict[str, Any]:
    """Return the config.json of a Whisper, and its preprocessor's."""
    if ours["data.features"] != "whisper" or not ours["data.pad"]:
        raise UserError(
            "a Whisper needs data.features = 'whisper' and data.pad = True: the run "
            f"has {ours['data.features']!r} and {ours['data.pad']}"
        )
    if (frames := ours["data.max_length"]) % SECOND:
        raise UserError(
            f"data.max_length {frames} frames are no whole seconds, which a Whisper "
            f"needs: {frames // SECOND * SECOND} are"
        )
    return {
        "model_type": "whisper",
        **{f"{side}_layers": ours[f"model.{side}_layers"] for side in SIDES},
        **{f"{side}_ffn_dim": ours["model.d_ff"] for side in SIDES},
        **{f"{side}_attention_heads": ours["model.num_heads"] for side in SIDES},
        "d_model": ours["model.d_model"],
        "activation_function": their_activation(ours["model.activation"]),
        "scale_embedding": ours["model.embedding_scale"],
        "num_mel_bins": ours["data.bands"],
        "max_source_positions": frames // FRAMES,
        "max_target_positions": ours["model.max_positions"],
        "tie_word_embeddings": True,
        PROCESSOR: {
            "feature_extractor_type": "WhisperFeatureExtractor",
            **SPECTROGRAM,
            "feature_size": ours["data.bands"],
            "chunk_length": frames // SECOND,
        },
    }


def whisper_links(given: Given, rows: Vocabulary) -> list[Link]:
    """Return the links of a Whisper."""
    made = [
        links.table(
            "target_embedding/embedding", "model.decoder.embed_tokens.weight", rows
        ),
        links.learned_positions(
            "target_positions/table", "model.decoder.embed_positions.weight"
        ),
        _sinusoids(given["max_source_positions"], given["d_model"]),
    ]
    for i in range(2):
        here, there = f"ear/convolution_{i}", f"model.encoder.conv{i + 1}"
        made += [_convolution(here, there), links.same(f"{here}/bias", f"{there}.bias")]
    for side in SIDES:
        made += links.norm(f"{side}/norm", f"model.{side}.layer_norm")
        for i in range(given[f"{side}_layers"]):
            here, there = f"{side}/layer_{i}", f"model.{side}.layers.{i}"
            attentions = [("self_attention", "self_attn")]
            attentions += [("cross_attention", "encoder_attn")] * (side == "decoder")
            for ours, their in attentions:
                made += _attention(f"{here}/{ours}", f"{there}.{their}")
                made += links.norm(f"{here}/{ours}_norm", f"{there}.{their}_layer_norm")
            made += links.dense(f"{here}/feed_forward/inner", f"{there}.fc1")
            made += links.dense(f"{here}/feed_forward/outer", f"{there}.fc2")
            made += links.norm(f"{here}/feed_forward_norm", f"{there}.final_layer_norm")
    return made


def _attention(ours: str, theirs: str) -> list[Link]:
    """Link the four maps of an attention, of which the keys' has no bias there."""
    key = Link(
        (f"{ours}/key/kernel", f"{ours}/key/bias"),
        (f"{theirs}.k_proj.weight",),
        lambda x: [x.T, np.zeros(len(x), x.dtype)],
        lambda kernel, bias: [kernel.T],
    )
    made = [key]
    for name, their in (("query", "q_proj"), ("value", "v_proj"), ("out", "out_proj")):
        made += links.dense(f"{ours}/{name}", f"{theirs}.{their}")
    return made


def _convolution(ours: str, theirs: str) -> Link:
    """Link kernels of [frames, in, out] here and [out, in, frames] there."""

    def turn(x: np.ndarray) -> Sequence[np.ndarray]:
        return [x.transpose(2, 1, 0)]

    return Link((f"{ours}/kernel",), (f"{theirs}.weight",), turn, turn)


def _sinusoids(length: int, width: int) -> Link:
    """Link the table of the encoder's positions, which is computed here."""
    name = "model.encoder.embed_positions.weight"
    table = np.asarray(sinusoid_t2t(jnp.arange(length)[None], width)[0], np.float32)

    def check(given: np.ndarray) -> Sequence[np.ndarray]:
        if given.shape != table.shape or np.abs(given - table).max() > NEAR:
            raise UserError(f"{name} is no table of sinusoids: only those are read")
        return []

    return Link((), (name,), check, lambda: [table])
