"""Coordinates: pixels at their positions, features as defined, colours as answered."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

import transformer_jax
from transformer_jax import config
from transformer_jax.base.errors import Refused, UserError
from transformer_jax.data.batches import Batch, Shape
from transformer_jax.family.coordinates import figure as painting
from transformer_jax.family.coordinates import model as coordinate_mlp
from transformer_jax.family.coordinates import picture as drawn
from transformer_jax.family.coordinates import pixels
from transformer_jax.family.coordinates import task as coordinates
from transformer_jax.family.coordinates.model import CoordinateMLPConfig
from transformer_jax.models.positions import sinusoid


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    """An image file, 10 wide and 6 high: red to the right, blue downwards."""
    rows, columns = np.indices((6, 10))
    colours = np.stack([25 * columns, 0 * rows, 40 * rows], axis=-1).astype(np.uint8)
    path = tmp_path_factory.mktemp("picture") / "p.png"
    Image.fromarray(colours).save(path)
    return path


@pytest.fixture(scope="module")
def run(tiny_run_of, picture):
    few = {
        "data.source": "file", "data.picture": str(picture), "data.size": "10",
        "train.steps": "60", "optim.constant": "0.01", "model.d_model": "16",
        "model.features": "raw", "model.layers": "2", "data.batch_tokens": "48",
        "eval.every": "30", "checkpoint.every": "10", "eval.batch_rows": "16",
        "eval.splits": "validation",
    }  # fmt: skip
    return transformer_jax.load(tiny_run_of("coordinates", **few))


def test_the_picture_is_drawn_between_black_and_white_with_fast_and_slow_parts():
    found = drawn.draw(48)
    assert found.shape == (48, 48, 3) and 0 <= found.min() < found.max() <= 1
    change = abs(np.diff(found, axis=1)).max(axis=-1)
    assert (change > 0.3).any() and (change < 0.01).mean() > 0.2


def test_a_picture_is_turned_as_its_camera_says_before_it_is_measured(
    picture, tmp_path
):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    Image.open(picture).save(tmp_path / "a.png", exif=exif)
    # The longer side of what is seen has the length that is asked for.
    assert pixels.read_picture(str(tmp_path / "a.png"), 10).shape == (10, 6, 3)
    Image.open(picture).save(tmp_path / "a.eps")
    with pytest.raises(UserError, match="a.eps .*it is none of PNG, JPEG"):
        pixels.read_picture(str(tmp_path / "a.eps"), 10)


def test_a_quarter_of_the_pixels_is_held_out_and_each_has_its_position_and_colour():
    image = np.random.default_rng(0).random((6, 10, 3), np.float32)
    train, held_out = (pixels.Pixels(image, s) for s in ("train", "validation"))
    assert len(train) + len(held_out) == 60 and len(held_out) == 15
    for records in (train, held_out):
        for i, record in enumerate(records):
            x, y = record["place"]
            row, column = int(y * 6), int(x * 10)
            assert (y * 6 - row, x * 10 - column) == pytest.approx((0.5, 0.5), abs=1e-5)
            np.testing.assert_array_equal(record["colour"], image[row, column])
            assert records.where(i) == f"row {row + 1}, column {column + 1}"
            assert (row % 2 and column % 2) == (records is held_out)
    assert train.fingerprint != held_out.fingerprint
    assert train.fingerprint != pixels.Pixels(image / 2, "train").fingerprint


def test_psnr_is_in_decibels():
    assert pixels.psnr(0.01) == pytest.approx(20)
    assert pixels.psnr(0.0) == pytest.approx(100)


def test_an_image_file_is_scaled_by_its_longer_side(picture, tmp_path):
    assert pixels.read_picture(str(picture), 10).shape == (6, 10, 3)
    assert pixels.read_picture(str(picture), 5).shape == (3, 5, 3)
    wrong = tmp_path / "wrong.png"
    wrong.write_text("no image")
    with pytest.raises(UserError, match="wrong.png cannot be read as an image"):
        pixels.read_picture(str(wrong), 5)


def test_features_match_their_definitions():
    places = jnp.array([[0.0, 0.5], [0.25, 1.0]])

    def encode(features):
        sizes = CoordinateMLPConfig(features=features, frequencies=6, bandwidth=3.0)
        return np.asarray(coordinate_mlp.encode(sizes, (4, 8), places))

    np.testing.assert_allclose(encode("raw"), [[-1, 0], [-0.5, 1]])
    pe = np.asarray(sinusoid(jnp.array([[0, 2], [2, 4]]), 6))  # column, row in pixels
    np.testing.assert_allclose(encode("sinusoid"), pe.reshape(2, 12), atol=1e-6)
    rates = np.asarray(coordinate_mlp.gaussian_frequencies(6, 3.0))
    angles = 2 * np.pi * np.asarray(places) @ rates
    both = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)
    np.testing.assert_allclose(encode("gaussian"), both, atol=1e-4)
    many = np.asarray(coordinate_mlp.gaussian_frequencies(4000, 3.0))
    assert many.std() == pytest.approx(3, rel=0.05) and abs(many.mean()) < 0.2


def test_the_loss_counts_each_pixel_once_and_no_empty_row(run):
    task, records = run.task, run.records("train")
    rows = task.data.encode([records[i] for i in (3, 5)])
    columns = {k: np.stack([row[k] for row in rows]) for k in ("place", "colour")}
    batch = Batch(Shape(4, (1,)), np.array([[0], [-1], [1], [-1]]))
    arrays = task.data.collate(columns, batch)
    assert arrays["weights"].tolist() == [1, 0, 1, 0]
    sums = task.objective.loss(run.params, jax.tree.map(jnp.asarray, arrays))
    painted = task.inference.paint(run.params, columns["place"], run.mesh)
    errors = np.square(painted - columns["colour"]).mean(axis=-1)
    assert float(sums.weight) == 2
    assert float(sums.loss) == pytest.approx(errors.sum(), rel=1e-4)
    found = task.objective.means(sums)
    assert found["psnr"] == pytest.approx(-10 * np.log10(errors.mean()), rel=1e-4)


def test_it_learns_and_answers_positions_with_colours(run):
    scores = run.folder.read("result.json")["scores"]["validation"]
    assert scores["psnr"] > 20 and "PSNR = " in scores["summary"]
    left, right = run.predict(["0.05 0.1", "0.95 0.1"])
    assert left[0] == right[0] == "#" and len(left) == 7
    assert coordinates.as_colour(left)[0] + 0.4 < coordinates.as_colour(right)[0]
    record = run.records("validation")[0]
    assert run.task.scoring.reference(record) == coordinates.as_text(record["colour"])
    np.testing.assert_allclose(coordinates.as_colour("#ff0033"), [1, 0, 0.2])


@pytest.mark.parametrize(
    "line", ["", "a b", "0.5", "0.1 0.2 0.3", "0.5 1.5", "nan 0", "0_1 0"]
)
def test_an_invalid_position_is_refused(run, line):
    with pytest.raises(Refused, match="is not a place: give|outside of the picture"):
        run.task.inference.parse(line)
    with pytest.raises(Refused, match="cannot begin with a given prefix"):
        run.task.inference.parse("0 0", prefix="#")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"data.source": "file"}, "data.picture is empty"),
        ({"data.source": "file", "data.picture": "no.png"}, "no file no.png"),
        ({"model.features": "sinusoid", "model.frequencies": "5"}, "use 4 or 6"),
    ],
)
def test_impossible_settings_are_refused(keys, words):
    with pytest.raises(UserError, match=words):
        config.load("coordinates", keys)


def test_other_splits_are_refused():
    source = coordinates.Picture(config.load("coordinates").data)
    with pytest.raises(
        UserError, match="there is no split 'test': this run.s data has train"
    ):
        source.read("test")


def test_the_figure_has_the_pictures_and_their_curves(run, picture):
    whole, painted, metrics = painting.read([run])
    np.testing.assert_allclose(whole, pixels.read_picture(str(picture), 10))
    figure = painting.painting(whole, painted, metrics)
    FigureCanvasAgg(figure).draw()
    first, second, by_step, by_second = figure.axes
    np.testing.assert_array_equal(first.images[0].get_array(), whole)
    np.testing.assert_array_equal(second.images[0].get_array(), painted["raw"])
    held_out = pixels.hold_out((6, 10))
    error = np.square(painted["raw"] - whole)[held_out].mean()
    assert second.get_title() == f"raw, {pixels.psnr(error):.1f} dB"
    steps, found = by_step.lines[0].get_data()
    assert list(steps) == [30, 60]
    assert list(by_second.lines[0].get_ydata()) == list(found)
    assert all(np.diff(by_second.lines[0].get_xdata()) > 0)


def test_only_one_picture_is_drawn_at_a_time(run, tiny_run, monkeypatch):
    with pytest.raises(UserError, match="is a run of the task translation"):
        painting.read([transformer_jax.load(tiny_run)])
    found = iter([np.zeros((6, 10, 3)), np.ones((6, 10, 3))])
    monkeypatch.setattr(coordinates.Picture, "image", property(lambda _: next(found)))
    monkeypatch.setattr(painting, "paint", lambda run, size: np.zeros((*size, 3)))
    with pytest.raises(UserError, match="these runs paint different pictures"):
        painting.read([run, run])


def test_a_number_of_layers_that_no_machine_can_shape_is_refused():
    said = "model.layers = 1001: must be at least 1 and at most 1000"
    with pytest.raises(UserError, match=said):
        config.load("coordinates", {"model.layers": "1001"})


def test_seeds_are_compared_by_psnr():
    assert coordinates.ColourScoring().measures({"psnr": 31.1}) == {"PSNR (dB)": 31.1}


@pytest.mark.parametrize("dpi", [72, 100, 150])
def test_the_titles_of_a_painting_are_not_cut_off(dpi):
    picture = np.random.default_rng(0).random((24, 24, 3))
    entries = [{"kind": "validation", "step": i, "psnr": 20.0 + i} for i in range(3)]
    names = ("raw", "sinusoid", "gaussian")
    painted = {name: 0.5 * picture for name in names}
    figure = painting.painting(picture, painted, dict.fromkeys(names, entries))
    figure.set_dpi(dpi)
    FigureCanvasAgg(figure).draw()
    titles = [axes.title for axes in figure.axes if axes.get_title()]
    assert len(titles) == 4
    room = 0.02 * dpi
    for box in [title.get_window_extent() for title in titles]:
        assert box.y1 + room < figure.bbox.y1 and box.y0 > figure.bbox.y0


def test_a_painting_is_of_runs_that_are_named():
    with pytest.raises(UserError, match="name runs of configs/coordinates.py after"):
        painting.draw_painting(types.SimpleNamespace(run=[]))
