"""Sizes of a Transformer."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Every size of a model. `config.model` has the meaning and unit of each key.

    The defaults are the paper's base model. Zeros of a size that another implies are
    resolved at once, so that whoever reads the config reads the real sizes.
    """

    vocab_size: int = 8000  # tokens of the target, or of the only vocabulary
    vocab_rows: int = 0  # rows of its table; 0: vocab_size
    source_vocab_size: int = 0  # 0: vocab_size
    source_vocab_rows: int = 0  # 0: source_vocab_size
    encoder_layers: int = 6
    decoder_layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    d_k: int = 0  # 0: d_model // num_heads
    d_v: int = 0  # 0: d_model // num_heads
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
    dropout_embedding: float = 0.1
    dropout_residual: float = 0.1
    dropout_attention: float = 0.0
    dropout_feed_forward: float = 0.0
    dtype: str = "float32"
    remat: bool = False

    def __post_init__(self):
        head = self.d_model // self.num_heads
        source = self.source_vocab_size or self.vocab_size
        implied = dict(
            vocab_rows=self.vocab_size, source_vocab_size=source,
            source_vocab_rows=source, d_k=head, d_v=head,
        )  # fmt: skip
        for name, size in implied.items():
            if not getattr(self, name):
                object.__setattr__(self, name, size)
