"""Augment training images: shifted crops, mirror images, mixtures of two.

    crop   pad by p, cut a window of the old size      flip   mirror left and right
    mixup  x = λ xᵢ + (1 - λ) xⱼ, and likewise the loss, λ ~ Beta(α, α)

The draws depend only on the key of the step and on the row, so an image is changed in
the same way when a step is repeated, and on any number of devices.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.base.schema import option


@dataclasses.dataclass(frozen=True)
class AugmentOptions:
    """Augmentation of training images: options of `config.train`."""

    random_crop: int = option(
        0, "Pixels of black padding from which an image is cropped at random.", least=0
    )
    random_flip: bool = option(False, "Mirror half of the images, left and right.")
    mixup: float = option(
        0.0,
        "Mix pairs of images with shares from Beta(a, a); 0 means no mixing.",
        least=0,
    )


def change(
    images: Float[Array, "B height width channels"], drawn: Array, train: Any
) -> Float[Array, "B height width channels"]:
    """Crop and flip images according to `config.train`, each with its own key."""
    if not (train.random_crop or train.random_flip):
        return images

    def change_one(image, drawn):
        for_crop, for_flip = jax.random.split(drawn)
        if edge := train.random_crop:
            padded = jnp.pad(image, ((edge, edge), (edge, edge), (0, 0)))
            at = jax.random.randint(for_crop, (2,), 0, 2 * edge + 1)
            image = jax.lax.dynamic_slice(padded, (*at, 0), image.shape)
        if train.random_flip:
            flips = jax.random.bernoulli(for_flip)
            image = jnp.where(flips, image[:, ::-1], image)
        return image

    return jax.vmap(change_one)(images, _keys_of_rows(drawn, len(images)))


def mix(
    images: Float[Array, "B height width channels"],
    labels: Int[Array, "B"],
    drawn: Array,
    alpha: float,
) -> tuple[Float[Array, "B height width channels"], Int[Array, "B"], Float[Array, "B"]]:
    """Mix each image with its neighbour.

    Return the images, the neighbours' labels and the shares of the own labels. Batches
    are shuffled, so neighbours are random pairs. A row without an image (its label is
    below 0) is not mixed.
    """
    others = _swap_neighbours(labels)
    keys = _keys_of_rows(drawn, len(labels))
    shares = jax.vmap(lambda k: jax.random.beta(k, alpha, alpha))(keys)
    shares = jnp.where((labels < 0) | (others < 0), 1.0, shares)
    own = shares[:, None, None, None].astype(images.dtype)
    return own * images + (1 - own) * _swap_neighbours(images), others, shares


def _swap_neighbours(x: Array) -> Array:
    """Swap rows 0 and 1, 2 and 3, …; a last row without a partner stays."""
    even = len(x) // 2 * 2
    pairs = x[:even].reshape(-1, 2, *x.shape[1:])[:, ::-1]
    return jnp.concatenate([pairs.reshape(even, *x.shape[1:]), x[even:]])


def _keys_of_rows(drawn: Array, rows: int) -> Array:
    return jax.vmap(lambda row: jax.random.fold_in(drawn, row))(jnp.arange(rows))
