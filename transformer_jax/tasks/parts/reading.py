"""Inspect a model that reads a source and a given target."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float
from ml_collections import ConfigDict

from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import BOS, EOS
from transformer_jax.data.text import tokenizer as tokenizers
from transformer_jax.data.text.tokenizer import Tokenizer
from transformer_jax.decoding import Reply
from transformer_jax.decoding.engine import pad_length
from transformer_jax.decoding.forward import PairScorer, TextScorer
from transformer_jax.decoding.memory import check_attention, count_attentions
from transformer_jax.models import kernels
from transformer_jax.sharding import Params
from transformer_jax.tasks.parts.pairs import PairData
from transformer_jax.tasks.parts.text import (
    SHORTEN,
    attention_of,
    check_length,
    check_positions,
    check_room,
)
from transformer_jax.tasks.protocols import AttentionMaps, ShowsAttention

NO_ATTENTION = "model.attention is 'none' in this run: no word attends to another"


@dataclasses.dataclass(frozen=True)
class Reading:
    """A pair that was read: its pieces with their ends, and the model's outputs."""

    source: Sequence[int]
    target: Sequence[int]
    log_probs: np.ndarray  # of each target piece
    attention: np.ndarray  # [target, source], last layer's mean; [target, 0] if none


class PairInspector(ShowsAttention):
    """Score, align and embed pairs, and show attention."""

    def __init__(self, data: PairData, module: Any, advice: str):
        """Make an inspector; `advice` ends the error about a text that is too long."""
        self.data, self.config = data, data.config
        self.module = kernels.with_weights(module)
        self.advice = advice
        rows, multiple = self.config.eval.batch_rows, self.config.data.row_multiple
        self.scorer = PairScorer(module, rows, multiple)

    def check_length(self, side: str, text: str, max_length: int) -> list[int]:
        """Return the pieces of a text, or refuse one that has too many."""
        tokenizer = self.data.texts.tokenizers[side]
        text = tokenizer.compose(text)
        return check_length(tokenizer, text, max_length, self.advice)

    def read(
        self, params: Params, pairs: Sequence[tuple[str, str]], mesh: Mesh
    ) -> list[Reading]:
        """Read each target as the answer to its source."""
        rows = self.data.encode([self._composed(*pair) for pair in pairs])
        encoded = [(row["source"], row["target"]) for row in rows]
        longest = max((len(side) for pair in encoded for side in pair), default=0)
        check_positions(self.config, longest, "a side of a pair")
        for i, pair in enumerate(encoded):
            pieces = max(map(len, pair))
            what = f"{name_item('pair', i, encoded)} of up to {pieces:,} pieces a side"
            check_attention(self.config, pad_length(pieces), what, SHORTEN, copies=2)
        readings: list[Any] = [None] * len(pairs)
        for i, log_probs, attention in self.scorer.pairs(params, encoded, mesh):
            readings[i] = Reading(*encoded[i], log_probs, attention)
        return readings

    def align(self, reading: Reading) -> list[tuple[int, int]]:
        """Return (source word, target word), both from 0, for each target word.

        The source word is the one to which the target word's pieces attend most.
        """
        _, read, attended = self.attend_words(reading)
        if not len(read):
            return []
        return [(int(s), t) for t, s in enumerate(attended.argmax(axis=1))]

    def attend_words(
        self, reading: Reading
    ) -> tuple[list[str], list[str], Float[np.ndarray, "T S"]]:
        """Return the target's words, the source's, and the attention between them.

        The weights of a word are the sums over its pieces, when they are written.
        """
        if not reading.attention.shape[1]:
            raise UserError(NO_ATTENTION)
        source, target = self.data.source_tokenizer, self.data.target_tokenizer
        sides = (
            (target, reading.target[: -len(target.end)]),
            (source, reading.source[: -len(source.end)]),
        )
        numbers = [tokenizers.number_words(t, ids) for t, ids in sides]
        words = [t.decode(ids).split() for t, ids in sides]
        if not all(map(len, numbers)):
            return words[0], [], np.zeros((len(words[0]), 0))
        attended = np.zeros([side.max() + 1 for side in numbers])
        rows, columns = np.meshgrid(*numbers, indexing="ij")
        inside = reading.attention[: len(numbers[0]), : len(numbers[1])]
        np.add.at(attended, (rows, columns), inside)
        return words[0], words[1], attended

    def vectors(self, params: Params, lines: Sequence[str], mesh: Mesh) -> np.ndarray:
        """Return [lines, D]: the mean of the encoder's output over a line's pieces."""
        tokenizer = self.data.source_tokenizer
        sources = [
            [*tokenizer.encode(tokenizer.compose(x)), *tokenizer.end] for x in lines
        ]
        longest = max(map(len, sources), default=0)
        check_positions(self.config, longest, "a line")
        for i, source in enumerate(sources):
            what = f"{name_item('line', i, sources)} of {len(source):,} pieces"
            check_room(self.config, len(source), what)
        found = np.zeros((len(lines), self.config.model.d_model), np.float32)
        for i, vector in self.scorer.vectors(params, sources, mesh):
            found[i] = vector
        return found

    def pieces(self, source: str, target: str) -> tuple[list[str], list[str]]:
        """Return the pieces that the encoder and the decoder read, with their ends."""
        source_ids, target_ids = self._inputs(source, target)
        return (
            self.data.source_tokenizer.pieces(source_ids),
            self.data.target_tokenizer.pieces(target_ids),
        )

    def attention(self, params: Params, source: str, target: str) -> AttentionMaps:
        """Return the attention weights of reading a target."""
        inputs = self._inputs(source, target)
        source_ids, target_ids = (jnp.asarray([ids]) for ids in inputs)
        longest = max(source_ids.size, target_ids.size)
        check_positions(self.config, longest, "a sentence")
        check_shown(self.config, longest)
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
        read, seen = self.pieces(source, target)
        tokens = {"encoder": (read, read), "decoder": (seen, seen)}
        tokens["cross"] = (seen, read)
        weights = {kind: attention_of(w) for kind, w in found.items() if w}
        named = {kind: tokens[kind] for kind in weights}
        end = self.data.target_tokenizer.pieces([EOS])
        return AttentionMaps(weights, named, [*seen[1:], *end])

    def _inputs(self, source: str, target: str) -> tuple[list[int], list[int]]:
        """Return the inputs of the encoder and (teacher-forced) of the decoder."""
        [row] = self.data.encode([self._composed(source, target)])
        return row["source"], [BOS, *row["target"][:-1]]

    def _composed(self, source: str, target: str) -> dict[str, str]:
        """Return a pair as a record, in the form in which its sides were learned."""
        return {
            "source": self.data.source_tokenizer.compose(source),
            "target": self.data.target_tokenizer.compose(target),
        }


def name_item(what: str, index: int, items: Sequence[Any]) -> str:
    """Name one of several items by its number, from 1, or the only one."""
    return f"{what} {index + 1}" if len(items) > 1 else f"a {what}"


def check_shown(config: ConfigDict, length: int) -> None:
    """Refuse a text of which the weights of all layers do not fit into memory."""
    what = f"a text of {length:,} pieces, of which all layers are shown,"
    # Each has a copy on its way to the reader.
    copies = 2 * count_attentions(config.model)
    check_attention(config, length, what, SHORTEN, copies=copies, rows=1)


class EncoderInspector(ShowsAttention):
    """Show attention in an encoder that reads one text."""

    def __init__(self, inference: Any, module: Any, tokenizer: Tokenizer):
        self.inference, self.module = inference, kernels.with_weights(module)
        self.tokenizer = tokenizer

    def attention(self, params: Params, source: str, target: str) -> AttentionMaps:
        """Return the weights of `encoder`; the target is ignored."""
        ids = self.encode(source)
        check_shown(self.inference.config, len(ids))
        tokens, pieces = jnp.asarray([ids]), self.tokenizer.pieces(ids)
        outputs = self.module.apply({"params": params}, tokens, jnp.ones_like(tokens))
        weights = attention_of(outputs.encoder_attention)
        return AttentionMaps({"encoder": weights}, {"encoder": (pieces, pieces)})

    def encode(self, text: str) -> list[int]:
        """Return the pieces of a text as the model reads them."""
        return self.inference.parse(self.tokenizer.compose(text)).source


class TextInspector(ShowsAttention):
    """Score texts with a language model, and show attention."""

    def __init__(self, config: ConfigDict, module: Any, tokenizer: Tokenizer):
        self.config, self.tokenizer = config, tokenizer
        self.module = kernels.with_weights(module)
        rows, multiple = config.eval.batch_rows, config.data.row_multiple
        self.scorer = TextScorer(module, rows, multiple)

    def read_texts(
        self, params: Params, beginning: str, texts: Sequence[str], mesh: Mesh
    ) -> list[np.ndarray]:
        """Return the log-probabilities of the pieces in which the texts differ.

        The beginning and the pieces that all texts share are read once.
        """
        compose = self.tokenizer.compose
        rows = [self.tokenizer.encode_inside(compose(beginning + t)) for t in texts]
        longest = max(map(len, rows), default=0)
        check_positions(self.config, longest + 1, "a text")
        same = len(os.path.commonprefix(rows))
        same = min(same, min(map(len, rows), default=1) - 1)
        given = [BOS, *rows[0][:same]] if rows else []
        found: list[Any] = [None] * len(rows)
        rest = [row[same:] for row in rows]
        for i, log_probs in self.scorer.texts(params, given, rest, mesh):
            found[i] = log_probs
        return found

    def texts_of(self, line: Any, reply: Reply) -> tuple[Any, str]:
        """Return the whole text, which is read as one."""
        return reply.details.get("text", reply.text), ""

    def attention(self, params: Params, source: str, target: str) -> AttentionMaps:
        """Return the weights of `decoder` while it reads the source."""
        ids = [BOS, *self.tokenizer.encode_inside(self.tokenizer.compose(source))]
        tokens, pieces = jnp.asarray([ids]), self.tokenizer.pieces(ids)
        check_positions(self.config, tokens.size, "a text")
        check_shown(self.config, tokens.size)
        outputs = self.module.apply({"params": params}, tokens, jnp.ones_like(tokens))
        weights = attention_of(outputs.self_attention)
        return AttentionMaps({"decoder": weights}, {"decoder": (pieces, pieces)})
