"""Subword sampling: draw another segmentation of each example in every epoch.

BPE-dropout and unigram sampling make a model robust to segmentation. A sample is a
function of (seed, epoch, example, copy within the epoch, side), so a run that resumes
or uses more processes draws the same samples. A sample longer than the room that the
batch plan reserves for its example is replaced by the stored segmentation and counted.
"""

import hashlib
from typing import Any

import numpy as np

from transformer_jax.base.errors import UserError
from transformer_jax.data.batches import Batch
from transformer_jax.data.columns import TextColumns
from transformer_jax.data.store import RECORD, Ragged, Store

PROBED = 512  # examples segmented to estimate the growth of samples
MARGIN = 1.15  # room beyond that mean, so that few samples exceed it


class Sampler:
    """Draw new segmentations for columns of text."""

    def __init__(
        self,
        texts: TextColumns,
        records: Any,
        strength: float,
        seed: int,
        max_length: int,
    ):
        """Limit samples to `max_length` pieces, besides the tokens around a text."""
        for side, tokenizer in texts.tokenizers.items():
            if not tokenizer.has_segmentations:
                raise UserError(
                    f"tokenizer.sampling = {strength}: the tokenizer of the {side} has "
                    "one segmentation only: use unigram or bpe pieces, or set "
                    "tokenizer.sampling to 0.0"
                )
        self.texts, self.tokenizers, self.records = texts, texts.tokenizers, records
        self.strength, self.seed = strength, seed
        self.limit = max_length + max(
            len(texts.frame(name, [])) for name in texts.tokenizers
        )

    def growth(self, store: Store) -> np.ndarray:
        """Estimate the ratio of sampled to stored lengths [sides], at least 1."""
        probed = np.linspace(0, len(store) - 1, min(PROBED, len(store))).astype(int)
        columns = store.take(probed)
        growth = [
            sum(map(len, self._draw(side, columns, probed, 0, np.zeros_like(probed))))
            / columns[side].lengths.sum()
            for side in self.tokenizers
        ]
        return np.maximum(growth, 1.0)

    def room(self, lengths: np.ndarray, growth: np.ndarray) -> np.ndarray:
        """Return lengths [examples, sides] to plan with, which most samples fit."""
        room = np.ceil(lengths * growth * MARGIN).astype(lengths.dtype)
        return np.maximum(lengths, np.minimum(room, self.limit))

    def resample(
        self, columns: dict[str, Any], batch: Batch, epoch: int, room: np.ndarray
    ) -> tuple[dict[str, Any], int]:
        """Draw new segmentations for a batch; count the samples that exceed `room`.

        The plan reserves `room` [examples, sides]. Where a sample does not fit, the
        stored segmentation is kept.
        """
        if not len(batch.real):  # a process whose rows are all empty
            return columns, 0
        changed, kept = dict(columns), 0
        for side, name in enumerate(self.tokenizers):
            drawn = self._draw(name, columns, batch.real, epoch, batch.real_copies)
            rows = columns[name].rows()
            for i, ids in enumerate(drawn):
                if len(ids) <= min(room[i, side], self.limit):
                    rows[i] = np.asarray(ids, columns[name].values.dtype)
                else:
                    kept += 1
            lengths = np.array([len(row) for row in rows])
            changed[name] = Ragged(np.concatenate(rows), lengths)
        return changed, kept

    def _draw(self, side, columns, examples, epoch, copies) -> list[list[int]]:
        tokenizer, drawn = self.tokenizers[side], []
        rows = zip(examples, copies, columns[RECORD], strict=True)
        for example, copy, record in rows:
            name = f"{self.seed}/{epoch}/{example}/{side}" + f"/{copy}" * bool(copy)
            digest = hashlib.blake2b(name.encode(), digest_size=4).digest()
            seed = int.from_bytes(digest) >> 1
            text = self.texts.prepare(self.records[int(record)])[side]
            drawn.append(
                self.texts.frame(side, tokenizer.sample(text, self.strength, seed))
            )
        return drawn
