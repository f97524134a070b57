"""Sizes of a Transformer."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Every size of a model. `config.model` has the meaning and unit of each key."""

    vocab_size: int
    vocab_rows: int
    source_vocab_size: int
    source_vocab_rows: int
    encoder_layers: int
    decoder_layers: int
    d_model: int
    d_ff: int
    num_heads: int
    d_k: int
    d_v: int
    kv_heads: int = 0
    qk_norm: bool = False
    norm: str = "post"
    norm_kind: str = "layer"
    norm_epsilon: float = 1e-6
    activation: str = "relu"
    positions: str = "sinusoid"
    max_positions: int = 512
    rotary_base: float = 10_000.0
    rotary_scaling: str = "none"
    rotary_factor: float = 1.0
    relative_buckets: int = 32
    relative_distance: int = 128
    tie: str = "all"
    dropout_words: float = 0.0
    dropout_embedding: float = 0.0
    dropout_residual: float = 0.0
    dropout_attention: float = 0.0
    dropout_feed_forward: float = 0.0
    dtype: str = "float32"
    remat: bool = False
