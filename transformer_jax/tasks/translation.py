"""Translation: a sentence in, a sentence out (the task of the paper).

The decoder reads the target shifted right behind the start token (teacher forcing) and
is asked for the target itself: no position ever reads its own answer.
"""

import dataclasses
import functools
import itertools
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from ml_collections import ConfigDict

from transformer_jax import losses, scores
from transformer_jax.data import filters
from transformer_jax.data import tokenizer as tokenizers
from transformer_jax.data.batches import Batch, pad_or_pack
from transformer_jax.data.sources import FIELDS, FORMS, PHRASEBOOK, Source, add_keys
from transformer_jax.data.store import Column, Ragged, Store
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding import Options
from transformer_jax.decoding.engine import DecodeRequest, pad_length, positions_needed
from transformer_jax.decoding.forward import PairScorer
from transformer_jax.errors import Refused, UserError
from transformer_jax.ids import BOS, EOS, PAD
from transformer_jax.models import registry
from transformer_jax.tasks import Answer, Base

# What closes a quotation may follow; in Chinese and Japanese no space does.
SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[”’」』）]*")
SHORTER = "split it, or allow shorter answers (decode.extra_length)"
NO_ATTENTION = "model.attention is 'none' in this run: no word attends to another"


@dataclasses.dataclass(frozen=True)
class Reading:
    """A pair that was read: its pieces, ends included, and what came of it."""

    source: Sequence[int]
    target: Sequence[int]
    log_probs: np.ndarray  # of each target piece
    attention: np.ndarray  # [target, source], the last layer's mean; or [target, 0]


class Task(Base):
    """Parallel text, one or two vocabularies, an encoder-decoder model."""

    METRICS = ("bleu", "chrf")
    PAIRS = True
    IN_PARTS = True  # whether sentences of a line can be answered one by one
    CHOICES = {"data.source": (PHRASEBOOK.name, *FORMS)}
    ROLE = "seq2seq"

    @classmethod
    def configure(cls, config: ConfigDict) -> None:
        add_keys(config.data, PHRASEBOOK.name, FIELDS)
        config.data.target_language = ""  # such as de: whose tokens some scores are of
        config.checkpoint.best = "bleu"

    @classmethod
    def find_problems(cls, config: ConfigDict) -> list[str]:
        return cls.source(config).find_problems()

    @classmethod
    def source(cls, config: ConfigDict) -> Source:
        return Source(config.data)

    def __init__(self, config: ConfigDict, source: Tokenizer, target: Tokenizer):
        self.config = config
        self.source_tokenizer, self.target_tokenizer = self._both = source, target
        self.module = registry.build(
            config,
            self.ROLE,
            vocab_size=target.vocab_size,
            source_vocab_size=source.vocab_size,
        )
        self._readers: dict[Any, PairScorer] = {}

    @classmethod
    def create(
        cls,
        config: ConfigDict,
        source: Source,
        folder: pathlib.Path,
        say: Callable[[str], None] = print,
    ):
        """Learns the tokenizers from the training split, unless the folder has them."""
        sides = ("shared",) if config.tokenizer.shared else FIELDS
        if not all((folder / f"{side}.model").exists() for side in sides):
            records = source.read("train")
            symbols = cls.symbols(config, records)
            made = tokenizers.for_sides(config.tokenizer, records, FIELDS, symbols, say)
            folder.mkdir(parents=True, exist_ok=True)
            for side, tokenizer in made.items():
                tokenizer.save(folder / f"{side}.model")
        return cls.open(config, folder)

    @classmethod
    def symbols(cls, config: ConfigDict, records: Any) -> dict[str, list[str]]:
        """What is one piece whatever the text, by side: the tags before sources."""
        return {"source": sorted({tag for tag in records.tags if tag})}

    @classmethod
    def open(cls, config: ConfigDict, folder: pathlib.Path):
        if config.tokenizer.shared:
            shared = Tokenizer.load(folder / "shared.model")
            return cls(config, shared, shared)
        return cls(config, *(Tokenizer.load(folder / f"{s}.model") for s in FIELDS))

    @functools.cached_property
    def fingerprint(self) -> str:
        return "-".join(["translation", *(t.fingerprint for t in self._both)])

    # Examples → batches

    @property
    def tokenizers(self) -> dict[str, Tokenizer]:
        """Of the columns that may be sampled anew."""
        return dict(zip(FIELDS, self._both, strict=True))

    @property
    def vocabularies(self) -> dict[str, Tokenizer]:
        """Of the tables that there are with one vocabulary, and with two."""
        source, target = self._both
        return {
            "embedding": source,
            "source_embedding": source,
            "target_embedding": target,
        }

    @functools.cached_property
    def columns(self) -> dict[str, Column]:
        return {
            side: Column("uint16" if t.vocab_size <= 1 << 16 else "int32")
            for side, t in self.tokenizers.items()
        }

    def encode(self, records: Sequence[dict[str, str]]) -> list[dict[str, list[int]]]:
        """Pieces of both sides, each with its end of sentence."""
        records = [self.texts(record) for record in records]
        sides = [
            [self.framed(ids) for ids in t.encode_all([r[side] for r in records])]
            for side, t in self.tokenizers.items()
        ]
        return [dict(zip(FIELDS, row, strict=True)) for row in zip(*sides, strict=True)]

    def make_filter(self) -> Callable[[dict, dict], str | None]:
        return filters.make(self.config.filter, self.config.data.max_length)

    @property
    def filter_fingerprint(self) -> str:
        return f"{self.config.filter.to_json()}{self.config.data.max_length}"

    def lengths(self, store: Store) -> np.ndarray:
        lengths = np.stack([store.lengths(side) for side in FIELDS], axis=1)
        self.check_positions(int(lengths.max(initial=0)), "an example")
        longest = DecodeRequest(range(lengths[:, 0].max(initial=1)))
        needed = positions_needed(longest, Options(**self.config.decode))
        self.check_positions(needed, "an example with its longest answer", SHORTER)
        return lengths

    def collate(self, columns: dict[str, Ragged], batch: Batch) -> dict[str, Any]:
        arrays = {}
        for side, length in zip(FIELDS, batch.shape.lengths, strict=True):
            for name, array in pad_or_pack(columns[side], batch, length).items():
                arrays[side if name == "tokens" else f"{side}_{name}"] = array
        return arrays

    # Batches → losses

    def init(self, key: Array) -> Any:
        """Fresh parameters; their shapes depend on no batch."""
        tokens = jnp.ones((1, 1), jnp.int32)
        return self.module.init(key, tokens, tokens, tokens, tokens)["params"]

    def loss(self, params: Any, batch: dict, key: Array | None = None) -> losses.Sums:
        """Sums over the target's real tokens; dropout only with a key."""
        target = batch["target"]
        positions = batch.get("target_positions")
        outputs = self.module.apply(
            {"params": params},
            batch["source"],
            shift_right(target, positions),
            batch.get("source_segments", segments(batch["source"])),
            batch.get("target_segments", segments(target)),
            batch.get("source_positions"),
            positions,
            train=key is not None,
            rngs=None if key is None else {"dropout": key},
        )
        return losses.cross_entropy_of(
            outputs.hidden,
            functools.partial(self.module.apply, {"params": params}, method="logits"),
            target,
            (target != PAD).astype(jnp.float32),
            self.config.train.label_smoothing,
            self.target_tokenizer.vocab_size,
        )

    # Lines → answers

    def parse(
        self,
        line: str,
        max_length: int = 0,
        prefix: str = "",
        number: int = 0,
        options: Options | None = None,
    ) -> DecodeRequest:
        """A line as the search wants it; its number decides what is drawn by chance."""
        if not line.strip():
            return DecodeRequest(())
        pieces = self.check_length("source", line, max_length)
        begun = self.target_tokenizer.encode(prefix) if prefix else []
        asked = DecodeRequest((*pieces, EOS), tuple(begun), number)
        options = options or Options(**self.config.decode)
        what = f"a line of {len(pieces)} pieces with its longest answer"
        self.check_positions(positions_needed(asked, options), what, SHORTER)
        return asked

    def check_length(self, side: str, text: str, max_length: int) -> list[int]:
        """The pieces of a text, if they are no more than allowed (0: any number)."""
        pieces = self.tokenizers[side].encode(text)
        if max_length and len(pieces) > max_length:
            parts = "split it into sentences (--on_long=split), or " * self.IN_PARTS
            raise Refused(
                f"{len(pieces)} pieces are more than the {max_length} allowed: {parts}"
                "raise --max_input"
            )
        return pieces

    def split(self, line: str, max_length: int) -> list[str]:
        """A line that is too long as its sentences, each behind the line's tag."""
        pieces = self.source_tokenizer.encode(line)
        if not self.IN_PARTS or len(pieces) <= max_length:
            return [line]
        tags = map(str.strip, self.config.data.train_tags.split(","))
        tag = next((tag for tag in tags if tag and line.startswith(f"{tag} ")), "")
        line = line.removeprefix(tag)
        ends = [0, *(found.end() for found in SENTENCE_END.finditer(line)), len(line)]
        parts = (line[a:b].strip() for a, b in itertools.pairwise(ends))
        return [f"{tag} {part}".lstrip() for part in parts if part]

    def join(self, answers: Sequence[Answer]) -> Answer:
        """The answers of a line's sentences as one."""
        text = " ".join(a.text for a in answers)
        return Answer(text, sum(a.score for a in answers))

    def question(self, record: dict[str, str]) -> str:
        return record["source"]

    def reference(self, record: dict[str, str]) -> str:
        return record["target"]

    def answers(
        self, params: Any, items: Sequence[DecodeRequest], mesh: Any, options: Options
    ) -> Iterator[tuple[int, Answer]]:
        """(number of an item, its answer) as they are found; blank for a blank one."""
        yield from ((i, Answer("", 0.0)) for i, a in enumerate(items) if not a.source)
        places = [i for i, asked in enumerate(items) if asked.source]
        asked = [items[i] for i in places]
        written = self.write(params, asked, mesh, options, self.target_tokenizer)
        yield from ((places[number], answer) for number, answer in written)

    def details(self, answer: Answer) -> dict[str, Any]:
        """What --format=jsonl says beside the text."""
        entry: dict[str, Any] = {"score": answer.score}
        if answer.others:
            entry["others"] = [
                {"output": self.render(a), "score": a.score} for a in answer.others
            ]
        return entry

    def score_texts(self, answers: Sequence[str], references: Sequence[str]) -> dict:
        return scores.headline(answers, references, self.target_tokenizer.lowercase)

    def summary(self, scores: dict[str, Any]) -> str:
        return (
            f"BLEU = {scores['bleu']:.2f}  chrF = {scores['chrf']:.2f}  "
            f"({scores['bleu_signature']})"
        )

    def panel(self, answers: Sequence[str], records: Any) -> list:
        questions = [self.question(record) for record in records]
        references = [self.reference(record) for record in records]
        texts, lower = (list(answers), references), self.target_tokenizer.lowercase
        found = scores.panel(*texts, self.config.data.target_language, lower)
        return found + scores.of_several(questions, *texts, lower)

    # Looking inside

    def read(
        self, params: Any, pairs: Sequence[tuple[str, str]], mesh: Any
    ) -> list["Reading"]:
        """Each target as the answer to its source: how likely, what it attends to."""
        rows = self.encode([dict(zip(FIELDS, pair, strict=True)) for pair in pairs])
        encoded = [tuple(row.values()) for row in rows]
        longest = max((len(side) for pair in encoded for side in pair), default=0)
        self.check_positions(longest, "a side of a pair")
        readings: list[Any] = [None] * len(pairs)
        for i, log_probs, attention in self._reader(mesh).pairs(params, encoded):
            readings[i] = Reading(*encoded[i], log_probs, attention)
        return readings

    def align(self, reading: "Reading") -> list[tuple[int, int]]:
        """(word of the source, word of the target), both from 0, for each target word:
        the source word that its pieces attend to most."""
        sides = (self.source_tokenizer, reading.source), (
            self.target_tokenizer, reading.target
        )  # fmt: skip
        if not reading.attention.shape[1]:
            raise UserError(NO_ATTENTION)
        words = [tokenizers.number_words(t, ids[:-1]) for t, ids in sides]
        if not all(map(len, words)):
            return []
        attended = np.zeros((words[1].max() + 1, words[0].max() + 1))
        rows, columns = np.meshgrid(words[1], words[0], indexing="ij")
        np.add.at(attended, (rows, columns), reading.attention[:-1, :-1])
        return [(int(s), t) for t, s in enumerate(attended.argmax(axis=1))]

    def vectors(self, params: Any, lines: Sequence[str], mesh: Any) -> np.ndarray:
        """A vector for each line: the mean of what the encoder makes of its pieces."""
        sources = [[*self.source_tokenizer.encode(line), EOS] for line in lines]
        self.check_positions(max(map(len, sources), default=0), "a line")
        found = np.zeros((len(lines), self.config.model.d_model), np.float32)
        for i, vector in self._reader(mesh).vectors(params, sources):
            found[i] = vector
        return found

    def _reader(self, mesh: Any) -> PairScorer:
        if mesh not in self._readers:
            rows, multiple = self.config.eval.batch_rows, self.config.data.row_multiple
            self._readers[mesh] = PairScorer(
                self.module, mesh, rows, multiple, pad_length
            )
        return self._readers[mesh]

    def pieces(self, source: str, target: str) -> tuple[list[str], list[str]]:
        """The pieces that the encoder and the decoder read, ends included."""
        read = self._teacher_forced(source, target)
        return tuple(t.pieces(ids) for t, ids in zip(self._both, read, strict=True))

    def _teacher_forced(self, source: str, target: str) -> tuple[list[int], list[int]]:
        """What the encoder reads, and the decoder when it is told the target."""
        [row] = self.encode([{"source": source, "target": target}])
        return row["source"], [BOS, *row["target"][:-1]]

    def attention(self, params: Any, source: str, target: str) -> dict[str, np.ndarray]:
        """Weights [layers, heads, queries, keys] while a target is read.

        Of `encoder`, `decoder` and `cross`, those that the model has.
        """
        read = self._teacher_forced(source, target)
        source_ids, target_ids = (jnp.asarray([ids]) for ids in read)
        self.check_positions(max(source_ids.size, target_ids.size), "a sentence")
        outputs = self.module.apply(
            {"params": params},
            source_ids,
            target_ids,
            jnp.ones_like(source_ids),
            jnp.ones_like(target_ids),
        )
        found = {
            "encoder": outputs.encoder_attention,
            "decoder": outputs.self_attention,
            "cross": outputs.cross_attention,
        }
        if not any(found.values()):
            raise UserError(NO_ATTENTION)
        return {k: np.stack([w[0] for w in found[k]]) for k in found if found[k]}


def shift_right(
    target: Int[Array, "B T"], positions: Int[Array, "B T"] | None = None
) -> Int[Array, "B T"]:
    """The decoder's input: the start token, then the target without its last.

    In a packed row every example has its own start, where its positions begin.
    """
    shifted = jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=BOS)
    return shifted if positions is None else jnp.where(positions == 0, BOS, shifted)


def segments(tokens: Int[Array, "B T"]) -> Int[Array, "B T"]:
    return (tokens != PAD).astype(jnp.int32)
