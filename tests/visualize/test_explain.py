"""One attention computation in numbers: of a file, and of a model that reads."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from transformer_jax.base.errors import UserError
from transformer_jax.visualize import capture, explain, figures
from transformer_jax.visualize.examples import EXAMPLES


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_the_greeting_is_scaled_and_its_softmax_is_not_what_tutorials_print():
    found = explain.read_numbers("greeting")
    np.testing.assert_allclose(found.scaled, found.scores / 8)
    np.testing.assert_allclose(found.weights, softmax(found.scores / 8), atol=1e-6)
    printed = [0.7, 0.1, 0.1, 0.1]
    assert np.abs(found.weights[0] - printed).max() > 0.25
    assert np.abs(softmax(found.scores)[0] - printed).max() > 0.25  # nor without √d_k


def test_nobody_sees_what_follows_in_the_look_ahead_examples():
    five = explain.read_numbers("look-ahead")
    expected = np.tri(5) / np.arange(1, 6)[:, None]
    np.testing.assert_allclose(five.weights, expected, atol=1e-6)
    fine = explain.read_numbers("fine")
    np.testing.assert_allclose(
        fine.weights.round(2),
        [[1, 0, 0, 0], [0.38, 0.62, 0, 0], [0.26, 0.32, 0.43, 0],
         [0.21, 0.26, 0.26, 0.26]],
        atol=1e-6,
    )  # fmt: skip


def test_the_products_of_the_video_search_are_31_and_1():
    found = explain.read_numbers("videos")
    np.testing.assert_array_equal(found.scores, [[31, 1]])
    expected = 1 / (1 + math.exp(-30 / math.sqrt(3)))
    assert found.weights[0, 0] == pytest.approx(expected)
    np.testing.assert_allclose(found.attended, found.weights, atol=1e-6)


def test_text_has_every_step_in_order_and_hides_what_is_masked():
    text = "\n".join(explain.lines(explain.read_numbers("fine")))
    names = ["scores q · k", "masked", "weights: softmax of each row"]
    assert sorted(map(text.index, names)) == [text.index(name) for name in names]
    assert text.count("-inf") == 6 and "scaled" not in text
    video = "\n".join(explain.lines(explain.read_numbers("videos"), columns=2))
    assert "scaled: scores / √3 = 1.732" in video
    assert "(the first 2 of 3)" in video and "weights · v" in video


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_drawing_has_the_numbers_of_the_text(name):
    found = explain.read_numbers(name)
    figure = figures.computation(found)
    FigureCanvasAgg(figure).draw()
    by_title = {axes.get_title(): axes for axes in figure.axes}
    shown = by_title["weights: softmax"].images[0].get_array()
    np.testing.assert_allclose(shown, found.weights)
    assert ("masked" in by_title) == (not found.allowed.all())
    assert figure.get_suptitle() == found.title


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[1", "numbers.json"),
        ([1], "expected an object with keys"),
        ({"score": [[1]]}, "unknown key 'score'.*Did you mean 'scores'"),
        ({"queries": [[1]]}, "either 'scores', or 'queries' and 'keys'"),
        ({"queries": [[1]], "keys": [[1, 2]]}, "queries of 1 numbers and keys of 2"),
        ({"scores": [[1, 2], [3]]}, "'scores' must be rows of numbers"),
        ({"scores": [["x"]]}, "'scores' must be rows of numbers"),
        ({"scores": [[1, 2]], "values": [[1]]}, "1 values for 2"),
        ({"scores": [[1, 2]], "query_labels": ["a", "b"]}, "2 query_labels for 1"),
        ({"scores": [[1, 2]], "mask": "look-ahead"}, "'mask' must be"),
        ({"scores": [[1, 2]], "mask": [[1, 3]]}, "'mask' must be"),
        ({"scores": [[1, 2]], "d_k": 0}, "d_k = 0"),
    ],
)
def test_a_file_that_cannot_be_computed_says_why(tmp_path, content, says):
    path = tmp_path / "numbers.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError, match=says):
        explain.read_numbers(str(path))


def test_an_unknown_example_names_those_that_there_are():
    with pytest.raises(UserError, match="greeting, look-ahead.*Did you mean 'videos'"):
        explain.read_numbers("video")


PAIR = "O gato dorme.", "The cat sleeps."


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_a_followed_head_has_the_numbers_of_the_model(run, kind):
    maps = run.attention(*PAIR)
    found = capture.follow_head(run, *PAIR, kind, 0, 1)
    np.testing.assert_allclose(found.weights, maps[kind][0, 1], atol=1e-6)
    np.testing.assert_allclose(found.scores, found.queries @ found.keys.T, atol=1e-5)
    assert found.d_k == run.config.model.d_model // 2
    np.testing.assert_allclose(found.attended, found.weights @ found.values, atol=1e-5)
    assert found.allowed.all() == (kind != "decoder")
    if kind == "decoder":
        np.testing.assert_array_equal(found.allowed, np.tri(len(found.weights)))
    assert len(found.query_labels) == len(found.weights)


def test_a_place_that_the_model_has_not_is_refused(run):
    with pytest.raises(UserError, match="--layer=1: this model has 0 to 0"):
        capture.follow_head(run, *PAIR, "cross", 1, 0)
    with pytest.raises(UserError, match="--head=2: this model has 0 to 1"):
        capture.follow_head(run, *PAIR, "cross", 0, 2)


def test_a_layer_is_followed_from_its_input_to_what_flax_itself_captures(run):
    labels, steps = capture.follow_layer(run, *PAIR, "encoder", 0)
    by_name = {step.name: step.values for step in steps}
    inspector = run.task.inspector
    source, target = (jnp.asarray([ids]) for ids in inspector._inputs(*PAIR))
    _, variables = inspector.module.apply(
        {"params": run.params}, source, target, capture_intermediates=True
    )
    layer = variables["intermediates"]["encoder"]["layer_0"]
    attended = layer["self_attention"]["__call__"][0][0][0]
    np.testing.assert_allclose(
        by_name["attended, heads side by side, · W_o + b"], attended, atol=1e-5
    )
    inner = layer["feed_forward"]["inner"]["__call__"][0][0]
    name = "feed-forward, inner: x W₁ + b₁, before the activation"
    np.testing.assert_allclose(by_name[name], inner, atol=1e-5)
    output = layer["__call__"][0][0][0]
    assert steps[-1].name == "output of the layer"
    np.testing.assert_allclose(steps[-1].values, output, atol=1e-5)
    # Post-norm: the residual stream is the input, and what attention adds to it.
    stream = by_name["into the norm of self-attention: the residual stream"]
    np.testing.assert_allclose(
        stream, by_name["input of the layer"] + attended, atol=1e-5
    )
    assert len(labels) == len(output)
