"""Models that hear: frames of sound through two convolutions into an encoder.

    x = GELU(conv(GELU(conv(frames)))) + positions      both of width 3

With strides of 2 the encoder reads one vector per four frames, that is, per 40 ms, as
in the Speech-Transformer (Dong et al. 2018). Whisper's first convolution has stride 1.
`Transcriber` writes a transcript with the decoder of `Seq2Seq`;
`SoundClassifier` puts a class token before the vectors.
Pitfall: after a convolution with a bias, padding is no longer 0. Frames after the end
are set to 0 before each convolution, so a sound gets the same vectors in any batch.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict

from transformer_jax import sharding
from transformer_jax.base.schema import option
from transformer_jax.models.attention import Mask
from transformer_jax.models.embeddings import project
from transformer_jax.models.layers import ACTIVATIONS, Dropout, dense, output_layer
from transformer_jax.models.outputs import Outputs
from transformer_jax.models.positions import PositionEncoding
from transformer_jax.models.registry import Longest, Model
from transformer_jax.models.stack import Stack
from transformer_jax.models.transformer import Seq2Seq
from transformer_jax.models.transformer_config import TransformerConfig
from transformer_jax.models.transformer_config import find_problems as find_others

WIDTH = 3  # of each convolution
SECOND = 2  # stride of the second one

# The first kernel has as few input channels as there are bands.
RULES = (
    (r"convolution_0/kernel$", PartitionSpec(None, None, "tensor")),
    (r"convolution_0/bias$", PartitionSpec("tensor")),
    (r"convolution_1/kernel$", PartitionSpec(None, "tensor", "fsdp")),
    (r"convolution_1/bias$", PartitionSpec()),
)


@dataclasses.dataclass(frozen=True)
class SpeechConfig(TransformerConfig):
    """The sizes of a Transformer, and of the layers before its encoder."""

    stride: int = option(
        2, "Stride of the first convolution; the second has 2.", least=1, most=2
    )
    convolution_activation: str = option(
        "gelu_tanh", "Activation of the convolutions.", choices=lambda: ACTIVATIONS
    )
    sound_positions: str = option(
        "same",
        "What is added to the vectors of sound; same: as model.positions says.",
        choices=("same", "sinusoid", "sinusoid_concat", "sinusoid_t2t", "none"),
        of="decoder",
    )


def frames_per_vector(sizes: Any) -> int:
    """Return how many frames a vector of the encoder stands for."""
    return sizes.stride * SECOND


def shorten(segments: Int[Array, "B S"], frames: int) -> Int[Array, "B Q"]:
    """Return the segments of vectors that each stand for this many frames."""
    return segments[:, ::frames]


class Ear(nn.Module):
    """Frames [B, S, bands] to vectors [B, ⌈S / 4⌉, D], or ⌈S / 2⌉ with stride 1."""

    d_model: int
    stride: int = 2
    activation: str = "gelu_tanh"
    dtype: Any = jnp.float32

    def setup(self):
        """Make the two convolutions."""
        # One frame is added at both ends: ⌈S / 2⌉ come out, centred at 0, 2, 4, …
        self.convolution = [
            nn.Conv(self.d_model, WIDTH, strides=stride, padding=1, dtype=self.dtype)
            for stride in (self.stride, SECOND)
        ]

    def __call__(
        self, frames: Float[Array, "B S bands"], segments: Int[Array, "B S"]
    ) -> Float[Array, "B Q D"]:
        """Convolve twice; padding does not influence real vectors."""
        x = frames.astype(self.dtype)
        for convolution, stride in zip(
            self.convolution, (self.stride, SECOND), strict=True
        ):
            x = x * (segments != 0)[..., None].astype(x.dtype)
            x = ACTIVATIONS[self.activation](convolution(x))
            segments = segments[:, ::stride]
        return x


class Transcriber(Seq2Seq):
    """An encoder-decoder whose source is frames of sound, and whose target is text.

    With `ctc` the encoder has an output layer of its own, for a second loss.
    """

    config: SpeechConfig
    ctc: bool = False

    def setup(self):
        """Make the convolutions and the parts of any encoder-decoder."""
        super().setup()
        c = self.config
        self.ear = _ear(c)
        if self.ctc:
            self.ctc_projection = output_layer(c.vocab_rows, c.dtype, use_bias=False)

    @property
    def source_position_kind(self) -> str:
        """The kind of positions that are added to the vectors of sound."""
        c = self.config
        return c.positions if c.sound_positions == "same" else c.sound_positions

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
        """Return the vectors of sound, and the attention weights by layer."""
        segments = _all_real(segments, source)
        x = self.ear(source, segments)
        return self.encode_vectors(x, self.memory_segments(segments), None, train)

    def memory_segments(self, segments: Int[Array, "B S"]) -> Int[Array, "B Q"]:
        """Return the segments of the vectors that `encode` returns."""
        return shorten(segments, frames_per_vector(self.config))


class SoundClassifier(nn.Module):
    """A class token, then the vectors of sound, to a label."""

    config: SpeechConfig
    classes: int

    def setup(self):
        """Make the convolutions, the class token, the encoder and the head."""
        c = self.config
        self.ear = _ear(c)
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
        segments = shorten(segments, frames_per_vector(c))
        segments = jnp.pad(segments, ((0, 0), (1, 0)), constant_values=1)
        places = jnp.arange(x.shape[1])[None]
        x = x + self.positions(places)
        x = sharding.constrain(self.drop(x.astype(c.dtype), train))
        mask = Mask(segments, segments, whole=True)
        x, _, weights, _ = self.encoder(x, places, mask, train=train)
        return Outputs(self.head(x[:, 0]), encoder_attention=weights)


def _ear(c: SpeechConfig) -> Ear:
    return Ear(c.d_model, c.stride, c.convolution_activation, c.dtype)


def _all_real(
    segments: Int[Array, "B S"] | None, frames: Float[Array, "B S bands"]
) -> Int[Array, "B S"]:
    return jnp.ones(frames.shape[:2], jnp.int32) if segments is None else segments


def find_problems(config: ConfigDict, longest: Longest) -> list[str]:
    """List the problems in the sizes of a model that hears.

    A table of learned positions has a row for each piece of a transcript: lengths of
    sounds are counted in frames.
    """
    model, problems = config.model, []
    if "decode" in config and (most := config.decode.max_length):
        longest = Longest(most, most, "decode.max_length")
    if model.positions == "learned" and model.sound_positions == "same":
        problems.append(
            "model.positions = 'learned' is a table for transcripts alone: choose what "
            "sounds have instead by model.sound_positions, such as sinusoid_t2t"
        )
    return problems + find_others(config, longest)


MODEL = Model(
    SpeechConfig,
    {"transcriber": Transcriber, "sound_classifier": SoundClassifier},
    find_problems,
    RULES,
)
