"""Encode the texts of a record as columns of pieces."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformer_jax.data.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class TextColumns:
    """Encode the texts of records into one column per tokenizer."""

    tokenizers: Mapping[str, Tokenizer]  # by column, which is a key of the records
    begin: tuple[int, ...] = ()  # tokens before the pieces of every text
    prepare: Callable[[Any], Any] = lambda record: record  # before it is encoded

    def frame(self, column: str, ids: Sequence[int]) -> list[int]:
        """Put the tokens around the pieces of a text."""
        return [*self.begin, *ids, *self.tokenizers[column].end]

    def encode(self, records: Sequence[Any]) -> list[dict[str, list[int]]]:
        """Encode several records at once."""
        records = [self.prepare(record) for record in records]
        columns = [
            [
                self.frame(name, ids)
                for ids in tokenizer.encode_all([r[name] for r in records])
            ]
            for name, tokenizer in self.tokenizers.items()
        ]
        names = tuple(self.tokenizers)
        return [
            dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)
        ]
