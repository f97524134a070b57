"""An encoder, and models built on it.

    Classifier   logits = W · pool(encoder(x)) + b
    Tagger       logits = W · encoder(x) + b, for every token
    MaskedLM     logits = encoder(x) Eᵀ, at the given places; BERT transforms x first
    Embedder     vector = mean(encoder(x)), scaled to length 1

The special token is the first of every sequence. It attends to all others, so its last
representation can represent the whole sequence. So can the mean of all tokens, both
ends included, which has less to learn and therefore suits small data. A classifier with
one output is a regression.
All models have the encoder's parameters under the same paths, so that one can be
initialised from another.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax import sharding
from transformer_jax.base.schema import option
from transformer_jax.models.attention import Mask, all_real
from transformer_jax.models.embeddings import OutputBias, leave_out, make_embedding
from transformer_jax.models.layers import (
    ACTIVATIONS,
    NORM_KINDS,
    Dropout,
    dense,
    output_layer,
)
from transformer_jax.models.outputs import Outputs
from transformer_jax.models.positions import PositionEncoding
from transformer_jax.models.stack import Stack
from transformer_jax.models.transformer import embedding_norm
from transformer_jax.models.transformer_config import TransformerConfig

POOLINGS = ("special", "mean", "pooler")


@dataclasses.dataclass(frozen=True)
class PoolingOptions:
    """Choose the pooling of a text to one vector: options of `config.model`."""

    pooling: str = option(
        "special",
        "The head reads the special token, the mean of all tokens, or tanh of a linear "
        "map of the special token (BERT's pooler).",
        choices=POOLINGS,
    )


@dataclasses.dataclass(frozen=True)
class MaskedHeadOptions:
    """Choose the head that predicts a hidden token: options of `config.model`."""

    head_transform: bool = option(
        False, "Before the table: a linear map, the activation and a norm (BERT)."
    )


class Encoder(nn.Module):
    """Tokens [B, S] to vectors [B, S, D]."""

    config: TransformerConfig

    def setup(self):
        """Make the embeddings and the stack."""
        c = self.config
        self.embedding = make_embedding(c, source=True)
        if c.embedding_norm:
            self.embedding_norm = embedding_norm(c)
        self.positions = PositionEncoding(c.positions, c.d_model, c.max_positions)
        self.encoder = Stack(c, c.encoder_layers)
        self.drop = Dropout(c.dropout_embedding)

    def __call__(
        self,
        tokens: Int[Array, "B S"],
        segments: Int[Array, "B S"] | None = None,
        train: bool = False,
    ) -> Any:
        """Encode tokens; return the vectors and attention weights of `encode`."""
        return self.encode(tokens, segments, train)

    def encode(
        self,
        tokens: Int[Array, "B S"],
        segments: Int[Array, "B S"] | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "B S D"], Any]:
        """Return the output of the last layer and the attention weights by layer.

        Each row is one sequence, padded at its end.
        """
        c = self.config
        segments = all_real(segments, tokens)
        places = jnp.arange(tokens.shape[1])[None]
        x = self.embedding(tokens, train) + self.positions(places)
        x = self.embedding_norm(x) if c.embedding_norm else x
        x = sharding.constrain(self.drop(x.astype(c.dtype), train))
        mask = Mask(segments, segments, whole=True)
        x, _, weights, _ = self.encoder(x, places, mask, train=train)
        return x, weights


class Classifier(Encoder):
    """Map sequences that begin with the special token to `outputs` numbers."""

    outputs: int
    pooling: str = "special"

    def setup(self):
        """Make the encoder and the head."""
        super().setup()
        c = self.config
        self.head = output_layer(self.outputs, c.dtype)
        if self.pooling == "pooler":
            self.pooler = dense(c.d_model, c.dtype)

    def __call__(
        self,
        tokens: Int[Array, "B S"],
        segments: Int[Array, "B S"] | None = None,
        train: bool = False,
    ) -> Outputs:
        """Classify sequences: logits [B, outputs], in float32."""
        segments = all_real(segments, tokens)
        x, weights = self.encode(tokens, segments, train=train)
        pooled = pool(x, segments, self.pooling)
        if self.pooling == "pooler":
            pooled = jnp.tanh(self.pooler(pooled))
        logits = self.head(pooled)
        return Outputs(logits, encoder_attention=weights)


def pool(
    x: Float[Array, "B S D"], segments: Int[Array, "B S"], kind: str
) -> Float[Array, "B D"]:
    """Reduce each sequence to the vector of its special token or to their mean."""
    if kind != "mean":
        return x[:, 0]
    real = (segments != 0)[..., None].astype(jnp.float32)
    # A row with only padding has no mean; its result is not used.
    return (x * real).sum(1) / jnp.maximum(real.sum(1), 1)


class MaskedLM(Encoder):
    """Predict the token at a place from its context on both sides."""

    head_transform: bool = False

    def setup(self):
        """Make the encoder and the parts of the head beside its table."""
        super().setup()
        c = self.config
        if self.head_transform:
            self.transform = dense(c.d_model, c.dtype)
            self.transform_norm = NORM_KINDS[c.norm_kind](c.norm_epsilon, c.dtype)
        if c.output_bias:
            self.output_bias = OutputBias()

    def __call__(
        self,
        tokens: Int[Array, "B S"],
        segments: Int[Array, "B S"] | None = None,
        places: Int[Array, "B K"] | None = None,
        train: bool = False,
    ) -> Outputs:
        """Compute the logits [B, K, V] at `places`, or at all tokens without them."""
        x, weights = self.encode(tokens, segments, train=train)
        if places is not None:
            x = jnp.take_along_axis(x, places[..., None], axis=1)
        return Outputs(self.logits(x), encoder_attention=weights, hidden=x)

    def logits(self, x: Float[Array, "B K D"]) -> Float[Array, "B K V"]:
        """Score every token of the vocabulary with the embedding table."""
        c = self.config
        if self.head_transform:
            x = self.transform_norm(ACTIVATIONS[c.activation](self.transform(x)))
        logits = self.embedding.logits(x)
        if c.output_bias:
            logits = self.output_bias(logits)
        return leave_out(logits, c.absent)
