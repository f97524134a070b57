"""Find a task by its name; and what most tasks have in common.

A task is a file of this folder with a class `Task` of `Base` (or of another task).
`protocols.py` says what training, evaluation and prediction ask of an opened task. The
class itself adds the keys of its configs (`configure`), finds what cannot work in them
(`find_problems`), says where examples come from (`source`), learns what it needs from
them (`create`), and opens what an earlier run learned (`open`).
"""

import dataclasses
import importlib
import pathlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax import losses
from transformer_jax.data import tokenizer as tokenizers
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding import Options
from transformer_jax.decoding.constraints import Pairs
from transformer_jax.decoding.engine import DecodeRequest, Engine
from transformer_jax.errors import Refused, UserError, nearest
from transformer_jax.ids import EOS

TEXT_FILE = "text.model"  # in the tokenizer's folder


@dataclasses.dataclass(frozen=True)
class Answer:
    """What was written, behind what it begins with; `score` is of what was added:
    its log-probability, length-penalised."""

    text: str
    score: float
    others: tuple["Answer", ...] = ()


class Base:
    """What most tasks have in common; a task says what differs."""

    CHOICES: dict[str, tuple[str, ...]] = {}  # of keys of its own
    METRICS: tuple[str, ...] = ()  # its scores of which more is better
    ROLE = ""  # which of a model's modules it trains: see models/registry.py
    PAIRS = False  # whether an example is two texts, source and target
    WORDS_APART = False  # whether punctuation stands apart from words, as in treebanks
    unit = "tokens"  # what the weights of a loss count
    ENDS = 1  # pieces that an example has beside those of its text

    config: ConfigDict
    module: Any
    tokenizers: dict[str, Any] = {}
    vocabularies: dict[str, Any] = {}
    filter_fingerprint = ""
    pairs: Pairs = ()  # brackets that match, of a task that writes trees

    @classmethod
    def find_problems(cls, config: ConfigDict) -> list[str]:
        return []

    def make_filter(self) -> Any:
        return lambda record, row: None

    def texts(self, record: dict[str, str]) -> dict[str, str]:
        """A record as its pieces are taken of it."""
        return record

    def framed(self, ids: Sequence[int]) -> list[int]:
        """The pieces of a text with what stands around them (`ENDS`)."""
        return [*ids, EOS]

    def check_positions(
        self, needed: int, what: str, way_out: str = "shorten it"
    ) -> None:
        """A table of learned positions has no row for what lies beyond it."""
        model = self.config.model
        if model.get("positions") == "learned" and needed > model.max_positions:
            raise Refused(
                f"{what} needs {needed} positions, but there are model.max_positions "
                f"{model.max_positions} of them: {way_out}, or train with more"
            )

    def means(self, sums: Any, records: Any = None) -> dict[str, float]:
        return losses.means(sums)

    def write(
        self,
        params: Any,
        asked: Sequence[DecodeRequest],
        mesh: Any,
        options: Options,
        tokenizer: Tokenizer,
    ) -> Iterator[tuple[int, Answer]]:
        """(number, answer) of what is asked of a model that writes, as it is found."""
        engines = self.__dict__.setdefault("_engines", {})
        if mesh not in engines:
            rows, multiple = self.config.eval.batch_rows, self.config.data.row_multiple
            engines[mesh] = Engine(self.module, mesh, rows, multiple, self.pairs)
        for number, hypotheses in engines[mesh].search(params, asked, options):
            begun = asked[number].prefix
            best, *others = (
                Answer(tokenizer.decode([*begun, *h.tokens]), h.score)
                for h in hypotheses
            )
            yield number, dataclasses.replace(best, others=tuple(others))

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

    def score(self, replies: Any, references: Any) -> dict[str, Any]:
        return self.score_texts([reply.text for reply in replies], references)

    def columns_for(self, records: Any) -> Any:
        return self.columns

    def answered(self, records: Any) -> int:
        return len(records)

    def context(self, turns: Sequence[str]) -> tuple[str, int]:
        return turns[-1], 0

    def panel(self, answers: Any, records: Any) -> list:
        return []

    # The parts of a task, by the protocols of `protocols.py`.

    @property
    def data(self) -> "Base":
        return self

    @property
    def objective(self) -> "Base":
        return self

    @property
    def inference(self) -> "Base":
        return self

    @property
    def scoring(self) -> "Base":
        return self

    @property
    def inspector(self) -> "Base":
        return self


class Text(Base):
    """What tasks share that read one text a record, with one vocabulary."""

    tokenizer: Tokenizer

    @classmethod
    def create(
        cls,
        config: ConfigDict,
        source: Any,
        folder: pathlib.Path,
        say: Callable[[str], None] = print,
    ) -> Any:
        """Learns the tokenizer from the training text, unless the folder has it."""
        if not (folder / TEXT_FILE).exists():
            settings, records = config.tokenizer, source.read("train")
            made = tokenizers.make(settings, records, ("text",), settings.file, [], say)
            folder.mkdir(parents=True, exist_ok=True)
            made.save(folder / TEXT_FILE)
        return cls.open(config, folder)

    @classmethod
    def open(cls, config: ConfigDict, folder: pathlib.Path) -> Any:
        return cls(config, Tokenizer.load(folder / TEXT_FILE))

    @property
    def fingerprint(self) -> str:
        return f"{self.config.task}-{self.tokenizer.fingerprint}"

    @property
    def vocabularies(self) -> dict[str, Tokenizer]:
        return {"embedding": self.tokenizer}

    def lengths(self, store: Any) -> np.ndarray:
        lengths = store.lengths("text")[:, None]
        self.check_positions(int(lengths.max(initial=0)), "an example")
        return lengths

    def init(self, key: Array) -> Any:
        tokens = jnp.ones((1, 1), jnp.int32)
        return self.module.init(key, tokens, tokens)["params"]


def names() -> list[str]:
    found = {module.name for module in pkgutil.iter_modules(__path__)}
    return sorted(found - {"protocols"})


def find(name: str) -> Any:
    """The class of a task, by the name that `config.task` has."""
    if name not in names():
        raise UserError(f"unknown task {name!r}.{nearest(name, names())}")
    return importlib.import_module(f"{__name__}.{name}").Task
