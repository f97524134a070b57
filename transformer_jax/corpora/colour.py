"""Colour images of ten kinds, 32 x 32 pixels: five figures and five patterns.

Colours, position, size, direction and light are drawn for each image, and noise is
added, so that no single pixel reveals the kind.
"""

from collections.abc import Callable

import numpy as np

from transformer_jax.data.draws import check_split
from transformer_jax.data.images.arrays import Images

SIZE = 32
SPLITS = {"train": 8000, "validation": 1000, "test": 1000}
NOISE = 0.1  # standard deviation, where white is 1
EDGE = 1.5 / SIZE  # width of the blend from one colour to the other


def generate(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Draw the images of a split: bytes [N, 32, 32, 3], and indices into KINDS [N]."""
    check_split(split, tuple(SPLITS))
    count = SPLITS[split]
    # The legacy generator draws the same in all versions of NumPy.
    random = np.random.RandomState(1 + list(SPLITS).index(split))
    labels = np.arange(count) % len(KINDS)
    inside = np.empty((count, SIZE, SIZE))
    for kind, draw in enumerate(KINDS.values()):
        own = labels == kind
        depth = draw(*_transform(random, own.sum(), kind))
        inside[own] = np.clip(0.5 + depth / EDGE, 0, 1)
    first, second = _colours(random, count)
    share = inside[..., None]
    images = share * first[:, None, None] + (1 - share) * second[:, None, None]
    images *= _light(random, count)[..., None]
    images += NOISE * random.standard_normal(images.shape)
    return np.rint(255 * np.clip(images, 0, 1)).astype(np.uint8), labels


def _circle(x, y, size):
    return size - np.hypot(x, y)


def _ring(x, y, size):
    return 0.13 - np.abs(np.hypot(x, y) - size)


def _square(x, y, size):
    return 0.85 * size - np.maximum(np.abs(x), np.abs(y))


def _triangle(x, y, size):
    sides = [
        y * np.cos(turn) + x * np.sin(turn) for turn in 2 * np.pi / 3 * np.arange(3)
    ]
    return 0.6 * size - np.max(sides, axis=0)


def _cross(x, y, size):
    wide, narrow = np.maximum(np.abs(x), np.abs(y)), np.minimum(np.abs(x), np.abs(y))
    return np.minimum(1.1 * size - wide, 0.3 * size - narrow)


def _stripes(x, y, size):
    return np.sin(2 * np.pi * y / size) * size / (2 * np.pi)


def _checks(x, y, size):
    return np.sin(2 * np.pi * x / size) * np.sin(2 * np.pi * y / size) * size / 6


def _dots(x, y, size):
    waves = np.cos(2 * np.pi * x / size) + np.cos(2 * np.pi * y / size)
    return (waves - 0.7) * size / 8


KINDS: dict[str, Callable] = {  # distance [N, 32, 32] from the edge, inside above 0
    "circle": _circle,
    "ring": _ring,
    "square": _square,
    "triangle": _triangle,
    "cross": _cross,
    "level": _stripes,
    "upright": lambda x, y, size: _stripes(y, x, size),
    "slanting": lambda x, y, size: _stripes(x, (x + y) / np.sqrt(2), size),
    "checks": _checks,
    "dots": _dots,
}


def _transform(
    random: np.random.RandomState, count: int, kind: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw a position, a rotation and a size for each image: x, y [N, 32, 32], size."""
    axis = (np.arange(SIZE) + 0.5) / SIZE * 2 - 1
    figure = kind < len(KINDS) // 2
    aside, turn = random.uniform(-1, 1, (2, count, 1, 1)), random.uniform(-1, 1, count)
    size = random.uniform(0.35, 0.65, (count, 1, 1))
    x = axis[None, None] - 0.35 * aside[0]
    y = axis[None, :, None] - 0.35 * aside[1]
    angle = (np.pi / 4 if figure else np.pi / 18) * turn[:, None, None]
    turned = (
        np.cos(angle) * x + np.sin(angle) * y,
        np.cos(angle) * y - np.sin(angle) * x,
    )
    return *turned, size


def _colours(random: np.random.RandomState, count: int) -> np.ndarray:
    """Draw two dissimilar colours [2, N, 3]; the second is the farthest of three."""
    first, *others = random.uniform(0, 1, (4, count, 3))
    apart = np.linalg.norm(np.asarray(others) - first, axis=-1)
    second = np.asarray(others)[apart.argmax(0), np.arange(count)]
    return np.stack([first, second])


def _light(random: np.random.RandomState, count: int) -> np.ndarray:
    """Draw a light that falls off across each image [N, 32, 32]."""
    axis = np.linspace(-1, 1, SIZE)
    slope = random.uniform(-0.3, 0.3, (2, count, 1, 1))
    return 0.8 + slope[0] * axis + slope[1] * axis[:, None]


def pictures(split: str) -> Images:
    """Return the images of a split with their labels."""
    return Images(*generate(split), f"generated {split}", tuple(KINDS))
