"""Data and objective of pairs of texts, source and target.

The decoder reads the target shifted right behind the start token (teacher forcing) and
has to predict the target itself: no position ever reads its own answer.
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax import losses
from transformer_jax.data import filters
from transformer_jax.data import tokenizer as tokenizers
from transformer_jax.data.batches import Batch, pad_or_pack
from transformer_jax.data.columns import TextColumns
from transformer_jax.data.sources import FIELDS
from transformer_jax.data.store import Column, Store
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding import DecodeRequest, Options
from transformer_jax.decoding.engine import positions_needed
from transformer_jax.ids import PAD
from transformer_jax.sharding import Params
from transformer_jax.tasks.parts.text import (
    check_positions,
    dropout_rngs,
    segments,
    shift_right,
    token_loss,
)
from transformer_jax.tasks.protocols import DataSource, Record, Row, Say

SHORTER = "split it, or allow shorter answers (decode.extra_length)"


def learn_tokenizers(
    config: ConfigDict,
    source: DataSource,
    folder: pathlib.Path,
    say: Say,
    target_symbols: Callable[[ConfigDict, Any], list[str]] = lambda *_: [],
) -> None:
    """Learn the tokenizers from the training split, unless the folder has them.

    Direction tags before sources are one piece each, and so are the strings that
    `target_symbols` finds in the records.
    """
    sides = ("shared",) if config.tokenizer.shared else FIELDS
    if not all((folder / f"{side}.model").exists() for side in sides):
        records = source.read("train")
        symbols = {
            "source": sorted({tag for tag in records.tags if tag}),
            "target": target_symbols(config, records),
        }
        made = tokenizers.for_sides(config.tokenizer, records, FIELDS, symbols, say)
        folder.mkdir(parents=True, exist_ok=True)
        for side, tokenizer in made.items():
            tokenizer.save(folder / f"{side}.model")


def open_tokenizers(
    config: ConfigDict, folder: pathlib.Path
) -> tuple[Tokenizer, Tokenizer]:
    """Open the tokenizers of source and target; a shared one is both."""
    if config.tokenizer.shared:
        shared = Tokenizer.load(folder / "shared.model")
        return shared, shared
    source, target = (Tokenizer.load(folder / f"{side}.model") for side in FIELDS)
    return source, target


class PairData:
    """Pieces of both sides, each with its end of sentence."""

    def __init__(
        self,
        config: ConfigDict,
        source: Tokenizer,
        target: Tokenizer,
        options: type[Options] = Options,
        prepare: Callable[[Any], Any] = lambda record: record,
        form: str = "",
    ):
        """`prepare` changes records before they are encoded, `form` names how."""
        self.config, self.options = config, options(**config.decode)
        self.source_tokenizer, self.target_tokenizer = source, target
        self.texts = TextColumns({"source": source, "target": target}, prepare=prepare)
        self.vocabularies = {  # of the tables of one vocabulary, and of two
            "embedding": source,
            "source_embedding": source,
            "target_embedding": target,
        }
        self.fingerprint = f"translation-{source.fingerprint}-{target.fingerprint}"
        self.fingerprint += form
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
        check_positions(self.config, needed, what, SHORTER)
        return lengths

    def collate(self, columns: Any, batch: Batch) -> dict[str, Any]:
        """Pad or pack both sides; packed rows have segments and positions, too."""
        arrays = {}
        for side, length in zip(FIELDS, batch.shape.lengths, strict=True):
            for name, array in pad_or_pack(columns[side], batch, length).items():
                arrays[side if name == "tokens" else f"{side}_{name}"] = array
        return arrays


class Seq2SeqObjective:
    """Label-smoothed cross-entropy of the target's tokens, given the source."""

    unit = "tokens"

    def __init__(self, config: ConfigDict, module: Any, vocab_size: int):
        self.module, self.vocab_size = module, vocab_size
        self.smoothing = config.train.label_smoothing

    def init(self, key: Array) -> Params:
        """Draw fresh parameters; their shapes depend on no batch."""
        tokens = jnp.ones((1, 1), jnp.int32)
        return self.module.init(key, tokens, tokens, tokens, tokens)["params"]

    def loss(self, params: Params, batch: Any, key: Array | None = None) -> losses.Sums:
        """Sum over the target's real tokens; drop out only with a key."""
        target, positions = batch["target"], batch.get("target_positions")
        outputs = self.module.apply(
            {"params": params},
            batch["source"],
            shift_right(target, positions),
            batch.get("source_segments", segments(batch["source"])),
            batch.get("target_segments", segments(target)),
            batch.get("source_positions"),
            positions,
            **dropout_rngs(key),
        )
        return token_loss(
            self.module,
            params,
            outputs.hidden,
            target,
            (target != PAD).astype(jnp.float32),
            self.smoothing,
            self.vocab_size,
        )

    def means(
        self, sums: losses.Sums, records: Sequence[Record] | None = None
    ) -> dict[str, float]:
        """Return loss, perplexity and accuracy per token."""
        return losses.means(sums)
