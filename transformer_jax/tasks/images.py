"""Images: a picture in, its class out (ViT: patches are the words of a picture).

    python -m transformer_jax.predict --workdir RUN < paths.txt

Each line is the path of an image file. The image is scaled to the size of the training
images, and converted to grey or colour like them.
"""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax import losses
from transformer_jax.base.errors import Refused
from transformer_jax.data.batches import Batch, fill_rows
from transformer_jax.data.images import arrays as images
from transformer_jax.data.images.sources import (
    PictureOptions,
    Pictures,
    open_pictures,
)
from transformer_jax.data.store import Column, Store
from transformer_jax.decoding import DecodeRequest
from transformer_jax.models import kernels, registry
from transformer_jax.models.vision import (
    POSITIONS,
    PatchOptions,
    VisionConfig,
    ViT,
    find_problems,
)
from transformer_jax.sharding import Params
from transformer_jax.tasks.parts import augmentation, learnt
from transformer_jax.tasks.parts.augmentation import AugmentOptions
from transformer_jax.tasks.parts.labels import (
    LabelAnswers,
    LabelObjective,
    check_classes,
    index_of,
)
from transformer_jax.tasks.parts.scoring import LabelScoring
from transformer_jax.tasks.parts.text import attention_of, dropout_rngs
from transformer_jax.tasks.protocols import (
    AttentionMaps,
    Data,
    DataSource,
    Record,
    Say,
    ShowsAttention,
    Task,
    TaskDefinition,
)

CHANGES = 7919  # folded into the key of a step to draw the changes of its images
ABOUT_FILE = "images.json"  # in the tokenizer's folder: the size and the classes


# Height, width and channels of what a source has, and classes of one that may have any.
SIZES = {"digits": (8, 1), "idx": (28, 1), "cifar10": (32, 3), "colour": (32, 3)}
CLASSES = 1000

MODULES = {"transformer": ViT}
RULES = ((r"(patches|stem)/.*(kernel|bias|scale)$", PartitionSpec()),)


@dataclasses.dataclass(frozen=True)
class About:
    """The size and the classes of the training images."""

    height: int
    width: int
    channels: int
    labels: tuple[str, ...]


def learn(
    config: ConfigDict, source: DataSource, folder: pathlib.Path, say: Say
) -> None:
    """Record the size of the training images and their classes."""
    if not (folder / ABOUT_FILE).exists():
        assert isinstance(source, Pictures)
        height, width, channels = source.read("train")[0]["image"].shape
        labels = check_classes(source.classes(), "image")
        about = About(height, width, channels, labels)
        learnt.write(folder / ABOUT_FILE, about)


def read_about(folder: pathlib.Path) -> About:
    """Read the size and classes that a run has recorded."""
    kinds = {"height": int, "width": int, "channels": int, "labels": list}
    return About(**learnt.read(folder / ABOUT_FILE, **kinds))


def open_run(config: ConfigDict, folder: pathlib.Path) -> Task:
    """Open the task with the size and classes that a run has recorded."""
    return compose(config, read_about(folder))


def open_empty(config: ConfigDict, vocabulary: int) -> Task:
    """Open the task for images of the size that the source has."""
    data, classes = config.data, vocabulary
    if data.source == "folder":
        size, channels = data.image_size, 1 if data.grey else 3
    else:
        size, channels = SIZES[data.source]
        classes = classes or 10
    labels = tuple(map(str, range(classes or CLASSES)))
    return compose(config, About(size, size, channels, labels))


def compose(config: ConfigDict, about: About) -> Task:
    """Compose the task from its parts."""
    model = config.model
    vision = VisionConfig(
        about.height,
        about.width,
        about.channels,
        model.patch,
        len(about.labels),
        model.positions,
        tuple(model.pixel_mean),
        tuple(model.pixel_deviation),
        model.stem,
    )
    module = registry.build(config, "image_classifier", MODULES, vision=vision)
    objective = ImageObjective(config, module, len(about.labels))
    inference = ImageInference(config, objective, about.labels)
    return Task(
        config=config,
        data=ImageData(about, vision),
        objective=objective,
        inference=inference,
        scoring=LabelScoring(),
        inspector=ImageInspector(inference, module),
    )


class ImageData(Data):
    """Pixels and the indices of labels."""

    def __init__(self, about: About, vision: VisionConfig):
        self.about, self.vision, self.labels = about, vision, about.labels
        self.fingerprint = f"images-{about}"

    def columns_for(self, records: Sequence[Record]) -> dict[str, Column]:
        """Describe a column of images and one of labels."""
        shape = (self.about.height, self.about.width, self.about.channels)
        kind = str(records[0]["image"].dtype) if len(records) else "float32"
        return {"image": Column(kind, shape), "label": Column("int32", ())}

    def encode(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Encode labels as indices."""
        return [
            {"image": r["image"], "label": index_of(r["label"], self.labels)}
            for r in records
        ]

    def lengths(self, store: Store) -> np.ndarray:
        """Return the lengths [examples, 1]: all patches, and the class token."""
        return np.full((len(store), 1), self.vision.length)

    def sides_of(self, length: int) -> tuple[int, ...]:
        """Return the length of an image; all have the same."""
        return (self.vision.length,)

    def collate(self, columns: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
        """Fill rows without an image with zeros and the label -1."""
        return {
            "images": fill_rows(images.as_floats(columns["image"]), batch),
            "labels": fill_rows(columns["label"], batch, -1),
        }


class ImageObjective(LabelObjective):
    """Cross-entropy of the labels of images."""

    def example_inputs(self, rows: int, length: int, target: int) -> tuple[Any, ...]:
        """Return pixels."""
        return (jnp.ones((rows, *self.module.vision.image), jnp.float32),)

    def outputs(
        self, params: Params, pictures: Array, key: Array | None = None
    ) -> Array:
        """Return the head's outputs for images, [B, labels]."""
        arguments = dropout_rngs(key)
        return self.module.apply({"params": params}, pictures, **arguments).logits

    def loss(
        self, params: Params, batch: Mapping[str, Array], key: Array | None = None
    ) -> losses.Sums:
        """Sum over the images; with a key, augment them according to the config."""
        pictures, labels = batch["images"], batch["labels"]
        mixes = key is not None and self.train.mixup > 0
        others, shares = labels, 1.0
        if key is not None:
            drawn = jax.random.split(jax.random.fold_in(key, CHANGES))
            pictures = augmentation.change(pictures, drawn[0], self.train)
            if mixes:
                pictures, others, shares = augmentation.mix(
                    pictures, labels, drawn[1], self.train.mixup
                )
        logits = self.outputs(params, pictures, key)
        sums = self.compare(logits, labels, shares)
        return sums + self.compare(logits, others, 1 - shares) if mixes else sums


class ImageInference(LabelAnswers):
    """The path of an image in, its class out."""

    reads_file = "image"  # whose path a line is
    equal = True

    def outputs(self, params: Params, batch: Mapping[str, Array]) -> Array:
        """Return the head's outputs for images, [B, labels]."""
        return self.objective.outputs(params, batch["images"])

    def sides(self, requests: Sequence[DecodeRequest]) -> dict[str, Sequence[Any]]:
        """Return the pixels of images."""
        return {"images": [request.source for request in requests]}

    def read_line(self, line: Any, max_length: int) -> DecodeRequest:
        """Read the image at a path, or check the shape of an array."""
        shape = self.objective.module.vision.image
        if not isinstance(line, str):
            if np.shape(line) != shape:
                raise Refused(
                    f"an array of shape {np.shape(line)}, but the model reads {shape}: "
                    "scale it to that size, or give the path of an image file, which "
                    "is scaled here"
                )
            pixels = images.as_floats(np.asarray(line))
            if pixels.dtype.kind != "f" or not ((pixels >= 0) & (pixels <= 1)).all():
                raise Refused(
                    f"an array of {np.asarray(line).dtype} that is not an image: give "
                    "bytes (uint8), or floats from 0 to 1"
                )
            return DecodeRequest(pixels, line=line)
        path = line.strip()
        if not os.path.isfile(path):
            raise Refused(f"there is no image file {path!r}")
        try:
            found = images.read_image(path, *shape)
        except images.NoImage as error:
            raise Refused(*error.problems) from None
        return DecodeRequest(images.as_floats(found), line=line)

    def question(self, record: Record) -> np.ndarray:
        """Return the image of an example."""
        return record["image"]


class ImageInspector(ShowsAttention):
    """Show the attention between the patches of an image."""

    def __init__(self, inference: ImageInference, module: Any):
        self.inference, self.module = inference, kernels.with_weights(module)

    def attention(self, params: Params, source: Any, target: str) -> AttentionMaps:
        """Return the weights of `encoder`, with patches named by row and column."""
        picture, vision = self.inference.parse(source).source, self.module.vision
        outputs = self.module.apply({"params": params}, jnp.asarray(picture)[None])
        rows, columns = vision.grid
        places = [f"{r},{c}" for r in range(rows) for c in range(columns)]
        tokens = ["class", *places]
        return AttentionMaps(
            {"encoder": attention_of(outputs.encoder_attention)},
            {"encoder": (tokens, tokens)},
            picture=np.asarray(picture),
            grid=vision.grid,
        )


TASK = TaskDefinition(
    parts=frozenset({"encoder"}),
    defaults={
        "model.positions": "learned",
        "model.norm": "pre",
        "model.activation": "gelu_tanh",
        "train.label_smoothing": 0.0,
        "checkpoint.best": "accuracy",
        "eval.samples": 0,
    },
    source=lambda config: open_pictures(config.data),
    learn=learn,
    open=open_run,
    open_empty=open_empty,
    interface="image_classifier",
    modules=MODULES,
    rules=RULES,
    metrics=("accuracy", "f1"),
    check=find_problems,
    options={
        "data": (PictureOptions,),
        "model": (PatchOptions,),
        "train": (AugmentOptions,),
    },
    choices={
        "data.batching": ("buckets",),
        "model.positions": POSITIONS,
    },
)
