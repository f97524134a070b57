"""The judge of drawings: right on what was drawn, and on nothing else."""

import itertools
from random import Random

import numpy as np
import pytest

from transformer_jax.data import codebook, regions
from transformer_jax.data.generated import drawings
from transformer_jax.data.generated.drawings import RELATIONS, Figure, Scene
from transformer_jax.data.generated.draws import Drawer

OPPOSITE = {
    "left of": "right of", "right of": "left of", "above": "below", "below": "above"
}  # fmt: skip


@pytest.fixture(scope="module")
def records():
    return drawings.generate("test", 100) + drawings.generate("test_combinations", 100)


@pytest.fixture(scope="module")
def book():
    pictures = [r["picture"] for r in drawings.generate("train", 800)]
    return codebook.learn(pictures, 64, 4)


def right(picture, caption):
    return regions.judge(picture, caption).right


def test_every_drawn_picture_shows_its_caption(records):
    assert np.mean([right(r["picture"], r["source"]) for r in records]) == 1


def test_what_the_codebook_leaves_of_a_picture_still_shows_its_caption(records, book):
    found = [
        right(book.decode(book.encode(r["picture"]), (32, 32)), r["source"])
        for r in records
    ]
    assert np.mean(found) >= 0.995


def test_no_picture_shows_another_figure_or_another_relation(records):
    for record in records[::6]:
        scene = regions.parse_caption(record["source"])
        assert str(scene) == record["source"]
        for name in set(RELATIONS) - {scene.relation} if scene.relation else ():
            found = regions.judge(record["picture"], str(scene._replace(relation=name)))
            assert found.figures and not found.relation and not found.right
        turned = Scene(scene.figures[::-1], OPPOSITE.get(scene.relation, ""))
        assert right(record["picture"], str(turned))
        for figure in drawings.FIGURES:
            if figure != scene.figures[0]:
                other = Scene((figure, *scene.figures[1:]), scene.relation)
                assert not right(record["picture"], str(other))


def test_too_few_and_too_many_figures_are_wrong(records):
    two = next(
        r for r in records if len(regions.parse_caption(r["source"]).figures) == 2
    )
    scene = regions.parse_caption(two["source"])
    assert not right(two["picture"], str(Scene(scene.figures[:1])))
    blank = np.full((32, 32, 3), drawings.BACKGROUND, np.uint8)
    assert regions.find_figures(blank) == []
    assert not right(blank, "a red circle")


def test_a_region_of_no_known_shape_is_wrong_and_a_speck_is_ignored():
    scene = Scene((Figure("red", "square"),))
    picture = drawings.draw(scene, Drawer(Random(0).random))
    [region] = regions.find_figures(picture)
    assert region.figure == scene.figures[0]
    dotted = picture.copy()
    dotted[0:2, 0:2] = drawings.COLOURS["blue"]
    assert right(dotted, str(scene))
    rows, columns = np.nonzero((picture != drawings.BACKGROUND).any(-1))
    for broken in ("long", "ring"):
        wrong = picture.copy()
        y, x = rows.min(), columns.min()
        if broken == "long":
            wrong[y + 4 :, :] = drawings.BACKGROUND
        else:
            inside = slice(y + 2, rows.max() - 1), slice(x + 2, columns.max() - 1)
            wrong[inside] = drawings.BACKGROUND
        [region] = regions.find_figures(wrong)
        assert region.shape == "" and not right(wrong, str(scene))


def test_regions_are_pixels_that_touch_by_their_sides():
    text = ["##..#", "#..##", ".#...", "...##"]
    pixels = np.array([[c == "#" for c in row] for row in text])
    found = regions.connected(pixels)
    assert sorted(int(mask.sum()) for mask in found) == [1, 2, 3, 3]
    for a, b in itertools.combinations(found, 2):
        assert not (a & b).any()
    np.testing.assert_array_equal(np.any(found, axis=0), pixels)


@pytest.mark.parametrize(
    "caption", ["", "a pink circle", "a red circle left of", "red circle", "a red cat"]
)
def test_no_picture_shows_a_caption_of_another_form(records, caption):
    assert regions.parse_caption(caption) is None
    assert not right(records[0]["picture"], caption)
