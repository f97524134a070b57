"""Compute statistics of attention weights: spread, distance, rollout and accuracy.

All functions take arrays [layers, heads, queries, keys] of one sentence, as
`Run.attention` returns them.
"""

from collections.abc import Iterable, Sequence

import numpy as np


def entropy(weights: np.ndarray) -> np.ndarray:
    """Return [layers, heads]: the entropy in bits, averaged over a head's queries.

    0 means that each query looks at one key, log2(keys) that it looks at all equally.
    """
    bits = -weights * np.log2(np.maximum(weights, 1e-30))
    return bits.sum(axis=-1).mean(axis=-1)


def distance(weights: np.ndarray) -> np.ndarray:
    """Return [layers, heads]: the mean distance between key and query, in positions."""
    queries, keys = weights.shape[-2:]
    apart = np.abs(np.arange(queries)[:, None] - np.arange(keys))
    return (weights * apart).sum(axis=-1).mean(axis=-1)


def rollout(weights: np.ndarray) -> np.ndarray:
    """Return [layers, T, T]: the share of each input in each position of a layer.

    Attention rollout (Abnar and Zuidema 2020): heads are averaged, the residual
    connection has the same weight as attention, and the layers are multiplied.
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
    """Combine the weights of pieces [..., queries, keys] into those of words.

    The columns of a word's pieces are added, and their rows averaged. A piece that
    belongs to no word, such as the end token, has the number -1: its row and column are
    left out, and the weight of its column is missing from the sums of the rows.
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
    with its largest weight. (Words without links, such as articles that the other
    language lacks, would only count equally against all heads.)
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
