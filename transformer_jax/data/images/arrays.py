"""Read images and labels: scikit-learn's digits, MNIST's idx files, an image file.

Every reader of a data set returns images [N, height, width, channels] and labels [N].
Pitfall: images are either bytes 0..255, as in files, or float32 0..1; `as_floats`
converts both to the latter.
"""

import contextlib
import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from transformer_jax.base.errors import UserError
from transformer_jax.data.reading.records import Record, Records
from transformer_jax.data.text.text import open_binary

DIGITS_SEED = 0
LARGEST = 1 << 34  # bytes of an idx file, unpacked
HOLD_OUT = 5000  # the last training images of MNIST, which has no validation
IMAGES, LABELS = 0x0803, 0x0801  # idx: unsigned bytes with three axes or one
MODES = {1: "L", 3: "RGB"}
# Others that Pillow knows are not tried: EPS, for one, would run Ghostscript.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
TRANSPARENT = ("RGBA", "LA", "PA", "RGBa", "La")  # modes
BILINEAR = 2  # Pillow's Resampling.BILINEAR


class NoImage(UserError):
    """A file that cannot be read as an image."""


Labelled = tuple[np.ndarray, np.ndarray]  # images, labels


class Images(Records):
    """Labelled images as records {"image": array, "label": int or class name}."""

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        name: str,
        classes: Sequence[str] = (),
    ):
        """Hold pixels [examples, height, width, channels] and class indices [examples].

        `name` begins the location of an image in messages. `classes` are the names of
        the indices; without them, labels are numbers.
        """
        self.images, self.labels, self.name = images, labels, name
        self.classes = classes
        digest = hashlib.sha256(f"{images.dtype} {images.shape}".encode())
        digest.update(np.ascontiguousarray(images).data)
        digest.update(np.asarray(labels, "<i4").tobytes())
        digest.update("\n".join(classes).encode())
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Record:
        label = int(self.labels[index])
        name = self.classes[label] if self.classes else label
        return {"image": self.images[index], "label": name}

    def where(self, index: int) -> str:
        """Name an image by its number, from 1."""
        return f"{self.name}, image {index + 1}"


def as_floats(images: np.ndarray) -> np.ndarray:
    """Convert bytes 0..255 to float32 0..1; return floats as they are."""
    return images.astype(np.float32) / 255 if images.dtype == np.uint8 else images


def read_digits(split: str) -> Labelled:
    """Read scikit-learn's 1,797 scanned digits of 8 x 8 pixels, as float32.

    A fifth of each class is the test split, a tenth of the rest validation.
    """
    try:
        from sklearn.datasets import load_digits  # takes a second, so only when used
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise UserError(
            f"the digits come with scikit-learn, but {error}: pip install scikit-learn"
        ) from error
    scans: Any = load_digits()  # a Bunch, whose fields have no types

    def divide(rows, share):
        return train_test_split(
            rows,
            test_size=share,
            stratify=scans.target[rows],
            random_state=DIGITS_SEED,
        )

    parts = {}
    rest, parts["test"] = divide(np.arange(len(scans.target)), 0.2)
    parts["train"], parts["validation"] = divide(rest, 0.1)
    if split not in parts:
        raise UserError(
            f"there is no split {split!r}: the digits have {', '.join(sorted(parts))}"
        )
    rows = parts[split]
    images = scans.images[rows, :, :, None] / 16  # a pixel is a count 0..16
    return images.astype(np.float32), scans.target[rows].astype(np.int32)


def read_idx(images_path: str, labels_path: str) -> Labelled:
    """Read a split in MNIST's format: two idx files, plain or .gz; images are bytes."""
    images = _read_idx(images_path, IMAGES, "images")
    labels = _read_idx(labels_path, LABELS, "labels")
    if len(images) != len(labels):
        raise UserError(
            f"{images_path} has {len(images)} images, but {labels_path} has "
            f"{len(labels)} labels: take both files of the same split"
        )
    return images[..., None], labels.astype(np.int32)


def hold_out(
    images: np.ndarray, labels: np.ndarray, validation: int = HOLD_OUT
) -> tuple[Labelled, Labelled]:
    """Divide the images into the first ones for training, the last for validation."""
    if not 0 < validation < len(images):
        raise UserError(
            f"{validation} of {len(images)} images cannot be held out for validation: "
            f"use 1 to {len(images) - 1}"
        )
    cut = len(images) - validation
    return (images[:cut], labels[:cut]), (images[cut:], labels[cut:])


@contextlib.contextmanager
def open_image(path: str | os.PathLike) -> Iterator[Any]:
    """Open an image file of one of FORMATS, upright, as a Pillow image.

    Cameras store how a picture is to be turned beside its pixels (EXIF).
    """
    with _open_file(path) as (image, upright):
        turned = upright(image)
        turned.format = image.format
        yield turned


def size_of(path: str | os.PathLike) -> tuple[int, int]:
    """Return the width and height of an image file, without reading its pixels."""
    with _open_file(path) as (image, _):
        return image.size


@contextlib.contextmanager
def _open_file(path: str | os.PathLike) -> Iterator[tuple[Any, Callable[[Any], Any]]]:
    """Open an image file; yield it, and a function that turns it upright."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise UserError(
            f"{path} cannot be read without Pillow: pip install pillow"
        ) from error
    try:
        with Image.open(path, formats=FORMATS) as image:
            yield image, ImageOps.exif_transpose
    except Exception as error:  # Pillow's readers raise almost any error
        reason = str(error).split("\n")[0] or type(error).__name__
        if "cannot identify" in reason:
            reason = f"it is none of {', '.join(FORMATS)}"
        raise NoImage(f"{path} cannot be read as an image: {reason}") from None


def read_image(
    path: str | os.PathLike, height: int, width: int, channels: int
) -> np.ndarray:
    """Read an image file, scaled: bytes [height, width, channels].

    What is transparent becomes white.
    """
    if channels not in MODES:
        raise UserError(f"an image of {channels} channels: use 1 (grey) or 3 (colour)")
    with open_image(path) as image:
        pixels = _on_white(_to_bytes(image)).convert(MODES[channels])
        scaled = pixels.resize((width, height), BILINEAR)
        return np.asarray(scaled).reshape(height, width, channels)


def _to_bytes(image):
    """Bring pixels of other numbers than bytes to 0 … 255; Pillow would clip them.

    16 bits are scaled. Of floats, 0 … 1 is the range; larger integers have no known
    one.
    """
    from PIL import Image

    if image.mode == "F":
        pixels = np.asarray(image)
        if not ((pixels >= 0) & (pixels <= 1)).all():
            raise ValueError(
                "its pixels are floats, but not all of them from 0 to 1: convert it to "
                "8 or 16 bits"
            )
        return Image.fromarray(np.rint(255 * pixels).astype(np.uint8))
    if not image.mode.startswith("I"):
        return image
    pixels = np.asarray(image)
    deep = image.mode == "I" and image.format == "TIFF"
    if deep or pixels.min() < 0 or pixels.max() >= 1 << 16:
        raise ValueError("its pixels have 32 bits: convert it to 8 or 16 bits")
    return Image.fromarray((pixels >> 8).astype(np.uint8))


def _on_white(image):
    """Put an image with transparent parts on white."""
    if image.mode not in TRANSPARENT and "transparency" not in image.info:
        return image
    from PIL import Image

    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image).convert("RGB")


def _read_idx(path: str, magic: int, meaning: str) -> np.ndarray:
    """Read an idx file: a magic number, a size for each axis, the bytes."""
    axes = magic & 0xFF
    start = 4 * (1 + axes)
    content = _unpacked(path, magic, start)
    actual = int.from_bytes(content[:4], "big")
    if len(content) < 4 or actual != magic:
        hint = {IMAGES: " (images)", LABELS: " (labels)"}.get(actual, "")
        raise UserError(
            f"{path} begins with the number {actual}{hint}, but idx {meaning} begin "
            f"with {magic}: name the file of the {meaning}, as it was downloaded"
        )
    if len(content) < start:
        raise UserError(
            f"{path} has {len(content)} bytes, but its header takes {start}: it is "
            "cut short, download it again"
        )
    sizes = tuple(int(n) for n in np.frombuffer(content, ">u4", axes, offset=4))
    stated = f"{' x '.join(map(str, sizes))} = {math.prod(sizes)}"
    if not math.prod(sizes):
        raise UserError(f"{path} holds no {meaning}: its header says {stated}")
    if len(content) - start != math.prod(sizes):
        raise UserError(
            f"{path} has {len(content) - start} bytes of {meaning}, but its header "
            f"says {stated}: download it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)


def _unpacked(path: str, magic: int, start: int) -> bytes:
    """Read an idx file, plain or .gz; refuse one whose header states too much.

    At most one byte more than stated is read, which shows that a file is too long: a
    .gz file may unpack to a thousand times its size. Of a file that does not begin with
    `magic`, only the first `start` bytes are returned.
    """
    with open_binary(path) as file:
        header = file.read(start)
        if len(header) < start or int.from_bytes(header[:4], "big") != magic:
            return header
        most = math.prod(map(int, np.frombuffer(header[4:], ">u4")))
        if most > LARGEST:
            raise UserError(
                f"{path} says that it holds {most:,} bytes, more than the "
                f"{LARGEST:,} that may be read into memory: split it"
            )
        return header + file.read(most + 1)
