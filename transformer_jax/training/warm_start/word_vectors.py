"""Begin with word vectors as the rows of the embedding tables."""

from typing import Any

import jax
import numpy as np

from transformer_jax.base.errors import UserError
from transformer_jax.data.text import vectors
from transformer_jax.data.text.tokenizer import SPACE, SPECIAL, Tokenizer
from transformer_jax.sharding import Params
from transformer_jax.tasks.protocols import Task
from transformer_jax.training.warm_start.origin import Say


def place(path: str, task: Task, params: Params, say: Say) -> Any:
    """Take rows of the embedding tables from a file; leave the others random.

    A table is multiplied by √D when it is read, and may also be the output layer. Both
    need the initialiser's σ = D^-½ (`models/embeddings.py`), whatever the scale of the
    vectors.
    """
    tables = {
        name: _words(tokenizer)
        for name, tokenizer in task.data.vocabularies.items()
        if name in params
    }
    every = {word for words in tables.values() for word in words.values()}
    found = vectors.read(path, every | {word.lower() for word in every})
    params, counts = dict(params), []
    for name, words in tables.items():
        known = {
            row: found[form]
            for row, word in words.items()
            if (form := word if word in found else word.lower()) in found
        }
        counts.append(f"{len(known):,} of the {len(words):,} words of {name}")
        if known:
            table = params[name]["embedding"]
            rows, values = np.array([*known]), np.stack([*known.values()])
            values *= table.shape[1] ** -0.5 / values.std()
            put = jax.jit(_set_rows, out_shardings=table.sharding)
            params[name] = {"embedding": put(table, rows, values)}
    if not found:
        raise UserError(
            f"model.word_vectors: none of {' and '.join(counts)} is in {path}, neither "
            "as written nor in lower case: take vectors of the text's language"
        )
    say(f"vectors    {' and '.join(counts)} begin as in {path}")
    return params


def _set_rows(table: Any, rows: Any, values: Any) -> Any:
    return table.at[rows].set(values)


def _words(tokenizer: Tokenizer) -> dict[int, str]:
    """Return the pieces that are complete words or signs, by id."""
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    words = {}
    for i, piece in enumerate(pieces[SPECIAL:], SPECIAL):
        is_word = piece.startswith(SPACE) or not any(map(str.isalnum, piece))
        if is_word and (word := piece.removeprefix(SPACE)):
            words[i] = word
    return words
