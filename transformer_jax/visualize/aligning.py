"""Compare cross-attention with the phrasebook's gold alignments."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from transformer_jax.base.errors import UserError
from transformer_jax.corpora import phrasebook
from transformer_jax.decoding.engine import pad_length
from transformer_jax.models import kernels
from transformer_jax.runs.run import Run
from transformer_jax.tasks.parts.text import segments, shift_right
from transformer_jax.tasks.protocols import Aligns
from transformer_jax.visualize import measures

WHEN = ("writing", "reading")  # the decoder's step that writes or reads a word


def word_attention(
    run: Run,
    source: str,
    target: str,
    words: tuple[Sequence[str], Sequence[str]],
    when: str = "writing",
) -> np.ndarray:
    """Return cross-attention [layers, heads, target words, source words].

    `words` are the words of both texts in order. The decoder writes a word one step
    before it reads it; `when` selects which of the two steps looks.
    """
    if not isinstance(run.task.inspector, Aligns):
        raise UserError("this model has no cross-attention: a translator has")
    data: Any = run.task.data
    module = kernels.with_weights(run.task.objective.module)
    [row] = data.encode([{"source": source, "target": target}])
    cross = _cross_attention(module, run.params, row["source"], row["target"])
    numbers = [
        number_pieces(tokenizer, row[side], text, own)
        for tokenizer, side, text, own in (
            (data.source_tokenizer, "source", source, words[0]),
            (data.target_tokenizer, "target", target, words[1]),
        )
    ]
    sources, targets = numbers
    if when == "reading":  # the first query reads the start token, none reads the end
        targets = [-1, *targets[:-1]]
    found = measures.by_word(cross, targets, sources)
    return _fill(found, len(words[1]), len(words[0]))


def _cross_attention(
    module: Any, params: Any, source: Sequence[int], target: Sequence[int]
) -> np.ndarray:
    """Return weights [layers, heads, target, source] while a target is read.

    Both sides are padded to one of a few lengths, so that few shapes are compiled.
    """
    length = pad_length(max(len(source), len(target)))
    sides = np.zeros((2, 1, length), np.int32)
    sides[0, 0, : len(source)], sides[1, 0, : len(target)] = source, target
    found = _read(module, params, *sides)
    if not found:
        raise UserError("this model has no cross-attention between its two sides")
    weights = np.stack([np.asarray(w[0], np.float32) for w in found])
    return weights[..., : len(target), : len(source)]


@functools.partial(jax.jit, static_argnums=0)
def _read(module: Any, params: Any, source: Any, target: Any) -> Any:
    real = segments(source), segments(target)
    outputs = module.apply({"params": params}, source, shift_right(target), *real)
    return outputs.cross_attention


def number_pieces(
    tokenizer: Any, ids: Sequence[int], text: str, words: Sequence[str]
) -> list[int]:
    """Return the index of the word in which each piece ends; -1 for the end token.

    There need not be a space between words, as before a full stop.
    """
    ends, place = [], 0
    for word in words:
        place = text.casefold().find(word.casefold(), place)
        if place < 0:
            raise UserError(f"{text!r} has no {word!r} in that place: give its words")
        place += len(word)
        ends.append(place)
    read = [len(tokenizer.decode(ids[: i + 1])) for i in range(len(ids))]
    numbers = [int(np.searchsorted(ends, end)) for end in read]
    own = [min(n, len(words) - 1) for n in numbers]
    return [*own[:-1], -1]


def _fill(found: np.ndarray, targets: int, sources: int) -> np.ndarray:
    """Add empty rows and columns for final words in which no piece ends."""
    missing = targets - found.shape[-2], sources - found.shape[-1]
    return np.pad(found, ((0, 0), (0, 0), (0, missing[0]), (0, missing[1])))


def examples(
    run: Run, split: str, count: int, when: str = "writing"
) -> Iterator[tuple[np.ndarray, Sequence[tuple[int, int]]]]:
    """Yield (word weights, gold links) for the first pairs of a split."""
    data, task = run.config.data, run.config.task
    if data.get("source") != "phrasebook" or task != "translation":
        raise UserError(
            "only the phrasebook has gold alignments: use a run of "
            "configs/quickstart.py or configs/recurrent.py"
        )
    for pair in phrasebook.generate(split, count):
        words = pair.source_words, pair.target_words
        weights = word_attention(run, pair.source, pair.target, words, when)
        yield weights, pair.alignment


def head_errors(
    run: Run, split: str = "test", count: int = 200, when: str = "writing"
) -> np.ndarray:
    """Return the alignment error rate of each head, [layers, heads]."""
    return measures.alignment_errors(examples(run, split, count, when))


def best_heads(errors: np.ndarray, count: int = 3) -> list[tuple[int, int, float]]:
    """List (layer, head, error rate), best alignment first."""
    order = np.argsort(errors, axis=None, kind="stable")[:count]
    places = (np.unravel_index(i, errors.shape) for i in order)
    return [(int(a), int(b), float(errors[a, b])) for a, b in places]
