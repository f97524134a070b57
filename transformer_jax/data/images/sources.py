"""Sources of labelled images, which `config.data.source` names."""

import abc
import dataclasses
import functools
import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from transformer_jax.base import entry_points, files
from transformer_jax.base.schema import option
from transformer_jax.data.images import arrays as images
from transformer_jax.data.images import files as image_files
from transformer_jax.data.images.class_folders import ClassFolders
from transformer_jax.data.reading.records import Records
from transformer_jax.data.reading.sources import SPLITS, Splits, list_generated


@dataclasses.dataclass(frozen=True)
class PictureOptions:
    """Locate images and labels: options of `config.data`."""

    source: str = option(
        "digits",
        "Scikit-learn's digits; generated colour images; files of MNIST or CIFAR-10; "
        "folders of PNG and JPEG by class; a package's own.",
        choices=lambda: dict.fromkeys((*SOURCES, *list_generated("images"))),
    )
    folder: str = option("", "Relative paths start here.")
    train_images: str = option("", "idx: a path, plain or .gz.")
    train_labels: str = option("", "idx: a path, plain or .gz.")
    test_images: str = option("", "idx: a path; empty means no test split.")
    test_labels: str = option("", "idx: a path; empty means no test split.")
    validation_size: int = option(
        5000,
        "Images held out of train: the last ones (idx, cifar10) or random ones (a "
        "folder without validation).",
        least=1,
    )
    image_size: int = option(32, "folder: height and width after scaling.", least=1)
    grey: bool = option(False, "folder: read images as grey.")


class Pictures(Splits):
    """The splits of an image data set."""

    @property
    def folder(self) -> pathlib.Path:
        """The folder where relative paths start."""
        return pathlib.Path(self.data.folder)

    def classes(self) -> tuple[str, ...]:
        """List the labels of the training images."""
        labels = {record["label"] for record in self.read("train")}
        return tuple(map(str, sorted(labels)))


class Digits(Pictures):
    """The digits of scikit-learn."""

    def _open(self, split: str) -> Records:
        pixels, labels = images.read_digits(split)
        return images.Images(images.as_floats(pixels), labels, f"digits {split}")


class Generated(Pictures):
    """The images of an entry point `images.NAME` of the corpora."""

    def _open(self, split: str) -> Records:
        return entry_points.require("corpora", f"images.{self.data.source}")(split)


class HeldOut(Pictures, abc.ABC):
    """Files whose last training images are held out for validation."""

    def _open(self, split: str) -> Records:
        if split == "test":
            pixels, labels = self._read("test")
        else:
            both = images.hold_out(*self._read("train"), self.data.validation_size)
            pixels, labels = both[split == "validation"]
        return self._records(pixels, labels, f"{self.data.source} {split}")

    @abc.abstractmethod
    def _read(self, kind: str) -> images.Labelled:
        """Read the pixels and labels of train or test."""

    @abc.abstractmethod
    def _records(self, pixels: np.ndarray, labels: np.ndarray, name: str) -> Records:
        """Make the records of a split."""


class IdxFiles(HeldOut):
    """Files in MNIST's format."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The available splits; the test split is optional."""
        return SPLITS if self.data.test_images else ("train", "validation")

    @functools.cache  # noqa: B019
    def _read(self, kind: str) -> images.Labelled:
        paths = (self._path(f"{kind}_{what}") for what in ("images", "labels"))
        return images.read_idx(*map(str, paths))

    def _records(self, pixels: np.ndarray, labels: np.ndarray, name: str) -> Records:
        return images.Images(images.as_floats(pixels), labels, name)

    def _path(self, name: str) -> pathlib.Path:
        return self.folder / self.data[name]

    def find_problems(self) -> list[str]:
        """List the files that are missing."""
        problems = []
        for kind in ("train", "test"):
            for name in (f"{kind}_images", f"{kind}_labels"):
                if not self.data[name]:
                    if kind == "train" or "test" in self.splits:
                        problems.append(f"data.{name} is empty: name an idx file")
                elif not os.path.isfile(path := self._path(name)):
                    problems.append(f"data.{name}: {files.describe_missing(path)}")
        return problems


class Cifar10(HeldOut):
    """The binary version of CIFAR-10, unpacked."""

    @functools.cache  # noqa: B019
    def _read(self, kind: str) -> images.Labelled:
        return image_files.read_cifar10(self.folder, kind)

    def _records(self, pixels: np.ndarray, labels: np.ndarray, name: str) -> Records:
        names = image_files.read_cifar_names(self.folder)
        return images.Images(pixels, labels, name, names)

    def find_problems(self) -> list[str]:
        """List the files that are missing."""
        wanted = (*image_files.CIFAR_FILES["train"], *image_files.CIFAR_FILES["test"])
        missing = [
            name
            for name in (*wanted, image_files.CIFAR_NAMES)
            if not os.path.isfile(self.folder / name)
        ]
        return [
            f"data.folder: there is no file {self.folder / name}: unpack the binary "
            "version of CIFAR-10 there"
            for name in missing
        ]


class ImageFolders(ClassFolders, Pictures):
    """One folder per split, with one folder of images per class."""

    what, suffixes = "image", image_files.SUFFIXES

    def _make(self, files: Sequence[pathlib.Path], notes: Sequence[str]) -> Records:
        size, channels = self.data.image_size, 1 if self.data.grey else 3
        return image_files.ImageFiles(files, (size, size, channels), notes)


SOURCES: Mapping[str, type[Pictures]] = {
    "digits": Digits,
    "idx": IdxFiles,
    "cifar10": Cifar10,
    "folder": ImageFolders,
}


def open_pictures(data: ConfigDict) -> Pictures:
    """Open the source that a config names; its option refuses unknown names."""
    return SOURCES.get(data.source, Generated)(data)
