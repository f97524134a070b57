"""Find the figures of a picture, and judge whether it shows what a caption says.

The judge shares no colours, shapes or places with the generator. Pixels that differ
from the background and touch are a region. Its colour is that of its hues; its shape is
the one whose outline each of its rows follows, to a pixel. Whatever else is on the
picture, a single pixel too, is a figure that nobody asked for.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, UInt8

from transformer_jax.family.drawings.captions import Figure, Scene

HUES = {"red": (340, 20), "yellow": (35, 70), "green": (90, 150), "blue": (200, 250)}
PAINTED = 0.15  # saturation from which a pixel is not background
SOLID = 0.35  # saturation from which a pixel belongs to a figure, not to its fringe
DARK = 0.75  # brightness below which a pixel is not background, whatever its colour
SMALL = 5  # pixels of the sides of a figure's bounding box, at least
STRETCH = 1  # pixels by which these sides may differ
NEAR = 1.1  # pixels between an end of a row and the outline of a shape, at most
WIDTHS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {  # of a row, 0 (top) to 1
    "circle": lambda y: 2 * np.sqrt(y * (1 - y)),
    "square": np.ones_like,
    "triangle": lambda y: y,
}
RELATIONS = ("left of", "right of", "above", "below")

FIGURE = rf"a ({'|'.join(HUES)}) ({'|'.join(WIDTHS)})"
CAPTION = re.compile(rf"{FIGURE}(?: ({'|'.join(RELATIONS)}) {FIGURE})?")


class Region(NamedTuple):
    """A region of a picture: what it is, and its bounding box."""

    colour: str  # "": none that is known, or several
    shape: str  # "": none that is known
    left: int
    top: int
    right: int  # the column after the last
    bottom: int

    @property
    def figure(self) -> Figure:
        """The figure that it is."""
        return Figure(self.colour, self.shape)


class Verdict(NamedTuple):
    """The parts of a caption that a picture shows."""

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
    """Compare a picture with its caption: the figures, and their relation."""
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
    """Name the relation of two regions, by the axis on which they lie farther apart.

    Return "" if they overlap on this axis, or lie equally far apart on both.
    """
    x = first.left + first.right - second.left - second.right  # twice the distances
    y = first.top + first.bottom - second.top - second.bottom
    if abs(x) > abs(y):
        if first.right <= second.left:
            return "left of"
        return "right of" if second.right <= first.left else ""
    if abs(y) > abs(x):
        if first.bottom <= second.top:
            return "above"
        return "below" if second.bottom <= first.top else ""
    return ""


def find_figures(picture: UInt8[np.ndarray, "H W 3"]) -> list[Region]:
    """Return the regions of a picture, from the top left."""
    hue, saturation, brightness = hues(picture)
    painted = (saturation >= PAINTED) | (brightness < DARK)
    found = []
    for mask in connected(painted):
        solid = mask & (saturation >= SOLID)
        colour = name_colour(hue[solid]) if solid.any() else ""
        top, left, box = cut_out(solid if solid.any() else mask)
        ends = left + box.shape[1], top + box.shape[0]
        found.append(Region(colour, name_shape(box), left, top, *ends))
    return sorted(found, key=lambda region: (region.top, region.left))


def hues(
    picture: UInt8[np.ndarray, "H W 3"],
) -> tuple[Float[np.ndarray, "H W"], ...]:
    """Return the hue in degrees, the saturation and the brightness of each pixel."""
    red, green, blue = np.moveaxis(picture.astype(float) / 255, -1, 0)
    brightness = np.maximum(np.maximum(red, green), blue)
    spread = brightness - np.minimum(np.minimum(red, green), blue)
    hue = np.degrees(np.arctan2(np.sqrt(3) * (green - blue), 2 * red - green - blue))
    saturation = spread / np.maximum(brightness, 1e-6)
    return hue % 360, saturation, brightness


def name_colour(hue: Float[np.ndarray, "pixels"]) -> str:
    """Name the colour that all pixels have; "" if there is none."""
    for name, (first, last) in HUES.items():
        # A range that begins at 340 and ends at 20 goes through 0.
        if ((hue - first) % 360 <= (last - first) % 360).all():
            return name
    return ""


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


def cut_out(
    mask: Bool[np.ndarray, "H W"],
) -> tuple[int, int, Bool[np.ndarray, "h w"]]:
    """Return the first row and column of a mask's bounding box, and the box itself."""
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    box = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return int(rows[0]), int(columns[0]), box


def name_shape(box: Bool[np.ndarray, "h w"]) -> str:
    """Name the shape whose outline each row follows; "" if there is none."""
    height, width = box.shape
    if min(height, width) < SMALL or abs(height - width) > STRETCH:
        return ""
    counts, first = box.sum(axis=1), box.argmax(axis=1)
    last = width - box[:, ::-1].argmax(axis=1)
    if (counts == 0).any() or (last - first != counts).any():  # a gap or a hole
        return ""
    y = (np.arange(height) + 0.5) / height
    for name, width_at in WIDTHS.items():
        half = width / 2 * width_at(y)
        ends = np.stack([first - (width / 2 - half), last - (width / 2 + half)])
        if (abs(ends) <= NEAR).all():
            return name
    return ""
