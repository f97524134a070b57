"""Images: trained from idx files, answered from image files, alone as in a batch."""

import gzip

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax
from transformer_jax import config, tasks, train
from transformer_jax.base.errors import UserError
from transformer_jax.convert.huggingface.exporting import export
from transformer_jax.decoding import Options
from transformer_jax.visualize import neighbours


def write_idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(
        n.to_bytes(4, "big") for n in array.shape
    )
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures of two kinds: bright above, or bright below."""
    place, rng = tmp_path_factory.mktemp("idx"), np.random.default_rng(4)
    labels = rng.integers(0, 2, size=120)
    pictures = rng.integers(0, 60, size=(120, 6, 4))
    pictures[labels == 0, :3] += 150
    pictures[labels == 1, 3:] += 150
    write_idx(place / "images.gz", pictures)
    write_idx(place / "labels.gz", labels + 5)
    return place


def test_pixels_of_another_size_are_refused(run):
    [reply] = run.replies([np.zeros((2, 3))])
    assert reply.error.startswith(
        "an array of shape (2, 3), but the model reads (6, 4, 1): scale it to that "
        "size, or give the path of an image file"
    )


def test_a_run_of_images_has_no_neighbours_of_words(run):
    with pytest.raises(UserError, match="a run of the task images has no words"):
        neighbours.of_run(str(run.folder.path))


def test_images_of_one_class_are_refused_before_training(keys, tmp_path):
    write_idx(tmp_path / "images.gz", np.zeros((120, 6, 4)))
    write_idx(tmp_path / "labels.gz", np.full(120, 5))
    loaded = config.load("images", keys | {"data.folder": str(tmp_path)})
    kind = tasks.find("images")
    said = "all training images have the label 5: there must be at least two classes"
    with pytest.raises(UserError, match=said):
        kind.create(loaded, kind.source(loaded), tmp_path / "run", print)


@pytest.fixture(scope="module")
def keys(folder):
    return {
        "data.source": "idx", "data.folder": str(folder), "eval.splits": "validation",
        "data.train_images": "images.gz", "data.train_labels": "labels.gz",
        "data.validation_size": "20", "data.batch_tokens": "224",
        "model.patch": "2", "eval.samples": "0",
    }  # fmt: skip


@pytest.fixture(scope="module")
def run(quick_run_of, keys):
    more = {"train.steps": "30", "optim.constant": "0.05"}
    return transformer_jax.load(quick_run_of("images", **keys, **more))


def test_it_learns_to_tell_two_kinds_apart(run):
    scores = run.folder.read("result.json")["scores"]["validation"]
    assert scores["accuracy"] > 0.9 and scores["examples"] == 20
    assert run.task.data.about.labels == ("5", "6")


def test_an_image_alone_is_answered_as_in_a_batch(run, monkeypatch):
    records = run.records("validation")
    parse = run.task.inference.parse
    pictures = [parse(record["image"]) for record in records]
    together = dict(
        run.task.inference.answers(run.params, pictures, run.mesh, Options())
    )
    rows, forward = [], run.task.inference.forward._compiled(run.mesh)

    def counted(params, batch):
        rows.append(len(batch["images"]))
        return forward(params, batch)

    monkeypatch.setattr(run.task.inference.forward, "_compiled", lambda mesh: counted)
    for i in (0, 7, 19):
        [(_, alone)] = run.task.inference.answers(
            run.params, [pictures[i]], run.mesh, Options()
        )
        chances = alone.details["chances"]
        expected = together[i].details["chances"]["5"]
        assert chances["5"] == pytest.approx(expected, abs=1e-5)
        assert together[i].text == max(chances, key=chances.get)
    assert rows == [1] * 3  # none of them empty


def test_a_line_is_the_path_of_an_image_file(run, tmp_path):
    pil = pytest.importorskip("PIL.Image")
    bright = np.zeros((12, 8), np.uint8)  # scaled to what the model reads
    bright[:6] = 200
    pil.fromarray(bright).save(tmp_path / "above.png")
    pil.fromarray(bright[::-1]).save(tmp_path / "below.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    names = ("above", "broken", "below", "nowhere")
    paths = [str(tmp_path / f"{name}.png") for name in names]
    above, broken, below, nowhere = run.replies(paths)
    assert (above.text, below.text) == ("5", "6")
    assert "cannot be read as an image" in broken.error and not broken.text
    assert "there is no image file" in nowhere.error and not nowhere.text


@pytest.mark.system
def test_a_model_of_normalised_pixels_is_trained(quick_run_of, keys, run, tmp_path):
    more = {"train.steps": "30", "optim.constant": "0.05"}
    numbers = {"model.pixel_mean": "(0.4,)", "model.pixel_deviation": "(0.25,)"}
    other = transformer_jax.load(quick_run_of("images", **keys, **more, **numbers))
    scores = other.folder.read("result.json")["scores"]["validation"]
    assert scores["accuracy"] > 0.9
    picture = jnp.full((1, 6, 4, 1), 0.4)
    logits = other.task.objective.outputs(other.params, picture)
    plain = run.task.objective.outputs(other.params, jnp.zeros((1, 6, 4, 1)))
    np.testing.assert_allclose(logits, plain, atol=1e-5)


@pytest.mark.system
def test_a_model_with_convolutions_in_front_is_trained(quick_run_of, keys):
    more = {"train.steps": "30", "optim.constant": "0.05"}
    stem = {"model.stem": "convolutional", "model.d_model": "16"}
    run = transformer_jax.load(quick_run_of("images", **keys, **more, **stem))
    assert run.folder.read("result.json")["scores"]["validation"]["accuracy"] > 0.9
    assert "stem" in run.params


@pytest.mark.parametrize("name, value", [("mean", "('a',)"), ("deviation", "(0.0,)")])
def test_a_pixel_cannot_be_divided_by_0_or_a_word(name, value, keys):
    said = "give a number for each channel, such as"
    with pytest.raises(UserError, match=said):
        config.load("images", keys | {f"model.pixel_{name}": value})


def test_images_of_unequal_sides_have_no_counterpart_there(run, tmp_path):
    with pytest.raises(UserError, match="only squares with 1 or 3 have a counterpart"):
        export(run, tmp_path / "vit")


def test_a_row_without_an_image_has_no_weight(run):
    records = run.records("validation")
    one = np.stack([records[i]["image"] for i in range(2)])
    batch = {"images": jnp.asarray(one), "labels": jnp.asarray([1, -1])}
    sums = run.task.objective.loss(run.params, batch)
    logits = np.asarray(run.task.objective.outputs(run.params, jnp.asarray(one)))
    expected = np.log(np.exp(logits[0]).sum()) - logits[0, 1]
    np.testing.assert_allclose(sums.loss, expected, rtol=1e-4)
    assert sums.weight == 1


def test_missing_files_are_reported_before_anything_is_read(keys):
    with pytest.raises(UserError, match=r"data.train_labels: there is no file .*none"):
        config.load("images", keys | {"data.train_labels": "none"})
    with pytest.raises(UserError, match=r"data.test_labels is empty"):
        config.load("images", keys | {"data.test_images": "images.gz"})


def test_a_label_that_training_never_saw_is_refused(run):
    record = {"image": np.zeros((6, 4, 1), np.float32), "label": 7}
    with pytest.raises(UserError, match="label 7 is not among.*: 5, 6"):
        run.task.data.encode([record])


def test_attention_is_of_the_class_and_of_patches_by_row_and_column(run):
    picture = run.records("validation")[0]["image"]
    maps = run.attention(picture)
    rows, columns = maps.grid
    names = maps.tokens["encoder"][0]
    assert names[:3] == ["class", "0,0", "0,1"]
    assert names[-1] == f"{rows - 1},{columns - 1}"
    assert maps["encoder"].shape[2:] == (1 + rows * columns,) * 2
    np.testing.assert_array_equal(maps.picture, picture)
    np.testing.assert_allclose(maps["encoder"].sum(-1), 1, atol=1e-5)


@pytest.mark.system
def test_a_run_that_changes_images_continues_to_the_same_bits(
    keys, tiny, tmp_path, one_device
):
    known = dict(config.items(config.load("images")))
    more = {
        "train.random_crop": "1", "train.random_flip": "True", "train.mixup": "0.3",
        "eval.every": "12", "checkpoint.every": "2", "optim.warmup_steps": "3",
    }  # fmt: skip
    small = {k: v for k, v in tiny().items() if k in known} | keys | more

    def trained(name, *ends):
        for steps in ends:
            changed = small | {"train.steps": str(steps)}
            assert train.train(config.load("images", changed), tmp_path / name) == 0
        return transformer_jax.load(tmp_path / name, weights="last").params

    parts, whole = trained("parts", 4, 6), trained("whole", 6)
    jax.tree.map(np.testing.assert_array_equal, parts, whole)


def test_bytes_of_an_array_are_read_as_those_of_a_file(run):
    picture = run.records("validation")[3]["image"]
    pixels = np.rint(255 * picture).astype(np.uint8)
    replies = run.replies([picture, pixels])
    chances = [reply.details["chances"]["5"] for reply in replies]
    assert chances[0] == pytest.approx(chances[1], abs=1e-4)


@pytest.mark.parametrize(
    "pixels",
    [np.full((6, 4, 1), np.nan), np.full((6, 4, 1), 200), np.full((6, 4, 1), "a")],
)
def test_numbers_that_are_not_an_image_are_refused(run, pixels):
    good = np.zeros((6, 4, 1), np.uint8)
    first, bad, last = run.replies([good, pixels, good])
    assert "that is not an image: give bytes (uint8)" in bad.error
    assert first.text == last.text and first.text
