"""Masked language modelling: what stands at a place, from all around it (BERT).

    P(token_i | the text, in which some tokens, i among them, are hidden)

Devlin et al. (2019), section 3.1: of the 15 % that are asked for, 80 % are shown as the
mask, 10 % as some other token and 10 % as they are, because a text to be read later
has no masks in it. A classifier can begin with what is learnt here (`train.initial`).
"""

import dataclasses
import functools
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32
from ml_collections import ConfigDict

from transformer_jax import losses
from transformer_jax.data import windows
from transformer_jax.data.batches import Batch, pad_or_pack
from transformer_jax.data.generated import opinions
from transformer_jax.data.sources import FORMS, GeneratedSource
from transformer_jax.data.store import Column
from transformer_jax.data.tokenizer import SPACE, SPECIAL, Tokenizer
from transformer_jax.decoding.engine import pad_length
from transformer_jax.decoding.forward import BatchedForward
from transformer_jax.errors import Refused, UserError
from transformer_jax.ids import BOS, EOS, UNK
from transformer_jax.models import registry
from transformer_jax.models.attention import MASKED
from transformer_jax.models.layers import mix
from transformer_jax.tasks import Text
from transformer_jax.tasks.language import PHRASES, Stream
from transformer_jax.tasks.translation import segments

MASK = "<mask>"
PERCENT = 15  # of a text's tokens are asked for
SHOWN_AS_MASK, SHOWN_AS_OTHER = 0.8, 0.1  # shares of those; the rest are not hidden


@dataclasses.dataclass(frozen=True)
class Guess:
    """A piece that may stand at a mask, and how likely; a space begins a word."""

    text: str
    chance: float


@dataclasses.dataclass(frozen=True)
class Answer:
    """A text with its masks filled, and what may stand at each, best first."""

    text: str
    guesses: tuple[tuple[Guess, ...], ...]


class Task(Text):
    """Running text, one vocabulary, an encoder whose table is its output layer too."""

    ROLE = "masked_language_model"
    METRICS = ("filled",)
    CHOICES = {
        "data.source": ("phrasebook", "opinions", *FORMS),
        "data.batching": ("buckets",),
        "model.tie": ("all",),
        "tokenizer.kind": ("unigram", "bpe", "word", "file"),  # that have words
    }
    unit = "masks"
    ENDS = 2

    @classmethod
    def configure(cls, config: ConfigDict) -> None:
        windows.add_keys(config, "phrasebook")
        config.tokenizer.user_symbols = (MASK,)
        config.train.label_smoothing = 0.0
        config.eval.guesses = 5  # of each mask, in jsonl
        del config.data.pack_length, config.decode, config.model.decoder_layers
        del config.model.dropout_words  # hiding words is what the task does

    @classmethod
    def find_problems(cls, config: ConfigDict) -> list[str]:
        problems = cls.source(config).find_problems()
        if config.eval.guesses < 1:
            problems.append(f"eval.guesses = {config.eval.guesses}: at least 1")
        if MASK not in config.tokenizer.user_symbols:
            problems.append(
                f"tokenizer.user_symbols = {config.tokenizer.user_symbols}: {MASK} "
                "must be among them"
            )
        return problems

    @classmethod
    def source(cls, config: ConfigDict) -> Stream:
        return Stream(config, EMBEDDED.get(config.data.source), flat=True)

    def __init__(self, config: ConfigDict, tokenizer: Tokenizer):
        self.config, self.tokenizer = config, tokenizer
        names = tokenizer.pieces(range(tokenizer.vocab_size))
        if MASK not in names:
            raise UserError(
                f"the tokenizer has no piece {MASK}: learn one with {MASK} in "
                "tokenizer.user_symbols"
            )
        self._names, self._mask = names, names.index(MASK)
        # Inside of a word, a vocabulary of words finds nothing.
        self._words_only = self._mask not in tokenizer.encode(f"{MASK}a")
        self.module = registry.build(
            config, self.ROLE, source_vocab_size=tokenizer.vocab_size
        )
        rows, multiple = config.eval.batch_rows, config.data.row_multiple
        self._forward = BatchedForward(self._guess, rows, multiple, pad_length)

    # Windows → batches

    @property
    def columns(self) -> dict[str, Column]:
        return {"text": Column("int32")}

    def encode(self, records: Sequence[dict[str, str]]) -> list[dict[str, list[int]]]:
        """Pieces between the ends that a classifier's texts have."""
        encoded = self.tokenizer.encode_all([r["text"] for r in records])
        return [{"text": [BOS, *ids, EOS]} for ids in encoded]

    def collate(self, columns: dict[str, Any], batch: Batch) -> dict[str, Any]:
        return pad_or_pack(columns["text"], batch, batch.shape.lengths[0])

    # Batches → losses

    def loss(self, params: Any, batch: dict, key: Array | None = None) -> losses.Sums:
        """Sums over what is asked for; without a key, a text alone decides what."""
        tokens = batch["tokens"]
        if key is None:
            seeds = of_content(tokens)
        else:
            key, own = jax.random.split(key)
            seeds = jax.random.bits(own, (len(tokens), 1), jnp.uint32)
        vocab = self.tokenizer.vocab_size
        shown, places, weights = hide(tokens, seeds, self._mask, vocab)
        outputs = self.module.apply(
            {"params": params},
            shown,
            segments(tokens),
            places,
            train=key is not None,
            rngs=None if key is None else {"dropout": key},
        )
        return losses.cross_entropy_of(
            outputs.hidden,
            functools.partial(self.module.apply, {"params": params}, method="logits"),
            jnp.take_along_axis(tokens, places, axis=1),
            weights,
            self.config.train.label_smoothing,
            vocab,
        )

    # Lines → answers

    def parse(
        self,
        line: str,
        max_length: int = 0,
        prefix: str = "",
        number: int = 0,
        options: Any = None,
    ) -> list[int]:
        """A text with masks. A mask is a piece, and a piece has its own space."""
        if prefix:
            raise Refused("an answer of this task has no beginning to be given")
        if MASK not in line:
            raise Refused(f"there is no {MASK} in it: nothing is asked for")
        window = self.config.data.window
        length = len(line.replace(MASK, ""))
        if length > window:
            raise Refused(
                f"{length} characters are more than the {window} of a window that the "
                "model was trained to see: shorten it"
            )
        first, *rest = line.replace(f" {MASK}", MASK).split(MASK)
        ids = [BOS, *self.tokenizer.encode(first)]
        for part in rest:
            ids += [self._mask, *self._encode_behind(part)]
        self.check_positions(len(ids) + 1, "a text with masks")
        return [*ids, EOS]

    def _encode_behind(self, part: str) -> list[int]:
        """What stands between a mask and the next one, or the end."""
        if self._words_only:
            return self.tokenizer.encode(part.strip())
        return self.tokenizer.encode_inside(part)

    def question(self, record: dict[str, str]) -> str:
        """A text in which some words are hidden, a mask for each of their pieces."""
        words = record["text"].split()
        encoded = self.tokenizer.encode_all(words)
        # A word that is not known, or by its bytes only, is not asked for.
        fair = [
            i
            for i, ids in enumerate(encoded)
            if len(ids) <= len(words[i]) and UNK not in ids
        ]
        draw = random.Random(record["text"])
        order = sorted(fair or [0], key=lambda i: draw.random())
        for i in order[: -(-len(words) * PERCENT // 100)]:
            words[i] = MASK * len(encoded[i])
        return " ".join(words)

    def reference(self, record: dict[str, str]) -> str:
        return record["text"]

    def answers(
        self, params: Any, items: Sequence[list[int]], mesh: Any, options: Any
    ) -> Iterator[tuple[int, Answer]]:
        """Each mask is filled with the likeliest, whatever fills the others."""
        places = [[i for i, t in enumerate(ids) if t == self._mask] for ids in items]
        sides = {"tokens": items, "places": places}
        for number, (chances, found) in self._forward(params, sides, mesh):
            count = len(places[number])
            yield number, self._answer(items[number], chances[:count], found[:count])

    def _guess(self, params: Any, batch: dict) -> tuple[Array, Array]:
        """The likeliest pieces of each place, [B, K, guesses], best first."""
        tokens = batch["tokens"]
        logits = self.module.apply(
            {"params": params}, tokens, segments(tokens), batch["places"]
        ).logits
        never = jnp.array([*range(SPECIAL), self._mask])
        chances = jax.nn.softmax(logits.at[..., never].set(MASKED))
        most = min(self.config.eval.guesses, self.tokenizer.vocab_size - len(never))
        return tuple(jax.lax.top_k(chances, most))

    def _answer(
        self,
        ids: Sequence[int],
        chances: Float[np.ndarray, "K guesses"],
        found: Int[np.ndarray, "K guesses"],
    ) -> Answer:
        best = iter(found[:, 0])
        filled = [next(best) if token == self._mask else token for token in ids]
        guesses = tuple(
            tuple(
                Guess(self._names[token].replace(SPACE, " "), float(chance))
                for token, chance in zip(*both, strict=True)
            )
            for both in zip(found, chances, strict=True)
        )
        return Answer(self.tokenizer.decode(filled), guesses)

    def details(self, answer: Answer) -> dict[str, Any]:
        return {"masks": [list(map(dataclasses.asdict, g)) for g in answer.guesses]}

    def score(self, replies: Sequence[Any], references: Sequence[str]) -> dict:
        """The share of the hidden words that came back."""
        right = hidden = 0
        for reply, reference in zip(replies, references, strict=True):
            best = (guesses[0].text for guesses in reply.answer.guesses)
            words = zip(reply.line.split(), reference.split(), strict=True)
            for shown, word in words:
                if masks := shown.count(MASK):
                    hidden += 1
                    found = "".join(itertools.islice(best, masks))
                    right += found.strip() == self.tokenizer.as_read(word)
        return {"filled": 100 * right / max(hidden, 1)}

    def summary(self, scores: dict[str, Any]) -> str:
        return f"hidden words filled in right {scores['filled']:.1f}%"

    # Looking inside

    def attention(self, params: Any, source: str, target: str) -> dict[str, np.ndarray]:
        """Weights [layers, heads, queries, keys] of a text with masks."""
        tokens = jnp.asarray([self.parse(source)])
        outputs = self.module.apply({"params": params}, tokens, jnp.ones_like(tokens))
        weights = [np.asarray(w[0]) for w in outputs.encoder_attention]
        return {"encoder": np.stack(weights)}


def of_content(tokens: Int[Array, "B T"]) -> UInt32[Array, "B 1"]:
    """A number for each row, of its tokens alone: padding adds nothing to it."""
    factor = jnp.full(tokens.shape[1], 0x9E3779B1, jnp.uint32)
    terms = tokens.astype(jnp.uint32) * jnp.cumprod(factor, dtype=jnp.uint32)
    return mix(terms.sum(axis=1, keepdims=True, dtype=jnp.uint32))


def hide(
    tokens: Int[Array, "B T"], seeds: UInt32[Array, "B 1"], mask: int, vocab_size: int
) -> tuple[Int[Array, "B T"], Int[Array, "B K"], Float[Array, "B K"]]:
    """What is shown of the tokens, the places asked for, and which of these count.

    The share of each row is rounded up, and drawn by the row's seed and the place
    alone: neither other rows nor padding changes it. No special token is asked for.
    """
    length = tokens.shape[1]
    places = jnp.arange(length, dtype=jnp.uint32)
    draws = mix(mix(seeds + places))
    real = (tokens >= SPECIAL) & (tokens != mask)
    order = jnp.argsort(jnp.where(real, draws, np.uint32(2**32 - 1)), axis=1)
    chosen = order[:, : -(-length * PERCENT // 100)]
    count = (real.sum(axis=1, keepdims=True) * PERCENT + 99) // 100
    counts = jnp.arange(chosen.shape[1]) < count

    truth, draws = (jnp.take_along_axis(a, chosen, axis=1) for a in (tokens, draws))
    share = mix(draws + np.uint32(1)) / 2.0**32
    other = SPECIAL + mix(draws + np.uint32(2)) % np.uint32(vocab_size - SPECIAL)
    shown = jnp.where(share < SHOWN_AS_MASK + SHOWN_AS_OTHER, other, truth)
    shown = jnp.where(share < SHOWN_AS_MASK, mask, shown).astype(tokens.dtype)
    shown = jnp.where(counts, shown, truth)
    rows = jnp.arange(len(tokens))[:, None]
    return tokens.at[rows, chosen].set(shown), chosen, counts.astype(jnp.float32)


def _opinions(split: str, size: int) -> list[dict[str, str]]:
    return [{"text": record["text"]} for record in opinions.generate(split, size)]


EMBEDDED = {
    "phrasebook": PHRASES,
    "opinions": GeneratedSource(
        "opinions", opinions.VERSION, opinions.SPLITS, _opinions, ("text",)
    ),
}
