"""The judge of drawings: right on what was drawn, and on nothing else."""

import itertools
from random import Random

import numpy as np
import pytest

from transformer_jax.data.draws import Drawer
from transformer_jax.family.drawings import captions as drawings
from transformer_jax.family.drawings import codebook, regions
from transformer_jax.family.drawings.captions import RELATIONS, Figure, Scene

OPPOSITE = {
    "left of": "right of", "right of": "left of", "above": "below", "below": "above"
}  # fmt: skip


@pytest.fixture(scope="module")
def records():
    return drawings.generate("test", 100) + drawings.generate("test_combinations", 100)


@pytest.fixture(scope="module")
def book():
    pictures = [r["picture"] for r in drawings.generate("train", 2000)]
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


def draw(shape, seed=0):
    """Draw a figure alone; return its picture, its caption and its box."""
    drawer = Drawer(Random(seed).random)
    scene = Scene((Figure(drawer.pick(tuple(drawings.COLOURS)), shape),))
    picture = drawings.draw(scene, drawer)
    rows, columns = np.nonzero((picture != drawings.BACKGROUND).any(-1))
    box = rows.min(), rows.max() + 1, columns.min(), columns.max() + 1
    return picture, str(scene), box


def parts(top, bottom, left, right):
    """Name quarters of a box: along each side, and two of its corners."""
    quarter, y, x = (right - left) // 4, (top + bottom) // 2, (left + right) // 2
    return {
        "left": (slice(top, bottom), slice(left, left + quarter)),
        "right": (slice(top, bottom), slice(right - quarter, right)),
        "top": (slice(top, top + quarter), slice(left, right)),
        "bottom": (slice(bottom - quarter, bottom), slice(left, right)),
        "upper left": (slice(top, y), slice(left, x)),
        "lower right": (slice(y, bottom), slice(x, right)),
        "middle": (slice(y - 1, y + 1), slice(x - 1, x + 1)),
    }


@pytest.mark.parametrize("shape", drawings.SHAPES)
def test_a_figure_of_which_a_quarter_or_the_middle_is_cut_off_is_wrong(shape):
    for seed in range(20):
        picture, caption, box = draw(shape, seed)
        assert right(picture, caption)
        for name, part in parts(*box).items():
            cut = picture.copy()
            cut[part] = drawings.BACKGROUND
            smaller = (shape, name) == ("triangle", "bottom")  # it is one still
            assert right(cut, caption) == smaller, name


@pytest.mark.parametrize("shape", drawings.SHAPES)
@pytest.mark.parametrize("pixels", [1, 5])
def test_a_stray_blob_is_wrong_whatever_its_colour(shape, pixels):
    picture, caption, (top, bottom, left, end) = draw(shape)
    row = 0 if top > 1 else 31
    for colour in [*drawings.COLOURS.values(), (120, 120, 120), (200, 220, 245)]:
        spotted = picture.copy()
        spotted[row, 0:pixels] = colour
        assert not right(spotted, caption)
    attached = picture.copy()
    side = slice(left - 3, left) if left else slice(end, end + 3)
    middle = (top + bottom) // 2
    attached[middle : middle + 2, side] = picture[middle, (left + end) // 2]
    assert not right(attached, caption)


def test_a_figure_of_two_colours_or_another_hue_is_wrong():
    picture, caption, (top, bottom, left, right_end) = draw("square")
    for colour in ((150, 60, 170), (20, 180, 190), (120, 120, 120)):
        half = picture.copy()
        half[top : (top + bottom) // 2, left:right_end] = colour
        whole = picture.copy()
        whole[top:bottom, left:right_end] = colour
        assert not right(half, caption) and not right(whole, caption)
        assert regions.find_figures(whole)[0].figure == Figure("", "square")


def test_two_figures_that_overlap_on_the_axis_of_their_relation_have_none():
    first = regions.Region("red", "square", 0, 0, 8, 8)
    assert regions.relate(first, first._replace(left=8, right=16)) == "left of"
    assert regions.relate(first, first._replace(left=7, right=15)) == ""
    assert regions.relate(first, first._replace(top=8, bottom=16)) == "above"
    assert regions.relate(first._replace(top=8, bottom=16), first) == "below"
    assert regions.relate(first, regions.Region("red", "square", 8, 8, 16, 16)) == ""


def test_the_judge_knows_the_words_of_the_generator_and_nothing_else_of_it():
    assert set(regions.HUES) == set(drawings.COLOURS)
    assert set(regions.WIDTHS) == set(drawings.SHAPES)
    assert set(regions.RELATIONS) == set(RELATIONS)
    assert not {"shape_mask", "COLOURS", "BACKGROUND"} & set(vars(regions))


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
