"""A model that classifies each token of a sequence."""

from jaxtyping import Array, Int

from transformer_jax.models.classifier import Encoder
from transformer_jax.models.layers import output_layer
from transformer_jax.models.outputs import Outputs


class Tagger(Encoder):
    """Classify each token of a sequence."""

    outputs: int

    def setup(self):
        """Make the encoder and the head."""
        super().setup()
        self.head = output_layer(self.outputs, self.config.dtype)

    def __call__(
        self,
        tokens: Int[Array, "B S"],
        segments: Int[Array, "B S"] | None = None,
        train: bool = False,
    ) -> Outputs:
        """Compute logits [B, S, outputs], in float32."""
        x, weights = self.encode(tokens, segments, train=train)
        logits = self.head(x)
        return Outputs(logits, encoder_attention=weights)
