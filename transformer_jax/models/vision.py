"""The Vision Transformer: an encoder that reads an image as a sequence of patches.

    x = [class; patch₁ E; …; patchₙ E] + positions    logits = Encoder(x)₀ W + b

After Dosovitskiy et al. (2021), section 3.1; their encoder is `norm = "pre"` with
`activation = "gelu_tanh"`. Patches, and the pixels within a patch, are read row by row.
Instead of the matrix E, a few convolutions may make the vectors of the patches, so that
each sees some pixels of its neighbours (Xiao et al., 2021).
Pitfall: pixels are floats of 0..1, which the model may normalise by channel; bytes
0..255 must be scaled first.
"""

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from transformer_jax import sharding
from transformer_jax.base.errors import UserError, nearest
from transformer_jax.base.schema import option
from transformer_jax.models import positions
from transformer_jax.models.layers import Dropout, dense
from transformer_jax.models.layers.norms import layer_norm
from transformer_jax.models.outputs import Outputs
from transformer_jax.models.positions import PositionEncoding, sinusoid_2d
from transformer_jax.models.stack import Stack
from transformer_jax.models.transformer_config import TransformerConfig

POSITIONS = (*positions.POSITIONS, "sinusoid_2d")
STEMS = ("linear", "convolutional")


@dataclasses.dataclass(frozen=True)
class PatchOptions:
    """Normalise images and cut them into patches: options of `config.model`."""

    patch: int = option(2, "Side of a patch, in pixels.", least=1)
    stem: str = option(
        "linear",
        "Make the vector of a patch by a linear map of its pixels, or by convolutions, "
        "each of which halves the image (patch is then a power of two).",
        choices=STEMS,
    )
    pixel_mean: tuple = option(
        (), "Subtracted from pixels of 0 to 1, by channel; empty: nothing."
    )
    pixel_deviation: tuple = option(
        (), "Divides pixels after the mean is subtracted, by channel; empty: 1."
    )


@dataclasses.dataclass(frozen=True)
class VisionConfig:
    """Sizes of a `ViT` outside its encoder: images in pixels, patches, classes."""

    height: int
    width: int
    channels: int
    patch: int
    classes: int
    positions: str = "learned"
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    stem: str = "linear"

    def __post_init__(self):
        """Refuse unknown names, and sizes that do not fit each other."""
        for name in ("mean", "deviation"):
            numbers = getattr(self, name)
            if numbers and len(numbers) != self.channels:
                raise UserError(
                    f"model.pixel_{name} = {numbers} has {len(numbers)} numbers, but "
                    f"the images have {self.channels} channels: give one for each"
                )
        if self.positions not in POSITIONS:
            raise UserError(
                f"positions = {self.positions!r}: one of {', '.join(POSITIONS)}."
                f"{nearest(self.positions, POSITIONS)}"
            )
        if self.patch < 1 or self.height % self.patch or self.width % self.patch:
            raise UserError(
                f"image {self.height}x{self.width} does not divide into patches of "
                f"side {self.patch}: use {_divisors_near(self)}"
            )
        if self.stem not in STEMS:
            raise UserError(
                f"stem = {self.stem!r}: one of {', '.join(STEMS)}."
                f"{nearest(self.stem, STEMS)}"
            )

    @property
    def image(self) -> tuple[int, int, int]:
        """Return the shape of one image."""
        return self.height, self.width, self.channels

    @property
    def grid(self) -> tuple[int, int]:
        """Count the rows and columns of patches."""
        return self.height // self.patch, self.width // self.patch

    @property
    def length(self) -> int:
        """Count the encoder's tokens: the class token and one per patch."""
        return 1 + math.prod(self.grid)


class ViT(nn.Module):
    """An image classifier; it ignores the vocabularies and positions of `config`."""

    config: TransformerConfig
    vision: VisionConfig

    def setup(self):
        """Make the projection of patches, the class token, the encoder and the head."""
        c, v = self.config, self.vision
        if v.stem == "linear":
            self.patches = dense(c.d_model, c.dtype)
        else:
            self.stem = Convolutions(c.d_model, v.patch, c.norm_epsilon, c.dtype)
        # The authors begin with zeros. But the norm of a vector near zero would scale
        # the gradient of this parameter by up to 1 / √epsilon.
        init = nn.initializers.normal(c.d_model**-0.5)
        self.class_token = self.param("class_token", init, (c.d_model,))
        if v.positions != "sinusoid_2d":
            self.positions = PositionEncoding(v.positions, c.d_model, v.length)
        self.encoder = Stack(c, c.encoder_layers)
        self.head = dense(v.classes, jnp.float32)
        self.drop = Dropout(c.dropout_embedding)

    def __call__(
        self, images: Float[Array, "B height width channels"], train: bool = False
    ) -> Outputs:
        """Classify images: logits [B, classes], in float32."""
        x = self.embed(images, train)
        order = jnp.arange(x.shape[1])[None]
        x, _, weights, _ = self.encoder(x, order, None, train=train)
        return Outputs(self.head(x[:, 0]), encoder_attention=weights)

    def embed(
        self, images: Float[Array, "B height width channels"], train: bool = False
    ) -> Float[Array, "B T D"]:
        """Embed the class token, then the patches, with their positions."""
        c, v = self.config, self.vision
        if images.shape[1:] != v.image:
            raise UserError(
                f"images of {_times(images.shape[1:])}, but the model reads "
                f"{_times(v.image)}: scale the images to that size, or train a model "
                "on images of this size"
            )
        if v.mean:
            images = images - jnp.asarray(v.mean)
        if v.deviation:
            images = images / jnp.asarray(v.deviation)
        if v.stem == "linear":
            x = self.patches(split_patches(images, v.patch))
        else:
            x = self.stem(images.astype(c.dtype)).reshape(len(images), -1, c.d_model)
        token = jnp.broadcast_to(self.class_token, (len(x), 1, c.d_model))
        x = jnp.concatenate([token.astype(x.dtype), x], axis=1) + self._places()
        return sharding.constrain(self.drop(x.astype(c.dtype), train))

    def _places(self) -> Float[Array, "1 T D"] | float:
        if self.vision.positions == "sinusoid_2d":
            return sinusoid_2d(self.vision.grid, self.config.d_model)
        return self.positions(jnp.arange(self.vision.length)[None])


class Convolutions(nn.Module):
    """Halve an image until each patch is one vector: n = log₂ patch times

        x = ReLU(norm(convolution₃ₓ₃ x))    then x W + b

    with a stride of 2 and twice as many channels each time, up to `features` (Xiao et
    al., 2021, section 4). Theirs is a batch norm; this one is a layer norm, so that no
    answer depends on the other images of its batch.
    """

    features: int
    patch: int
    epsilon: float
    dtype: Any

    def setup(self):
        """Make the convolutions, their norms and the last linear map."""
        halvings = self.patch.bit_length() - 1
        self.convolutions = [
            nn.Conv(
                max(self.features >> (halvings - 1 - i), 1),
                (3, 3),
                strides=2,
                padding=1,
                use_bias=False,  # the norm has one
                dtype=self.dtype,
                kernel_init=nn.initializers.he_normal(),
            )
            for i in range(halvings)
        ]
        self.norms = [layer_norm(self.epsilon, self.dtype) for _ in range(halvings)]
        self.linear = dense(self.features, self.dtype)

    def __call__(
        self, x: Float[Array, "B height width channels"]
    ) -> Float[Array, "B rows columns D"]:
        """Return a vector for each patch."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = nn.relu(norm(convolution(x)))
        return self.linear(x)


def find_problems(config: ConfigDict) -> list[str]:
    """Check the numbers by which pixels are normalised, and the patch of a stem."""
    return _find_pixel_problems(config) + _find_stem_problems(config)


def _find_stem_problems(config: ConfigDict) -> list[str]:
    patch = config.model.patch
    if config.model.stem == "linear" or (patch > 1 and patch.bit_count() == 1):
        return []
    below = 1 << max(patch.bit_length() - 1, 1)
    return [
        f"model.patch = {patch} is no power of two, but model.stem = 'convolutional' "
        f"halves an image until a patch is one vector: use {below} or {2 * below}, or "
        "model.stem='linear'"
    ]


def _find_pixel_problems(config: ConfigDict) -> list[str]:
    mean, deviation = config.model.pixel_mean, config.model.pixel_deviation
    numbers = (*mean, *deviation)
    finite = all(type(n) in (int, float) and math.isfinite(n) for n in numbers)
    if finite and all(n > 0 for n in deviation):
        return []
    return [
        f"model.pixel_mean = {mean!r} and model.pixel_deviation = {deviation!r}: give "
        "a number for each channel, such as (0.5, 0.5, 0.5), and no deviation of 0"
    ]


def split_patches(
    images: Float[Array, "B height width channels"], patch: int
) -> Float[Array, "B patches pixels"]:
    """Cut images into square patches, row by row, and flatten each row by row."""
    batch, height, width, channels = images.shape
    rows, columns = height // patch, width // patch
    x = images.reshape(batch, rows, patch, columns, patch, channels)
    return x.swapaxes(2, 3).reshape(batch, rows * columns, patch * patch * channels)


def _divisors_near(vision: VisionConfig) -> str:
    """List the next smaller and the next larger patch that divide the image."""
    both = math.gcd(vision.height, vision.width)
    fit = [n for n in range(1, both + 1) if both % n == 0]
    below = [n for n in fit if n < vision.patch][-1:]
    above = [n for n in fit if n > vision.patch][:1]
    return " or ".join(map(str, below + above))


def _times(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))
