"""Predict which batch shapes a training run compiles, and how often it uses each.

With the data at hand these are the shapes of the real batch plan. Without, a task is
opened with a vocabulary of the config's size, and all batches have the largest shape.
"""

import collections
import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from transformer_jax import sharding, tasks
from transformer_jax.config import checks
from transformer_jax.data.batches import Shape, limits, nothing
from transformer_jax.data.text.tokenizer import Tokenizer
from transformer_jax.errors import UserError
from transformer_jax.family.similarity import task as similarity
from transformer_jax.family.speech import transcription as speech
from transformer_jax.family.tagging import task as tagging
from transformer_jax.family.tagging.tags import Lexicon
from transformer_jax.runs.folder import Folder
from transformer_jax.tasks import classification, images, language, masked
from transformer_jax.tasks.parts import seq2seq
from transformer_jax.tasks.parts.pairs import PairData
from transformer_jax.tasks.parts.scoring import BleuScoring
from transformer_jax.tasks.parts.writing import Seq2SeqInference
from transformer_jax.tasks.protocols import Task
from transformer_jax.training.prepare import make_plan, prepare

CHARACTERS_PER_PIECE = 4  # in running text, to convert a window in characters
CLASSES = 1000  # of images in folders, if no vocabulary is given
IMAGES = {"digits": (8, 1), "idx": (28, 1), "cifar10": (32, 3), "colour": (32, 3)}


@dataclasses.dataclass(frozen=True)
class Workload:
    """A task, the shapes of its batches, and the number of batches of each shape."""

    task: Task
    columns: Mapping[str, Any]  # the columns of a store, without examples
    batches: Mapping[Shape, int]
    padding: float | None = None  # as a share of an epoch's positions; None if unknown

    def abstract(self, shape: Shape, mesh: Mesh) -> dict[str, Any]:
        """Return the shapes and shardings of a batch's arrays, to compile for."""
        arrays = self.task.data.collate(self.columns, nothing(shape))
        return sharding.abstract_global(arrays, mesh, shape.rows)

    @property
    def largest(self) -> Shape:
        """The shape with the most tokens."""
        return max(self.batches, key=lambda shape: shape.tokens)

    def mean(self, of: Callable[[Shape], float]) -> float:
        """Average a number over the batches of an epoch."""
        total = sum(of(shape) * times for shape, times in self.batches.items())
        return total / sum(self.batches.values())


def from_data(config: ConfigDict, say: Callable[[str], None]) -> Workload:
    """Plan the batches of the config's data as a training run would."""
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(config, Folder(folder), say)
        store = prepared.train.store
        planned = make_plan(config, prepared.task, prepared.train)
    plan = planned.plan
    times = collections.Counter(batch.shape for batch in plan.epoch(0))
    batches = {shape: times[shape] for shape in plan.shapes}
    columns = store.take(np.zeros(0, np.int64))
    return Workload(prepared.task, columns, batches, planned.padding)


def without_data(
    config: ConfigDict, rows: int = 0, length: int = 0, vocabulary: int = 0
) -> Workload:
    """Open a task without data; arguments of 0 are replaced by the config's values."""
    if not opens_without_data(config):
        raise UserError(
            f"the task {config.task!r} cannot be planned without its data: leave "
            "--no_data out"
        )
    task = _open(config, vocabulary)
    found = task.data.columns_for(_NoRecords())
    columns = {name: column.empty() for name, column in found.items()}
    shape = _largest(config, task, rows, length)
    return Workload(task, columns, {shape: 1})


def opens_without_data(config: ConfigDict) -> bool:
    """Return whether `without_data` knows how to open the config's task."""
    task = tasks.find(config.task)
    if task.role == "seq2seq":  # of other data than pairs of texts nothing is known
        return task.pairs is not None
    return task.role in (*_OPENERS, "image_classifier")


def _largest(config: ConfigDict, task: Task, rows: int, length: int) -> Shape:
    """Return the largest shape that the config allows."""
    data, packed = config.data, config.data.batching == "packed"
    role = tasks.find(config.task).role
    if role == "image_classifier":  # all images have one size
        length = task.objective.module.vision.length  # type: ignore
    if not length:
        length = checks.longest_row(config)
        counted = config.tokenizer.kind in language.CHARACTERS
        if "window" in data and not counted and not packed:
            length = data.window // CHARACTERS_PER_PIECE
        multiple = limits(data)[1]
        length = -(-length // multiple) * multiple
    if not rows:
        rows = max(data.batch_tokens // length // data.row_multiple, 1)
        rows *= data.row_multiple
    sides = 2 if role in ("seq2seq", "text_embedder") else 1
    lengths = (length,) * sides
    if role == "transcriber":  # of each sound, and of its transcript
        lengths = (length, config.decode.max_length)
    return Shape(rows, lengths, packed)


class _NoRecords(list):
    context = 0


class _Vocabulary(Tokenizer):
    """A vocabulary of a given size, in which only the mask has a name."""

    vocab_size: int = 0  # pyright: ignore[reportIncompatibleMethodOverride]
    fingerprint: str = ""  # pyright: ignore[reportIncompatibleMethodOverride]
    lowercase: bool = False  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(self, size: int):
        self.vocab_size = size

    def pieces(self, ids: Any) -> list[str]:
        return [masked.MASK, *map(str, range(1, len(ids)))]

    def encode(self, text: str) -> list[int]:
        return []


def _open(config: ConfigDict, vocabulary: int) -> Task:
    role = tasks.find(config.task).role
    if role == "image_classifier":
        return images.compose(config, _describe_images(config.data, vocabulary))
    return _OPENERS[role](
        config, _Vocabulary(vocabulary or config.tokenizer.vocab_size)
    )


def _describe_images(data: ConfigDict, classes: int) -> images.About:
    if data.source == "folder":
        size, channels = data.image_size, 1 if data.grey else 3
    else:
        size, channels = IMAGES[data.source]
        classes = classes or 10
    return images.About(
        size, size, channels, tuple(map(str, range(classes or CLASSES)))
    )


def _open_pairs(config: ConfigDict, vocabulary: Tokenizer) -> Task:
    options = tasks.find(config.task).options
    data = PairData(config, vocabulary, vocabulary, options)
    return seq2seq.compose(data, Seq2SeqInference, BleuScoring(False))


def _open_classes(config: ConfigDict, vocabulary: Tokenizer) -> Task:
    labels = ("0", "1") if config.data.answers == "labels" else ()
    return classification.compose(config, vocabulary, classification.Scale(labels))


def _open_tags(config: ConfigDict, vocabulary: Tokenizer) -> Task:
    return tagging.compose(config, vocabulary, Lexicon(("0", "1")))


_OPENERS: Mapping[str, Callable[[ConfigDict, Tokenizer], Task]] = {
    "seq2seq": _open_pairs,
    "language_model": language.compose,
    "masked_language_model": masked.compose,
    "text_classifier": _open_classes,
    "token_classifier": _open_tags,
    "text_embedder": similarity.compose,
    "transcriber": speech.compose,
}
