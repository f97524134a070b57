"""The pixels of one picture as records of a position and its colour.

A quarter of them, those in odd rows and odd columns, is held out: a model has to infer
them from their neighbours.
"""

import hashlib

import numpy as np
from jaxtyping import Bool, Float

from transformer_jax.data.images.arrays import as_floats, open_image, read_image
from transformer_jax.data.reading.records import Record, Records


class Pixels(Records):
    """Records {"place": (x, y), "colour": (red, green, blue)}, all in 0..1."""

    def __init__(self, picture: Float[np.ndarray, "H W 3"], split: str):
        """Take the held-out pixels for validation, all others for any other split."""
        self.picture, self.split = picture, split
        held_out = hold_out(picture.shape[:2])
        chosen = held_out if split == "validation" else ~held_out
        self.rows, self.columns = np.nonzero(chosen)
        self.places = places_of(picture.shape[:2])[chosen]
        digest = hashlib.sha256(f"{picture.shape} {split}".encode())
        digest.update(np.asarray(picture, "<f4").tobytes())
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Record:
        colour = self.picture[self.rows[index], self.columns[index]]
        return {"place": self.places[index], "colour": colour}

    def where(self, index: int) -> str:
        """Name a pixel by its row and column, from 1."""
        return f"row {self.rows[index] + 1}, column {self.columns[index] + 1}"


def hold_out(size: tuple[int, int]) -> Bool[np.ndarray, "H W"]:
    """Return the mask of the pixels that are held out."""
    rows, columns = np.indices(size)
    return (rows % 2 == 1) & (columns % 2 == 1)


def places_of(size: tuple[int, int]) -> Float[np.ndarray, "H W 2"]:
    """Return the centres (x, y) of pixels: x to the right, y downwards, 0..1."""
    height, width = size
    rows, columns = np.indices(size)
    places = np.stack([(columns + 0.5) / width, (rows + 0.5) / height], axis=-1)
    return places.astype(np.float32)


def read_picture(path: str, longest: int) -> Float[np.ndarray, "H W 3"]:
    """Read an image file in colour, scaled so that its longer side is `longest`."""
    with open_image(path) as image:
        width, height = image.size
    scale = longest / max(width, height)
    sizes = (max(round(side * scale), 2) for side in (height, width))
    return as_floats(read_image(path, *sizes, channels=3))


def psnr(error: float) -> float:
    """Return the peak signal-to-noise ratio of a mean squared error, in dB."""
    return float(-10 * np.log10(max(error, 1e-10)))
