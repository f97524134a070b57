"""Classification and regression: a text in, a label or a number out.

Every text begins with a special token, whose last representation a linear head reads
(`model.pooling = "special"`); with "mean" it reads the mean of all tokens.
A label costs its negative log-likelihood, a number the square of its error, counted in
standard deviations of the training numbers.
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from transformer_jax import losses
from transformer_jax.data.batches import Batch, pad_or_pack
from transformer_jax.data.generated import opinions
from transformer_jax.data.records import Reading
from transformer_jax.data.sources import FORMS, GeneratedSource, Source, add_keys
from transformer_jax.data.store import Column
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.engine import pad_length
from transformer_jax.decoding.forward import BatchedForward
from transformer_jax.errors import Refused, UserError
from transformer_jax.ids import BOS, EOS, PAD
from transformer_jax.models import registry
from transformer_jax.models.classifier import POOLINGS
from transformer_jax.tasks import TEXT_FILE, Text

FIELDS = ("text", "label")
KINDS = ("labels", "numbers")
DIGITS = 4  # of a number: so many from the first of the deviation on
LABELS_FILE = "answers.json"  # in the tokenizer's folder


@dataclasses.dataclass(frozen=True)
class Answer:
    """A label and how likely each is; or a number."""

    text: str
    chances: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Scale:
    """What the head's outputs mean: labels, or numbers around a mean."""

    labels: tuple[str, ...] = ()
    mean: float = 0.0
    deviation: float = 1.0


class Task(Text):
    """Labelled text, an encoder with a head."""

    ROLE = "text_classifier"
    METRICS = ("accuracy", "f1", "r")
    CHOICES = {
        "data.source": ("opinions", "labelled", *FORMS),
        "data.answers": KINDS,
        "data.batching": ("buckets",),
        "model.tie": ("none",),
        "model.pooling": POOLINGS,
    }
    unit = "examples"
    ENDS = 2

    @classmethod
    def configure(cls, config: ConfigDict) -> None:
        add_keys(config.data, "opinions", FIELDS)
        config.data.answers = "labels"  # labels (classes) | numbers (regression)
        config.train.label_smoothing = 0.0
        config.model.tie = "none"
        config.model.pooling = "special"  # what the head reads: special (token) | mean
        config.checkpoint.best = "accuracy"
        for split in ("train", "validation", "test"):
            del config.data[f"{split}_tags"]
        del config.data.pack_length, config.tokenizer.shared
        del config.filter, config.decode, config.model.decoder_layers

    @classmethod
    def find_problems(cls, config: ConfigDict) -> list[str]:
        problems = cls.source(config).find_problems()
        numbers, best = config.data.answers == "numbers", config.checkpoint.best
        if best in (("accuracy", "f1") if numbers else ("r",)):
            problems.append(
                f"checkpoint.best = {best!r} is no score of data.answers = "
                f"{config.data.answers!r}: use {'r' if numbers else 'accuracy'} or loss"
            )
        if numbers and config.train.label_smoothing:
            problems.append("train.label_smoothing: numbers have no labels to smooth")
        return problems

    @classmethod
    def source(cls, config: ConfigDict) -> Source:
        asked = "score" if config.data.answers == "numbers" else "label"

        def generate(split: str, size: int) -> list[dict[str, str]]:
            found = opinions.generate(split, size)
            return [{"text": r["text"], "label": r[asked]} for r in found]

        kind = ("opinions", opinions.VERSION, opinions.SPLITS, generate, (asked,))
        readings = {"labelled": Reading(_read_labelled)}
        return Source(config.data, FIELDS, GeneratedSource(*kind), readings)

    def __init__(self, config: ConfigDict, tokenizer: Tokenizer, scale: Scale):
        self.config, self.tokenizer, self.scale = config, tokenizer, scale
        self.module = registry.build(
            config,
            self.ROLE,
            source_vocab_size=tokenizer.vocab_size,
            outputs=max(len(scale.labels), 1),
            pooling=config.model.pooling,
        )
        self._places = {label: i for i, label in enumerate(scale.labels)}
        self._forward = BatchedForward(
            lambda params, batch: self._apply(params, batch["tokens"]),
            config.eval.batch_rows,
            config.data.row_multiple,
            pad_length,
        )

    @classmethod
    def create(
        cls,
        config: ConfigDict,
        source: Source,
        folder: pathlib.Path,
        say: Callable[[str], None] = print,
    ) -> "Task":
        """Learns the labels and the tokenizer, unless the folder has them."""
        if not (folder / LABELS_FILE).exists():
            scale = _measure(config.data.answers, source.read("train"))
            text = json.dumps(dataclasses.asdict(scale), ensure_ascii=False, indent=1)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / LABELS_FILE).write_text(text + "\n", encoding="utf-8")
        return super().create(config, source, folder, say)

    @classmethod
    def open(cls, config: ConfigDict, folder: pathlib.Path) -> "Task":
        found = json.loads((folder / LABELS_FILE).read_text(encoding="utf-8"))
        scale = Scale(tuple(found["labels"]), found["mean"], found["deviation"])
        return cls(config, Tokenizer.load(folder / TEXT_FILE), scale)

    @property
    def fingerprint(self) -> str:
        return f"{super().fingerprint}-{self.scale}"

    # Examples → batches

    @property
    def tokenizers(self) -> dict[str, Tokenizer]:
        return {"text": self.tokenizer}

    @property
    def columns(self) -> dict[str, Column]:
        return {"text": Column("int32"), "answer": Column("float32", ())}

    def encode(self, records: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
        """Pieces behind the special token, and the label's number, or the number."""
        encoded = self.tokenizer.encode_all([r["text"] for r in records])
        return [
            {"text": self.framed(ids), "answer": self._number(r["label"])}
            for ids, r in zip(encoded, records, strict=True)
        ]

    def framed(self, ids: Sequence[int]) -> list[int]:
        return [BOS, *ids, EOS]

    def _number(self, label: str) -> float:
        if not self._places:
            return (_number(label) - self.scale.mean) / self.scale.deviation
        if label.strip() not in self._places:
            raise UserError(
                f"the label {label.strip()!r} is not among those of the training "
                f"split: {', '.join(self._places)}"
            )
        return float(self._places[label.strip()])

    def make_filter(self) -> Callable[[dict, dict], str | None]:
        limit = self.config.data.max_length

        def why_not(record: dict, row: dict) -> str | None:
            if len(row["text"]) - 2 > limit:
                return f"longer than data.max_length {limit} pieces"
            return None

        return why_not

    @property
    def filter_fingerprint(self) -> str:
        return str(self.config.data.max_length)

    def collate(self, columns: dict[str, Any], batch: Batch) -> dict[str, Any]:
        real = batch.examples[:, 0] >= 0
        answers = np.zeros(len(real), np.float32)
        answers[real] = columns["answer"]
        tokens = pad_or_pack(columns["text"], batch, batch.shape.lengths[0])["tokens"]
        return {"tokens": tokens, "answers": answers}

    # Batches → losses

    def loss(self, params: Any, batch: dict, key: Array | None = None) -> losses.Sums:
        """Sums over the texts; a row without one begins with padding."""
        tokens, answers = batch["tokens"], batch["answers"]
        outputs = self._apply(params, tokens, key)
        real = (tokens[:, 0] != PAD).astype(jnp.float32)
        if self._places:
            return losses.cross_entropy(
                outputs[:, None],
                answers.astype(jnp.int32)[:, None],
                real[:, None],
                self.config.train.label_smoothing,
                len(self._places),
            )
        errors = (((outputs[:, 0] - answers) ** 2) * real).sum()
        return losses.Sums(errors, errors, jnp.zeros(()), real.sum())

    def _apply(self, params: Any, tokens: Any, key: Array | None = None) -> Any:
        return self.module.apply(
            {"params": params},
            tokens,
            (tokens != PAD).astype(jnp.int32),
            train=key is not None,
            rngs=None if key is None else {"dropout": key},
        ).logits

    def means(self, sums: losses.Sums, records: Any = None) -> dict[str, float]:
        found = losses.means(sums)
        if not self._places:
            return {"loss": found["loss"]}
        return {name: found[name] for name in ("loss", "accuracy")}

    # Lines → answers

    def parse(
        self,
        line: str,
        max_length: int = 0,
        prefix: str = "",
        number: int = 0,
        options: Any = None,
    ) -> list[int]:
        if prefix:
            raise Refused("an answer of this task has no beginning to be given")
        pieces = self.tokenizer.encode(line)
        if max_length and len(pieces) > max_length:
            raise Refused(
                f"{len(pieces)} pieces are more than the {max_length} allowed: shorten "
                "it, or raise --max_input"
            )
        self.check_positions(len(pieces) + self.ENDS, f"a line of {len(pieces)} pieces")
        return [BOS, *pieces, EOS]

    def question(self, record: dict[str, str]) -> str:
        return record["text"]

    def reference(self, record: dict[str, str]) -> str:
        return record["label"].strip()

    def answers(
        self, params: Any, items: Sequence[list[int]], mesh: Any, options: Any
    ) -> Iterator[tuple[int, Answer]]:
        for i, output in self._forward(params, {"tokens": items}, mesh):
            yield i, self._answer(output)

    def _answer(self, output: Float[np.ndarray, "outputs"]) -> Answer:
        if not self._places:
            number = float(output[0]) * self.scale.deviation + self.scale.mean
            # Of a number far from 0, as a year is, the last digits say the most.
            beyond = _magnitude(number) - _magnitude(self.scale.deviation)
            return Answer(f"{number:.{DIGITS + max(beyond, 0)}g}")
        return likeliest(output, self.scale.labels)

    def details(self, answer: Answer) -> dict[str, Any]:
        return {"chances": answer.chances} if answer.chances else {}

    def score_texts(self, answers: Sequence[str], references: Sequence[str]) -> dict:
        if self._places:
            return score_labels(answers, references)
        numbers = [[_number(text) for text in side] for side in (answers, references)]
        return score_numbers(*numbers)

    def summary(self, scores: dict[str, Any]) -> str:
        if self._places:
            return f"accuracy = {scores['accuracy']:.2%}  F1 = {scores['f1']:.2%}"
        return f"r = {scores['r']:.4f}  RMSE = {scores['rmse']:.4f}"

    # Looking inside

    def attention(self, params: Any, source: str, target: str) -> dict[str, np.ndarray]:
        """Weights [layers, heads, queries, keys]; query 0 is the special token's."""
        tokens = jnp.asarray([self.parse(source)])
        outputs = self.module.apply({"params": params}, tokens, jnp.ones_like(tokens))
        weights = [np.asarray(w[0]) for w in outputs.encoder_attention]
        return {"encoder": np.stack(weights)}


def likeliest(output: Float[np.ndarray, "labels"], labels: Sequence[str]) -> Answer:
    """The label of the largest of a head's outputs, and the chances of all."""
    shares = np.exp(output - output.max())
    shares = shares / shares.sum()
    chances = dict(zip(labels, shares.tolist(), strict=True))
    return Answer(labels[int(shares.argmax())], chances)


def score_labels(answers: Sequence[str], references: Sequence[str]) -> dict:
    """Accuracy, and F1: the mean over the labels of the harmonic mean of both."""
    pairs = list(zip(answers, references, strict=True))
    f1s = []
    for label in sorted({*references}):
        both = sum(a == r == label for a, r in pairs)
        either = sum((a == label) + (r == label) for a, r in pairs)
        f1s.append(2 * both / either)
    right = sum(a == r for a, r in pairs)
    return {"accuracy": right / max(len(pairs), 1), "f1": float(np.mean(f1s))}


def score_numbers(answers: Sequence[float], references: Sequence[float]) -> dict:
    """Pearson's r (0 if either side never varies) and the root mean squared error."""
    a, r = np.asarray(answers), np.asarray(references)
    varies = len(a) > 1 and a.std() > 0 and r.std() > 0
    correlation = float(np.corrcoef(a, r)[0, 1]) if varies else 0.0
    return {"r": correlation, "rmse": float(np.sqrt(np.mean((a - r) ** 2)))}


def _measure(kind: str, records: Any) -> Scale:
    """The labels of the training split, in their order; or its mean and deviation."""
    if kind == "labels":
        labels = sorted({record["label"].strip() for record in records})
        if len(labels) < 2 or "" in labels:
            raise UserError(
                f"the training split has the labels {labels}: a text needs one, and "
                "there must be two kinds at least"
            )
        return Scale(tuple(labels))
    numbers = np.array([_number(record["label"]) for record in records])
    if not numbers.std():
        raise UserError(
            f"all {len(numbers)} training numbers are {numbers[0]:g}: there is nothing "
            "to learn"
        )
    return Scale((), float(numbers.mean()), float(numbers.std()))


def _magnitude(number: float) -> int:
    """The power of ten of its first digit."""
    return math.floor(math.log10(abs(number))) if number else 0


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(
            f"the label {text.strip()!r} is no number: data.answers = 'labels' takes "
            "names"
        )
    return value


def _read_labelled(line: str) -> list[dict[str, str]]:
    """A label, a space, the text."""
    label, _, text = line.strip().partition(" ")
    if not text:
        raise UserError(f"{line!r} is not a label, a space and a text")
    return [{"text": text.strip(), "label": label}]
