"""The codebook: pictures to codes and back, and files that are read by others."""

import os

import numpy as np
import pytest
from PIL import Image

from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import EOS, UNK
from transformer_jax.family.drawings import codebook, task
from transformer_jax.family.drawings.codebook import Codebook, CodeTokenizer


@pytest.fixture(scope="module")
def pictures():
    """Pictures of 6 × 9 pixels in patches of 3, which are of seven kinds."""
    kinds = np.random.default_rng(0).integers(0, 256, (7, 3, 3, 3), np.uint8)
    places = np.random.default_rng(1).integers(0, 7, (20, 2, 3))
    return kinds[places].swapaxes(2, 3).reshape(20, 6, 9, 3)


@pytest.fixture(scope="module")
def book(pictures):
    return codebook.learn(list(pictures), 11, 3)


def test_as_many_codes_as_there_are_patches_give_each_picture_back(pictures, book):
    assert len(book.patches) == 7  # no more than there are
    for picture in pictures:
        codes = book.encode(picture)
        assert len(codes) == 6
        np.testing.assert_array_equal(book.decode(codes, (6, 9)), picture)
        assert book.encode(picture) == codes  # of what is remembered


def test_patches_are_read_row_by_row(pictures):
    found = codebook.split(pictures[0], 3)
    np.testing.assert_array_equal(found[1], pictures[0][:3, 3:6].ravel())
    np.testing.assert_array_equal(found[3], pictures[0][3:, :3].ravel())


def test_few_codes_are_the_means_of_what_is_near_and_common():
    values = [0, 0, 0, 4, 200, 200, 210]
    pictures = [np.full((1, 1, 3), value, np.uint8) for value in values]
    found = codebook.learn(pictures, 2, 1)
    assert sorted(found.patches[:, 0, 0, 0].tolist()) == [1, 203]
    [code] = found.encode(np.full((1, 1, 3), 90, np.uint8))
    assert found.patches[code, 0, 0, 0] == 1


def test_codes_that_are_missing_or_too_many_still_make_a_picture(book):
    for count in (0, 4, 9):
        assert book.decode([1] * count, (6, 9)).shape == (6, 9, 3)


def test_codes_are_written_as_numbers_and_read_again(book):
    tokenizer = CodeTokenizer(book)
    ids = tokenizer.encode("6 0 3")
    assert tokenizer.decode([*ids, EOS, UNK]) == "6 0 3"
    assert tokenizer.encode("7 -1 x 2") == [UNK, UNK, UNK, ids[1] + 2]
    assert max(ids) < tokenizer.vocab_size == 11
    assert tokenizer.pieces([EOS, ids[0]]) == ["</s>", "6"]
    assert tokenizer.encode_all(["1", "1 2"]) == [*map(tokenizer.encode, ["1", "1 2"])]


def test_a_saved_codebook_is_the_same_and_a_damaged_one_is_named(book, tmp_path):
    path = tmp_path / "folder" / "book.npy"
    book.save(path)
    assert Codebook.load(path).fingerprint == book.fingerprint
    for damage in (b"", b"text", path.read_bytes()[:-5]):
        path.write_bytes(damage)
        with pytest.raises(UserError, match=r"the codebook .*book.npy cannot be read"):
            Codebook.load(path)
    np.save(path, np.zeros(3))
    with pytest.raises(UserError, match="it does not hold patches"):
        Codebook.load(path)


def test_each_pixel_of_a_written_picture_is_a_square(pictures, tmp_path):
    task.write_png(tmp_path / "a.png", pictures[0])
    with Image.open(tmp_path / "a.png") as image:
        found = np.asarray(image)
    zoom = task.ZOOM
    assert found.shape == (6 * zoom, 9 * zoom, 3)
    np.testing.assert_array_equal(found[::zoom, ::zoom], pictures[0])
    np.testing.assert_array_equal(
        found[zoom - 1 :: zoom, zoom - 1 :: zoom], pictures[0]
    )


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_its_file_has_the_mode_of_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        Codebook(np.zeros((1, 2, 2, 3), np.uint8)).save(tmp_path / "c")
    finally:
        os.umask(before)
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o666 & ~mask
