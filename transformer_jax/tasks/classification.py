"""Classification and regression: a text in, a label or a number out.

Every text begins with a special token. A linear head reads the last representation of
this token (`model.pooling = "special"`) or the mean over all tokens ("mean").
The loss of a label is its negative log-likelihood. The loss of a number is its squared
error in units of the standard deviation of the training numbers.
"""

import collections
import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from transformer_jax import losses
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import BOS, PAD
from transformer_jax.base.schema import option
from transformer_jax.data.batches import Batch, fill_rows, pad_or_pack
from transformer_jax.data.columns import TextColumns
from transformer_jax.data.reading import filters, sources
from transformer_jax.data.reading.records import Reading, Records
from transformer_jax.data.reading.sources import Source, find_generated
from transformer_jax.data.store import Column
from transformer_jax.data.text.tokenizer import Tokenizer
from transformer_jax.decoding import DecodeRequest, Reply
from transformer_jax.models import registry
from transformer_jax.models.classifier import Classifier, PoolingOptions
from transformer_jax.sharding import Params
from transformer_jax.tasks.parts import learnt
from transformer_jax.tasks.parts.labels import chances_of, index_of, likeliest
from transformer_jax.tasks.parts.reading import EncoderInspector
from transformer_jax.tasks.parts.scoring import (
    LabelScoring,
    NumberScoring,
    parse_number,
)
from transformer_jax.tasks.parts.text import (
    EmptyTokenizer,
    TextData,
    TextObjective,
    apply_to,
    learn_tokenizer,
    open_tokenizer,
)
from transformer_jax.tasks.parts.whole_answers import MeanAnswers, TextAnswers
from transformer_jax.tasks.protocols import (
    ONE_TEXT,
    CrossEntropy,
    DataSource,
    Record,
    Row,
    Say,
    Task,
    TaskDefinition,
)

FIELDS = ("text", "label")
KINDS = ("labels", "numbers")
DIGITS = 4  # of an answered number, counted from the first digit of the deviation
LABELS_FILE = "answers.json"  # in the tokenizer's folder


MODULES = {"transformer": Classifier}


@dataclasses.dataclass(frozen=True)
class Scale:
    """The meaning of the head's outputs: labels, or numbers around a mean."""

    labels: tuple[str, ...] = ()
    mean: float = 0.0
    deviation: float = 1.0


@dataclasses.dataclass(frozen=True)
class AnswerOptions:
    """The kind of answers: options of `config.data`."""

    answers: str = option("labels", "Classes, or numbers (regression).", choices=KINDS)


def check(config: ConfigDict) -> list[str]:
    """List the problems of options that differ between labels and numbers."""
    problems = []
    numbers, best = config.data.answers == "numbers", config.checkpoint.best
    if best in (("accuracy", "f1") if numbers else ("r",)):
        problems.append(
            f"checkpoint.best = {best!r} is not a score of data.answers = "
            f"{config.data.answers!r}: use {'r' if numbers else 'accuracy'} or loss"
        )
    if numbers and config.train.label_smoothing:
        problems.append(
            "train.label_smoothing: numbers have no labels to smooth, use 0.0"
        )
    return problems


def source(config: ConfigDict) -> Source:
    """Read generated data, or labelled text."""
    generated = find_generated("classification", config.data)
    readings = {"labelled": Reading(_read_labelled)}
    return Source(config.data, FIELDS, generated, readings)


def learn(
    config: ConfigDict, source: DataSource, folder: pathlib.Path, say: Say
) -> None:
    """Learn the labels and the tokenizer, unless the folder has them."""
    if not (folder / LABELS_FILE).exists():
        scale = _measure(config.data.answers, source.read("train"))
        learnt.write(folder / LABELS_FILE, scale)
    learn_tokenizer(config, source, folder, say)


def open_run(config: ConfigDict, folder: pathlib.Path) -> Task:
    """Open the task with the labels and the tokenizer that a run has learned."""
    number = int | float
    kinds = {"labels": list, "mean": number, "deviation": number}
    scale = Scale(**learnt.read(folder / LABELS_FILE, **kinds))
    return compose(config, open_tokenizer(folder), scale)


def open_empty(config: ConfigDict, vocabulary: int) -> Task:
    """Open the task with a vocabulary of this size."""
    labels = ("0", "1") if config.data.answers == "labels" else ()
    return compose(config, EmptyTokenizer(config, vocabulary), Scale(labels))


def compose(config: ConfigDict, tokenizer: Tokenizer, scale: Scale) -> Task:
    """Compose the task from its parts."""
    module = registry.build(
        config,
        "text_classifier",
        MODULES,
        source_vocab_size=tokenizer.vocab_size,
        outputs=max(len(scale.labels), 1),
        pooling=config.model.pooling,
    )
    kind = LabelObjective if scale.labels else NumberObjective
    objective = kind(config, module, scale)
    inference = LabelInference(config, module, tokenizer, scale)
    return Task(
        config=config,
        data=LabelledData(config, tokenizer, scale),
        objective=objective,
        inference=inference,
        scoring=LabelScoring() if scale.labels else NumberScoring(),
        inspector=EncoderInspector(inference, module, tokenizer),
    )


class LabelledData(TextData):
    """The pieces of texts with their ends, and the index of the label or the number."""

    texts: TextColumns

    def __init__(self, config: ConfigDict, tokenizer: Tokenizer, scale: Scale):
        super().__init__(config, tokenizer)
        self.scale, self.labels = scale, scale.labels
        self.texts = TextColumns({"text": tokenizer}, (BOS,))
        self.fingerprint += f"-{scale}"
        self.filter_fingerprint = str(config.data.max_length)

    def columns_for(self, records: Sequence[Record]) -> dict[str, Column]:
        """Describe a column of pieces and one of answers."""
        return {"text": Column("int32"), "answer": Column("float32", ())}

    def encode(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Encode texts and labels."""
        rows = self.texts.encode(records)
        return [
            {**row, "answer": self._number(record["label"])}
            for row, record in zip(rows, records, strict=True)
        ]

    def _number(self, label: str) -> float:
        if self.scale.labels:
            return float(index_of(label.strip(), self.scale.labels))
        return (parse_number(label) - self.scale.mean) / self.scale.deviation

    def make_filter(self) -> Callable[[Record, Row], str | None]:
        """Make a filter that drops texts longer than `data.max_length`."""
        most = self.config.data.max_length
        return filters.by_length("text", most, "pieces", TASK.ends)

    def collate(self, columns: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
        """Pad texts; the answer of a row without an example is 0."""
        tokens = pad_or_pack(columns["text"], batch, batch.shape.lengths[0])["tokens"]
        return {"tokens": tokens, "answers": fill_rows(columns["answer"], batch)}


class AnswerObjective(TextObjective):
    """Base of both objectives: a head reads a text."""

    def __init__(self, config: ConfigDict, module: Any, scale: Scale):
        self.module, self.labels = module, len(scale.labels)
        self.smoothing = config.train.label_smoothing

    def real(self, tokens: Array) -> Array:
        """Return 1 for each text; a row without a text begins with padding."""
        return (tokens[:, 0] != PAD).astype(jnp.float32)


class LabelObjective(AnswerObjective, CrossEntropy):
    """Cross-entropy of labels."""

    logged = ("accuracy",)

    def predictions(
        self, params: Params, batch: Mapping[str, Array], key: Array | None = None
    ) -> losses.Predictions:
        """Predict the label of each text."""
        return losses.Predictions(
            self.outputs(params, batch["tokens"], key).logits[:, None],
            lambda logits: logits,
            batch["answers"].astype(jnp.int32)[:, None],
            self.real(batch["tokens"])[:, None],
            self.smoothing,
            self.labels,
        )


class NumberObjective(AnswerObjective):
    """The squared error of numbers."""

    def loss(
        self, params: Params, batch: Mapping[str, Array], key: Array | None = None
    ) -> losses.Sums:
        """Sum over the texts."""
        real = self.real(batch["tokens"])
        outputs = self.outputs(params, batch["tokens"], key).logits
        errors = (((outputs[:, 0] - batch["answers"]) ** 2) * real).sum()
        return losses.Sums(errors, real.sum())


class LabelInference(MeanAnswers, TextAnswers):
    """A text in, its label or number out."""

    def __init__(
        self, config: ConfigDict, module: Any, tokenizer: Tokenizer, scale: Scale
    ):
        super().__init__(config, module, tokenizer)
        self.scale, self.labels = scale, scale.labels

    def outputs(self, params: Params, batch: Mapping[str, Array]) -> Array:
        """Return the head's outputs for texts, [B, outputs]."""
        return apply_to(self.module, params, batch["tokens"]).logits

    def value(self, output: Float[np.ndarray, "outputs"]) -> np.ndarray:
        """Return the chances of the labels, or the number."""
        if self.labels:
            return chances_of(output)
        return np.asarray(float(output[0]) * self.scale.deviation + self.scale.mean)

    def say(self, request: DecodeRequest, value: np.ndarray) -> Reply:
        """Reply with the likeliest label, or with the number."""
        if self.labels:
            return likeliest(request.line, value, self.labels)
        # For a number far from 0, such as a year, the last digits matter most.
        number = float(value)
        beyond = _magnitude(number) - _magnitude(self.scale.deviation)
        return Reply(request.line, f"{number:.{DIGITS + max(beyond, 0)}g}")


def _measure(kind: str, records: Records) -> Scale:
    """Collect the labels of the training split, or its mean and deviation."""
    found = []
    for i, record in enumerate(records):
        try:
            label = record["label"].strip()
            if not label:
                raise UserError("the label is empty, and each text needs one")
            found.append(label if kind == "labels" else parse_number(label))
        except UserError as error:
            header = "" if i else " (if this line is a header, remove it)"
            raise UserError(f"{records.where(i)}: {error}{header}") from None
    if kind == "labels":
        counts = collections.Counter(found)
        others = [count for label, count in counts.items() if label != found[0]]
        if counts[found[0]] == 1 and len(others) > 1 and min(others) > 1:
            raise UserError(
                f"{records.where(0)}: the label {found[0]!r} occurs in this line "
                "alone. If the line is a header, remove it; if it is a class, add "
                "examples of it"
            )
        if len(labels := sorted({*found})) < 2:
            raise UserError(
                f"the training split has the labels {labels}: there must be at least "
                "two different ones"
            )
        return Scale(tuple(labels))
    numbers = np.array(found)
    if not numbers.std():
        raise UserError(
            f"all {len(numbers)} training numbers are {numbers[0]:g}: there is nothing "
            "to learn"
        )
    return Scale((), float(numbers.mean()), float(numbers.std()))


def _magnitude(number: float) -> int:
    """Return the power of ten of a number's first digit."""
    return math.floor(math.log10(abs(number))) if number else 0


def _read_labelled(line: str) -> list[dict[str, str]]:
    """Read a label, a space and a text."""
    label, _, text = line.strip().partition(" ")
    if not text:
        raise UserError(f"{line!r} is not a label, a space and a text")
    return [{"text": text.strip(), "label": label}]


TASK = TaskDefinition(
    parts=ONE_TEXT | {"encoder"},
    defaults={
        "train.label_smoothing": 0.0,
        "model.tie": "none",
        "checkpoint.best": "accuracy",
    },
    source=source,
    check=check,
    learn=learn,
    open=open_run,
    open_empty=open_empty,
    interface="text_classifier",
    modules=MODULES,
    metrics=("accuracy", "f1", "r"),
    options={
        "data": (
            sources.declare(
                FIELDS, "opinions", "sets", "labelled", task="classification"
            ),
            AnswerOptions,
        ),
        "model": (PoolingOptions,),
    },
    choices={"data.batching": ("buckets",), "model.tie": ("none",)},
    ends=2,
)
