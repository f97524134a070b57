"""Sizes of a Transformer: the options of `config.model`, and the checks on them."""

import dataclasses
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.base.schema import option
from transformer_jax.models import kernels
from transformer_jax.models.embeddings import TIES, Vocabularies
from transformer_jax.models.layers import (
    ACTIVATIONS,
    BIASED,
    DTYPES,
    GATES,
    NORM_KINDS,
    NORMS,
    REMATS,
    SHARINGS,
)
from transformer_jax.models.positions import BIASES, POSITIONS, SCALINGS
from transformer_jax.models.registry import Longest


@dataclasses.dataclass(frozen=True)
class TransformerConfig(Vocabularies):
    """Every size of a model; the defaults are the paper's base model (Table 3)."""

    encoder_layers: int = option(
        6, "Layers of the encoder (N).", least=1, most=1000, of="encoder"
    )
    decoder_layers: int = option(
        6, "Layers of the decoder (N).", least=1, most=1000, of="decoder"
    )
    d_model: int = option(512, "Width of the residual stream.", least=1)
    d_ff: int = option(2048, "Width inside a feed-forward layer.", least=1)
    num_heads: int = option(8, "Attention heads of a layer.", least=1)
    d_k: int = option(
        0, "Size of a head's queries and keys; 0 means d_model / num_heads.", least=0
    )
    d_v: int = option(
        0, "Size of a head's values; 0 means d_model / num_heads.", least=0
    )
    kv_heads: int = option(
        0, "Heads of keys and values, shared by queries; 0 means num_heads.", least=0
    )
    qk_norm: bool = option(False, "Normalise queries and keys before their product.")
    norm: str = option(
        "post",
        "Normalise after a sublayer (the paper), before it, or both; deepnorm: after "
        "it, scaled for deep stacks.",
        choices=NORMS,
    )
    norm_kind: str = option(
        "layer",
        "LayerNorm, or RMSNorm (no mean subtracted, no bias).",
        choices=lambda: NORM_KINDS,
    )
    parallel_sublayers: bool = option(
        False, "A layer's sublayers read the same input, and their sum is added to it."
    )
    shared_layers: str = option(
        "none",
        "all: every layer of a stack has the same parameters (ALBERT); universal: they "
        "also read the number of the layer (Universal Transformer).",
        choices=SHARINGS,
    )
    norm_epsilon: float = option(1e-6, "Added to the variance.", least=0)
    activation: str = option(
        "relu",
        "Activation of a feed-forward layer; gated ones have a third matrix.",
        choices=lambda: (*ACTIVATIONS, *GATES),
    )
    bias: str = option(
        "all",
        "Linear maps with a bias: all; those to queries, keys and values (Qwen 2); "
        "none (T5, LLaMA).",
        choices=BIASED,
    )
    positions: str = option(
        "sinusoid",
        "How positions are encoded: see models/positions.py.",
        choices=lambda: dict.fromkeys((*POSITIONS, *BIASES)),
    )
    attention_window: int = option(
        0,
        "Tokens that a decoder's self-attention sees at most: the last ones, its own "
        "included (Mistral); 0: all.",
        least=0,
        of="decoder",
    )
    max_positions: int = option(
        512, "Rows of a learned table.", least=1, of="positions"
    )
    rotary_base: float = option(
        10_000.0,
        "Wavelength of the slowest rotation, divided by 2π.",
        least=1,
        most=1e12,
    )
    rotary_scaling: str = option(
        "none", "Scaling of angles, to read longer texts.", choices=SCALINGS
    )
    rotary_factor: float = option(
        1.0, "Scaling: length to read, relative to the training length.", least=1
    )
    rotary_low: float = option(
        1.0, "llama3, yarn: angles with fewer turns are slowed down.", least=0
    )
    rotary_high: float = option(
        4.0,
        "llama3, yarn (which has 32 usually): angles with more turns stay as they are.",
        above=0,
    )
    rotary_original: int = option(
        8192,
        "llama3, yarn: the training length, within which turns are counted.",
        least=1,
    )
    rotary_gain: float = option(
        0.0,
        "yarn: factor of rotated queries and keys; 0: 0.1 ln(rotary_factor) + 1.",
        least=0,
    )
    relative_buckets: int = option(
        32, "Buckets of distances; each holds one number per head.", least=2
    )
    relative_distance: int = option(
        128, "Distance beyond which all distances share a bucket.", least=1
    )
    tie: str = option(
        "all",
        "Which of source, target and output share a table.",
        choices=TIES,
        of="tie",
    )
    embedding_scale: bool = option(
        True, "Multiply embeddings by the root of d_model (3.4).", of="text"
    )
    embedding_norm: bool = option(
        False, "Normalise embedding + position (BERT, BART).", of="text"
    )
    output_bias: bool = option(
        False, "Add a bias to the logits (BERT, Marian).", of="tie"
    )
    dropout_words: float = option(
        0.0,
        "Share of source and target tokens that are read as unknown.",
        least=0,
        below=1,
        of="words",
    )
    dropout_embedding: float = option(
        0.1, "Dropout rate of embedding + position (5.4).", least=0, below=1
    )
    dropout_residual: float = option(
        0.1, "Dropout rate of each sublayer's output (5.4).", least=0, below=1
    )
    dropout_attention: float = option(
        0.0, "Dropout rate of the attention weights.", least=0, below=1
    )
    dropout_feed_forward: float = option(
        0.0, "Dropout rate of the inner activation.", least=0, below=1
    )
    dropout_layers: float = option(
        0.0, "Probability of skipping a layer in a training step.", least=0, below=1
    )
    dtype: str = option(
        "float32", "Type of the computation; weights are float32.", choices=DTYPES
    )
    gradient_dtype: str = option(
        "same",
        "Type in which the gradients of a layer's matrices are summed.",
        choices=("same", *DTYPES),
    )
    remat: str = option(
        "none",
        "What to recompute in the backward pass: see models/layers/recompute.py.",
        choices=REMATS,
    )
    scan_layers: bool = option(
        False, "Compile one layer for a whole stack, so deep models compile sooner."
    )
    attention: str = option(
        "auto",
        "Attention kernel; auto: the best one for the hardware, see models/kernels.",
        choices=kernels.KERNELS,
    )

    def __post_init__(self):
        super().__post_init__()
        head = self.d_model // self.num_heads
        self.imply(d_k=head, d_v=head)


def find_problems(config: ConfigDict, longest: Longest) -> list[str]:
    """List the problems in the sizes of a Transformer."""
    model, problems = config.model, []
    d, n = model.d_model, model.num_heads
    if d % n and not (model.d_k and model.d_v):
        problems.append(
            f"model.d_model {d} does not divide over model.num_heads {n}: "
            f"use {divisor_near(d, n)} heads, or set model.d_k and model.d_v"
        )
    if n % max(config.mesh.tensor, 1):
        problems.append(
            f"model.num_heads {n} does not divide over mesh.tensor {config.mesh.tensor}"
        )
    problems += _impossible_heads(model)
    if model.get("attention", "auto") != "auto":
        problem = kernels.find_problem(model.attention, attention_case(config))
        problems += [problem] if problem else []
    waves = model.positions.startswith("sinusoid") or model.shared_layers == "universal"
    if waves and model.d_model % 2:
        problems.append(
            f"model.d_model {model.d_model} is odd, but sinusoids come in pairs: "
            f"use {model.d_model + 1}"
        )
    if model.scan_layers and model.shared_layers != "none":
        problems.append(
            f"model.scan_layers = True with model.shared_layers = "
            f"{model.shared_layers!r}: a scan runs over the parameters of several "
            "layers, but shared layers have only one set: set model.scan_layers to "
            "False, or model.shared_layers to 'none'"
        )
    if model.positions == "relative":
        problems += _impossible_buckets(model)
    return problems + _impossible_table(model, longest)


def attention_case(config: ConfigDict, **known: Any) -> kernels.Case:
    """Describe the self-attention of a training; `known` adds or overrides fields."""
    model, head = config.model, config.model.d_model // config.model.num_heads
    case = {
        "platform": config.mesh.platform,
        "dtype": model.dtype,
        "d_k": model.d_k or head,
        "d_v": model.d_v or head,
        "kv_heads": model.kv_heads or model.num_heads,
        "dropout": model.dropout_attention,
        "window": model.get("attention_window", 0),
        "bias": model.positions in ("relative", *BIASES),
        "tensor": max(config.mesh.tensor, 1),
        "sequence": max(config.mesh.sequence, 1),
    }
    return kernels.Case(**case | known)


def divisor_near(number: int, wanted: int) -> int:
    """Find the divisor of a number that is nearest to `wanted`."""
    divisors = (d for d in range(1, number + 1) if number % d == 0)
    return min(divisors, key=lambda d: abs(d - wanted))


def _impossible_table(model: ConfigDict, longest: Longest) -> list[str]:
    """Check that a learned table covers the longest example, without its padding."""
    if model.positions != "learned" or "max_positions" not in model:
        return []
    if model.max_positions >= longest.positions:
        return []
    answer = ""
    if longest.positions > longest.pieces:
        answer = " and its longest answer (decode.extra_length or max_length)"
    return [
        f"model.max_positions {model.max_positions} < {longest.positions}, the "
        f"positions that an example of {longest.pieces} pieces "
        f"({longest.options}){answer} needs: raise model.max_positions, or lower the "
        "other"
    ]


def _impossible_buckets(model: ConfigDict) -> list[str]:
    """Check distances and buckets: half of a direction's buckets hold one distance."""
    problems, reads_ahead = [], "encoder_layers" in model
    least = 4 if reads_ahead else 2
    if model.relative_buckets < least:
        problems.append(
            f"model.relative_buckets = {model.relative_buckets}: must be at least "
            f"{least}"
        )
    exact = model.relative_buckets // (2 if "decoder_layers" in model else 4)
    if model.relative_distance <= exact:
        problems.append(
            f"model.relative_distance {model.relative_distance} is not beyond the "
            f"{exact} distances that have their own bucket: raise it, or lower "
            f"model.relative_buckets {model.relative_buckets}"
        )
    return problems


def _impossible_heads(model: ConfigDict) -> list[str]:
    """Check the sizes of heads that share keys, and of heads that are rotated."""
    problems = []
    if model.num_heads % (model.kv_heads or model.num_heads):
        problems.append(
            f"model.num_heads {model.num_heads} does not divide over model.kv_heads "
            f"{model.kv_heads}: each key head serves the same number of query heads"
        )
    size = model.d_k or model.d_model // model.num_heads
    if model.positions.endswith("rotary") and size % 2:
        problems.append(
            f"rotary positions rotate pairs, but a head has {size} numbers: set "
            f"model.d_k to {size + 1}"
        )
    if model.rotary_factor != 1.0 and model.rotary_scaling == "none":
        problems.append(
            f"model.rotary_factor = {model.rotary_factor} has no effect without "
            "model.rotary_scaling: linear, ntk, llama3 or yarn"
        )
    if model.rotary_gain and model.rotary_scaling != "yarn":
        problems.append(
            f"model.rotary_gain = {model.rotary_gain} has no effect with "
            f"model.rotary_scaling = {model.rotary_scaling!r}: set it to 0.0, or use "
            "yarn"
        )
    if model.rotary_high <= model.rotary_low:
        problems.append(
            f"model.rotary_high = {model.rotary_high} must be more than "
            f"model.rotary_low {model.rotary_low}"
        )
    return problems
