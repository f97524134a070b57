"""Attention, embeddings, positions, layers, and the models built from them.

This room does not know data or tasks: arrays in, arrays out.

    mha = MultiHeadAttention(d_model=32, num_heads=4)
    output, weights = mha.apply(variables, x)                  self-attention
    output, weights = mha.apply(variables, x, memory, mask)    cross-attention
"""

from transformer_jax.models.attention import MultiHeadAttention
from transformer_jax.models.classifier import Classifier, Encoder, MaskedLM
from transformer_jax.models.transformer import LanguageModel, Seq2Seq
from transformer_jax.models.transformer_config import TransformerConfig

__all__ = [
    "Classifier",
    "Encoder",
    "LanguageModel",
    "MaskedLM",
    "MultiHeadAttention",
    "Seq2Seq",
    "TransformerConfig",
]
