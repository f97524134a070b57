"""Pictures of coloured figures, 32 × 32 pixels, with the captions that describe them.

    a red circle            a red circle left of a blue square

A caption names one figure, or two and where the first is. Place, size and lightness are
drawn for each picture. Two figures that are named together in `test_combinations` are
never together in a picture of the other splits, whatever their relation.
"""

import itertools
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, UInt8

from transformer_jax.data.draws import Drawer, check_split, split_of

VERSION = 2  # part of the data fingerprint: raise when pictures or captions change
SPLITS = ("train", "validation", "test", "test_combinations")

SIZE = 32  # pixels of a side
SIDES = (8, 12)  # of a figure
STEP = 4  # figures lie on a grid of so many pixels
LIGHTS = (0.95, 1.0, 1.05)  # by which the colour of a figure is multiplied
GAP = 4  # pixels between two figures, at least
ASIDE = 8  # pixels that the second figure may lie off the axis of a relation, at most
BACKGROUND = (245, 245, 240)
COLOURS = {
    "red": (214, 39, 40),
    "green": (44, 150, 44),
    "blue": (31, 90, 200),
    "yellow": (240, 200, 20),
}
SHAPES = ("circle", "square", "triangle")
RELATIONS = {  # to where the first figure lies, seen from the second: x, y downwards
    "left of": (-1, 0),
    "right of": (1, 0),
    "above": (0, -1),
    "below": (0, 1),
}
ALONE = 0.15  # share of the captions that name one figure


class Figure(NamedTuple):
    """A figure as a caption names it."""

    colour: str
    shape: str

    def __str__(self) -> str:
        return f"a {self.colour} {self.shape}"


class Scene(NamedTuple):
    """One figure of a caption, or two and the relation of the first to the second."""

    figures: tuple[Figure, ...]
    relation: str = ""

    def __str__(self) -> str:
        return f" {self.relation} ".join(map(str, self.figures))


FIGURES = tuple(itertools.starmap(Figure, itertools.product(COLOURS, SHAPES)))


def generate(split: str, size: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return `size` captions with their pictures, always the same for a seed."""
    check_split(split, SPLITS)
    drawer = Drawer(Random(f"drawings {split} {seed}").random)
    held_out, found = split == "test_combinations", []
    while len(found) < size:
        scene = draw_scene(drawer)
        if is_held_out(scene) == held_out:
            found.append({"source": str(scene), "picture": draw(scene, drawer)})
    return found


def draw_scene(drawer: Drawer) -> Scene:
    """Draw a random scene, from which a caption and a picture are made."""
    first = drawer.pick(FIGURES)
    if drawer.chance(ALONE):
        return Scene((first,))
    second = drawer.pick([figure for figure in FIGURES if figure != first])
    return Scene((first, second), drawer.pick(tuple(RELATIONS)))


def is_held_out(scene: Scene) -> bool:
    """Return whether the figures of a scene are together in no training picture.

    A hash of both decides, in any order; a figure alone is never held out. These are 13
    of the 66 pairs, which 104 captions name.
    """
    return len(scene.figures) > 1 and split_of(str(sorted(scene.figures))) != "train"


def draw(scene: Scene, drawer: Drawer) -> UInt8[np.ndarray, "32 32 3"]:
    """Draw a picture of a scene, with sizes, places and lightness of its own."""
    picture = np.tile(np.array(BACKGROUND, np.uint8), (SIZE, SIZE, 1))
    sides = [drawer.pick(SIDES) for _ in scene.figures]
    for figure, side, (x, y) in zip(
        scene.figures, sides, _places(scene, sides, drawer), strict=True
    ):
        part = picture[y : y + side, x : x + side]
        colour = np.array(COLOURS[figure.colour]) * drawer.pick(LIGHTS)
        part[shape_mask(figure.shape, side, side)] = np.clip(np.rint(colour), 0, 255)
    return picture


def shape_mask(shape: str, height: int, width: int) -> Bool[np.ndarray, "H W"]:
    """Return the pixels that a shape has in its bounding box."""
    y, x = ((np.arange(n) + 0.5) / n for n in (height, width))
    x, y = np.meshgrid(2 * x - 1, y)  # from -1 to 1, and from 0 (top) to 1
    if shape == "circle":
        return np.square(x) + np.square(2 * y - 1) <= 1
    if shape == "triangle":
        return np.abs(x) <= y
    return np.ones((height, width), bool)


def _places(
    scene: Scene, sides: Sequence[int], drawer: Drawer
) -> list[tuple[int, int]]:
    """Draw the upper left corners of a scene's figures."""
    while True:
        corners = [
            tuple(drawer.pick(range(0, SIZE - side + 1, STEP)) for _ in "xy")
            for side in sides
        ]
        if len(corners) == 1 or _obey(scene.relation, sides, corners):
            return corners  # pyright: ignore[reportReturnType]  (two numbers each)


def _obey(relation: str, sides: Sequence[int], corners: Any) -> bool:
    """Return whether two figures lie clearly in a relation."""
    along, across = (0, 1) if RELATIONS[relation][0] else (1, 0)
    first, second = (0, 1) if sum(RELATIONS[relation]) < 0 else (1, 0)
    gap = corners[second][along] - corners[first][along] - sides[first]
    middles = [
        corner[across] + side / 2 for corner, side in zip(corners, sides, strict=True)
    ]
    return gap >= GAP and abs(middles[0] - middles[1]) <= ASIDE
