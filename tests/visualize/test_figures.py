"""Figures show what they were given: their pixels are the numbers, cell by cell."""

import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.models.attention import Mask, look_ahead_mask, padding_mask
from transformer_jax.models.positions import sinusoid
from transformer_jax.visualize import figures

QUERIES = ("<s>", "▁The", "▁cat")
KEYS = ("▁O", "▁ga", "to", ".", "</s>")


def image_of(axes):
    return np.asarray(axes.images[0].get_array())


def labels_of(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def draw(figure):
    """Laying out the figure is what warns of labels that find no place."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure).draw()
    return figure


@pytest.mark.parametrize("interleave", [True, False])
def test_the_heat_map_is_the_packages_own_sinusoid(interleave):
    figure = draw(figures.positional_encoding(7, 10, interleave))
    axes, bar = figure.axes
    expected = sinusoid(jnp.arange(7)[None], 10, interleave)[0]
    np.testing.assert_array_equal(image_of(axes), expected)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("depth", "position")
    assert bar.get_ylabel() == "PE(position, depth)"


def test_slices_are_columns_of_the_encoding():
    figure = draw(figures.positional_slices(11))
    encoding = sinusoid(jnp.arange(11)[None], 512)[0]
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "depth 1",
        "depth 5",
        "depth 15",
        "depth 20",
    ]
    for axes, depth in zip(figure.axes, (1, 5, 15, 20), strict=True):
        x, y = axes.lines[0].get_data()
        np.testing.assert_array_equal(x, np.arange(11))
        np.testing.assert_array_equal(y, encoding[:, depth])


def test_more_slices_than_colours_and_a_single_one():
    assert len(draw(figures.positional_slices(5, 64, range(8))).axes) == 8
    assert len(draw(figures.positional_slices(5, 64, [3])).axes) == 1


def test_a_look_ahead_mask_is_drawn_as_its_lower_triangle():
    mask = look_ahead_mask(jnp.arange(3)[None])
    figure = draw(figures.mask(mask, QUERIES, QUERIES, "a title"))
    (axes,) = figure.axes
    np.testing.assert_array_equal(image_of(axes), np.tri(3, dtype=bool))
    assert axes.get_title() == "a title"
    assert labels_of(axes.xaxis) == labels_of(axes.yaxis) == list(QUERIES)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("key", "query")


def test_a_padding_mask_is_the_same_row_for_every_query():
    row = [1, 1, 1, 0, 0]
    figure = draw(figures.mask(padding_mask(jnp.array([row])), QUERIES, KEYS))
    (axes,) = figure.axes
    np.testing.assert_array_equal(image_of(axes), np.array([row] * 3, bool))
    assert labels_of(axes.xaxis) == list(KEYS)
    assert labels_of(axes.yaxis) == list(QUERIES)
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["hidden", "visible"]


def test_a_mask_may_be_an_array():
    allowed = np.arange(15).reshape(3, 5) % 2 == 0
    for array in (allowed, allowed[None, None], jnp.asarray(allowed)):
        figure = figures.mask(array, QUERIES, KEYS, "")
        np.testing.assert_array_equal(image_of(figure.axes[0]), allowed)


def test_a_mask_that_does_not_fit_its_labels_is_refused():
    with pytest.raises(
        ValueError, match="3 queries and 3 keys does not fit 3 .* 5 key"
    ):
        figures.mask(np.ones((3, 3), bool), QUERIES, KEYS)
    with pytest.raises(ValueError, match="several sentences"):
        figures.mask(Mask(jnp.ones((2, 5), jnp.int32)), QUERIES, KEYS)


@pytest.fixture
def weights():
    random = np.random.default_rng(0)
    return random.dirichlet(np.ones(5), size=(2, 7, 3)).astype(np.float32)


def test_attention_has_a_row_a_layer_and_a_column_a_head(weights):
    figure = draw(figures.attention(weights, QUERIES, KEYS))
    *panels, bar = figure.axes
    assert len(panels) == 2 * 7
    assert bar.get_ylabel() == "weight"
    for i, axes in enumerate(panels):
        layer, head = divmod(i, 7)
        np.testing.assert_array_equal(image_of(axes), weights[layer, head])
        assert axes.get_title() == f"layer {layer}, head {head}"
        grid = axes.get_subplotspec()
        assert (grid.rowspan.start, grid.colspan.start) == (layer, head)
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("key", "query")


def test_labels_are_the_pieces_and_stand_on_the_outer_panels_only(weights):
    *panels, _ = draw(figures.attention(weights, QUERIES, KEYS)).axes
    lower_left, upper_right = panels[7], panels[6]
    assert labels_of(lower_left.xaxis) == list(KEYS)
    assert labels_of(lower_left.yaxis) == list(QUERIES)
    shown = [t.label1.get_visible() for t in upper_right.xaxis.get_major_ticks()]
    assert not any(shown)


def test_one_layer_alone(weights):
    *panels, _ = draw(figures.attention(weights, QUERIES, KEYS, layer=1)).axes
    assert len(panels) == 7
    np.testing.assert_array_equal(image_of(panels[3]), weights[1, 3])
    assert panels[3].get_title() == "layer 1, head 3"


def test_weights_that_do_not_fit_their_labels_are_refused(weights):
    with pytest.raises(ValueError, match="expected .* 5 queries, 3 keys"):
        figures.attention(weights, KEYS, QUERIES)
    with pytest.raises(ValueError, match=r"shape \(3, 5\)"):
        figures.attention(weights[0, 0], QUERIES, KEYS)


def test_neighbouring_labels_do_not_overlap(weights):
    long = [f"▁extraordinariamente{i}" for i in range(5)]
    *panels, _ = draw(figures.attention(weights, QUERIES, long)).axes
    for axis in (panels[7].xaxis, panels[7].yaxis):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        pairs = zip(boxes, boxes[1:], strict=False)
        assert not any(a.overlaps(b) for a, b in pairs)


@pytest.mark.system
def test_the_package_is_imported_without_matplotlib():
    code = (
        "import sys; sys.modules['matplotlib'] = None;"
        "import transformer_jax.visualize.figures"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_reach_is_a_line_a_model_from_one_token_back_on_a_logarithmic_scale():
    curves = {"near": [0.5, 0.05, 0.005], "far": [0.5, 0.4]}
    (axes,) = draw(figures.reach(curves)).axes
    assert [line.get_label() for line in axes.lines] == ["near", "far"]
    for line, amounts in zip(axes.lines, curves.values(), strict=True):
        np.testing.assert_array_equal(line.get_xdata(), 1 + np.arange(len(amounts)))
        np.testing.assert_array_equal(line.get_ydata(), amounts)
    assert axes.get_yscale() == "log"
