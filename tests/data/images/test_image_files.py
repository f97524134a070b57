"""Folders of images by class, CIFAR-10's files with every fault, images in colour."""

import os

import numpy as np
import pytest

from transformer_jax.base.errors import UserError
from transformer_jax.config import base
from transformer_jax.corpora import colour
from transformer_jax.data.images import files as image_files
from transformer_jax.data.images.sources import open_pictures

NAMES = "airplane automobile bird cat deer dog frog horse ship truck".split()


def source_of(kind, folder, **data):
    config = base(task="images")
    with config.unlocked():
        config.data.update(source=kind, folder=str(folder), **data)
    return open_pictures(config.data)


@pytest.fixture
def cifar(tmp_path):
    """Seven images of noise in each file, and their contents."""
    rng, records = np.random.default_rng(0), []
    for name in (*image_files.CIFAR_FILES["train"], "test_batch.bin"):
        labels = rng.integers(0, 10, (7, 1), np.uint8)
        planes = rng.integers(0, 256, (7, 3072), np.uint8)
        records.append(np.hstack([labels, planes]))
        (tmp_path / name).write_bytes(records[-1].tobytes())
    (tmp_path / "batches.meta.txt").write_text("\n".join(NAMES) + "\n\n")
    return tmp_path, records


def test_cifars_records_are_a_label_and_three_planes(cifar):
    folder, records = cifar
    source = source_of("cifar10", folder, validation_size=5)
    assert source.find_problems() == [] and source.splits[-1] == "test"
    sizes = {split: len(source.read(split)) for split in source.splits}
    assert sizes == {"train": 30, "validation": 5, "test": 7}
    found, expected = source.read("test")[3], records[-1][3]
    assert found["label"] == NAMES[expected[0]] and found["image"].dtype == np.uint8
    for row, column in ((0, 0), (5, 31), (31, 2)):
        at = 1 + 32 * row + column
        np.testing.assert_array_equal(
            found["image"][row, column], expected[[at, at + 1024, at + 2048]]
        )
    last = source.read("validation")[4]["image"]
    np.testing.assert_array_equal(last[0, 0], records[4][6][[1, 1025, 2049]])


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("data_batch_3.bin", b"x" * 3000, "batch_3.bin has 3,000 bytes, not a mul"),
        ("test_batch.bin", b"", "test_batch.bin has 0 bytes"),
        ("data_batch_2.bin", bytes(3073) + b"\x0a" + bytes(3072),
         "data_batch_2.bin, image 2: the label is 10, .*0 to 9.*unpack it again"),
        ("batches.meta.txt", b"cat dog", "meta.txt has 2 names, not 10"),
        ("batches.meta.txt", b"\xff\xfe", "meta.txt cannot be read.*download it again"),
    ],
)  # fmt: skip
def test_a_damaged_file_of_cifar_is_named(cifar, name, content, says):
    folder, _ = cifar
    (folder / name).write_bytes(content)
    source = source_of("cifar10", folder, validation_size=5)
    with pytest.raises(UserError, match=says):
        source.read("train"), source.read("test")


def test_an_unknown_split_is_refused_with_the_known_ones(cifar):
    source = source_of("cifar10", cifar[0])
    with pytest.raises(UserError, match="no split 'dev': this run's data has train, v"):
        source.read("dev")


def test_missing_files_of_cifar_are_listed(cifar):
    folder, _ = cifar
    (folder / "data_batch_4.bin").unlink()
    [problem] = source_of("cifar10", folder).find_problems()
    assert "there is no file" in problem and "data_batch_4.bin" in problem


@pytest.fixture
def pictures(tmp_path):
    """Twelve cats, each in one red, and nine dogs, each in one blue, of any size."""
    image = pytest.importorskip("PIL.Image")
    for name, count, channel in (("cat", 12, 0), ("dog", 9, 2)):
        place = tmp_path / "train" / name
        place.mkdir(parents=True)
        for i in range(count):
            pixels = np.zeros((5 + i, 9, 3), np.uint8)
            pixels[..., channel] = 20 * (i + 1)
            ending = ("png", "JPG", "jpeg")[i % 3]
            image.fromarray(pixels).save(place / f"{i:02}.{ending}")
    return tmp_path


def test_a_folder_is_a_class_and_its_images_are_scaled(pictures):
    source = source_of("folder", pictures, image_size=8, validation_size=6)
    assert source.find_problems() == [] and source.classes() == ("cat", "dog")
    assert source.splits == ("train", "validation")
    train, held_out = source.read("train"), source.read("validation")
    assert (len(train), len(held_out)) == (15, 6)
    assert {record["label"] for record in held_out} == {"cat", "dog"}  # drawn, not last
    for record in (*train, *held_out):
        assert record["image"].shape == (8, 8, 3) and record["image"].dtype == np.uint8
        means = record["image"].mean((0, 1))
        assert means.argmax() == {"cat": 0, "dog": 2}[record["label"]]
    where = {
        records.where(i) for records in (train, held_out) for i in range(len(records))
    }
    assert len(where) == 21
    grey = source_of("folder", pictures, image_size=8, validation_size=6, grey=True)
    assert grey.read("train")[0]["image"].shape == (8, 8, 1)
    assert grey.read("train").fingerprint != train.fingerprint


def test_files_are_read_for_a_fingerprint_only_when_they_may_have_changed(
    pictures, tmp_path, monkeypatch
):
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(tmp_path / "cache"))
    files = sorted((pictures / "train").glob("*/*"))
    before = image_files.ImageFiles(files, (8, 8, 3)).fingerprint
    with monkeypatch.context() as patch:
        patch.setattr(type(files[0]), "read_bytes", None)
        assert image_files.ImageFiles(files, (8, 8, 3)).fingerprint == before
        assert image_files.ImageFiles(files, (9, 8, 3)).fingerprint != before
    content = bytearray(files[0].read_bytes())
    files[0].touch()
    assert image_files.ImageFiles(files, (8, 8, 3)).fingerprint == before
    content[-9] ^= 1
    files[0].write_bytes(content)
    assert image_files.ImageFiles(files, (8, 8, 3)).fingerprint != before


def test_a_validation_folder_is_used_as_given(pictures):
    (pictures / "train" / "dog").rename(pictures / "other")
    place = pictures / "validation" / "dog"
    place.parent.mkdir()
    (pictures / "other").rename(place)
    source = source_of("folder", pictures, image_size=8)
    assert [len(source.read(split)) for split in source.splits] == [12, 9]


def test_files_that_are_not_images_are_counted_or_named(pictures):
    (pictures / "train" / "cat" / "notes.txt").write_text("red")
    source = source_of("folder", pictures, image_size=8, validation_size=6)
    assert "1 files that are not images" in source.read("train").notes[0]
    broken = pictures / "train" / "cat" / "03.png"
    broken.write_bytes(b"no image")
    source = source_of("folder", pictures, image_size=8, validation_size=1)
    with pytest.raises(UserError, match="03.png cannot be read.*replace the file, or"):
        list(source.read("train")), list(source.read("validation"))


def test_folders_without_images_are_refused_with_advice(pictures, tmp_path):
    [problem] = source_of("folder", tmp_path / "nowhere").find_problems()
    assert (
        "there is no file" in problem and "a folder of images for each class" in problem
    )
    (pictures / "train" / "bird").mkdir()
    source = source_of("folder", pictures)
    with pytest.raises(UserError, match="bird holds no image.*remove the folder"):
        source.read("train")
    (pictures / "train" / "bird").rmdir()
    with pytest.raises(UserError, match="5000 of 21 images.*1 to 20.*next to train"):
        source.read("train")
    (pictures / "test").mkdir()
    with pytest.raises(UserError, match="test holds no fold.*such as .*cat"):
        source.read("test")


@pytest.fixture(scope="module")
def drawn():
    return colour.generate("test")


def test_generated_images_are_always_the_same(drawn):
    images, labels = drawn
    assert images.shape == (1000, 32, 32, 3) and images.dtype == np.uint8
    assert np.bincount(labels).tolist() == [100] * 10 and len(colour.KINDS) == 10
    again = colour.generate("test")[0]
    np.testing.assert_array_equal(images, again)
    # The last bit of a sine may differ between machines.
    assert abs(images.mean() - 101.47268) < 0.001


def test_no_single_pixel_reveals_the_kind(drawn):
    """The mean images of two kinds differ only randomly, but the figures differ."""
    images, labels = drawn
    means = np.stack([images[labels == k].mean(0) for k in range(10)])
    assert means.std(0).max() < 25


def test_a_fifo_in_a_folder_of_images_is_left_out(pictures):
    os.mkfifo(pictures / "train" / "cat" / "12.png")
    source = source_of("folder", pictures, image_size=8, validation_size=6)
    train = source.read("train")
    assert "1 files that are not images" in train.notes[0]
    assert len(train) + len(source.read("validation")) == 21


@pytest.mark.parametrize("kind", ["folder", "idx", "cifar10"])
def test_a_folder_whose_name_is_too_long_is_reported_as_missing(kind):
    keys = {"train_images": "a", "train_labels": "b"} if kind == "idx" else {}
    problems = source_of(kind, "a" * 300, **keys).find_problems()
    assert problems and all("there is no file" in problem for problem in problems)
