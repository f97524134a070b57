"""Retrieve the nearest of many texts by the cosine of vectors, and score the ranks.

    recall@1 = share of the queries whose right text comes first
    MRR      = mean of 1 / (rank of the right text)                 (Voorhees 1999)

TF-IDF, the baseline, counts words: tf · (ln((1 + texts) / (1 + texts with it)) + 1), as
scikit-learn does. A text that ties with the right one ranks before it.
"""

import collections
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.base.errors import Refused, UserError
from transformer_jax.data.reading.streams import UTF8, open_lines

BLOCK = 1024  # queries compared at once: [BLOCK, texts] cosines
_WORD = re.compile(r"\w+")


class Match(NamedTuple):
    """A text and the cosine of its vector with that of a query."""

    text: str
    cosine: float


class Index:
    """Texts, and their vectors normalised to length 1."""

    def __init__(self, texts: Sequence[str], vectors: Float[np.ndarray, "M D"]):
        self.texts, self.vectors = list(texts), normalize(vectors)

    def nearest(
        self, vectors: Float[np.ndarray, "N D"], count: int
    ) -> list[list[Match]]:
        """Return the texts with the largest cosine with each vector, best first."""
        matches = []
        for begin in range(0, len(vectors), BLOCK):
            cosines = normalize(vectors[begin : begin + BLOCK]) @ self.vectors.T
            for row in cosines:
                best = np.argsort(-row, kind="stable")[:count]
                matches.append([Match(self.texts[i], float(row[i])) for i in best])
        return matches


def open_index(
    path: str,
    encode: Callable[[list[str]], Float[np.ndarray, "M D"]],
    encoding: str = UTF8,
) -> Index | None:
    """Index the lines of a file, if one is named, without blank lines."""
    if not path:
        return None
    lines = list(open_lines(path, encoding))
    kept = [i for i, line in enumerate(lines) if line.strip()]
    if not kept:
        raise UserError(f"--among={path} has no text: give a file of lines to search")
    try:  # blank lines too, so that errors have the numbers of lines
        vectors = encode(lines)
    except Refused as error:
        raise UserError(f"--among={path}: {error}") from None
    return Index([lines[i] for i in kept], vectors[kept])


def normalize(vectors: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
    """Scale vectors to length 1; zero vectors stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)


def places(
    queries: Sequence[str],
    texts: Sequence[str],
    cosines: Iterable[Float[np.ndarray, "M"]],
) -> Int[np.ndarray, "N"]:
    """Return the rank, from 1, of the right text for each query.

    The i-th text is right for the i-th query and for all queries equal to it; copies of
    a text count as one.
    """
    first = {text: i for i, text in reversed([*enumerate(texts)])}
    right = collections.defaultdict(set)
    for query, text in zip(queries, texts, strict=True):
        right[query].add(first[text])
    distinct = np.array(sorted(first.values()))
    ranks = []
    for query, row in zip(queries, cosines, strict=True):
        own = [*right[query]]
        before = (row[distinct] >= row[own].max()).sum()
        ranks.append(1 + before - (row[own] >= row[own].max()).sum())
    return np.array(ranks, int)


def score(ranks: Int[np.ndarray, "N"]) -> dict[str, float]:
    """Return recall@1 and the mean reciprocal rank."""
    first, inverse = (ranks == 1).sum(), (1 / ranks).sum()
    count = max(len(ranks), 1)
    return {"recall": float(first / count), "mrr": float(inverse / count)}


def tfidf(queries: Sequence[str], texts: Sequence[str]) -> list[Float[np.ndarray, "M"]]:
    """Return the TF-IDF cosines of each query with all texts."""
    counts = [count_words(text) for text in texts]
    known = collections.Counter(word for words in counts for word in words)
    idf = {w: math.log((1 + len(texts)) / (1 + n)) + 1 for w, n in known.items()}
    postings = collections.defaultdict(list)
    for i, words in enumerate(counts):
        for word, weight in _weigh(words, idf).items():
            postings[word].append((i, weight))
    by_word = {
        word: [np.array(column) for column in zip(*entries, strict=True)]
        for word, entries in postings.items()
    }
    all_cosines = []
    for query in queries:
        cosines = np.zeros(len(texts))
        for word, weight in _weigh(count_words(query), idf).items():
            rows, weights = by_word[word]
            cosines[rows] += weight * weights
        all_cosines.append(cosines)
    return all_cosines


def count_words(text: str) -> collections.Counter[str]:
    """Count the words of a text, in lower case."""
    return collections.Counter(_WORD.findall(text.lower()))


def share_words(pairs: Sequence[tuple[str, str]]) -> float:
    """Return the mean share of words that the texts of a pair have in common."""
    words = [tuple({*count_words(text)} for text in pair) for pair in pairs]
    shares = [len(a & b) / max(len(a | b), 1) for a, b in words]  # Jaccard
    return sum(shares) / max(len(shares), 1)


def _weigh(words: dict[str, int], idf: dict[str, float]) -> dict[str, float]:
    weights = {word: n * idf[word] for word, n in words.items() if word in idf}
    length = math.sqrt(sum(weight**2 for weight in weights.values())) or 1.0
    return {word: weight / length for word, weight in weights.items()}
