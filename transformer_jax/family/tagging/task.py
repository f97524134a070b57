"""Tagging: a line of words in, one tag per word out.

A linear head reads every token. The first piece of a word represents the word: its tag
is learned and predicted there, and other pieces and the ends have no tag. Words are
separated by spaces, so punctuation must be separated as in the training data. The
baseline of the scores is a table of words, each with its most frequent tag.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax import losses
from transformer_jax.base.ids import BOS, EOS, UNK
from transformer_jax.base.schema import option
from transformer_jax.data import substitution
from transformer_jax.data.batches import Batch, pad_or_pack
from transformer_jax.data.reading import filters, sources
from transformer_jax.data.reading.records import Reading
from transformer_jax.data.reading.sources import Source, find_generated
from transformer_jax.data.store import Column
from transformer_jax.data.text.numerals import is_whole
from transformer_jax.data.text.tokenizer import Tokenizer
from transformer_jax.decoding import DecodeRequest, Reply
from transformer_jax.family.tagging import tags
from transformer_jax.family.tagging.model import Tagger
from transformer_jax.family.tagging.tags import Lexicon, score_tags
from transformer_jax.models import registry
from transformer_jax.sharding import Params
from transformer_jax.tasks.parts import learnt
from transformer_jax.tasks.parts.reading import EncoderInspector
from transformer_jax.tasks.parts.scoring import ResampledScoring, in_percent, texts_of
from transformer_jax.tasks.parts.text import (
    EmptyTokenizer,
    TextData,
    TextObjective,
    apply_to,
    learn_tokenizer,
    open_tokenizer,
)
from transformer_jax.tasks.parts.whole_answers import TextAnswers
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

FIELDS = ("text", "tags")
LEXICON_FILE = "tags.json"  # in the tokenizer's folder


MODULES = {"transformer": Tagger}


@dataclasses.dataclass(frozen=True)
class TagOptions:
    """The tags of the words of a tree: options of `config.data`."""

    tagset: str = option(
        "phrases",
        "Tags read from trees: outermost phrases (BIO) or parts of speech.",
        choices=tuple(tags.TAGSETS),
    )


def check(config: ConfigDict) -> list[str]:
    """List the columns of CoNLL files that are not numbers from 1, and the like."""
    if config.data.source != "conll":
        return substitution.find_problems(config.data)
    named = {f: config.data[f"{f}_column"] for f in FIELDS}
    return substitution.find_problems(config.data) + [
        f"data.{field}_column = {column[:60]!r}: must be the number of a column, from 1"
        for field, column in named.items()
        if column and not (is_whole(column) and int(column))
    ]


def source(config: ConfigDict) -> Source:
    """Read the generated sentences, CoNLL columns, or trees."""
    data = config.data
    read_trees = functools.partial(tags.read_trees, tagset=data.tagset)

    def read_block(block: str) -> list[dict[str, str]]:
        columns = int(data.text_column or 1), int(data.tags_column or 0)
        return tags.read_sentence(block, *columns)

    generated = find_generated("tagging", data)  # records with a tree each
    if generated:
        grow = generated.generate

        def generate(split: str, size: int) -> list[dict[str, str]]:
            return [found for r in grow(split, size) for found in read_trees(r["tree"])]

        key = (data.tagset,)
        generated = dataclasses.replace(generated, generate=generate, key=key)
    columns = f"{data.text_column} {data.tags_column}"
    make = functools.partial(tags.as_record, tagset=data.tagset)
    more = substitution.adder(data, make)
    readings = {
        "conll": Reading(read_block, columns, blocks=True),
        "trees": Reading(read_trees, data.tagset, more=more),
    }
    return Source(data, FIELDS, generated, readings)


def learn(
    config: ConfigDict, source: DataSource, folder: pathlib.Path, say: Say
) -> None:
    """Learn the tags and the tokenizer, unless the folder has them."""
    if not (folder / LEXICON_FILE).exists():
        given = substitution.without_versions(source.read("train"))
        learnt.write(folder / LEXICON_FILE, Lexicon.count(given))
    learn_tokenizer(config, source, folder, say)


def open_run(config: ConfigDict, folder: pathlib.Path) -> Task:
    """Open the task with the tags and the tokenizer that a run has learned."""
    kinds = {"tags": list, "words": dict, "rare": str}
    lexicon = Lexicon(**learnt.read(folder / LEXICON_FILE, **kinds))
    return compose(config, open_tokenizer(folder), lexicon)


def open_empty(config: ConfigDict, vocabulary: int) -> Task:
    """Open the task with a vocabulary of this size."""
    return compose(config, EmptyTokenizer(config, vocabulary), Lexicon(("0", "1")))


def compose(config: ConfigDict, tokenizer: Tokenizer, lexicon: Lexicon) -> Task:
    """Compose the task from its parts."""
    module = registry.build(
        config,
        "token_classifier",
        MODULES,
        source_vocab_size=tokenizer.vocab_size,
        outputs=len(lexicon.tags),
    )
    words = Words(tokenizer)
    inference = TagInference(config, module, words, lexicon.tags)
    return Task(
        config=config,
        data=TaggedData(config, words, lexicon.tags),
        objective=TagObjective(config, module, len(lexicon.tags)),
        inference=inference,
        scoring=TagScoring(lexicon),
        inspector=EncoderInspector(inference, module, tokenizer),
    )


class Words:
    """Encode words one by one, and keep track of where each begins."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self._pieces = functools.lru_cache(1 << 16)(tokenizer.encode)

    def encode(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """Return pieces with their ends, and the index of each word's first piece."""
        ids, places = [BOS], []
        for word in words:
            places.append(len(ids))
            ids += self._pieces(word) or [UNK]  # a given model may drop a character
        return [*ids, EOS], places


class TaggedData(TextData):
    """Pieces, and for each the number (from 1) of the tag of its word, or 0."""

    def __init__(self, config: ConfigDict, words: Words, names: Sequence[str]):
        """Assign numbers from 1 to the tags `names`, in their order."""
        super().__init__(config, words.tokenizer)
        self.words, self.labels = words, tuple(names)
        self.numbers = {tag: number for number, tag in enumerate(names, 1)}
        self.fingerprint += f"-{names}"
        self.filter_fingerprint = str(config.data.max_length)

    def columns_for(self, records: Sequence[Record]) -> dict[str, Column]:
        """Describe a column of pieces and one of tags."""
        return {"text": Column("int32"), "tags": Column("int32")}

    def encode(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Encode sentences; a tag that is not in the training split is not learned."""
        rows = []
        for record in records:
            words, tagged = tags.split(record)
            ids, places = self.words.encode(words)
            numbers = np.zeros(len(ids), np.int32)
            numbers[places] = [self.numbers.get(name, 0) for name in tagged]
            rows.append({"text": ids, "tags": numbers})
        return rows

    def make_filter(self) -> Callable[[Record, Row], str | None]:
        """Make a filter that drops texts longer than `data.max_length`."""
        most = self.config.data.max_length
        return filters.by_length("text", most, "pieces", TASK.ends)

    def collate(self, columns: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
        """Pad pieces and tags."""
        length = batch.shape.lengths[0]
        names = {"tokens": "text", "tags": "tags"}
        return {
            name: pad_or_pack(columns[column], batch, length)["tokens"]
            for name, column in names.items()
        }


class TagObjective(TextObjective, CrossEntropy):
    """Cross-entropy of the tags of words."""

    unit = "words"
    logged = ("accuracy",)

    def __init__(self, config: ConfigDict, module: Any, outputs: int):
        self.module, self.tags = module, outputs
        self.smoothing = config.train.label_smoothing

    def predictions(
        self, params: Params, batch: Mapping[str, Array], key: Array | None = None
    ) -> losses.Predictions:
        """Predict the tag of each word."""
        tokens, numbers = batch["tokens"], batch["tags"]
        logits = self.outputs(params, tokens, key).logits
        weights = (numbers > 0).astype(jnp.float32)
        targets = jnp.maximum(numbers - 1, 0)
        return losses.Predictions(
            logits, lambda x: x, targets, weights, self.smoothing, self.tags
        )


class TagInference(TextAnswers):
    """A line of words in, a line of tags out."""

    def __init__(
        self, config: ConfigDict, module: Any, words: Words, names: Sequence[str]
    ):
        super().__init__(config, module, words.tokenizer)
        self.words, self.names = words, names

    def encode(self, text: str) -> list[int]:
        """Encode the words of a line."""
        return self.words.encode(text.split())[0]

    def outputs(
        self, params: Params, batch: Mapping[str, Array]
    ) -> tuple[Array, Array]:
        """Return the likeliest tag of each piece and its probability, [B, T]."""
        logits = apply_to(self.module, params, batch["tokens"]).logits
        return logits.argmax(-1), jax.nn.softmax(logits).max(-1)

    def reply(self, request: DecodeRequest, output: tuple[np.ndarray, ...]) -> Reply:
        """Take the tags at the first pieces of the words."""
        line, (best, chances) = request.line, output
        words = line.split()
        _, places = self.words.encode(words)
        tagged = [self.names[int(best[place])] for place in places]
        shown = [
            {"word": word, "tag": name, "chance": float(chances[place])}
            for word, name, place in zip(words, tagged, places, strict=True)
        ]
        return Reply(line, " ".join(tagged), details={"words": shown})


class TagScoring(ResampledScoring):
    """Accuracy of words and F1 of spans, with the baseline of most frequent tags."""

    shares = ("accuracy", "f1")

    def __init__(self, lexicon: Lexicon):
        self.lexicon = lexicon

    def reference(self, record: Record) -> str:
        """Return the tags of an example."""
        return record["tags"]

    def score(self, replies: Sequence[Reply], references: Sequence[str]) -> dict:
        """Score tags; missing tags of an answer are wrong.

        Words whose tag does not occur in the training split are counted, because no
        answer to them can be right.
        """
        known = {*self.lexicon.tags}
        truth = [reference.split() for reference in references]
        answers = [text.split() for text in texts_of(replies)]
        looked_up = [self.lexicon.look_up(reply.line.split()) for reply in replies]
        baseline = score_tags(looked_up, truth)
        scores = score_tags(answers, truth) | {
            f"baseline_{name}": baseline[name] for name in ("accuracy", "f1")
        }
        return scores | {
            "unseen": sum(tag not in known for line in truth for tag in line)
        }

    def measure(
        self, answers: Sequence[str], references: Sequence[str]
    ) -> Sequence[Any]:
        """Split lines into tags."""
        pairs = zip(answers, references, strict=True)
        return [(answer.split(), reference.split()) for answer, reference in pairs]

    def judge(self, measured: Sequence[Any]) -> dict[str, float]:
        """Return accuracy and F1, in percent."""
        return in_percent(score_tags(*zip(*measured, strict=True)), *self.shares)

    def summary(self, scores: Mapping[str, Any]) -> str:
        """Format the scores."""
        text = (
            f"accuracy = {scores['accuracy']:.2%}  span F1 = {scores['f1']:.2%}  "
            f"(each word's most frequent tag: {scores['baseline_accuracy']:.2%}, "
            f"{scores['baseline_f1']:.2%})"
        )
        if unseen := scores.get("unseen"):
            text += f"  words whose tag training lacks: {unseen:,}"
        return text


TASK = TaskDefinition(
    parts=ONE_TEXT | {"encoder"},
    defaults={
        "train.label_smoothing": 0.0,
        "model.tie": "none",
        "checkpoint.best": "f1",
    },
    source=source,
    check=check,
    learn=learn,
    open=open_run,
    open_empty=open_empty,
    interface="token_classifier",
    modules=MODULES,
    metrics=("accuracy", "f1"),
    options={
        "data": (
            sources.declare(FIELDS, "phrasebook", "conll", "trees", task="tagging"),
            TagOptions,
            substitution.SubstitutionOptions,
        ),
    },
    choices={
        "data.batching": ("buckets",),
        "model.tie": ("none",),
        "tokenizer.kind": ("unigram", "bpe", "word", "char", "file"),
    },
    ends=2,
)
