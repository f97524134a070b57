"""A coordinate network: map a place in a picture to its colour (Tancik et al. 2020).

    raw        γ(p) = 2p - 1
    sinusoid   γ(p) = the paper's PE of the column, and of the row
    gaussian   γ(p) = [cos 2πBp, sin 2πBp],  B ~ N(0, bandwidth²), drawn once

An MLP reads γ(p), where p = (x, y) lies in 0..1. From raw coordinates it learns slow
changes first and fast ones hardly ever (spectral bias); waves make both easy to learn.
"""

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from transformer_jax.base.schema import option
from transformer_jax.models.layers import ACTIVATIONS, DTYPES, dense
from transformer_jax.models.positions import sinusoid
from transformer_jax.models.registry import Longest, Model

FEATURES = ("raw", "sinusoid", "gaussian")


@dataclasses.dataclass(frozen=True)
class CoordinateMLPConfig:
    """Sizes of a coordinate network: options of `config.model`."""

    features: str = option("gaussian", "Encoding of a place.", choices=FEATURES)
    frequencies: int = option(
        128, "Waves, each a sine and a cosine; sinusoid: half per axis.", least=2
    )
    bandwidth: float = option(
        10.0,
        "gaussian: standard deviation of the frequencies, in waves per picture.",
        above=0,
    )
    layers: int = option(4, "Hidden layers.", least=1, most=1000)
    d_model: int = option(256, "Width of a hidden layer.", least=1)
    activation: str = option(
        "relu", "Activation of the layers.", choices=lambda: tuple(ACTIVATIONS)
    )
    dtype: str = option("float32", "Type of the computation.", choices=DTYPES)


def find_problems(config: ConfigDict, longest: Longest) -> list[str]:
    """List the problems in the sizes of the model."""
    model = config.model
    if model.features == "sinusoid" and model.frequencies % 2:
        return [
            f"model.frequencies {model.frequencies} cannot be halved between rows and "
            f"columns: use {model.frequencies - 1} or {model.frequencies + 1}"
        ]
    return []


def gaussian_frequencies(count: int, bandwidth: float) -> Float[Array, "2 count"]:
    """Draw the matrix B, the same each time, so that no run has to store it."""
    return bandwidth * jax.random.normal(jax.random.key(0), (2, count))


def encode(
    config: CoordinateMLPConfig, size: tuple[int, int], places: Float[Array, "B 2"]
) -> Float[Array, "B F"]:
    """Encode places (x, y) of a picture of `size` (height, width)."""
    if config.features == "raw":
        return 2 * places - 1
    if config.features == "sinusoid":
        pixels = places * jnp.array(size[::-1])
        waves = sinusoid(pixels, config.frequencies)
        return waves.reshape(len(places), -1)
    rates = gaussian_frequencies(config.frequencies, config.bandwidth)
    angles = 2 * math.pi * jnp.dot(places, rates, precision="highest")
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)


class CoordinateMLP(nn.Module):
    """An MLP that reads encoded places and returns colours 0..1."""

    config: CoordinateMLPConfig
    size: tuple[int, int]  # height and width of the picture

    def setup(self):
        """Make the layers."""
        c = self.config
        self.hidden = [dense(c.d_model, c.dtype) for _ in range(c.layers)]
        self.head = dense(3, jnp.float32)

    def __call__(
        self, places: Float[Array, "B 2"], train: bool = False
    ) -> Float[Array, "B 3"]:
        """Return the red, green and blue of places."""
        c = self.config
        x = encode(c, self.size, places).astype(c.dtype)
        for layer in self.hidden:
            x = ACTIVATIONS[c.activation](layer(x))
        return nn.sigmoid(self.head(x))


MODEL = Model(
    CoordinateMLPConfig,
    {"coordinates": CoordinateMLP},
    find_problems,
    rules=((r"hidden_\d+/(kernel|bias)$", PartitionSpec()),),
)
