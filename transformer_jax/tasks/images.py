"""Images: a picture in, its class out (ViT: patches are the words of a picture).

    python -m transformer_jax.predict --workdir RUN < paths.txt

Each line is the path of an image file. The image is scaled to the size of the training
images, and converted to grey or colour like them.
"""

import dataclasses
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax import losses
from transformer_jax.base.errors import Refused, UserError
from transformer_jax.data.batches import Batch
from transformer_jax.data.images import arrays as images
from transformer_jax.data.images.sources import (
    PictureOptions,
    Pictures,
    open_pictures,
)
from transformer_jax.data.store import Column, Store
from transformer_jax.decoding import DecodeRequest, Options, Reply
from transformer_jax.decoding.forward import BatchedForward
from transformer_jax.models import kernels, registry
from transformer_jax.models.vision import (
    POSITIONS,
    PatchOptions,
    VisionConfig,
    ViT,
    find_pixel_problems,
)
from transformer_jax.sharding import Params
from transformer_jax.tasks.classification import likeliest
from transformer_jax.tasks.parts import augmentation, learnt
from transformer_jax.tasks.parts.augmentation import AugmentOptions
from transformer_jax.tasks.parts.scoring import LabelScoring
from transformer_jax.tasks.parts.text import attention_of, dropout_rngs
from transformer_jax.tasks.parts.whole_answers import WholeAnswers
from transformer_jax.tasks.protocols import (
    AttentionMaps,
    Data,
    DataSource,
    Objective,
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
RULES = ((r"patches/(kernel|bias)$|class_token$", PartitionSpec()),)


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
        labels = learnt.check_classes(source.classes(), "image")
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
    )
    module = registry.build(config, "image_classifier", MODULES, vision=vision)
    objective = ImageObjective(config, module, about)
    inference = ImageInference(config, objective, about)
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
            {"image": r["image"], "label": self._index(r["label"])} for r in records
        ]

    def _index(self, label: Any) -> int:
        if str(label) not in self.about.labels:
            raise UserError(
                f"the label {label} is not among those of the training split: "
                f"{', '.join(self.about.labels)}"
            )
        return self.about.labels.index(str(label))

    def lengths(self, store: Store) -> np.ndarray:
        """Return the lengths [examples, 1]: all patches, and the class token."""
        return np.full((len(store), 1), self.vision.length)

    def sides_of(self, length: int) -> tuple[int, ...]:
        """Return the length of an image; all have the same."""
        return (self.vision.length,)

    def collate(self, columns: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
        """Fill rows without an image with zeros and the label -1."""
        real = batch.examples[:, 0] >= 0
        labels = np.full(len(real), -1, np.int32)
        pictures = np.zeros((len(real), *self.vision.image), np.float32)
        labels[real] = columns["label"]
        pictures[real] = images.as_floats(columns["image"])
        return {"images": pictures, "labels": labels}


class ImageObjective(Objective):
    """Cross-entropy of labels."""

    logged = ("accuracy",)

    def __init__(self, config: ConfigDict, module: Any, about: About):
        self.module, self.labels = module, len(about.labels)
        self.train = config.train

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
        sums = self._compare(logits, labels, shares)
        return sums + self._compare(logits, others, 1 - shares) if mixes else sums

    def _compare(
        self, logits: Array, labels: Array, shares: Array | float
    ) -> losses.Sums:
        """Sum the loss of labels, weighted by their shares."""
        return losses.cross_entropy(
            logits[:, None],
            jnp.maximum(labels, 0)[:, None],
            (shares * (labels >= 0)).astype(jnp.float32)[:, None],
            self.train.label_smoothing,
            self.labels,
        )


class ImageInference(WholeAnswers):
    """The path of an image in, its class out."""

    def __init__(self, config: ConfigDict, objective: ImageObjective, about: About):
        self.objective, self.about = objective, about
        rows, multiple = config.eval.batch_rows, config.data.row_multiple
        self.forward = BatchedForward(self._outputs, rows, multiple, equal=True)

    def _outputs(self, params: Params, batch: Mapping[str, Array]) -> Array:
        return self.objective.outputs(params, batch["images"])

    def read_line(self, line: Any, max_length: int) -> DecodeRequest:
        """Read the image at a path, or check the shape of an array."""
        about, shape = self.about, self.objective.module.vision.image
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
            found = images.read_image(path, about.height, about.width, about.channels)
        except images.NoImage as error:
            raise Refused(*error.problems) from None
        return DecodeRequest(images.as_floats(found), line=line)

    def question(self, record: Record) -> np.ndarray:
        """Return the image of an example."""
        return record["image"]

    def answers(
        self,
        params: Params,
        requests: Sequence[DecodeRequest],
        mesh: Mesh,
        options: Options,
    ) -> Iterator[tuple[int, Reply]]:
        """Yield (number of a request, its class)."""
        pictures = {"images": [request.source for request in requests]}
        for i, found in self.forward(params, pictures, mesh):
            yield i, likeliest(requests[i].line, found, self.about.labels)


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
    check=find_pixel_problems,
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
