"""Drawings: captions of the grammar, pictures that show them, pairs held out."""

import numpy as np
import pytest

from transformer_jax.family.drawings import captions as drawings
from transformer_jax.family.drawings import regions
from transformer_jax.family.drawings.captions import Figure, Scene

RED, BLUE = Figure("red", "circle"), Figure("blue", "square")


def pair_of(record):
    scene = regions.parse_caption(record["source"])
    return frozenset(scene.figures)


def test_a_caption_is_what_its_scene_says():
    assert str(Scene((RED,))) == "a red circle"
    assert str(Scene((RED, BLUE), "left of")) == "a red circle left of a blue square"


def test_the_same_split_has_the_same_pictures_and_another_one_others():
    first, again = (drawings.generate("train", 20) for _ in range(2))
    other = drawings.generate("test", 20)
    assert [r["source"] for r in first] == [r["source"] for r in again]
    pictures = [np.stack([r["picture"] for r in s]) for s in (first, again, other)]
    np.testing.assert_array_equal(pictures[0], pictures[1])
    assert (pictures[0] != pictures[2]).any() and pictures[0].shape == (20, 32, 32, 3)
    with pytest.raises(ValueError, match="unknown split"):
        drawings.generate("dev", 1)


def test_figures_of_a_held_out_pair_are_never_together_in_training():
    held_out = {pair_of(r) for r in drawings.generate("test_combinations", 400)}
    for split in ("train", "validation", "test"):
        seen = {pair_of(r) for r in drawings.generate(split, 1000)}
        assert not seen & held_out and len(seen) > 50
    assert all(len(pair) == 2 for pair in held_out) and len(held_out) == 13
    both = [Scene((RED, BLUE), "above"), Scene((BLUE, RED), "left of")]
    assert len({drawings.is_held_out(scene) for scene in both}) == 1
    assert not drawings.is_held_out(Scene((RED,)))


@pytest.mark.parametrize(
    ("shape", "share"), [("circle", np.pi / 4), ("square", 1), ("triangle", 1 / 2)]
)
def test_a_shape_fills_its_share_of_its_box_and_reaches_its_edges(shape, share):
    mask = drawings.shape_mask(shape, 40, 60)
    assert mask.mean() == pytest.approx(share, abs=0.03)
    small = drawings.shape_mask(shape, 10, 10)
    edges = small[-1], small[:, 0], small[:, -1]
    assert all(edge.any() for edge in edges)
