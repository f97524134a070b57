"""Data and objective of pairs of texts, source and target.

The decoder reads the start token and the target shifted right (teacher forcing), and
predicts the target, so no position reads the token that it predicts.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax.base.ids import PAD
from transformer_jax.data.batches import Batch, pad_or_pack
from transformer_jax.data.columns import TextColumns
from transformer_jax.data.reading import filters
from transformer_jax.data.reading.sources import FIELDS
from transformer_jax.data.store import Column, Store
from transformer_jax.data.text import learning
from transformer_jax.data.text.saved import open_saved
from transformer_jax.data.text.tokenizer import Tokenizer
from transformer_jax.decoding import DecodeRequest, Options
from transformer_jax.decoding.engine import positions_needed
from transformer_jax.losses import Predictions
from transformer_jax.models.outputs import Outputs
from transformer_jax.sharding import Params
from transformer_jax.tasks.parts.text import (
    SHORTEN_ANSWER,
    check_positions,
    dropout_rngs,
    project,
    segments,
    shift_right,
)
from transformer_jax.tasks.protocols import (
    CrossEntropy,
    Data,
    DataSource,
    Record,
    Row,
    Say,
)


def learn_tokenizers(
    config: ConfigDict,
    source: DataSource,
    folder: pathlib.Path,
    say: Say,
    target_symbols: Callable[[ConfigDict, Any], list[str]] = lambda *_: [],
) -> None:
    """Learn the tokenizers from the training split, unless the folder has them.

    Each direction tag becomes one piece, and so does each string that `target_symbols`
    finds in the records.
    """
    sides = ("shared",) if config.tokenizer.shared else FIELDS
    if not all((folder / f"{side}.model").exists() for side in sides):
        records = source.read("train")
        symbols = {
            "source": sorted({tag for tag in records.tags if tag}),
            "target": target_symbols(config, records),
        }
        made = learning.for_sides(config.tokenizer, records, FIELDS, symbols, say)
        folder.mkdir(parents=True, exist_ok=True)
        for side, tokenizer in made.items():
            tokenizer.save(folder / f"{side}.model")


def open_tokenizers(
    config: ConfigDict, folder: pathlib.Path
) -> tuple[Tokenizer, Tokenizer]:
    """Open the tokenizers of source and target, which may be the same."""
    if config.tokenizer.shared:
        shared = open_saved(folder / "shared.model")
        return shared, shared.of_target()
    source, target = (open_saved(folder / f"{side}.model") for side in FIELDS)
    return source, target


class PairData(Data):
    """Pieces of both sides, each with its end of sentence."""

    texts: TextColumns

    def __init__(
        self,
        config: ConfigDict,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        options: type[Options] = Options,
        transform: Callable[[Any], Any] = lambda record: record,
        transform_name: str = "",
    ):
        """Make the data part; `transform` changes records before they are encoded.

        `transform_name` identifies the transform in the fingerprint of the data.
        """
        self.config, self.options = config, options(**config.decode)
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.texts = TextColumns(
            {"source": source_tokenizer, "target": target_tokenizer}, prepare=transform
        )
        self.vocabularies = {  # by table: one shared table, or one per side
            "embedding": source_tokenizer,
            "source_embedding": source_tokenizer,
            "target_embedding": target_tokenizer,
        }
        both = source_tokenizer.fingerprint, target_tokenizer.fingerprint
        self.fingerprint = f"translation-{both[0]}-{both[1]}{transform_name}"
        rules = config.filter.to_json() if "filter" in config else ""
        self.filter_fingerprint = f"{rules}{config.data.max_length}"

    def columns_for(self, records: Sequence[Record]) -> dict[str, Column]:
        """Describe a column of pieces for each side."""
        return {
            side: Column("uint16" if t.vocab_size <= 1 << 16 else "int32")
            for side, t in self.texts.tokenizers.items()
        }

    def encode(self, records: Sequence[Any]) -> list[dict[str, list[int]]]:
        """Encode both sides of the records."""
        return self.texts.encode(records)

    def make_filter(self) -> Callable[[Record, Row], str | None]:
        """Make the filter of `config.filter` and `data.max_length`."""
        return filters.make(self.config.filter, self.config.data.max_length)

    def lengths(self, store: Store) -> np.ndarray:
        """Return the lengths [examples, 2] of source and target."""
        lengths = np.stack([store.lengths(side) for side in FIELDS], axis=1)
        check_positions(self.config, int(lengths.max(initial=0)), "an example")
        longest = DecodeRequest(range(lengths[:, 0].max(initial=1)))
        needed = positions_needed(longest, self.options)
        what = "an example with its longest answer"
        check_positions(self.config, needed, what, SHORTEN_ANSWER)
        return lengths

    def sides_of(self, length: int) -> tuple[int, ...]:
        """Return the length of both sides."""
        return length, length

    def collate(self, columns: Any, batch: Batch) -> dict[str, Any]:
        """Pad or pack both sides into int32 arrays [rows, length].

        The keys of a batch are `source` and `target`. Packed rows also have
        `source_segments`, `source_positions`, `target_segments` and `target_positions`.
        """
        arrays = {}
        for side, length in zip(FIELDS, batch.shape.lengths, strict=True):
            for name, array in pad_or_pack(columns[side], batch, length).items():
                arrays[side if name == "tokens" else f"{side}_{name}"] = array
        return arrays


class Seq2SeqObjective(CrossEntropy):
    """Label-smoothed cross-entropy of the target's tokens, given the source."""

    unit = "tokens"

    def __init__(self, config: ConfigDict, module: Any, vocab_size: int):
        self.module, self.vocab_size = module, vocab_size
        self.smoothing = config.train.label_smoothing

    def example_inputs(self, rows: int, length: int, target: int) -> tuple[Any, ...]:
        """Return the tokens of sources and targets."""
        return tuple(jnp.ones((rows, n), jnp.int32) for n in (length, target))

    def outputs(
        self, params: Params, batch: Mapping[str, Array], key: Array | None = None
    ) -> Outputs:
        """Apply the model to a batch; use dropout only with a key."""
        target, positions = batch["target"], batch.get("target_positions")
        source_segments = batch.get("source_segments")
        if source_segments is None:
            source_segments = segments(batch["source"])
        return self.module.apply(
            {"params": params},
            batch["source"],
            shift_right(target, positions),
            source_segments,
            batch.get("target_segments", segments(target)),
            batch.get("source_positions"),
            positions,
            **dropout_rngs(key),
        )

    def predictions(
        self, params: Params, batch: Mapping[str, Array], key: Array | None = None
    ) -> Predictions:
        """Predict the target's real tokens; use dropout only with a key."""
        return self.compare(params, self.outputs(params, batch, key), batch["target"])

    def compare(self, params: Params, outputs: Outputs, target: Array) -> Predictions:
        """Pair the model's predictions with the target."""
        return Predictions(
            outputs.hidden,
            project(self.module, params),
            target,
            (target != PAD).astype(jnp.float32),
            self.smoothing,
            self.vocab_size,
        )
