"""Models that hear: frames of sound through two convolutions into an encoder.

    x = GELU(conv(GELU(conv(frames)))) + positions      both of width 3 and stride 2

The encoder reads one vector per four frames, that is, per 40 ms, as in the
Speech-Transformer (Dong et al. 2018). Whisper has one convolution of stride 1 and one
of stride 2. `Transcriber` writes a transcript with the decoder of `Seq2Seq`;
`SoundClassifier` puts a class token before the vectors.
Pitfall: after a convolution with a bias, padding is no longer 0. Frames after the end
are set to 0 before each convolution, so a sound gets the same vectors in any batch.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from transformer_jax import sharding
from transformer_jax.models.attention import Mask
from transformer_jax.models.embeddings import project
from transformer_jax.models.layers import Dropout, dense, output_layer
from transformer_jax.models.outputs import Outputs
from transformer_jax.models.positions import PositionEncoding
from transformer_jax.models.registry import Model
from transformer_jax.models.stack import Stack
from transformer_jax.models.transformer import Seq2Seq
from transformer_jax.models.transformer_config import TransformerConfig, find_problems

STRIDE = 4  # frames for each vector that the encoder reads
WIDTH = 3  # of each convolution

# The first kernel has as few input channels as there are bands.
RULES = (
    (r"convolution_0/kernel$", PartitionSpec(None, None, "tensor")),
    (r"convolution_0/bias$", PartitionSpec("tensor")),
    (r"convolution_1/kernel$", PartitionSpec(None, "tensor", "fsdp")),
    (r"convolution_1/bias$", PartitionSpec()),
)


def shorten(segments: Int[Array, "B S"]) -> Int[Array, "B Q"]:
    """Return the segments of the vectors that are made of frames with these."""
    return segments[:, ::STRIDE]


class Ear(nn.Module):
    """Frames [B, S, bands] to vectors [B, ⌈S / 4⌉, D]."""

    d_model: int
    dtype: Any = jnp.float32

    def setup(self):
        """Make the two convolutions."""
        # One frame is added at both ends: ⌈S / 2⌉ come out, centred at 0, 2, 4, …
        self.convolution = [
            nn.Conv(self.d_model, WIDTH, strides=2, padding=1, dtype=self.dtype)
            for _ in range(2)
        ]

    def __call__(
        self, frames: Float[Array, "B S bands"], segments: Int[Array, "B S"]
    ) -> Float[Array, "B Q D"]:
        """Convolve twice; padding does not influence real vectors."""
        x = frames.astype(self.dtype)
        for convolution in self.convolution:
            x = x * (segments != 0)[..., None].astype(x.dtype)
            x = jax.nn.gelu(convolution(x), approximate=True)
            segments = segments[:, ::2]
        return x


class Transcriber(Seq2Seq):
    """An encoder-decoder whose source is frames of sound, and whose target is text.

    With `ctc` the encoder has an output layer of its own, for a second loss.
    """

    ctc: bool = False

    def setup(self):
        """Make the convolutions and the parts of any encoder-decoder."""
        super().setup()
        c = self.config
        self.ear = Ear(c.d_model, c.dtype)
        if self.ctc:
            self.ctc_projection = output_layer(c.vocab_rows, c.dtype, use_bias=False)

    def __call__(self, *inputs: Any, **options: Any) -> Outputs:
        """Predict each token of the target, as `Seq2Seq` does."""
        outputs = super().__call__(*inputs, **options)
        if self.ctc and self.is_initializing():
            self.ctc_logits(outputs.memory)
        return outputs

    def ctc_logits(self, memory: Float[Array, "B Q D"]) -> Float[Array, "B Q V"]:
        """Score every token, and the blank in the place of padding, at each vector."""
        return project(self.ctc_projection, memory, self.config.vocab_size)

    def encode(
        self,
        source: Float[Array, "B S bands"],
        segments: Int[Array, "B S"] | None = None,
        positions: Int[Array, "#B S"] | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "B Q D"], tuple]:
        """Return a vector for each four frames, and the attention weights by layer."""
        segments = _all_real(segments, source)
        x = self.ear(source, segments)
        return self.encode_vectors(x, shorten(segments), None, train)

    def memory_segments(self, segments: Int[Array, "B S"]) -> Int[Array, "B Q"]:
        """Return the segments of what `encode` returns."""
        return shorten(segments)


class SoundClassifier(nn.Module):
    """A class token, then a vector for each four frames, to a label."""

    config: TransformerConfig
    classes: int

    def setup(self):
        """Make the convolutions, the class token, the encoder and the head."""
        c = self.config
        self.ear = Ear(c.d_model, c.dtype)
        init = nn.initializers.normal(c.d_model**-0.5)
        self.class_token = self.param("class_token", init, (c.d_model,))
        self.positions = PositionEncoding(c.positions, c.d_model, c.max_positions)
        self.encoder = Stack(c, c.encoder_layers)
        self.head = dense(self.classes, jnp.float32)
        self.drop = Dropout(c.dropout_embedding)

    def __call__(
        self,
        frames: Float[Array, "B S bands"],
        segments: Int[Array, "B S"] | None = None,
        train: bool = False,
    ) -> Outputs:
        """Classify sounds: logits [B, classes], in float32."""
        c = self.config
        segments = _all_real(segments, frames)
        x = self.ear(frames, segments)
        token = jnp.broadcast_to(self.class_token, (len(x), 1, c.d_model))
        x = jnp.concatenate([token.astype(x.dtype), x], axis=1)
        segments = jnp.pad(shorten(segments), ((0, 0), (1, 0)), constant_values=1)
        places = jnp.arange(x.shape[1])[None]
        x = x + self.positions(places)
        x = sharding.constrain(self.drop(x.astype(c.dtype), train))
        mask = Mask(segments, segments, whole=True)
        x, _, weights, _ = self.encoder(x, places, mask, train=train)
        return Outputs(self.head(x[:, 0]), encoder_attention=weights)


def _all_real(
    segments: Int[Array, "B S"] | None, frames: Float[Array, "B S bands"]
) -> Int[Array, "B S"]:
    return jnp.ones(frames.shape[:2], jnp.int32) if segments is None else segments


MODEL = Model(
    TransformerConfig,
    {"transcriber": Transcriber, "sound_classifier": SoundClassifier},
    find_problems,
    RULES,
)
