"""Images: real digits, MNIST's files with every fault, and any image file."""

import gzip
import os
import struct
import sys

import numpy as np
import pytest

from transformer_jax.base.errors import UserError
from transformer_jax.data.images.arrays import (
    Images,
    NoImage,
    as_floats,
    hold_out,
    read_digits,
    read_idx,
    read_image,
)
from transformer_jax.data.reading.records import Concatenation

SPLITS = {"train": 1293, "validation": 144, "test": 360}
COUNT, HEIGHT, WIDTH = 7, 5, 3
PIXELS = np.random.default_rng(0).integers(0, 256, (COUNT, HEIGHT, WIDTH), np.uint8)
NAMES = np.array([3, 1, 4, 1, 5, 9, 2], np.uint8)


@pytest.fixture(scope="module")
def digits():
    if not os.environ.get("REQUIRE_PEERS"):
        pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    return {split: read_digits(split) for split in SPLITS}


def test_digits_are_divided_once_and_evenly(digits):
    from sklearn.datasets import load_digits

    scans = {scan.tobytes(): i for i, scan in enumerate(load_digits().images / 16)}
    seen = []
    for split, size in SPLITS.items():
        images, labels = digits[split]
        assert images.shape == (size, 8, 8, 1) and images.dtype == np.float32
        assert labels.shape == (size,) and labels.dtype == np.int32
        assert images.min() == 0 and images.max() == 1
        shares = np.bincount(labels) / size
        assert shares.shape == (10,) and (abs(shares - 0.1) < 0.012).all()
        seen += [scans[image.astype(float).tobytes()] for image in images]
    assert sorted(seen) == list(range(1797))  # all scans differ


def test_the_test_digits_are_those_of_the_published_split(digits):
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    _, x, _, y = train_test_split(x, y, test_size=0.2, stratify=y, random_state=0)
    images, labels = digits["test"]
    np.testing.assert_array_equal(images.reshape(-1, 64) * 16, x)
    np.testing.assert_array_equal(labels, y)


def test_an_unknown_split_is_refused(digits):
    with pytest.raises(UserError, match="no split 'dev'.* test, train, validation"):
        read_digits("dev")


def test_without_scikit_learn_the_error_says_how_to_install_it(monkeypatch):
    for module in ("sklearn", "sklearn.datasets"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match="pip install scikit-learn"):
        read_digits("train")


def idx(array, kind=0x08):
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, kind, array.ndim]) + sizes + array.tobytes()


@pytest.fixture
def files(tmp_path):
    """A function: the paths of images and labels with this content."""

    def write(images=None, labels=None):
        contents = {"images": images or idx(PIXELS), "labels": labels or idx(NAMES)}
        for name, content in contents.items():
            (tmp_path / name).write_bytes(content)
        return [str(tmp_path / name) for name in contents]

    return write


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_files_are_read_plain_and_compressed(files, pack):
    images, labels = read_idx(*files(pack(idx(PIXELS)), pack(idx(NAMES))))
    np.testing.assert_array_equal(images, PIXELS[..., None])
    np.testing.assert_array_equal(labels, NAMES)
    assert images.dtype == np.uint8 and labels.dtype == np.int32


@pytest.mark.parametrize(
    ("faulty", "problem"),
    [
        ({"images": idx(PIXELS)[:-2]}, "images has 103 bytes .* 7 x 5 x 3 = 105"),
        ({"images": idx(PIXELS) + b"x"}, "images has 106 bytes .* 7 x 5 x 3 = 105"),
        ({"labels": idx(NAMES)[:-3]}, "labels has 4 bytes of labels, .* says 7 = 7"),
        (
            {"images": idx(PIXELS)[:11]},
            "images has 11 bytes, but its header takes 16",
        ),
        (
            {"images": b"\0"},
            "images begins with the number 0, but idx images begin with 2051",
        ),
        ({"images": idx(PIXELS[:0])}, "images holds no images: .* 0 x 5 x 3 = 0"),
        ({"images": idx(PIXELS, 0x0D)}, "images begins with the number 3331, .* 2051"),
        ({"images": idx(NAMES)}, r"images begins with the number 2049 \(labels\)"),
        (
            {"labels": idx(PIXELS)},
            r"number 2051 \(images\), but idx labels begin with 2049",
        ),
        ({"images": idx(NAMES) + b"9" * 99}, r"number 2049 \(labels\)"),
        ({"labels": b"<!DOCTYPE html>"}, "labels begins with the number .* with 2049"),
        ({"labels": idx(NAMES[1:])}, "images has 7 images, but .*labels has 6 labels"),
        ({"images": gzip.compress(idx(PIXELS))[:-9]}, "images cannot be read: Compr"),
    ],
)
def test_a_faulty_idx_file_is_named_with_both_numbers(files, faulty, problem):
    with pytest.raises(UserError, match=problem):
        read_idx(*files(**faulty))


def test_a_missing_file_is_named(tmp_path, files):
    missing = str(tmp_path / "none.gz")
    with pytest.raises(UserError, match="none.gz cannot be read: No such file"):
        read_idx(missing, files()[1])
    with pytest.raises(
        UserError, match="none.gz cannot be read as an image: .*No such"
    ):
        read_image(missing, 2, 3, 1)


def test_the_last_images_of_train_are_held_out():
    train, validation = hold_out(PIXELS, NAMES, validation=2)
    for (images, labels), rows in ((train, slice(5)), (validation, slice(5, 7))):
        np.testing.assert_array_equal(images, PIXELS[rows])
        np.testing.assert_array_equal(labels, NAMES[rows])
    with pytest.raises(UserError, match="5000 of 7 images .* use 1 to 6"):
        hold_out(PIXELS, NAMES)


def test_labelled_images_are_records_with_the_fingerprint_of_their_content():
    images = Images(PIXELS, NAMES, "mine")
    assert len(images) == COUNT and images[4]["label"] == 5
    np.testing.assert_array_equal([r["image"] for r in images], PIXELS)
    assert images.where(4) == "mine, image 5"
    other = PIXELS.copy()
    other[6, 4, 2] ^= 1
    prints = [
        Images(*content, "mine").fingerprint
        for content in ((PIXELS, NAMES), (other, NAMES), (PIXELS, NAMES[::-1]))
    ]
    assert prints[0] == Images(PIXELS.copy(), NAMES, "yours").fingerprint
    assert len(set(prints)) == 3
    both = Concatenation([images, images])
    assert both.where(COUNT + 1) == "mine, image 2"


def test_bytes_become_floats_once():
    floats = as_floats(PIXELS)
    assert floats.dtype == np.float32
    np.testing.assert_allclose(floats, PIXELS / 255.0, rtol=1e-6)
    assert as_floats(floats) is floats


@pytest.fixture
def image():
    return pytest.importorskip("PIL.Image", reason="Pillow is not installed")


@pytest.fixture
def save(tmp_path, image):
    def write(name, array):
        image.fromarray(array).save(tmp_path / name)
        return tmp_path / name

    return write


@pytest.mark.parametrize("name", ["a.png", "a.pgm"])
def test_a_grey_image_is_read_as_it_is(save, name):
    read = read_image(save(name, PIXELS[0]), HEIGHT, WIDTH, 1)
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, PIXELS[0, :, :, None])
    both = read_image(save(name, PIXELS[0]), HEIGHT, WIDTH, 3)
    np.testing.assert_array_equal(both, np.repeat(read, 3, axis=-1))


@pytest.mark.parametrize("name", ["a.png", "a.ppm"])
def test_colour_is_kept_or_made_grey(save, name):
    colour = np.moveaxis(PIXELS[:3], 0, -1)
    path = save(name, colour)
    np.testing.assert_array_equal(read_image(path, HEIGHT, WIDTH, 3), colour)
    grey = read_image(path, HEIGHT, WIDTH, 1)
    luma = colour @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(grey[..., 0], luma, atol=1)


def test_an_image_is_scaled_to_the_size_asked_for(save):
    ramp = np.repeat(np.arange(0, 240, 10, dtype=np.uint8)[None], 10, axis=0)
    small = read_image(save("a.png", ramp), 5, 12, 1)
    assert small.shape == (5, 12, 1)
    np.testing.assert_allclose(small[2, 1:-1, 0], np.arange(25, 220, 20), atol=1)


def test_sixteen_bits_are_scaled_not_clipped(save):
    path = save("a.png", PIXELS[0].astype(np.uint16) * 256 + 77)
    np.testing.assert_array_equal(read_image(path, HEIGHT, WIDTH, 1)[..., 0], PIXELS[0])


def test_what_is_transparent_is_white(tmp_path, image):
    figure = np.zeros((HEIGHT, WIDTH, 4), np.uint8)
    figure[1:3, :, 3] = 255  # black on nothing
    picture = image.fromarray(figure)
    for name, made in (
        ("a.png", picture), ("b.png", picture.convert("LA")), ("c.webp", picture),
    ):  # fmt: skip
        made.save(tmp_path / name, lossless=True)
        for channels in (1, 3):
            read = read_image(tmp_path / name, HEIGHT, WIDTH, channels)
            assert (read[1:3] == 0).all() and (read[0] == 255).all(), name
    palette = image.frombytes("P", (3, 1), bytes([1, 0, 1]))
    palette.putpalette([0, 0, 0, 9, 9, 9])
    palette.save(tmp_path / "d.gif", transparency=1)
    read = read_image(tmp_path / "d.gif", 1, 3, 1)
    assert read[0, :, 0].tolist() == [255, 0, 255]


def test_a_picture_is_turned_as_its_camera_says(tmp_path, image):
    exif = image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    image.fromarray(PIXELS[0]).save(tmp_path / "a.png", exif=exif)
    read = read_image(tmp_path / "a.png", WIDTH, HEIGHT, 1)
    np.testing.assert_array_equal(read[..., 0], np.rot90(PIXELS[0], -1))


def test_floats_are_scaled_and_other_wide_pixels_refused(tmp_path, image):
    floats = (PIXELS[0] / 255).astype(np.float32)
    image.fromarray(floats).save(tmp_path / "a.tif")
    read = read_image(tmp_path / "a.tif", HEIGHT, WIDTH, 1)
    np.testing.assert_array_equal(read[..., 0], PIXELS[0])
    for name, pixels, why in (
        ("b.tif", floats * 2, "not all of them from 0 to 1"),
        ("c.tif", floats + np.nan, "not all of them from 0 to 1"),
        ("d.tif", PIXELS[0].astype(np.int32), "its pixels have 32 bits"),
    ):
        image.fromarray(pixels.astype(pixels.dtype.type)).save(tmp_path / name)
        with pytest.raises(
            NoImage, match=f"{name} cannot be read as an image: .*{why}"
        ):
            read_image(tmp_path / name, HEIGHT, WIDTH, 1)


def test_a_format_that_is_not_offered_is_not_tried(tmp_path, image):
    image.fromarray(PIXELS[0]).save(tmp_path / "a.eps")
    with pytest.raises(NoImage, match="a.eps .*it is none of PNG, JPEG"):
        read_image(str(tmp_path / "a.eps"), 2, 3, 1)


def test_a_file_that_is_not_an_image_is_refused_by_name(save, tmp_path):
    whole = save("a.png", np.tile(PIXELS[0], (50, 50))).read_bytes()
    (tmp_path / "half.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.png").write_text("no image")
    for name in ("half.png", "text.png"):
        with pytest.raises(UserError, match=f"{name} cannot be read as an image: "):
            read_image(tmp_path / name, 2, 3, 1)
    with pytest.raises(UserError, match=r"4 channels: use 1 \(grey\) or 3"):
        read_image(tmp_path / "a.png", 2, 3, 4)


def test_without_pillow_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match="a.png cannot be read .*pip install pillow"):
        read_image("a.png", 2, 3, 1)


def test_any_error_of_a_reader_means_that_a_file_is_not_an_image(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    path = tmp_path / "a.png"
    image.fromarray(PIXELS[0]).save(path)
    for error in (struct.error("short"), KeyError(7), NotImplementedError(), EOFError):

        def convert(self, mode, error=error):
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(image.Image, "convert", convert)
            with pytest.raises(NoImage, match="a.png cannot be read as an image: ."):
                read_image(path, HEIGHT, WIDTH, 1)


def test_an_idx_file_is_read_no_further_than_its_header_says(tmp_path):
    bomb = gzip.compress(idx(NAMES) + bytes(1 << 24))
    (tmp_path / "images").write_bytes(gzip.compress(idx(PIXELS)))
    (tmp_path / "labels").write_bytes(bomb)
    paths = str(tmp_path / "images"), str(tmp_path / "labels")
    with pytest.raises(UserError, match="labels has 8 bytes of labels, .* says 7"):
        read_idx(*paths)
    false = idx(PIXELS)[:4] + np.array([1 << 31, 1 << 31, 9], ">u4").tobytes()
    (tmp_path / "images").write_bytes(false)
    with pytest.raises(UserError, match="more than the 17,179,869,184 that may be"):
        read_idx(*paths)
