"""Images: a picture in, its class out (ViT: patches are the words of a picture).

    python -m transformer_jax.predict --workdir RUN < paths.txt

A line is the path of an image file; it is scaled to the size that the model was trained
on, grey or coloured as the training images were.
"""

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax import losses, sharding
from transformer_jax.data import images
from transformer_jax.data.batches import Batch
from transformer_jax.data.records import Concatenation
from transformer_jax.data.sources import SPLITS
from transformer_jax.data.store import Column, Store
from transformer_jax.decoding import row_sizes, rows_for
from transformer_jax.errors import Refused, UserError
from transformer_jax.models import registry
from transformer_jax.models.vision import POSITIONS, VisionConfig
from transformer_jax.tasks import Base
from transformer_jax.tasks.classification import Answer, likeliest, score_labels

ABOUT_FILE = "images.json"  # in the tokenizer's folder: the size, and the classes


@dataclasses.dataclass(frozen=True)
class About:
    """What the training images are like."""

    height: int
    width: int
    channels: int
    labels: tuple[str, ...]


class Pictures:
    """The splits of an image data set."""

    known_splits = SPLITS

    def __init__(self, data: ConfigDict):
        self.data = data
        self.splits = ("train", "validation")
        if data.source == "digits" or data.test_images:
            self.splits += ("test",)

    @functools.cache  # noqa: B019  (a source lives as long as its run)
    def read(self, split: str) -> Concatenation:
        if split not in self.splits:
            raise UserError(
                f"there is no split {split!r}: this run's data has "
                f"{', '.join(self.splits)}"
            )
        if self.data.source == "digits":
            pixels, labels = images.read_digits(split)
        elif split == "test":
            pixels, labels = self._read("test")
        else:
            both = images.hold_out(*self._read("train"), self.data.validation_size)
            pixels, labels = both[split == "validation"]
        name = f"{self.data.source} {split}"
        return Concatenation([images.Images(images.as_floats(pixels), labels, name)])

    @functools.cache  # noqa: B019
    def _read(self, kind: str) -> tuple[np.ndarray, np.ndarray]:
        paths = (self._path(f"{kind}_{what}") for what in ("images", "labels"))
        return images.read_idx(*paths)

    def _path(self, key: str) -> pathlib.Path:
        return pathlib.Path(self.data.folder, self.data[key])

    def find_problems(self) -> list[str]:
        if self.data.source == "digits":
            return []
        problems = []
        for kind in ("train", "test"):
            for key in (f"{kind}_images", f"{kind}_labels"):
                if not self.data[key]:
                    if kind == "train" or "test" in self.splits:
                        problems.append(f"data.{key} is empty: name an idx file")
                elif not self._path(key).is_file():
                    problems.append(f"data.{key}: there is no file {self._path(key)}")
        return problems


class Task(Base):
    """Labelled images, an encoder over their patches."""

    ROLE = "image_classifier"
    METRICS = ("accuracy", "f1")
    CHOICES = {
        "data.source": ("digits", "idx"),
        "data.batching": ("buckets",),
        "model.positions": POSITIONS,
    }
    unit = "examples"

    @classmethod
    def configure(cls, config: ConfigDict) -> None:
        data, model = config.data, config.model
        data.source = "digits"  # digits (of scikit-learn) | idx (files as MNIST's)
        data.folder = ""  # relative paths begin here
        data.train_images = ""  # idx: a path, .gz too
        data.train_labels = ""  # idx: a path, .gz too
        data.test_images = ""  # idx: a path, or none
        data.test_labels = ""  # idx: a path, or none
        data.validation_size = 5000  # idx: images at the end of train that are held out
        model.patch = 2  # pixels of a patch's side: a patch is what words are to text
        model.positions = "learned"
        model.norm = "pre"
        model.activation = "gelu"
        config.train.label_smoothing = 0.0
        config.checkpoint.best = "accuracy"
        config.eval.samples = 0  # a picture cannot be shown in a log
        del data.max_length, data.pack_length
        for key in ("decoder_layers", "max_positions", "tie"):
            del model[key]
        del model.word_vectors, model.train_word_vectors, model.dropout_words
        del config.filter, config.decode, config.tokenizer

    @classmethod
    def find_problems(cls, config: ConfigDict) -> list[str]:
        return cls.source(config).find_problems()

    @classmethod
    def source(cls, config: ConfigDict) -> Pictures:
        return Pictures(config.data)

    def __init__(self, config: ConfigDict, about: About):
        self.config, self.about = config, about
        model = config.model
        vision = VisionConfig(
            about.height,
            about.width,
            about.channels,
            model.patch,
            len(about.labels),
            model.positions,
        )
        self.module = registry.build(config, self.ROLE, vision=vision)
        self._forward = functools.cache(self._compile)

    @classmethod
    def create(
        cls,
        config: ConfigDict,
        source: Pictures,
        folder: pathlib.Path,
        say: Callable[[str], None] = print,
    ) -> "Task":
        """Notes the size of the training images and their classes."""
        if not (folder / ABOUT_FILE).exists():
            records = source.read("train")
            labels = sorted({int(record["label"]) for record in records})
            about = About(*records[0]["image"].shape, tuple(map(str, labels)))
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(dataclasses.asdict(about), indent=1)
            (folder / ABOUT_FILE).write_text(text + "\n")
        return cls.open(config, folder)

    @classmethod
    def open(cls, config: ConfigDict, folder: pathlib.Path) -> "Task":
        found = json.loads((folder / ABOUT_FILE).read_text())
        return cls(config, About(**{**found, "labels": tuple(found["labels"])}))

    @property
    def fingerprint(self) -> str:
        return f"images-{self.about}"

    # Examples → batches

    @property
    def columns(self) -> dict[str, Column]:
        shape = (self.about.height, self.about.width, self.about.channels)
        return {"image": Column("float32", shape), "label": Column("int32", ())}

    def encode(self, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {"image": r["image"], "label": self._place(r["label"])} for r in records
        ]

    def _place(self, label: Any) -> int:
        if str(label) not in self.about.labels:
            raise UserError(
                f"the label {label} is not among those of the training split: "
                f"{', '.join(self.about.labels)}"
            )
        return self.about.labels.index(str(label))

    def lengths(self, store: Store) -> np.ndarray:
        """An image counts as its patches and the class token."""
        return np.full((len(store), 1), self.module.vision.length)

    def collate(self, columns: dict[str, Any], batch: Batch) -> dict[str, Any]:
        real = batch.examples[:, 0] >= 0
        labels = np.full(len(real), -1, np.int32)  # -1: no image
        pictures = np.zeros((len(real), *self.module.vision.image), np.float32)
        labels[real], pictures[real] = columns["label"], columns["image"]
        return {"images": pictures, "labels": labels}

    # Batches → losses

    def init(self, key: Array) -> Any:
        blank = jnp.zeros((1, *self.module.vision.image), jnp.float32)
        return self.module.init(key, blank)["params"]

    def loss(self, params: Any, batch: dict, key: Array | None = None) -> losses.Sums:
        labels = batch["labels"]
        logits = self._apply(params, batch["images"], key)
        return losses.cross_entropy(
            logits[:, None],
            jnp.maximum(labels, 0)[:, None],
            (labels >= 0).astype(jnp.float32)[:, None],
            self.config.train.label_smoothing,
            len(self.about.labels),
        )

    def _apply(self, params: Any, pictures: Array, key: Array | None = None) -> Array:
        rngs = None if key is None else {"dropout": key}
        train = key is not None
        return self.module.apply({"params": params}, pictures, train, rngs=rngs).logits

    def means(self, sums: losses.Sums, records: Any = None) -> dict[str, float]:
        found = losses.means(sums)
        return {name: found[name] for name in ("loss", "accuracy")}

    # Lines → answers

    def parse(
        self,
        line: Any,
        max_length: int = 0,
        prefix: str = "",
        number: int = 0,
        options: Any = None,
    ) -> np.ndarray:
        """The image of a path; or the image that a record has."""
        if not isinstance(line, str):
            return line
        about, path = self.about, line.strip()
        if not os.path.isfile(path):
            raise Refused(f"there is no image file {path!r}")
        try:
            found = images.read_image(path, about.height, about.width, about.channels)
        except images.NoImage as error:
            raise Refused(*error.problems) from None
        return images.as_floats(found)

    def question(self, record: dict[str, Any]) -> np.ndarray:
        return record["image"]

    def reference(self, record: dict[str, Any]) -> str:
        return str(record["label"])

    def answers(
        self, params: Any, items: Sequence[np.ndarray], mesh: Any, options: Any
    ) -> Iterator[tuple[int, Answer]]:
        sizes = row_sizes(self.config.eval.batch_rows, self.config.data.row_multiple)
        for begin in range(0, len(items), sizes[0]):
            part = items[begin : begin + sizes[0]]
            rows = rows_for(sizes, len(part))
            pictures = np.zeros((rows, *self.module.vision.image), np.float32)
            pictures[: len(part)] = part
            with jax.set_mesh(mesh):
                batch = sharding.to_global({"images": pictures}, mesh)
                found = jax.device_get(self._forward(mesh)(params, batch))
            for i, output in enumerate(found[: len(part)], begin):
                yield i, likeliest(output, self.about.labels)

    def _compile(self, mesh: Any) -> Callable:
        return jax.jit(
            lambda params, batch: self._apply(params, batch["images"]),
            out_shardings=sharding.replicated(mesh),
        )

    def details(self, answer: Answer) -> dict[str, Any]:
        return {"chances": answer.chances}

    def score_texts(self, answers: Sequence[str], references: Sequence[str]) -> dict:
        return score_labels(answers, references)

    def summary(self, scores: dict[str, Any]) -> str:
        return f"accuracy = {scores['accuracy']:.2%}  F1 = {scores['f1']:.2%}"
