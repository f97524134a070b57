"""What the rest of the package knows of a task: four small protocols.

    data        records → rows of a store → batches
    objective   parameters and batches → sums of the loss
    inference   a line → a request → a reply
    scoring     replies and references → scores, in numbers and in words

Training needs `data` and `objective`, prediction `inference`, evaluation all four. What
only some tasks can do (score a given pair, align it, show its attention, embed a
sentence) is an optional protocol of `task.inspector`, asked for with `isinstance`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax.data.batches import Batch
from transformer_jax.data.store import Column, Store
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.errors import UserError
from transformer_jax.losses import Sums
from transformer_jax.scores import Score

Record = Mapping[str, Any]  # an example as its source gives it
Row = Mapping[str, Any]  # an example as a store holds it


@runtime_checkable
class Data(Protocol):
    """Turn records into rows of a store, and rows into batches."""

    fingerprint: str  # of all that decides the encoding
    filter_fingerprint: str  # of all that decides what training leaves out
    tokenizers: Mapping[str, Tokenizer]  # of the columns that can be sampled anew
    vocabularies: Mapping[str, Tokenizer]  # of the embedding tables, by their names

    def columns_for(self, records: Any) -> Mapping[str, Column]:
        """Describe the columns of a store of these records."""
        ...

    def encode(self, records: Sequence[Record]) -> list[Row]:
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

    def init(self, key: Array) -> Any:
        """Draw fresh parameters."""
        ...

    def loss(self, params: Any, batch: Mapping[str, Array], key: Any = None) -> Sums:
        """Sum the loss over a batch: with dropout, or (key None) without."""
        ...

    def means(self, sums: Sums, records: Any = None) -> dict[str, float]:
        """Divide the sums of a log window, or of a whole split of records."""
        ...


@runtime_checkable
class Inference(Protocol):
    """Answer lines."""

    def parse(
        self,
        line: Any,
        max_length: int = 0,
        prefix: str = "",
        number: int = 0,
        options: Any = None,
    ) -> Any:
        """Make a request of a line, or raise `Refused` with the reason."""
        ...

    def split(self, line: Any, max_length: int) -> list[Any]:
        """Divide a line that is too long into parts, if the task can."""
        ...

    def join(self, answers: Sequence[Any]) -> Any:
        """Join the answers to the parts of one line."""
        ...

    def question(self, record: Record) -> Any:
        """Return the line that an example asks."""
        ...

    def answers(
        self, params: Any, items: Sequence[Any], mesh: Mesh, options: Any
    ) -> Iterator[tuple[int, Any]]:
        """Yield (number of a request, its answer) as they are found."""
        ...

    def render(self, answer: Any) -> str:
        """Write an answer as one line of text."""
        ...

    def details(self, answer: Any) -> dict[str, Any]:
        """Return what `--format=jsonl` says beside the text."""
        ...

    def context(self, turns: Sequence[str]) -> tuple[str, int]:
        """Return what is read of a session so far, and how many turns are not."""
        ...


@runtime_checkable
class Scoring(Protocol):
    """Judge the answers to a split."""

    METRICS: tuple[str, ...]  # scores of which more is better

    def reference(self, record: Record) -> str:
        """Return the right answer of an example."""
        ...

    def answered(self, records: Any) -> int:
        """Count the examples that must be answered to judge a split."""
        ...

    def score_texts(self, replies: Sequence[Any], references: Sequence[str]) -> dict:
        """Score replies by the metrics of the task."""
        ...

    def summary(self, scores: Mapping[str, Any]) -> str:
        """Put the scores of the task into words, for a log line."""
        ...

    def panel(self, answers: Sequence[str], records: Any) -> list[Score]:
        """Return every reading of the same answers that may be published."""
        ...


@runtime_checkable
class Task(Protocol):
    """A use of a model, opened for one run."""

    config: ConfigDict
    data: Data
    objective: Objective
    inference: Inference
    scoring: Scoring
    inspector: Any  # implements those of the protocols below that the task can offer


@runtime_checkable
class ReadsPairs(Protocol):
    """Score given targets as the answers to their sources."""

    def read(self, params: Any, pairs: Sequence[tuple[str, str]], mesh: Mesh) -> list:
        """Return a reading of each (source, target) pair."""
        ...


@runtime_checkable
class Aligns(ReadsPairs, Protocol):
    """Say which words of a source and a target belong together."""

    def align(self, reading: Any) -> list[tuple[int, int]]:
        """Return (source word, target word) pairs of a reading."""
        ...


@runtime_checkable
class Embeds(Protocol):
    """Represent a line by one vector."""

    def vectors(self, params: Any, lines: Sequence[str], mesh: Mesh) -> np.ndarray:
        """Return vectors [lines, D]."""
        ...


@runtime_checkable
class ShowsAttention(Protocol):
    """Show what attends to what."""

    def attention(self, params: Any, source: str, target: str) -> dict[str, np.ndarray]:
        """Return weights [layers, heads, queries, keys] by kind of attention."""
        ...


def require(task: Task, protocol: type, member: str) -> Any:
    """Return the inspector of a task, or refuse a task that lacks the protocol."""
    if not isinstance(task.inspector, protocol):
        raise UserError(f"the task {task.config.task!r} has no {member!r}")
    return task.inspector
