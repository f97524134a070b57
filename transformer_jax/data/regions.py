"""Find the figures of a picture, and judge whether it shows what a caption says.

A pixel has the colour of the palette that is nearest. Pixels of one colour that touch
are a region; very small ones are specks, and are ignored. The shape of a region is the
one that fits best when it is drawn into the region's bounding box.
"""

import re
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, UInt8

from transformer_jax.data.generated.drawings import (
    BACKGROUND,
    COLOURS,
    RELATIONS,
    SHAPES,
    Figure,
    Scene,
    shape_mask,
)

SPECK = 6  # pixels: a smaller region is ignored
FIT = 0.75  # least share of the pixels that a region and its shape have in common
STRETCH = 1.5  # largest ratio of the sides of a figure's bounding box

FIGURE = rf"a ({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})"
CAPTION = re.compile(rf"{FIGURE}(?: ({'|'.join(RELATIONS)}) {FIGURE})?")


class Region(NamedTuple):
    """A region of a picture: what it is, and where its middle is."""

    colour: str
    shape: str  # "": none that is known
    x: float
    y: float

    @property
    def figure(self) -> Figure:
        """The figure that it is."""
        return Figure(self.colour, self.shape)


class Verdict(NamedTuple):
    """Say what of a caption a picture shows."""

    figures: bool  # exactly those that are named
    relation: bool  # and they lie as they should; a figure alone always does

    @property
    def right(self) -> bool:
        """Return whether the picture shows all of the caption."""
        return self.figures and self.relation


def parse_caption(caption: str) -> Scene | None:
    """Read a caption of the grammar; None if it is of another form."""
    found = CAPTION.fullmatch(caption.strip())
    if not found:
        return None
    first, second = Figure(*found.group(1, 2)), Figure(*found.group(4, 5))
    relation = found.group(3)
    return Scene((first, second), relation) if relation else Scene((first,))


def judge(picture: UInt8[np.ndarray, "H W 3"], caption: str) -> Verdict:
    """Compare a picture with what a caption says."""
    scene, found = parse_caption(caption), find_figures(picture)
    if scene is None:
        return Verdict(False, False)
    figures = [region.figure for region in found]
    if sorted(figures) != sorted(scene.figures):
        return Verdict(False, False)
    if not scene.relation:
        return Verdict(True, True)
    first, second = (found[figures.index(figure)] for figure in scene.figures)
    return Verdict(True, scene.relation == relate(first, second))


def relate(first: Region, second: Region) -> str:
    """Name the relation of two regions, by the axis on which they lie farther apart."""
    x, y = first.x - second.x, first.y - second.y
    if abs(x) == abs(y):
        return ""
    way = (int(np.sign(x)), 0) if abs(x) > abs(y) else (0, int(np.sign(y)))
    return next(name for name, where in RELATIONS.items() if where == way)


def find_figures(picture: UInt8[np.ndarray, "H W 3"]) -> list[Region]:
    """Return the regions of a picture, from the top left."""
    palette = np.array([BACKGROUND, *COLOURS.values()], int)
    far = np.square(picture[:, :, None].astype(int) - palette).sum(axis=-1)
    nearest, found = far.argmin(axis=-1), []
    for number, colour in enumerate(COLOURS, start=1):
        for mask in connected(nearest == number):
            if mask.sum() >= SPECK:
                y, x = (float(axis.mean()) for axis in np.nonzero(mask))
                found.append(Region(colour, name_shape(mask), x, y))
    return sorted(found, key=lambda region: (region.y, region.x))


def connected(pixels: Bool[np.ndarray, "H W"]) -> list[Bool[np.ndarray, "H W"]]:
    """Split pixels into those that touch, by their sides."""
    labels = np.where(pixels, np.arange(1, pixels.size + 1).reshape(pixels.shape), 0)
    while True:
        wide = np.pad(labels, 1)
        around = [wide[2:, 1:-1], wide[:-2, 1:-1], wide[1:-1, 2:], wide[1:-1, :-2]]
        spread = np.where(pixels, np.max([labels, *around], axis=0), 0)
        if (spread == labels).all():
            return [labels == label for label in np.unique(labels[pixels])]
        labels = spread


def name_shape(mask: Bool[np.ndarray, "H W"]) -> str:
    """Name the shape that fits a region best; "" if none fits well."""
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    box = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    if max(box.shape) > STRETCH * min(box.shape):
        return ""
    fits = {shape: overlap(box, shape_mask(shape, *box.shape)) for shape in SHAPES}
    best = max(fits, key=lambda shape: fits[shape])
    return best if fits[best] >= FIT else ""


def overlap(a: Bool[np.ndarray, "H W"], b: Bool[np.ndarray, "H W"]) -> float:
    """Return the pixels that two masks share, over those that either has."""
    return float((a & b).sum() / max((a | b).sum(), 1))
