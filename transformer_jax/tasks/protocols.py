"""The interface between a task and the rest of the package.

`TaskDefinition` is what a config and the preparation of data need before there is a
run; each task's file ends with one. `Task` is the task of an opened run, in four parts:

    data        records → rows of a store → batches
    objective   parameters and batches → sums of the loss
    inference   a line → a request → a reply
    scoring     replies and references → scores, and their text for the log

Training needs `data` and `objective`, prediction `inference`, evaluation all four.
Features of only some tasks (split a long line, compare two systems, score a given pair,
align it, show its attention, embed a sentence) are optional protocols of a part or of
`task.inspector`, tested with `isinstance`.
"""

import abc
import dataclasses
import pathlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax import losses
from transformer_jax.base.errors import UserError
from transformer_jax.data.batches import Batch
from transformer_jax.data.columns import TextColumns
from transformer_jax.data.reading.records import Records
from transformer_jax.data.store import Column, Store
from transformer_jax.data.text.tokenizer import Tokenizer
from transformer_jax.decoding import Options, Reply
from transformer_jax.decoding.requests import DecodeRequest, Inference
from transformer_jax.losses import Predictions, Sums
from transformer_jax.scores import Comparison, Score
from transformer_jax.sharding import Params, Rule

Record = Mapping[str, Any]  # an example as its source yields it
Row = Mapping[str, Any]  # an example as a store holds it
Say = Callable[[str], None]


@runtime_checkable
class DataSource(Protocol):
    """Read the splits that a config's `data` section names."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that exist."""
        ...

    @property
    def known_splits(self) -> tuple[str, ...]:
        """All splits that configs of the task may have."""
        ...

    def read(self, split: str) -> Records:
        """Open a split."""
        ...

    def find_problems(self) -> list[str]:
        """List the problems in the section."""
        ...


class Data(abc.ABC):
    """Turn records into rows of a store, and rows into batches."""

    fingerprint: str  # of everything that determines the encoding
    filter_fingerprint = ""  # of everything that determines what training leaves out
    texts: TextColumns | None = None  # whose segmentation can be sampled again
    # The tokenizers of the embedding tables, by the name of the table.
    vocabularies: Mapping[str, Tokenizer] = types.MappingProxyType({})
    labels: tuple[str, ...] = ()  # what the outputs of a head mean, in their order

    @abc.abstractmethod
    def columns_for(self, records: Sequence[Record]) -> Mapping[str, Column]:
        """Describe the columns of a store of these records."""

    @abc.abstractmethod
    def encode(self, records: Sequence[Record]) -> Sequence[Row]:
        """Encode several records at once."""

    def make_filter(self) -> Callable[[Record, Row], str | None]:
        """Make a function that returns why training drops an example, or None."""
        return lambda record, row: None

    @abc.abstractmethod
    def lengths(self, store: Store) -> np.ndarray:
        """Return the lengths [examples, sides] that the batch plan sees."""

    def sides_of(self, length: int) -> tuple[int, ...]:
        """Return the lengths of the sides of an example that is this long."""
        return (length,)

    @abc.abstractmethod
    def collate(
        self, columns: Mapping[str, Any], batch: Batch
    ) -> dict[str, np.ndarray]:
        """Pad or pack the rows of a planned batch into arrays of the batch's shape."""


class Objective(abc.ABC):
    """Compute the loss of a batch."""

    module: Any  # the flax model
    unit = "examples"  # what a loss is averaged over, such as tokens or examples
    logged: tuple[str, ...] = ()  # metrics in the log; none means all

    @abc.abstractmethod
    def example_inputs(self, rows: int, length: int, target: int) -> tuple[Any, ...]:
        """Return inputs of the module: ones in the shapes of a batch.

        `length` is that of an example or of its source, `target` that of its target.
        """

    def init(self, key: Array) -> Params:
        """Draw initial parameters, whose shapes do not depend on a batch."""
        return self.module.init(key, *self.example_inputs(1, 1, 1))["params"]

    @abc.abstractmethod
    def loss(
        self, params: Params, batch: Mapping[str, Array], key: Array | None = None
    ) -> Sums:
        """Sum the loss over a batch; without a key, nothing is random."""

    def means(
        self, sums: Sums, records: Sequence[Record] | None = None
    ) -> dict[str, float]:
        """Divide the sums of a log window, or of a complete split of records."""
        found = losses.means(sums)
        if not self.logged:
            return found
        names = "loss", *self.logged, "kl"  # the last with a teacher or twin
        return {name: found[name] for name in names if name in found}


class CrossEntropy(Objective):
    """Base of objectives whose whole loss is a cross-entropy, which can be taught."""

    draws = False  # whether the key also draws what is predicted, as masks are

    @abc.abstractmethod
    def predictions(
        self, params: Params, batch: Mapping[str, Array], key: Array | None = None
    ) -> Predictions:
        """Return the model's predictions for a batch, and the targets.

        A key draws dropout and, for some tasks, a random part of the input, such as
        masks.
        """

    def loss(
        self, params: Params, batch: Mapping[str, Array], key: Array | None = None
    ) -> Sums:
        """Sum the cross-entropy, with logits of only a few rows at a time."""
        return losses.cross_entropy_of(*self.predictions(params, batch, key))


@runtime_checkable
class Remembers(Protocol):
    """An objective whose held-out examples continue one another, as windows do."""

    @property
    def remembered(self) -> int:
        """The number of tokens that a cache holds while a split is read; 0 is none."""
        ...

    def read(
        self, params: Params, batch: Mapping[str, Array]
    ) -> tuple[Array, Array, Array, Array]:
        """Return hidden states, targets, losses and weights of each token [B, T]."""
        ...

    def cached_means(self, nll: float, records: Any) -> dict[str, float]:
        """Return the means of a split whose losses with the cache add up to `nll`."""
        ...


class Scoring(abc.ABC):
    """Judge the replies to a split; by default all examples count, in one group."""

    @abc.abstractmethod
    def reference(self, record: Record) -> str:
        """Return the right answer of an example."""

    def count_answered(self, records: Sequence[Record]) -> int:
        """Count the examples to answer in order to judge a split."""
        return len(records)

    @abc.abstractmethod
    def score(self, replies: Sequence[Reply], references: Sequence[str]) -> dict:
        """Score replies with the metrics of the task."""

    @abc.abstractmethod
    def summary(self, scores: Mapping[str, Any]) -> str:
        """Format the scores of the task for a log line."""

    def measures(self, scores: Mapping[str, Any]) -> dict[str, float]:
        """Return the scores of one run by which groups of runs are compared."""
        return {"loss": scores["loss"]}

    def readings(
        self, answers: Sequence[str], records: Sequence[Record]
    ) -> list[Score]:
        """Score the same answers by each protocol that published figures use."""
        return []

    def groups(self, records: Sequence[Record]) -> Mapping[str, Sequence[int]]:
        """Return the numbers of the examples of each group to score separately."""
        return {}


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A use of a model, opened for one run."""

    config: ConfigDict
    data: Data
    objective: Objective
    inference: Inference
    scoring: Scoring
    inspector: Any = None  # implements the optional protocols that the task offers

    @property
    def made_from(self) -> tuple[Any, ...]:
        """Return what the loss and the parameters depend on (`programs.Program`)."""
        objective = self.objective
        return type(objective), vars(objective), self.config


@runtime_checkable
class Converses(Protocol):
    """Inference that reads earlier turns of a session."""

    def context(self, turns: Sequence[str]) -> tuple[str, int]:
        """Return the text to read of a session, and the number of turns left out."""
        ...


@runtime_checkable
class Writes(Protocol):
    """Inference that writes its answers token by token."""

    writer: Any  # a `parts.writing.Writer`: the engine and the tokenizer of answers

    def longest_request(self, length: int) -> DecodeRequest:
        """Return a request with a source of this length, to compile a search for."""
        ...


@runtime_checkable
class Averages(Protocol):
    """Inference that can answer with the mean of several runs' chances or numbers."""

    labels: Sequence[str]  # those that it chooses from; none for numbers
    partners: Sequence[tuple[Any, Params]]

    def join(self, partners: Sequence[tuple[Any, Params]]) -> None:
        """Answer with the mean of this run and of other runs."""
        ...


@runtime_checkable
class WritesTrees(Protocol):
    """Inference whose answers are trees."""

    def nest(self, text: str) -> Any:
        """Return a tree as [label, children…], with words as strings."""
        ...


@runtime_checkable
class Comparable(Protocol):
    """Scoring that can test whether two systems differ significantly."""

    def compare(
        self, other: Any, systems: Mapping[str, list[str]], references: list[str]
    ) -> list[Comparison]:
        """Compare the answers of two systems; `other` is the scoring of the second."""
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
    """Align the words of a source and a target."""

    def align(self, reading: Any) -> list[tuple[int, int]]:
        """Return the (source word, target word) pairs of a reading."""
        ...

    def attend_words(self, reading: Any) -> tuple[list[str], list[str], np.ndarray]:
        """Return target words, source words and the attention [target, source]."""
        ...


@runtime_checkable
class ReadsTexts(Protocol):
    """Score texts without a source, with a language model."""

    def read_texts(
        self, params: Params, beginning: str, texts: Sequence[str], mesh: Mesh
    ) -> list[np.ndarray]:
        """Return the log-probabilities of the pieces in which the texts differ."""
        ...


@runtime_checkable
class Embeds(Protocol):
    """Represent a line as one vector."""

    def check_length(self, side: str, text: str, max_length: int) -> list[int]:
        """Return the pieces of a text, or refuse one that has too many."""
        ...

    def vectors(self, params: Params, lines: Sequence[str], mesh: Mesh) -> np.ndarray:
        """Return vectors [lines, D]."""
        ...


class AttentionMaps(dict[str, np.ndarray]):
    """Map kinds of attention to weights [layers, heads, queries, keys].

    The kinds are `encoder`, `decoder` and `cross`, as far as the model has them.
    `tokens` labels both axes of each kind.
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
        self.tokens = dict(tokens)  # by kind: labels of the queries and of the keys
        self.written = list(written)  # the token that the decoder writes at each query
        self.picture = picture  # for images: pixels [height, width, channels]
        self.grid = grid  # for images: rows and columns of patches (class token apart)


class ShowsAttention(abc.ABC):
    """Show attention."""

    @abc.abstractmethod
    def attention(self, params: Params, source: Any, target: str) -> AttentionMaps:
        """Return the weights by kind of attention, with the tokens of both axes."""

    def texts_of(self, line: Any, reply: Reply) -> tuple[Any, str]:
        """Return the source and the target that `attention` reads of an answer."""
        return line, reply.details.get("text", reply.text)


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Marks a task whose examples are pairs of texts, `source` and `target`."""

    words_apart: bool = False  # spaces separate punctuation from words, as in treebanks
    parallel: bool = False  # a target says what its source says, in other words


# The parts of a base config: what an encoder-decoder of two texts uses, a model of one
# text, and an encoder or a decoder of it.
PAIRED = frozenset(
    "text pairs lengths packing tags weights sampling filter search source encoder "
    "decoder positions tie words".split()
)
ONE_TEXT = frozenset("text lengths weights sampling positions tie words".split())


@dataclasses.dataclass(frozen=True)
class TaskDefinition:
    """A task before it is opened: its options, its data, what it learns from them."""

    source: Callable[[ConfigDict], DataSource]  # opens the source of the examples
    # Writes the tokenizer, and whatever else is learned from the data, into a folder.
    learn: Callable[[ConfigDict, DataSource, pathlib.Path, Say], None]
    open: Callable[[ConfigDict, pathlib.Path], Task]  # reads what was learned
    # The interface of the module that it needs, and modules that it brings for it, by
    # the name of the model whose sizes they take: see models/registry.py.
    interface: str = "seq2seq"
    modules: Mapping[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    rules: tuple[Rule, ...] = ()  # for parameters that sharding.RULES lacks
    model: str = "transformer"  # of a config that names none
    metrics: tuple[str, ...] = ()  # scores for which higher is better
    # The parts of a base config that it uses: sections, and options that are `of` them.
    parts: frozenset[str] = PAIRED
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # by name
    # Dataclasses of the options that it adds, by section, and choices that it allows
    # for options declared elsewhere, by dotted name.
    options: Mapping[str, Sequence[type]] = dataclasses.field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    # Opens the task before there is data, with a vocabulary of this size, to plan it.
    open_empty: Callable[[ConfigDict, int], Task] | None = None
    # Options of the data on which the parameters depend, as the bands of a spectrogram,
    # and the option that a table of learned positions limits.
    of_input: tuple[str, ...] = ()
    limited: str = "data.max_length"
    ends: int = 1  # pieces of an example in addition to those of its text
    search: type[Options] = Options  # the options of `config.decode`
    evaluation: type | None = (
        None  # options of `config.eval` that `evaluate` can change
    )
    pairs: Pairs | None = None
    check: Callable[[ConfigDict], list[str]] = lambda config: []  # of its options

    def scored_by(self, config: ConfigDict) -> dict[str, Any]:
        """Return the options of `config.eval` that affect the task's scores."""
        fields = dataclasses.fields(self.evaluation) if self.evaluation else ()
        return {field.name: config.eval[field.name] for field in fields}

    def find_problems(self, config: ConfigDict) -> list[str]:
        """List the problems in the task's part of a config."""
        return [*self.source(config).find_problems(), *self.check(config)]

    def create(
        self,
        config: ConfigDict,
        source: DataSource,
        folder: pathlib.Path,
        say: Say = print,
    ) -> Task:
        """Learn what is missing in the folder, then open the task."""
        self.learn(config, source, folder, say)
        return self.open(config, folder)


def require(task: Task, protocol: type, member: str) -> Any:
    """Return the inspector of a task, or refuse a task that lacks the protocol."""
    if not isinstance(task.inspector, protocol):
        raise UserError(f"the task {task.config.task!r} has no {member!r}")
    return task.inspector
