"""Read images from files: folders of PNG and JPEG by class, or CIFAR-10's records.

    FOLDER/train/cat/17.png    FOLDER/validation/dog/3.jpg    FOLDER/test/…
    FOLDER/data_batch_1.bin … data_batch_5.bin   test_batch.bin   batches.meta.txt

Folders are read one image at a time, so they need not fit into memory.
Pitfall: the files of a folder are sorted by class, so held-out ones must be drawn.
"""

import hashlib
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer_jax.base.errors import UserError
from transformer_jax.data import cache
from transformer_jax.data.images.arrays import Labelled, NoImage, read_image
from transformer_jax.data.images.class_folders import ClassFiles
from transformer_jax.data.reading.records import Record
from transformer_jax.data.text.text import refuse_unreadable

READING = 2  # version of how pixels are read: 2 turns images and puts them on white
SUFFIXES = (".png", ".jpg", ".jpeg")
CIFAR_RECORD = 1 + 32 * 32 * 3  # bytes: a label, then all red, green and blue pixels
CIFAR_NAMES = "batches.meta.txt"
CIFAR_FILES = {
    "train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    "test": ("test_batch.bin",),
}


class ImageFiles(ClassFiles):
    """Image files as records {"image": bytes [height, width, channels], "label": str}.

    Each is scaled to `size` when it is read.
    """

    unreadable = NoImage

    def __init__(
        self, files: Sequence[pathlib.Path], size: tuple[int, int, int], notes: Any = ()
    ):
        """Scale each image to `size`: height, width and channels."""
        super().__init__(files, notes)
        self.size = size
        content = hashlib.sha256(f"{size}\n{cache.digest(files)}\n{READING}".encode())
        self.fingerprint = content.hexdigest()

    def _read(self, file: pathlib.Path) -> Record:
        return {"image": read_image(file, *self.size)}


def read_cifar10(folder: pathlib.Path, kind: str) -> Labelled:
    """Read the training or the test images of the binary version of CIFAR-10."""
    parts = [_read_cifar_file(folder / name) for name in CIFAR_FILES[kind]]
    records = np.concatenate(parts)
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), records[:, 0].astype(np.int32)


def read_cifar_names(folder: pathlib.Path) -> tuple[str, ...]:
    """Read the names of CIFAR-10's classes, one per line."""
    path = folder / CIFAR_NAMES
    try:
        names = tuple(path.read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}: download it again") from None
    if len(names) != 10:
        raise UserError(f"{path} has {len(names)} names, not 10: download it again")
    return names


def _read_cifar_file(path: pathlib.Path) -> np.ndarray:
    with refuse_unreadable(path):
        content = path.read_bytes()
    if not content or len(content) % CIFAR_RECORD:
        raise UserError(
            f"{path} has {len(content):,} bytes, not a multiple of {CIFAR_RECORD:,} (a "
            "label and 32 x 32 x 3 pixels): take the binary version of CIFAR-10, and "
            "unpack it again"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD)
    if (wrong := np.flatnonzero(records[:, 0] > 9)).size:
        raise UserError(
            f"{path}, image {wrong[0] + 1}: the label is {records[wrong[0], 0]}, but "
            "CIFAR-10's are 0 to 9: take its binary version, and unpack it again"
        )
    return records
