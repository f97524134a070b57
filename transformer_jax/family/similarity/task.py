"""Similarity: sentence vectors that are close if the sentences mean the same.

    loss = -log softmax(cos(source, targets) / τ)[own target], and likewise for targets

The other pairs of a batch are the wrong answers (InfoNCE, van den Oord et al. 2018), so
a batch must not be split: `train.accumulation` is refused. A vector is the mean of an
encoder's states. A split is scored as a retrieval: does each source find its target
among all targets? The baseline is TF-IDF (`data/text/retrieval.py`).
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from transformer_jax import losses
from transformer_jax.base.errors import Refused
from transformer_jax.base.ids import BOS, PAD
from transformer_jax.base.schema import option
from transformer_jax.data.batches import Batch, pad_or_pack
from transformer_jax.data.columns import TextColumns
from transformer_jax.data.reading import filters, sources
from transformer_jax.data.reading.sources import FIELDS, Source, find_generated
from transformer_jax.data.store import Column, Store
from transformer_jax.data.text import retrieval
from transformer_jax.data.text.tokenizer import Tokenizer
from transformer_jax.decoding import DecodeRequest, Options, Reply
from transformer_jax.family.similarity.model import Embedder
from transformer_jax.models import registry
from transformer_jax.sharding import Params
from transformer_jax.tasks.parts.masking import of_content
from transformer_jax.tasks.parts.reading import EncoderInspector
from transformer_jax.tasks.parts.scoring import in_percent
from transformer_jax.tasks.parts.text import (
    SHORTEN_OR_RAISE,
    TextData,
    TextObjective,
    apply_to,
    check_length,
    check_positions,
    empty_opener,
    learn_tokenizer,
    opener,
)
from transformer_jax.tasks.parts.whole_answers import TextAnswers
from transformer_jax.tasks.protocols import (
    ONE_TEXT,
    Pairs,
    Record,
    Row,
    Scoring,
    Task,
    TaskDefinition,
)

MODULES = {"transformer": Embedder}


@dataclasses.dataclass(frozen=True)
class ContrastOptions:
    """The contrastive loss: options of `config.train`."""

    temperature: float = option(
        0.05, "Divisor of the cosines in the softmax.", above=0, most=100
    )


@dataclasses.dataclass(frozen=True)
class Compared(Reply):
    """The cosine of two texts, with the vectors that score a split."""

    vectors: Any = None  # [2, D]


def check(config: ConfigDict) -> list[str]:
    """Refuse micro-batches."""
    if config.train.accumulation == 1:
        return []
    return [
        f"train.accumulation = {config.train.accumulation}: each pair is compared with "
        "all others of its batch, so a batch must not be split: use 1, and "
        "model.remat to save memory"
    ]


def compose(config: ConfigDict, tokenizer: Tokenizer) -> Task:
    """Compose the task from its parts."""
    size = tokenizer.vocab_size
    module = registry.build(config, "text_embedder", MODULES, source_vocab_size=size)
    objective = ContrastiveObjective(config, module)
    inference = PairInference(config, module, tokenizer)
    return Task(
        config=config,
        data=PairedTexts(config, tokenizer),
        objective=objective,
        inference=inference,
        scoring=SearchScoring(),
        inspector=VectorInspector(inference, module, tokenizer),
    )


class PairedTexts(TextData):
    """The pieces of two texts, each with its ends."""

    texts: TextColumns

    def __init__(self, config: ConfigDict, tokenizer: Tokenizer):
        super().__init__(config, tokenizer)
        self.texts = TextColumns(dict.fromkeys(FIELDS, tokenizer), (BOS,))
        self.filter_fingerprint = f"{config.filter.to_json()}{config.data.max_length}"

    def columns_for(self, records: Sequence[Record]) -> dict[str, Column]:
        """Describe a column of pieces for each side."""
        return dict.fromkeys(FIELDS, Column("int32"))

    def encode(self, records: Sequence[Record]) -> list[dict[str, list[int]]]:
        """Encode both sides of the records."""
        return self.texts.encode(records)

    def make_filter(self) -> Callable[[Record, Row], str | None]:
        """Make the filter of `config.filter` and `data.max_length`."""
        return filters.make(self.config.filter, self.config.data.max_length, TASK.ends)

    def lengths(self, store: Store) -> np.ndarray:
        """Return the lengths [examples, 2] of both sides."""
        lengths = np.stack([store.lengths(side) for side in FIELDS], axis=1)
        check_positions(self.config, int(lengths.max(initial=0)), "an example")
        return lengths

    def sides_of(self, length: int) -> tuple[int, ...]:
        """Return the length of both sides."""
        return length, length

    def collate(self, columns: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
        """Pad both sides; a row without an example is only padding."""
        return {
            side: pad_or_pack(columns[side], batch, length)["tokens"]
            for side, length in zip(FIELDS, batch.shape.lengths, strict=True)
        }


class ContrastiveObjective(TextObjective):
    """InfoNCE: each text picks its partner among those of the whole batch."""

    logged = ("accuracy",)

    def __init__(self, config: ConfigDict, module: Any):
        self.module, self.temperature = module, config.train.temperature

    def loss(
        self, params: Params, batch: Mapping[str, Array], key: Array | None = None
    ) -> losses.Sums:
        """Sum over the pairs; padding and equal texts do not count as wrong answers."""
        keys = [None, None] if key is None else jax.random.split(key)
        tokens = [batch[side] for side in FIELDS]
        vectors = [
            self.outputs(params, side, key).hidden
            for side, key in zip(tokens, keys, strict=True)
        ]
        real = tokens[0][:, 0] != PAD
        found = [of_content(side) for side in tokens]
        same = [a == b.T for a in found for b in found]
        others = real & real[:, None] & ~(same[0] | same[1] | same[2] | same[3])
        weights = real.astype(jnp.float32)
        return losses.contrastive(
            vectors[0], vectors[1], self.temperature, others, weights
        )


class PairInference(TextAnswers):
    """Two texts separated by a tab in, their cosine out."""

    def read_line(self, line: str, max_length: int) -> DecodeRequest:
        """Encode two texts."""
        texts = line.split("\t")
        if len(texts) != 2:
            raise Refused(
                f"{len(texts)} column{'s' * (len(texts) != 1)}: give two texts "
                "separated by a tab, or a file to search (--among)"
            )
        sides = tuple(self.read_side(text, max_length) for text in texts)
        return DecodeRequest(sides, line=line)

    def read_side(self, text: str, max_length: int = 0) -> list[int]:
        """Encode one text with its ends."""
        return self.read(self.reads.compose(text), max_length, "a text")

    def outputs(self, params: Params, batch: Mapping[str, Array]) -> Array:
        """Return the vectors of texts, [B, D]."""
        return cast(Array, apply_to(self.module, params, batch["tokens"]).hidden)

    def question(self, record: Record) -> str:
        """Return both texts of an example."""
        return "\t".join(" ".join(record[side].split()) for side in FIELDS)

    def answers(
        self,
        params: Params,
        requests: Sequence[DecodeRequest],
        mesh: Mesh,
        options: Options,
    ) -> Iterator[tuple[int, Reply]]:
        """Yield (number of a request, the cosine of its texts)."""
        texts = [side for request in requests for side in request.source]
        found = self.embed(params, texts, mesh)
        for i in range(len(requests)):
            vectors = found[2 * i : 2 * i + 2]
            cosine = float(vectors[0] @ vectors[1])
            about = {"details": {"cosine": cosine}, "vectors": vectors}
            yield i, Compared(requests[i].line, f"{cosine:.4f}", **about)

    def embed(
        self, params: Params, texts: Sequence[Sequence[int]], mesh: Mesh
    ) -> Float[np.ndarray, "N D"]:
        """Return the vectors of encoded texts."""
        found = np.zeros((len(texts), self.config.model.d_model), np.float32)
        for i, vector in self.forward(params, {"tokens": texts}, mesh):
            found[i] = vector
        return found


class VectorInspector(EncoderInspector):
    """Embed lines, and show the attention in a line."""

    inference: PairInference

    def encode(self, text: str) -> list[int]:
        """Return the pieces of one text as the model reads them."""
        return self.inference.read_side(text)

    def check_length(self, side: str, text: str, max_length: int) -> list[int]:
        """Return the pieces of a text, or refuse one that has too many."""
        return check_length(self.tokenizer, text, max_length, SHORTEN_OR_RAISE)

    def vectors(self, params: Params, lines: Sequence[str], mesh: Mesh) -> np.ndarray:
        """Return vectors of length 1, [lines, D]."""
        texts = [self.inference.read_side(line) for line in lines]
        return self.inference.embed(params, texts, mesh)


class SearchScoring(Scoring):
    """Recall@1 and MRR of a source's target among all targets of the split."""

    def reference(self, record: Record) -> str:
        """Return the target of an example."""
        return " ".join(record["target"].split())

    def score(self, replies: Sequence[Reply], references: Sequence[str]) -> dict:
        """Return recall@1 and MRR of the vectors and of TF-IDF."""
        queries = [reply.line.split("\t")[0] for reply in replies]
        ours, theirs = (self._stack(replies, side) for side in (0, 1))
        cosines = ours @ theirs.T
        found = retrieval.score(retrieval.places(queries, references, cosines))
        words = retrieval.tfidf(queries, references)
        baseline = retrieval.score(retrieval.places(queries, references, words))
        both = [*zip(queries, references, strict=True)]
        return {
            **found,
            **{f"tfidf_{name}": value for name, value in baseline.items()},
            "shared_words": retrieval.share_words(both),
        }

    def _stack(self, replies: Sequence[Any], side: int) -> Float[np.ndarray, "N D"]:
        vectors = [reply.vectors[side] for reply in replies]
        return np.stack(vectors) if vectors else np.zeros((0, 1))

    def summary(self, scores: Mapping[str, Any]) -> str:
        """Format the scores."""
        return (
            f"recall@1 = {scores['recall']:.2%}  MRR = {scores['mrr']:.4f}  "
            f"(TF-IDF: {scores['tfidf_recall']:.2%}, {scores['tfidf_mrr']:.4f}; "
            f"shared words: {scores['shared_words']:.0%})"
        )

    def measures(self, scores: Mapping[str, Any]) -> dict[str, float]:
        """Return recall@1, in percent, and MRR."""
        return in_percent(scores, "recall") | {"MRR": scores["mrr"]}


TASK = TaskDefinition(
    parts=ONE_TEXT | {"encoder", "filter"},
    defaults={
        "train.label_smoothing": 0.0,
        "model.tie": "none",
        "checkpoint.best": "recall",
    },
    source=lambda config: Source(
        config.data, FIELDS, find_generated("similarity", config.data)
    ),
    check=check,
    learn=functools.partial(learn_tokenizer, fields=FIELDS),  # one for both sides
    open=opener(compose),
    open_empty=empty_opener(compose),
    interface="text_embedder",
    modules=MODULES,
    metrics=("recall", "mrr"),
    options={
        "data": (sources.declare(FIELDS, "paraphrases", task="similarity"),),
        "train": (ContrastOptions,),
    },
    choices={"data.batching": ("buckets",), "model.tie": ("none",)},
    ends=2,
    pairs=Pairs(),
)
