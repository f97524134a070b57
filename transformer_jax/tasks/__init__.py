"""What a model is used for: a task turns examples into batches, losses and answers.

`train`, `evaluate` and `predict` know a task by these members, and nothing else of
text or images. A task is a file of this folder with a class `Task` of `Base`:

    configure(config)                        adds the keys it has, deletes those it
                                             does not read (a class method, as are
    find_problems(config) → lines            what cannot work, and
    source(config) → splits of records       where examples come from)
    create(config, source, folder, say)      → task; learns and saves what it needs
    open(config, folder) → task              the same task, from a run directory
    fingerprint                              of all that decides the encoding
    columns                                  what a store holds of an example
    encode(records) → rows of columns        several examples at once
    make_filter() → why_not(record, row)     why training leaves an example out, or None
    filter_fingerprint                       of all that decides this
    tokenizers                               of the columns that may be sampled anew
    lengths(store) → [examples, sides]       what the batch plan sees
    collate(columns, batch) → arrays         padded or packed, as batch.shape says
    module                                   the flax model
    init(key) → params
    loss(params, batch, key) → Sums          with dropout, or (key None) without
    means(sums, records) → scores            teacher-forced, of a whole split
    parse(line, max_length, prefix, number, options) → item; raises Refused
    split(line, max_length) → lines          a line that is too long, in parts
    join(answers) → answer                   of the parts of a line
    question(record), reference(record)      an example, and its answer
    answers(params, items, mesh, options)    → (number of an item, answer) as found
    render(answer) → line, details(answer)   of which jsonl has more
    score(answers, references) → scores      the metrics of the task's field
    judge(replies, references) → scores      the same, if more than the text counts
    context(turns) → line, forgotten         what is read of a session so far
    summary(scores) → words                  those scores in a log line
    panel(answers, references) → [Score]     all readings of them, to be published
"""

import dataclasses
import importlib
import pkgutil
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from transformer_jax import metrics
from transformer_jax.errors import UserError, nearest
from transformer_jax.models.recurrent import RecurrentConfig
from transformer_jax.models.stack import TransformerConfig


class Refused(UserError):
    """A line that cannot be answered, and why."""


class Base:
    """What most tasks have in common; a task says what differs."""

    CHOICES: dict[str, tuple[str, ...]] = {}  # of keys of its own
    METRICS: tuple[str, ...] = ()  # its scores of which more is better
    MODELS: tuple[str, ...] = ("transformer",)
    UNIT = "tokens"  # what the weights of a loss count

    config: ConfigDict
    tokenizers: dict[str, Any] = {}
    filter_fingerprint = ""

    @classmethod
    def find_problems(cls, config: ConfigDict) -> list[str]:
        return []

    def make_filter(self) -> Any:
        return lambda record, row: None

    def means(self, sums: Any, records: Any = None) -> dict[str, float]:
        return metrics.means(sums)

    def split(self, line: str, max_length: int) -> list[str]:
        return [line]

    def join(self, answers: Any) -> Any:
        raise UserError(f"{self.config.task}: answers of several parts do not join")

    def render(self, answer: Any) -> str:
        return answer.text.replace("\r", " ").replace("\n", " ")

    def details(self, answer: Any) -> dict[str, Any]:
        return {}

    def summary(self, scores: dict[str, Any]) -> str:
        """'bleu 41.02  chrf 63.10', of the task's own metrics."""
        return "  ".join(f"{name} {scores[name]:.2f}" for name in self.METRICS)

    def judge(self, replies: Any, references: Any) -> dict[str, Any]:
        return self.score([reply.text for reply in replies], references)

    def context(self, turns: Sequence[str]) -> tuple[str, int]:
        return turns[-1], 0

    def panel(self, answers: Any, references: Any) -> list:
        return []

    def __getattr__(self, name: str) -> Any:
        if name in ("read", "align", "vectors", "attention", "pieces"):
            raise UserError(f"the task {self.config.task!r} has no {name!r}")
        raise AttributeError(name)


def sizes(
    config: ConfigDict, target_vocab: int = 0, source_vocab: int = 0
) -> TransformerConfig | RecurrentConfig:
    """The config's sizes of a model, with vocabularies whose rows are padded."""
    kind = {"transformer": TransformerConfig, "recurrent": RecurrentConfig}
    kind = kind[config.model.name]
    values = {"encoder_layers": 0, "decoder_layers": 0, **config.model}
    if kind is TransformerConfig:
        head = values["d_model"] // values["num_heads"]
        values |= {"d_k": values["d_k"] or head, "d_v": values["d_v"] or head}
    known = {field.name for field in dataclasses.fields(kind)}
    multiple = config.tokenizer.row_multiple if "tokenizer" in config else 1
    return kind(
        vocab_size=target_vocab,
        vocab_rows=-(-target_vocab // multiple) * multiple,
        source_vocab_size=source_vocab,
        source_vocab_rows=-(-source_vocab // multiple) * multiple,
        **{name: value for name, value in values.items() if name in known},
    )


def names() -> list[str]:
    return sorted(found.name for found in pkgutil.iter_modules(__path__))


def find(name: str) -> Any:
    """The class of a task, by the name that `config.task` has."""
    if name not in names():
        raise UserError(f"unknown task {name!r}.{nearest(name, names())}")
    return importlib.import_module(f"{__name__}.{name}").Task
