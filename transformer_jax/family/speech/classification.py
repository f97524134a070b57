"""Sounds: the path of a WAV file in, its class out.

    python -m transformer_jax.predict --workdir RUN < paths.txt

The model is the encoder of `speech`; a linear head reads a class token, which stands
before the first vector.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax import losses
from transformer_jax.data.batches import Batch, fill_rows
from transformer_jax.data.reading import filters
from transformer_jax.data.store import Column, Store
from transformer_jax.decoding import DecodeRequest
from transformer_jax.family.speech import sounds as sound
from transformer_jax.family.speech.log_mel import DTYPE
from transformer_jax.family.speech.model import frames_per_vector
from transformer_jax.family.speech.sound_files import SoundOptions, Sounds, open_sounds
from transformer_jax.family.speech.sounds import FrameOptions, MaskOptions, Sound
from transformer_jax.models import registry
from transformer_jax.sharding import Params
from transformer_jax.tasks.parts import learnt
from transformer_jax.tasks.parts.labels import (
    LabelAnswers,
    LabelObjective,
    check_classes,
    index_of,
)
from transformer_jax.tasks.parts.scoring import LabelScoring
from transformer_jax.tasks.parts.text import dropout_rngs
from transformer_jax.tasks.protocols import (
    Data,
    DataSource,
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
        labels = check_classes(source.classes(), "sound")
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
        self.config, self.labels = config.data, tuple(labels)
        self.fingerprint = f"sounds-{sound.fingerprint(config.data)}-{[*labels]}"
        self.max_length = config.data.max_length
        self.filter_fingerprint = str(self.max_length)

    def columns_for(self, records: Sequence[Record]) -> dict[str, Column]:
        """Describe a column of frames, and one of labels."""
        frames = Column(DTYPE.__name__, (None, self.config.bands))
        return {"source": frames, "label": Column("int32", ())}

    def encode(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Compute the frames, and encode labels by their places."""
        heard = (sound.make_frames(r["samples"], self.config) for r in records)
        return [
            {
                "source": frames.astype(DTYPE),
                "label": index_of(record["label"], self.labels),
            }
            for record, frames in zip(records, heard, strict=True)
        ]

    def make_filter(self) -> Callable[[Record, Row], str | None]:
        """Make a filter that leaves out sounds longer than `data.max_length`."""
        return filters.by_length("source", self.max_length, "frames")

    def lengths(self, store: Store) -> np.ndarray:
        """Return the lengths [examples, 1] in frames."""
        return store.lengths("source")[:, None]

    def collate(self, columns: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
        """Pad frames; rows without a sound have the label -1."""
        padded = sound.pad_frames(columns["source"], batch, batch.shape.lengths[0])
        return {**padded, "labels": fill_rows(columns["label"], batch, -1)}


class SoundObjective(LabelObjective):
    """Cross-entropy of the labels of sounds."""

    def __init__(self, config: ConfigDict, module: Any, labels: int):
        super().__init__(config, module, labels)
        self.bands, self.least = config.data.bands, frames_per_vector(config.model)

    def example_inputs(self, rows: int, length: int, target: int) -> tuple[Any, ...]:
        """Return frames of sound."""
        return (jnp.ones((rows, max(length, self.least), self.bands), jnp.float32),)

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
        frames, segments = batch["frames"], batch["segments"]
        if key is not None:
            drawn = jax.random.fold_in(key, sound.MASKS)
            frames = sound.hide(frames, segments.sum(axis=1), drawn, self.train)
        logits = self.outputs(params, frames, segments, key)
        return self.compare(logits, batch["labels"])


class SoundInference(LabelAnswers):
    """The path of a WAV file in, its class out."""

    reads_file = "sound"  # whose path a line is

    def outputs(self, params: Params, batch: Mapping[str, Array]) -> Array:
        """Return the logits of sounds, [B, labels]."""
        return self.objective.outputs(params, batch["frames"], batch["segments"])

    def read_line(self, line: Any, max_length: int) -> DecodeRequest:
        """Read the sound of a path; samples are read as they are."""
        frames = sound.read_frames(line, self.config.data, max_length)
        return DecodeRequest(frames, line=line)

    def question(self, record: Record) -> Sound:
        """Return the sound of an example."""
        return Sound(record["samples"], record["name"])

    def sides(self, requests: Sequence[DecodeRequest]) -> dict[str, Sequence[Any]]:
        """Return the frames of sounds, all of them real."""
        frames = [request.source for request in requests]
        segments = [np.ones(len(one), np.int32) for one in frames]
        return {"frames": frames, "segments": segments}


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
    of_input=sound.OF_INPUT,
)
