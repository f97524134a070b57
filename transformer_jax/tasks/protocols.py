"""Describe what the rest of the package knows of a task.

`TaskDefinition` is what a config and the preparation of data need before there is a
run; one stands at the end of each task's file. `Task` is an opened run's task, in four
parts:

    data        records → rows of a store → batches
    objective   parameters and batches → sums of the loss
    inference   a line → a request → a reply
    scoring     replies and references → scores, in numbers and in words

Training needs `data` and `objective`, prediction `inference`, evaluation all four. What
only some tasks offer (split a long line, compare two systems, score a given pair, align
it, show its attention, embed a sentence) is an optional protocol of a part or of
`task.inspector`, asked for with `isinstance`.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax.data.batches import Batch
from transformer_jax.data.columns import TextColumns
from transformer_jax.data.records import Records
from transformer_jax.data.store import Column, Store
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding import Options, Reply
from transformer_jax.decoding.requests import Inference
from transformer_jax.errors import UserError
from transformer_jax.losses import LossFn, Sums
from transformer_jax.scores import Comparison, Score
from transformer_jax.sharding import Params

Record = Mapping[str, Any]  # an example as its source gives it
Row = Mapping[str, Any]  # an example as a store holds it
Say = Callable[[str], None]


@runtime_checkable
class DataSource(Protocol):
    """Read the splits that a config's `data` section names."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that there are."""
        ...

    @property
    def known_splits(self) -> tuple[str, ...]:
        """The splits that other configs of the task may have, too."""
        ...

    def read(self, split: str) -> Records:
        """Open a split."""
        ...

    def find_problems(self) -> list[str]:
        """List what cannot work in the section."""
        ...


@runtime_checkable
class Data(Protocol):
    """Turn records into rows of a store, and rows into batches."""

    fingerprint: str  # of all that decides the encoding
    filter_fingerprint: str  # of all that decides what training leaves out

    @property
    def texts(self) -> TextColumns | None:
        """The columns whose segmentation can be sampled anew."""
        ...

    @property
    def vocabularies(self) -> Mapping[str, Tokenizer]:
        """The tokenizers of the embedding tables, by the tables' names."""
        ...

    def columns_for(self, records: Sequence[Record]) -> Mapping[str, Column]:
        """Describe the columns of a store of these records."""
        ...

    def encode(self, records: Sequence[Record]) -> Sequence[Row]:
        """Encode several records at once."""
        ...

    def make_filter(self) -> Callable[[Record, Row], str | None]:
        """Make a function that says why training leaves an example out, or None."""
        ...

    def lengths(self, store: Store) -> np.ndarray:
        """Return the lengths [examples, sides] that the batch plan sees."""
        ...

    def collate(
        self, columns: Mapping[str, Any], batch: Batch
    ) -> dict[str, np.ndarray]:
        """Pad or pack the rows of a planned batch into arrays of its shape."""
        ...


@runtime_checkable
class Objective(Protocol):
    """Compute the loss of a batch."""

    module: Any  # the flax model
    unit: str  # what the weight of a loss counts: tokens, masks or examples

    def init(self, key: Array) -> Params:
        """Draw fresh parameters."""
        ...

    @property
    def loss(self) -> LossFn:
        """The loss as sums over a batch."""
        ...

    def means(
        self, sums: Sums, records: Sequence[Record] | None = None
    ) -> dict[str, float]:
        """Divide the sums of a log window, or of a whole split of records."""
        ...


@runtime_checkable
class Scoring(Protocol):
    """Judge the replies to a split."""

    def reference(self, record: Record) -> str:
        """Return the right answer of an example."""
        ...

    def count_answered(self, records: Sequence[Record]) -> int:
        """Count the examples that must be answered to judge a split."""
        ...

    def score(self, replies: Sequence[Reply], references: Sequence[str]) -> dict:
        """Score replies by the metrics of the task."""
        ...

    def summary(self, scores: Mapping[str, Any]) -> str:
        """Put the scores of the task into words, for a log line."""
        ...

    def measures(self, scores: Mapping[str, Any]) -> dict[str, float]:
        """Return what groups of runs are compared by, of the scores of one run."""
        ...

    def readings(
        self, answers: Sequence[str], records: Sequence[Record]
    ) -> list[Score]:
        """Score the same answers by every protocol that published figures use."""
        ...

    def groups(self, records: Sequence[Record]) -> Mapping[str, Sequence[int]]:
        """Return the numbers of the examples to be scored apart, by group."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A use of a model, opened for one run."""

    config: ConfigDict
    data: Data
    objective: Objective
    inference: Inference
    scoring: Scoring
    inspector: Any = None  # implements those optional protocols that the task offers


@runtime_checkable
class Converses(Protocol):
    """Inference that reads what was said before."""

    def context(self, turns: Sequence[str]) -> tuple[str, int]:
        """Return what is read of a session so far, and how many turns are not."""
        ...


@runtime_checkable
class Writes(Protocol):
    """Inference that writes its answers token by token."""

    writer: Any  # a `parts.writing.Writer`: the engine, and the tokenizer of answers


@runtime_checkable
class Comparable(Protocol):
    """Scoring that can tell whether two systems differ by more than chance."""

    def compare(
        self, other: Any, systems: Mapping[str, list[str]], references: list[str]
    ) -> list[Comparison]:
        """Compare two systems' answers; `other` is the second one's scoring."""
        ...


@runtime_checkable
class ReadsPairs(Protocol):
    """Score given targets as the answers to their sources."""

    def check_length(self, side: str, text: str, max_length: int) -> list[int]:
        """Return the pieces of a text, or refuse one that has too many."""
        ...

    def read(
        self, params: Params, pairs: Sequence[tuple[str, str]], mesh: Mesh
    ) -> list:
        """Return a reading of each (source, target) pair."""
        ...


@runtime_checkable
class Aligns(ReadsPairs, Protocol):
    """Say which words of a source and a target belong together."""

    def align(self, reading: Any) -> list[tuple[int, int]]:
        """Return (source word, target word) pairs of a reading."""
        ...


@runtime_checkable
class ReadsTexts(Protocol):
    """Score texts that answer nothing, as a language model does."""

    def read_texts(
        self, params: Params, beginning: str, texts: Sequence[str], mesh: Mesh
    ) -> list[np.ndarray]:
        """Return the log-probabilities of the pieces in which the texts differ."""
        ...


@runtime_checkable
class Embeds(Protocol):
    """Represent a line by one vector."""

    def check_length(self, side: str, text: str, max_length: int) -> list[int]:
        """Return the pieces of a text, or refuse one that has too many."""
        ...

    def vectors(self, params: Params, lines: Sequence[str], mesh: Mesh) -> np.ndarray:
        """Return vectors [lines, D]."""
        ...


class AttentionMaps(dict[str, np.ndarray]):
    """Map kinds of attention to weights [layers, heads, queries, keys].

    The kinds are those that the model has of `encoder`, `decoder` and `cross`. Beside
    the weights there are names for what stands on both axes.
    """

    def __init__(
        self,
        weights: Mapping[str, np.ndarray],
        tokens: Mapping[str, tuple[Sequence[str], Sequence[str]]],
        written: Sequence[str] = (),
        picture: np.ndarray | None = None,
        grid: tuple[int, int] | None = None,
    ):
        super().__init__(weights)
        self.tokens = dict(tokens)  # by kind: of the queries, and of the keys
        self.written = list(written)  # what the decoder writes at each of its queries
        self.picture = picture  # of a model of images: pixels [height, width, channels]
        self.grid = grid  # its rows and columns of patches, behind the class token


@runtime_checkable
class ShowsAttention(Protocol):
    """Show what attends to what."""

    def attention(self, params: Params, source: Any, target: str) -> AttentionMaps:
        """Return weights by kind of attention, with the tokens of both axes."""
        ...


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Describe examples that are pairs of texts, `source` and `target`."""

    words_apart: bool = False  # punctuation stands apart from words, as in treebanks


@dataclasses.dataclass(frozen=True)
class TaskDefinition:
    """A task before it is opened: its keys, its data, and what it learns from them."""

    configure: Callable[[ConfigDict], None]  # sets and removes keys of a base config
    source: Callable[[ConfigDict], DataSource]  # where examples come from
    # Writes the tokenizer, and what else is learned of the data, into a folder.
    learn: Callable[[ConfigDict, DataSource, pathlib.Path, Say], None]
    open: Callable[[ConfigDict, pathlib.Path], Task]  # with what was learned
    role: str = "seq2seq"  # of the module that it needs, see models/registry.py
    metrics: tuple[str, ...] = ()  # of which more is better
    # Dataclasses of the keys that it adds, by section; of keys that others declare,
    # the choices that it leaves, by dotted name.
    keys: Mapping[str, Sequence[type]] = dataclasses.field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    ends: int = 1  # pieces that an example has beside those of its text
    options: type[Options] = Options  # of `config.decode`
    evaluation: type | None = None  # keys of `config.eval` that `evaluate` can change
    pairs: Pairs | None = None
    check: Callable[[ConfigDict], list[str]] = lambda config: []  # keys of its own

    def find_problems(self, config: ConfigDict) -> list[str]:
        """List what cannot work in the task's part of a config."""
        return [*self.source(config).find_problems(), *self.check(config)]

    def create(
        self,
        config: ConfigDict,
        source: DataSource,
        folder: pathlib.Path,
        say: Say = print,
    ) -> Task:
        """Learn what the folder does not hold yet, then open the task."""
        self.learn(config, source, folder, say)
        return self.open(config, folder)


def require(task: Task, protocol: type, member: str) -> Any:
    """Return the inspector of a task, or refuse a task that lacks the protocol."""
    if not isinstance(task.inspector, protocol):
        raise UserError(f"the task {task.config.task!r} has no {member!r}")
    return task.inspector
