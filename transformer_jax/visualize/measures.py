"""Compute numbers of attention weights: how spread, how far, by what way, how right.

All functions take arrays [layers, heads, queries, keys] of one sentence, as
`Run.attention` returns them.
"""

from collections.abc import Iterable, Sequence

import numpy as np


def entropy(weights: np.ndarray) -> np.ndarray:
    """Return [layers, heads]: bits of a head's weights, in the mean of its queries.

    0 means that each query looks at one key; log2(keys), that it looks at all alike.
    """
    bits = -weights * np.log2(np.maximum(weights, 1e-30))
    return bits.sum(axis=-1).mean(axis=-1)


def distance(weights: np.ndarray) -> np.ndarray:
    """Return [layers, heads]: the mean distance of key and query, in positions."""
    queries, keys = weights.shape[-2:]
    apart = np.abs(np.arange(queries)[:, None] - np.arange(keys))
    return (weights * apart).sum(axis=-1).mean(axis=-1)


def rollout(weights: np.ndarray) -> np.ndarray:
    """Return [layers, T, T]: what reaches each position of a layer from each input.

    Attention rollout (Abnar and Zuidema 2020): heads are averaged, the residual
    connection counts as much as they do, and the layers are multiplied.
    """
    size = weights.shape[-1]
    mixed = 0.5 * weights.mean(axis=1) + 0.5 * np.eye(size)
    found = [mixed[0]]
    for layer in mixed[1:]:
        found.append(layer @ found[-1])
    return np.stack(found)


def by_word(
    weights: np.ndarray, query_words: Sequence[int], key_words: Sequence[int]
) -> np.ndarray:
    """Join the weights of pieces [..., queries, keys] to those of words.

    A word is looked at as much as its pieces together, and looks as they do in the
    mean. -1 is the number of a piece of no word, such as an end: its row and column
    are left out, and what its column had is missing from the sums of the rows.
    """
    rows, columns = (_membership(words) for words in (query_words, key_words))
    means = rows / np.maximum(rows.sum(axis=1, keepdims=True), 1)
    return means @ weights @ columns.T


def alignment_errors(
    examples: Iterable[tuple[np.ndarray, Sequence[tuple[int, int]]]],
) -> np.ndarray:
    """Return the alignment error rate of each head, [layers, heads] (Och and Ney 2003).

    An example has weights [layers, heads, target words, source words] and its gold
    (source word, target word) links, all of them sure:

        AER = 1 - 2 |A ∩ G| / (|A| + |G|)

    A head's alignment A links each target word that has gold links to the source word
    that it looks at most. (Words without any, such as articles that the other language
    lacks, would only count the same against all heads.)
    """
    right, total = 0.0, 0.0
    for weights, links in examples:
        linked = sorted({target for _, target in links})
        gold = np.zeros(weights.shape[-2:], bool)
        for source, target in links:
            gold[target, source] = True
        best = weights.argmax(axis=-1)[..., linked]  # [layers, heads, linked]
        right = right + gold[linked, best].sum(axis=-1)
        total += len(linked) + len(links)
    if not total:
        raise ValueError("no example has a gold link: there is nothing to compare with")
    return 1 - 2 * np.asarray(right) / total


def _membership(words: Sequence[int]) -> np.ndarray:
    """Return [words, pieces]: 1 where a piece belongs to a word."""
    numbers = np.asarray(words)
    return (np.arange(numbers.max(initial=-1) + 1)[:, None] == numbers).astype(float)
