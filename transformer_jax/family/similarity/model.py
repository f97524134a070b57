"""A model that represents a text as one vector."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from transformer_jax.models.attention import all_real
from transformer_jax.models.classifier import Encoder, pool
from transformer_jax.models.outputs import Outputs


class Embedder(Encoder):
    """Represent a sequence as a vector of length 1."""

    def __call__(
        self,
        tokens: Int[Array, "B S"],
        segments: Int[Array, "B S"] | None = None,
        train: bool = False,
    ) -> Outputs:
        """Return vectors [B, D], in float32, as `hidden`; there are no logits."""
        segments = all_real(segments, tokens)
        x, weights = self.encode(tokens, segments, train=train)
        x = pool(x.astype(jnp.float32), segments, "mean")
        length = jnp.sqrt(jnp.square(x).sum(axis=-1, keepdims=True) + 1e-12)
        return Outputs(None, encoder_attention=weights, hidden=x / length)
