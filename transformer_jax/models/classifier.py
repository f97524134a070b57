"""An encoder alone, and what reads its last layer: a head, or the embedding table.

    Classifier   logits = W · pool(encoder(x)) + b
    MaskedLM     logits = encoder(x) Eᵀ, at the places that are asked for

The special token is the first of every sequence. It attends to all others, so what it
has become after the last layer stands for the whole; or the mean of all tokens, both
ends included, does: there is less to learn in it, which suits small data. One output
makes a regression.
Both have the encoder's parameters under the same paths: what one has learnt, the other
can begin with.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax import sharding
from transformer_jax.models.attention import Mask, all_real
from transformer_jax.models.embeddings import TokenEmbedding
from transformer_jax.models.layers import Dropout, dense
from transformer_jax.models.outputs import Outputs
from transformer_jax.models.positions import PositionEncoding
from transformer_jax.models.stack import Stack
from transformer_jax.models.transformer_config import TransformerConfig

POOLINGS = ("special", "mean")


class Encoder(nn.Module):
    """Tokens [B, S] to vectors [B, S, D]."""

    config: TransformerConfig

    def setup(self):
        c = self.config
        self.embedding = TokenEmbedding(
            c.source_vocab_size,
            c.source_vocab_rows,
            c.d_model,
            c.dtype,
            c.dropout_words,
        )
        self.positions = PositionEncoding(c.positions, c.d_model, c.max_positions)
        self.encoder = Stack(c, c.encoder_layers)
        self.drop = Dropout(c.dropout_embedding)

    def __call__(
        self,
        tokens: Int[Array, "B S"],
        segments: Int[Array, "B S"] | None = None,
        train: bool = False,
    ) -> Any:
        """Encode tokens: vectors and attention weights, as `encode` returns them."""
        return self.encode(tokens, segments, train)

    def encode(
        self,
        tokens: Int[Array, "B S"],
        segments: Int[Array, "B S"] | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "B S D"], Any]:
        """The last layer's output, and the attention weights by layer."""
        c = self.config
        segments = all_real(segments, tokens)
        places = jnp.arange(tokens.shape[1])[None]
        x = self.embedding(tokens, train) + self.positions(places)
        x = sharding.constrain(self.drop(x.astype(c.dtype), train))
        mask = Mask(segments, segments)
        x, _, weights, _ = self.encoder(x, places, mask, train=train)
        return x, weights


class Classifier(Encoder):
    """Sequences, of which the first token is the special one, to `outputs` numbers."""

    outputs: int
    pooling: str = "special"

    def setup(self):
        super().setup()
        self.head = dense(self.outputs, self.config.dtype)

    def __call__(
        self,
        tokens: Int[Array, "B S"],
        segments: Int[Array, "B S"] | None = None,
        train: bool = False,
    ) -> Outputs:
        segments = all_real(segments, tokens)
        x, weights = self.encode(tokens, segments, train=train)
        logits = self.head(pool(x, segments, self.pooling)).astype(jnp.float32)
        return Outputs(logits, encoder_attention=weights)


def pool(
    x: Float[Array, "B S D"], segments: Int[Array, "B S"], kind: str
) -> Float[Array, "B D"]:
    """One vector for each sequence: its special token's, or its tokens' mean."""
    if kind == "special":
        return x[:, 0]
    real = (segments != 0)[..., None].astype(jnp.float32)
    # A row of padding alone has no mean; nor is one asked for.
    return (x * real).sum(1) / jnp.maximum(real.sum(1), 1)


class MaskedLM(Encoder):
    """What stands at a place, from all that stands around it."""

    def __call__(
        self,
        tokens: Int[Array, "B S"],
        segments: Int[Array, "B S"] | None = None,
        places: Int[Array, "B K"] | None = None,
        train: bool = False,
    ) -> Outputs:
        """Logits [B, K, V] at these places; without them, at all."""
        x, weights = self.encode(tokens, segments, train=train)
        if places is not None:
            x = jnp.take_along_axis(x, places[..., None], axis=1)
        return Outputs(self.logits(x), encoder_attention=weights, hidden=x)

    def logits(self, x: Float[Array, "B K D"]) -> Float[Array, "B K V"]:
        return self.embedding.logits(x)
