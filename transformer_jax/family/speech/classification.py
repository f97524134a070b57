"""Sounds: the path of a WAV file in, its class out.

    python -m transformer_jax.predict --workdir RUN < paths.txt

The model is the encoder of `speech`; a linear head reads a class token, which stands
before the first vector.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax import losses
from transformer_jax.base.errors import UserError
from transformer_jax.data.batches import Batch
from transformer_jax.data.store import Column, Store
from transformer_jax.decoding import DecodeRequest, Options, Reply
from transformer_jax.decoding.forward import BatchedForward
from transformer_jax.family.speech import sounds as sound
from transformer_jax.family.speech.log_mel import DTYPE, log_mel
from transformer_jax.family.speech.model import STRIDE
from transformer_jax.family.speech.sound_files import SoundOptions, Sounds, open_sounds
from transformer_jax.family.speech.sounds import FrameOptions, MaskOptions, Sound
from transformer_jax.models import registry
from transformer_jax.sharding import Params
from transformer_jax.tasks.classification import likeliest
from transformer_jax.tasks.parts import learnt
from transformer_jax.tasks.parts.scoring import LabelScoring
from transformer_jax.tasks.parts.text import dropout_rngs
from transformer_jax.tasks.parts.whole_answers import WholeAnswers
from transformer_jax.tasks.protocols import (
    Data,
    DataSource,
    Objective,
    Record,
    Row,
    Say,
    Task,
    TaskDefinition,
)

CLASSES = 10  # if nothing says how many
ABOUT_FILE = "sounds.json"  # in the tokenizer's folder: the classes


@dataclasses.dataclass(frozen=True)
class About:
    """Hold the classes of the training sounds."""

    labels: tuple[str, ...]


def learn(
    config: ConfigDict, source: DataSource, folder: pathlib.Path, say: Say
) -> None:
    """Note the classes of the training sounds."""
    if not (folder / ABOUT_FILE).exists():
        assert isinstance(source, Sounds)
        labels = learnt.check_classes(source.classes(), "sound")
        learnt.write(folder / ABOUT_FILE, About(labels))


def open_run(config: ConfigDict, folder: pathlib.Path) -> Task:
    """Open the task with the classes that a run has noted."""
    about = learnt.read(folder / ABOUT_FILE, labels=list)
    return compose(config, about["labels"])


def open_empty(config: ConfigDict, vocabulary: int) -> Task:
    """Open the task for a number of classes."""
    return compose(config, [*map(str, range(vocabulary or CLASSES))])


def compose(config: ConfigDict, labels: Sequence[str]) -> Task:
    """Compose the task of its parts."""
    module = registry.build(config, "sound_classifier", classes=len(labels))
    objective = SoundObjective(config, module, len(labels))
    inference = SoundInference(config, objective, labels)
    return Task(config, SoundData(config, labels), objective, inference, LabelScoring())


class SoundData(Data):
    """Frames of sound, and the places of labels."""

    def __init__(self, config: ConfigDict, labels: Sequence[str]):
        self.bands, self.labels = config.data.bands, tuple(labels)
        self.fingerprint = f"sounds-{self.bands}-{DTYPE.__name__}-{[*labels]}"
        self.max_length = config.data.max_length
        self.filter_fingerprint = str(self.max_length)

    def columns_for(self, records: Sequence[Record]) -> dict[str, Column]:
        """Describe a column of frames, and one of labels."""
        frames = Column(DTYPE.__name__, (None, self.bands))
        return {"source": frames, "label": Column("int32", ())}

    def encode(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Compute the frames, and encode labels by their places."""
        return [
            {"source": log_mel(r["samples"], self.bands), "label": self._place(r)}
            for r in records
        ]

    def _place(self, record: Record) -> int:
        if record["label"] not in self.labels:
            raise UserError(
                f"the label {record['label']} is not among those of the training "
                f"split: {', '.join(self.labels)}"
            )
        return self.labels.index(record["label"])

    def make_filter(self) -> Callable[[Record, Row], str | None]:
        """Make a filter that leaves out sounds longer than `data.max_length`."""
        return sound.make_filter(self.max_length)

    def lengths(self, store: Store) -> np.ndarray:
        """Return the lengths [examples, 1] in frames."""
        return store.lengths("source")[:, None]

    def collate(self, columns: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
        """Pad frames; rows without a sound have the label -1."""
        real = batch.examples[:, 0] >= 0
        labels = np.full(len(real), -1, np.int32)
        labels[real] = columns["label"]
        padded = sound.pad_frames(columns["source"], batch, batch.shape.lengths[0])
        return {**padded, "labels": labels}


class SoundObjective(Objective):
    """Cross-entropy of labels."""

    logged = ("accuracy",)

    def __init__(self, config: ConfigDict, module: Any, labels: int):
        self.module, self.labels, self.train = module, labels, config.train
        self.bands = config.data.bands

    def example_inputs(self, rows: int, length: int, target: int) -> tuple[Any, ...]:
        """Return frames of sound."""
        return (jnp.ones((rows, max(length, STRIDE), self.bands), jnp.float32),)

    def outputs(
        self, params: Params, frames: Array, segments: Array, key: Array | None = None
    ) -> Array:
        """Return the logits of sounds, [B, labels]."""
        arguments = {"params": params}, frames, segments
        return self.module.apply(*arguments, **dropout_rngs(key)).logits

    def loss(
        self, params: Params, batch: Mapping[str, Array], key: Array | None = None
    ) -> losses.Sums:
        """Sum over the sounds; a key masks them."""
        frames, segments, labels = batch["frames"], batch["segments"], batch["labels"]
        if key is not None:
            drawn = jax.random.fold_in(key, sound.MASKS)
            frames = sound.hide(frames, segments.sum(axis=1), drawn, self.train)
        return losses.cross_entropy(
            self.outputs(params, frames, segments, key)[:, None],
            jnp.maximum(labels, 0)[:, None],
            (labels >= 0).astype(jnp.float32)[:, None],
            self.train.label_smoothing,
            self.labels,
        )


class SoundInference(WholeAnswers):
    """The path of a WAV file in, its class out."""

    def __init__(
        self, config: ConfigDict, objective: SoundObjective, labels: Sequence[str]
    ):
        self.config, self.objective, self.labels = config, objective, labels
        rows, multiple = config.eval.batch_rows, config.data.row_multiple
        self.forward = BatchedForward(self._outputs, rows, multiple)

    def _outputs(self, params: Params, batch: Mapping[str, Array]) -> Array:
        return self.objective.outputs(params, batch["frames"], batch["segments"])

    def read_line(self, line: Any, max_length: int) -> DecodeRequest:
        """Read the sound of a path; samples are read as they are."""
        frames = sound.read_frames(line, self.config.data.bands, max_length)
        return DecodeRequest(frames, line=line)

    def question(self, record: Record) -> Sound:
        """Return the sound of an example."""
        return Sound(record["samples"], record["name"])

    def answers(
        self,
        params: Params,
        requests: Sequence[DecodeRequest],
        mesh: Mesh,
        options: Options,
    ) -> Iterator[tuple[int, Reply]]:
        """Yield (number of a request, its class), short sounds first."""
        frames = [request.source for request in requests]
        sides = {
            "frames": frames,
            "segments": [np.ones(len(one), np.int32) for one in frames],
        }
        for i, found in self.forward(params, sides, mesh):
            yield i, likeliest(requests[i].line, found, self.labels)


TASK = TaskDefinition(
    parts=frozenset({"lengths", "encoder"}),
    defaults={
        "data.batch_tokens": 16_000,
        "data.max_length": 3000,
        "eval.max_length": 4000,
        "model.norm": "pre",
        "model.activation": "gelu_tanh",
        "eval.samples": 0,
        "train.label_smoothing": 0.0,
        "checkpoint.best": "accuracy",
    },
    source=lambda config: open_sounds(config.data),
    learn=learn,
    open=open_run,
    open_empty=open_empty,
    interface="sound_classifier",
    model="speech",
    metrics=("accuracy", "f1"),
    options={"data": (SoundOptions, FrameOptions), "train": (MaskOptions,)},
    choices={"data.batching": ("buckets",), "model.positions": sound.POSITIONS},
    check=sound.check,
)
