"""Subword sampling: each epoch segments the text of an example anew.

BPE-dropout and unigram sampling make a model robust to segmentation. A sample is a
function of (seed, epoch, example, which copy of it in the epoch, side), so a resumed
run, or one on more processes, draws the same. A sample longer than the room that the
batch plan gave its example is replaced by the stored segmentation, and counted.
"""

import hashlib
from typing import Any

import numpy as np

from transformer_jax.data.batches import Batch
from transformer_jax.data.columns import TextColumns
from transformer_jax.data.store import RECORD, Ragged, Store

PROBED = 512  # examples drawn once, to learn how much longer samples are
MARGIN = 1.15  # more than that mean, so that few samples exceed their room


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
        """Draw no more than `max_length` pieces, those around a text not counted."""
        self.texts, self.tokenizers, self.records = texts, texts.tokenizers, records
        self.strength, self.seed = strength, seed
        self.limit = max_length + len(texts.frame([]))

    def growth(self, store: Store) -> np.ndarray:
        """Measure how much longer than the stored segmentations samples are [sides]."""
        probed = np.linspace(0, len(store) - 1, min(PROBED, len(store))).astype(int)
        columns = store.take(probed)
        growth = [
            sum(map(len, self._draw(side, columns, probed, 0, np.zeros_like(probed))))
            / columns[side].lengths.sum()
            for side in self.tokenizers
        ]
        return np.maximum(growth, 1.0)

    def room(self, lengths: np.ndarray, growth: np.ndarray) -> np.ndarray:
        """Return the lengths [examples, sides] to plan with: room for most samples."""
        room = np.ceil(lengths * growth * MARGIN).astype(lengths.dtype)
        return np.maximum(lengths, np.minimum(room, self.limit))

    def resample(
        self, columns: dict[str, Any], batch: Batch, epoch: int, room: np.ndarray
    ) -> tuple[dict[str, Any], int]:
        """Draw the columns of a batch anew; count the examples that exceed `room`.

        `room` [examples, sides] is the plan's; those keep their stored segmentation.
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
        tokenizer, found = self.tokenizers[side], []
        rows = zip(examples, copies, columns[RECORD], strict=True)
        for example, copy, record in rows:
            name = f"{self.seed}/{epoch}/{example}/{side}" + f"/{copy}" * bool(copy)
            digest = hashlib.blake2b(name.encode(), digest_size=4).digest()
            seed = int.from_bytes(digest) >> 1
            text = self.texts.prepare(self.records[int(record)])[side]
            found.append(self.texts.frame(tokenizer.sample(text, self.strength, seed)))
        return found
