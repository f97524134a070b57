"""Figures are legible: no label covers another, nothing is cut off at an edge."""

import itertools

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import FancyBboxPatch

from transformer_jax import config as configs
from transformer_jax.visualize import explain, figures, modules, style

WORDS = ("The", "girl", "is", "making", "tea")


def draw(figure):
    FigureCanvasAgg(figure).draw()
    return figure


def boxes_of(texts):
    return [text.get_window_extent() for text in texts]


def looks_alike():
    """Two layers of two heads; the first heads of both look almost alike."""
    weights = np.full((2, 2, 6, 6), 1 / 6)
    weights[:, 0] = 0.9 * np.eye(6) + 0.1 / 6
    weights[1, 0] += 0.002
    return weights / weights.sum(axis=-1, keepdims=True)


def test_numbers_of_heads_that_look_alike_do_not_cover_each_other():
    (axes,) = draw(figures.entropy_and_distance(looks_alike())).axes
    numbers = [text for text in axes.texts if text.get_text().isdigit()]
    assert [text.get_text() for text in numbers] == ["0", "1", "0", "1"]
    pairs = itertools.combinations(boxes_of(numbers), 2)
    assert not any(a.overlaps(b) for a, b in pairs)


def test_names_of_neighbours_that_lie_together_do_not_cover_each_other():
    random = np.random.default_rng(0)
    table = random.normal(size=(9, 8))
    table[1:3] = table[0] + 1e-3 * random.normal(size=(2, 8))
    names = [f"neighbour{i}" for i in range(9)]
    (axes,) = draw(figures.neighbours(table, names, ["neighbour0"], count=6)).axes
    assert len(axes.texts) == 7
    pairs = itertools.combinations(boxes_of(axes.texts), 2)
    assert not any(a.overlaps(b) for a, b in pairs)


def test_a_label_stays_inside_the_axes():
    figure = style.make_figure(4, 3)
    axes = figure.subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    style.label_points(axes, [(0.99, 0.99), (0.01, 0.01)], ["upper", "lower"])
    frame = draw(figure).axes[0].get_window_extent()
    for box in boxes_of(axes.texts):
        assert frame.x0 <= box.x0 < box.x1 <= frame.x1
        assert frame.y0 <= box.y0 < box.y1 <= frame.y1


def test_a_module_s_box_is_inside_the_box_of_its_caller():
    found = modules.calls_of(configs.load("quickstart"))
    (axes,) = draw(figures.shapes(found)).axes
    patches = [p for p in axes.patches if isinstance(p, FancyBboxPatch)][::2]
    boxes = {c.path: p.get_extents() for c, p in zip(found, patches, strict=True)}
    assert len(boxes) > 10
    for path, box in boxes.items():
        around = boxes.get(path[:-1])
        if around is not None:
            assert around.y0 + 1 < box.y0 < box.y1 < around.y1 - 1, path
            assert around.x0 + 1 < box.x0 < box.x1 < around.x1 - 1, path


def test_padded_and_unpadded_words_are_of_one_size_and_on_one_line():
    weights = np.random.default_rng(0).dirichlet(np.ones(5), size=(2, 5))
    alone = weights[0, :3, :3]
    words = ["extraordinary", "words", "here"]
    figure = draw(figures.padding(alone, *weights, words))
    panels = figure.axes[:3]
    corners = [axes.transData.transform([(0, 0), (2, 2)]) for axes in panels]
    for other in corners[1:]:
        np.testing.assert_allclose(other[:, 1], corners[0][:, 1], atol=0.5)
        np.testing.assert_allclose(np.ptp(other, 0), np.ptp(corners[0], 0), atol=0.5)
    below = panels[0].get_xticklabels()[0].get_window_extent().y1
    edge = panels[0].transData.transform((0, 2.5))[1]
    assert 0 < edge - below < 12  # directly below the last word
    for axes in panels:
        boxes = boxes_of(axes.get_xticklabels())
        assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))


def test_a_computation_says_how_many_of_its_numbers_are_drawn():
    random = np.random.default_rng(0)
    rows = random.normal(size=(3, 4, 7)).astype(np.float32)
    found = explain.compute(*rows)
    titles = [axes.get_title() for axes in figures.computation(found, 5).axes]
    cut = ["queries q, 5 of 7", "keys k, 5 of 7", "values v, 5 of 7"]
    assert set(titles) >= {*cut, "weights · v, 5 of 7", "scores q · k"}
    complete = [axes.get_title() for axes in figures.computation(found, 7).axes]
    assert "queries q" in complete and not any(" of 7" in t for t in complete)
