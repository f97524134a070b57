"""An encoder that answers once: a special token's last representation → linear head.

    logits = W · encoder(x)[special token] + b

The special token is the first of every sequence. It attends to all others, so what it
has become after the last layer stands for the whole. One output makes a regression.
The trap: an average over positions would have to leave out the padding; this need not.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax import sharding
from transformer_jax.models.attention import Mask
from transformer_jax.models.embeddings import TokenEmbedding
from transformer_jax.models.layers import Dropout, dense
from transformer_jax.models.positions import PositionEncoding
from transformer_jax.models.stack import Stack, TransformerConfig
from transformer_jax.models.transformer import Outputs


class Classifier(nn.Module):
    """Tokens [B, S], of which the first is the special one, to `outputs` numbers."""

    config: TransformerConfig
    outputs: int

    def setup(self):
        c = self.config
        self.embedding = TokenEmbedding(
            c.source_vocab_size, c.source_vocab_rows, c.d_model, c.dtype
        )
        self.positions = PositionEncoding(c.positions, c.d_model, c.max_positions)
        self.encoder = Stack(c, c.encoder_layers)
        self.head = dense(self.outputs, c.dtype)
        self.drop = Dropout(c.dropout_embedding)

    def __call__(
        self,
        tokens: Int[Array, "B S"],
        segments: Int[Array, "B S"],
        train: bool = False,
    ) -> Outputs:
        x, weights = self.encode(tokens, segments, train=train)
        logits = self.head(x[:, 0]).astype(jnp.float32)
        return Outputs(logits, encoder_attention=weights)

    def encode(
        self,
        tokens: Int[Array, "B S"],
        segments: Int[Array, "B S"],
        train: bool = False,
    ) -> tuple[Float[Array, "B S D"], Any]:
        """The last layer's output, and the attention weights by layer."""
        c = self.config
        places = jnp.arange(tokens.shape[1])[None]
        x = self.embedding(tokens) + self.positions(places, tokens.shape[1])
        x = sharding.constrain(self.drop(x.astype(c.dtype), train))
        mask = Mask(segments, segments)
        x, _, weights, _ = self.encoder(x, places, mask, train=train)
        return x, weights
