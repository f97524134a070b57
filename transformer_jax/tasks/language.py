"""Language modelling: text goes on from what is given, token by token.

    P(text) = Π_t P(token_t | tokens before it in the same window)

The context rule, also of every perplexity: a window is read alone, its first token is
predicted from nothing; with `eval.context`, held-out windows are read behind the text
before them, which is not judged. Bits per character count all that a window costs, over
its characters, so that vocabularies compare.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax import losses, scores
from transformer_jax.data import windows
from transformer_jax.data.batches import Batch, pad_or_pack
from transformer_jax.data.generated import phrasebook
from transformer_jax.data.sources import FORMS, GeneratedSource, Source
from transformer_jax.data.store import Column
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.windows import Windows
from transformer_jax.decoding import Options
from transformer_jax.decoding.engine import DecodeRequest
from transformer_jax.errors import Refused
from transformer_jax.ids import BOS, PAD
from transformer_jax.models import registry
from transformer_jax.tasks import Answer, Text
from transformer_jax.tasks.translation import segments, shift_right

CHARACTERS = ("char", "byte")  # kinds of tokenizer without whole words
PROMPT = 1 / 4  # share of a held-out window that is given, when the rest is to follow


class Stream(Source):
    """Splits whose lines are one running text, in windows."""

    def __init__(
        self,
        config: ConfigDict,
        embedded: GeneratedSource | None = None,
        flat: bool = False,
    ):
        super().__init__(config.data, ("text",), embedded or PHRASES)
        self.whole_words = config.tokenizer.kind not in CHARACTERS
        self.flat = flat
        self.context = 0 if flat else config.eval.context

    @functools.cache  # noqa: B019  (a source lives as long as its run)
    def read(self, split: str) -> Windows:
        data, lines = self.data, super().read(split)
        stride, context = (data.stride, 0) if split == "train" else (0, self.context)
        return Windows(lines, data.window, stride, self.whole_words, self.flat, context)

    def find_problems(self) -> list[str]:
        problems, data = super().find_problems(), self.data
        for key, least in (("window", 2), ("stride", 0)):
            if data[key] < least:
                problems.append(f"data.{key} = {data[key]}: must be at least {least}")
        if not 0 <= self.context < max(data.window, 1):
            problems.append(
                f"eval.context = {self.context}: of the {data.window} characters of "
                f"data.window, 0 to {data.window - 1} can be read only, not judged"
            )
        return problems


class Task(Text):
    """Running text, one vocabulary, a decoder without a source."""

    ENDS = 0
    ROLE = "language_model"
    CHOICES = {"data.source": ("phrasebook", *FORMS), "model.tie": ("all", "none")}

    @classmethod
    def configure(cls, config: ConfigDict) -> None:
        windows.add_keys(config, "phrasebook")
        config.train.label_smoothing = 0.0
        config.eval.answers = 3
        config.eval.context = 0  # characters of a held-out window that are not judged
        config.decode.beams = 1
        config.decode.sample = True
        config.decode.max_length = 100
        del config.decode.extra_length, config.decode.coverage
        del config.model.encoder_layers

    @classmethod
    def find_problems(cls, config: ConfigDict) -> list[str]:
        data, problems = config.data, cls.source(config).find_problems()
        most = data.window - int(data.window * PROMPT)
        if not 1 <= config.decode.max_length <= most:
            problems.append(
                f"decode.max_length = {config.decode.max_length}: a text goes on for 1 "
                f"to {most} pieces, so that with a quarter of data.window "
                f"{data.window} before it, it fits in"
            )
        return problems

    @classmethod
    def source(cls, config: ConfigDict) -> Stream:
        return Stream(config)

    def __init__(self, config: ConfigDict, tokenizer: Tokenizer):
        self.config, self.tokenizer = config, tokenizer
        self.module = registry.build(config, self.ROLE, vocab_size=tokenizer.vocab_size)

    @property
    def fingerprint(self) -> str:
        whole_words = self.config.tokenizer.kind not in CHARACTERS
        return super().fingerprint + "-inside" * whole_words

    # Windows → batches

    @property
    def columns(self) -> dict[str, Column]:
        small = self.tokenizer.vocab_size <= 1 << 16
        return {"text": Column("uint16" if small else "int32")}

    def columns_for(self, records: Any) -> dict[str, Column]:
        """With how many pieces are not judged, where there are any."""
        before = {"before": Column("int32", ())} if records.context else {}
        return self.columns | before

    def encode(self, records: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
        rows = []
        for record in records:
            row: dict[str, Any] = {"text": self.tokenizer.encode_inside(record["text"])}
            if "before" in record:
                before = self.tokenizer.encode_inside(record["before"])
                row = {"text": before + row["text"], "before": len(before)}
            rows.append(row)
        return rows

    def collate(self, columns: dict[str, Any], batch: Batch) -> dict[str, Any]:
        arrays = pad_or_pack(columns["text"], batch, batch.shape.lengths[0])
        if "before" in columns:  # held-out windows, which are never packed
            real = batch.examples[:, 0] >= 0
            arrays["before"] = np.zeros(len(real), np.int32)
            arrays["before"][real] = columns["before"]
        return arrays

    # Batches → losses

    def loss(self, params: Any, batch: dict, key: Array | None = None) -> losses.Sums:
        """Sums over the real tokens; each is predicted from those before it."""
        tokens, positions = batch["tokens"], batch.get("positions")
        judged = tokens != PAD
        if "before" in batch:
            judged &= jnp.arange(tokens.shape[1]) >= batch["before"][:, None]
        outputs = self.module.apply(
            {"params": params},
            shift_right(tokens, positions),
            batch.get("segments", segments(tokens)),
            positions,
            train=key is not None,
            rngs=None if key is None else {"dropout": key},
        )
        return losses.cross_entropy_of(
            outputs.hidden,
            functools.partial(self.module.apply, {"params": params}, method="logits"),
            tokens,
            judged.astype(jnp.float32),
            self.config.train.label_smoothing,
            self.tokenizer.vocab_size,
        )

    def means(self, sums: losses.Sums, records: Any = None) -> dict[str, float]:
        found = losses.means(sums)
        if records is not None:
            characters = sum(len(record["text"]) for record in records)
            found["bits_per_character"] = float(sums.nll) / characters / math.log(2)
            found["context"] = records.context
        return found

    # Lines → answers

    def parse(
        self,
        line: str,
        max_length: int = 0,
        prefix: str = "",
        number: int = 0,
        options: Options | None = None,
    ) -> DecodeRequest:
        """A beginning; with what is to follow it must fit into the trained window."""
        options = options or Options(**self.config.decode)
        given = self.tokenizer.encode_inside(line + prefix)
        # Of one piece a character; of longer pieces a window held fewer.
        room = self.config.data.window
        following = options.max_length or options.extra_length
        if len(given) + following > room:
            raise Refused(
                f"{len(given)} pieces and {following} that are to follow are more than "
                f"the {room} that the model was trained to see: shorten it, or lower "
                "--max_length"
            )
        return DecodeRequest((), tuple(given), number)

    def question(self, record: dict[str, str]) -> str:
        text = record.get("before", "") + record["text"]
        return text[: self._given(text)]

    def reference(self, record: dict[str, str]) -> str:
        text = record.get("before", "") + record["text"]
        return text[self._given(text) :]

    def answered(self, records: Any) -> int:
        """With a context so many as hold the text once, however small windows are."""
        if not records.context:
            return len(records)
        return min(len(records), -(-len(records.text) // records.size))

    def _given(self, text: str) -> int:
        """How many characters are given: so few that their pieces leave room."""
        given = max(int(len(text) * PROMPT), 1)
        room = self.config.data.window - self.config.decode.max_length
        while len(self.tokenizer.encode_inside(text[:given])) > room:
            given -= 1  # a character may be several bytes
        return given

    def answers(
        self, params: Any, items: Sequence[DecodeRequest], mesh: Any, options: Options
    ) -> Iterator[tuple[int, Answer]]:
        yield from self.write(params, items, mesh, options, self.tokenizer)

    def details(self, answer: Answer) -> dict[str, Any]:
        entry: dict[str, Any] = {"score": answer.score, "text": answer.text}
        if answer.others:
            entry["others"] = [
                {"text": a.text, "score": a.score} for a in answer.others
            ]
        return entry

    def score_texts(self, answers: Sequence[str], references: Sequence[str]) -> dict:
        """How varied the texts are: the share of different pairs of words."""
        return {"distinct_2": scores.distinct(answers, 2)}

    def summary(self, scores: dict[str, Any]) -> str:
        bits = scores.get("bits_per_character")
        written = f"distinct pairs of words {scores['distinct_2']:.0%}"
        if bits is None:
            return written
        context = scores.get("context")
        rule = f"{context} of them only read" if context else "each read alone"
        return (
            f"bits per character = {bits:.4f} (windows of {self.config.data.window} "
            f"characters, {rule})  {written}"
        )

    # Looking inside

    def attention(self, params: Any, source: str, target: str) -> dict[str, np.ndarray]:
        """Weights [layers, heads, queries, keys] while a text is read."""
        tokens = jnp.asarray([[BOS, *self.tokenizer.encode_inside(source)]])
        self.check_positions(tokens.size, "a text")
        outputs = self.module.apply({"params": params}, tokens, jnp.ones_like(tokens))
        return {"decoder": np.stack([np.asarray(w[0]) for w in outputs.self_attention])}


def _phrases(split: str, size: int) -> list[dict[str, str]]:
    return [{"text": p.target} for p in phrasebook.generate(split, size)]


PHRASES = GeneratedSource(
    "phrasebook", phrasebook.VERSION, phrasebook.SPLITS, _phrases, ("en",)
)
