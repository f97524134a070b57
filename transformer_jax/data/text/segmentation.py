"""Draw random segmentations of a text, repeatably from a seed.

SentencePiece also draws them, but reseeds its generator in every process, so a run
could not be repeated. The distributions here are the same:

    BPE: each merge, when its turn comes, is skipped with probability p (BPE-dropout)
    unigram: a segmentation x has a probability ∝ P(x)^α

Pieces do not cross words, so the segmentations of a word are computed once and cached.
"""

import heapq
import math
import random
import re
from collections.abc import Sequence
from typing import Any

from transformer_jax.data.text.model_proto import parse_model

UNIGRAM, BPE = 1, 2  # SentencePiece's types of models
NORMAL, UNKNOWN, USER, BYTE = 1, 2, 4, 6  # and its types of pieces
KEPT = 200_000  # words cached
RARE = 10.0  # an unknown character scores this much below the worst piece


class Segmenter:
    """Draws segmentations in the ids of a SentencePiece model."""

    def __init__(self, model: bytes, processor: Any):
        """Take a serialised SentencePiece model, and the processor that runs it."""
        proto = parse_model(model)
        self._processor = processor
        self.kind = proto.trainer_spec.model_type
        pieces = list(enumerate(proto.pieces))
        self._ids = {p.piece: i for i, p in pieces if p.type in (NORMAL, USER)}
        self._scores = {p.piece: p.score for _, p in pieces if p.type == NORMAL}
        self._bytes = [i for i, p in pieces if p.type == BYTE]
        self._unknown = next(i for i, p in pieces if p.type == UNKNOWN)
        self._worst = min(self._scores.values(), default=0.0) - RARE
        self._longest = max(map(len, self._scores), default=1)
        symbols = sorted((p.piece for _, p in pieces if p.type == USER), key=len)
        self._symbols = re.compile("|".join(map(re.escape, reversed(symbols))) or "$^")
        undivided = proto.trainer_spec.treat_whitespace_as_suffix
        undivided |= not proto.trainer_spec.split_by_whitespace
        self._words = re.compile(
            ".+" if undivided else "\u2581?[^\u2581]+|\u2581", re.S
        )
        self._cache: dict[Any, Any] = {}

    def draw(self, text: str, strength: float, generator: random.Random) -> list[int]:
        """Draw ids; `strength` is p or α. User-defined symbols are never split."""
        text = self._processor.normalize(text)
        ids, begin = [], 0
        for symbol in self._symbols.finditer(text):
            ids += self._draw_part(text[begin : symbol.start()], strength, generator)
            ids.append(self._ids[symbol.group()])
            begin = symbol.end()
        return ids + self._draw_part(text[begin:], strength, generator)

    def _draw_part(self, text, strength, generator) -> list[int]:
        draw = self._draw_bpe if self.kind == BPE else self._draw_unigram
        ids: list[int] = []
        for word in self._words.findall(text):
            if len(self._cache) > KEPT:
                self._cache.clear()
            for piece in draw(word, strength, generator):
                ids += self._ids_of(piece, ids)
        return ids

    def _ids_of(self, piece: str, before: Sequence[int]) -> list[int]:
        """Return the id of a piece; unknown characters become bytes or one <unk>."""
        known = self._ids.get(piece)
        if known is not None:
            return [known]
        if self._bytes:
            return [self._bytes[byte] for byte in piece.encode()]
        return [] if before and before[-1] == self._unknown else [self._unknown]

    # Byte-pair encoding

    def _draw_bpe(self, word: str, dropout: float, generator) -> Sequence[str]:
        if word not in self._cache:
            self._cache[word] = self._merge(word, lambda: False)
        best, merges = self._cache[word]
        if not dropout:
            return best
        # The number of merges before the first skipped one is geometric, so the cached
        # best segmentation serves most draws.
        first = math.log(1.0 - generator.random()) / math.log(1.0 - dropout)
        if first >= merges:
            return best
        kept = int(first)

        def skip():
            nonlocal kept
            kept -= 1
            return kept == -1 or (kept < -1 and generator.random() < dropout)

        return self._merge(word, skip)[0]

    def _merge(self, word: str, skip) -> tuple[list[str], int]:
        """Merge by score, then from left to right; return (pieces, merges tried)."""
        symbols = list(word)
        after = list(range(1, len(word) + 1))
        before = list(range(-1, len(word) - 1))
        agenda: list[tuple[float, int, str]] = []

        def consider(left):
            if left >= 0 and after[left] < len(symbols):
                piece = symbols[left] + symbols[after[left]]
                if piece in self._scores:
                    heapq.heappush(agenda, (-self._scores[piece], left, piece))

        for i in range(len(word) - 1):
            consider(i)
        turns = 0
        while agenda:
            _, left, piece = heapq.heappop(agenda)
            right = after[left] if symbols[left] else len(symbols)
            if right >= len(symbols) or symbols[left] + symbols[right] != piece:
                continue  # one of the two has been merged with another symbol
            turns += 1
            if skip():
                continue
            symbols[left], symbols[right] = piece, ""
            after[left] = after[right]
            if after[left] < len(symbols):
                before[after[left]] = left
            consider(left)
            consider(before[left])
        return [s for s in symbols if s], turns

    # Unigram

    def _draw_unigram(self, word: str, strength: float, generator) -> list[str]:
        key = word, strength
        if key not in self._cache:
            self._cache[key] = self._find_ways(word, strength)
        ways, end, pieces = self._cache[key], len(word), []
        while end:
            starts, chances = ways[end]
            at = 0
            if len(starts) > 1:
                drawn = generator.random()
                while drawn >= chances[at] and at < len(starts) - 1:
                    at += 1
            pieces.append(word[starts[at] : end])
            end = starts[at]
        return pieces[::-1]

    def _find_ways(self, word: str, strength: float) -> list[tuple[list, list]]:
        """List, for each end, the starts of the last piece and cumulative chances."""
        # The log of the sum over all ways to each end.
        totals = [0.0] + [-math.inf] * len(word)
        ways: list[tuple[list, list]] = [([], [])]
        for end in range(1, len(word) + 1):
            starts, weights = [], []
            for start in range(max(0, end - self._longest), end):
                score = self._scores.get(word[start:end])
                if score is None and start == end - 1:
                    score = self._worst
                if score is not None and totals[start] > -math.inf:
                    starts.append(start)
                    weights.append(totals[start] + strength * score)
            top = max(weights)
            sums, total = [], 0.0
            for weight in weights:
                total += math.exp(weight - top)
                sums.append(total)
            totals[end] = top + math.log(total)
            ways.append((starts, [s / total for s in sums]))
        return ways
