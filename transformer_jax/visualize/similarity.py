"""Nearest neighbours among vectors of words, and analogies (Mikolov et al. 2013).

    a is to b as c is to …    argmax over d ∉ {a, b, c} of cos(d, b - a + c)

All vectors are first normalised to length 1, as in the published results. Pitfall:
unless a, b and c are excluded, the answer is nearly always b or c.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from transformer_jax.base.errors import UserError, nearest
from transformer_jax.data.text.text import Lines

BLOCK = 256  # questions answered at once: [BLOCK, words] similarities


class Neighbour(NamedTuple):
    """A word and the cosine of its vector with that of the question."""

    word: str
    cosine: float


class Answered(NamedTuple):
    """The numbers of questions of a kind, of answerable ones, and of right answers."""

    kind: str
    questions: int
    covered: int
    right: int

    @property
    def accuracy(self) -> float:
        """The share of right answers among the answerable questions."""
        return self.right / max(self.covered, 1)


class WordVectors:
    """Word vectors, normalised to length 1."""

    def __init__(self, vectors: Mapping[str, Float[np.ndarray, "D"]], source: str):
        """Normalise the vectors, by word; `source` names their origin in messages."""
        self.words, self.source = list(vectors), source
        table = np.stack([*vectors.values()]).astype(np.float32)
        lengths = np.linalg.norm(table, axis=1, keepdims=True)
        self.table = table / np.maximum(lengths, 1e-12)
        self.rows = {word: row for row, word in enumerate(self.words)}
        self._lower: dict[str, int] = {}
        for row, word in enumerate(self.words):  # prefer the first spelling
            self._lower.setdefault(word.lower(), row)
        self._repeated = sorted({*range(len(self.words))} - {*self._lower.values()})

    def row(self, word: str) -> int:
        """Return the row of a word, as written or in another case; raise if unknown."""
        if word in self.rows:
            return self.rows[word]
        if word.lower() in self._lower:
            return self._lower[word.lower()]
        raise UserError(
            f"{self.source} has no vector for {word!r} among its {len(self.words):,} "
            f"words.{nearest(word, self.words[:20_000])}"
        )

    def neighbours(self, word: str, count: int) -> list[Neighbour]:
        """Return the words whose vectors have the largest cosine with a word's."""
        row = self.row(word)
        return self._nearest(self.table[row], [row], count)

    def analogy(self, a: str, b: str, c: str, count: int) -> list[Neighbour]:
        """Return the words that are to c as b is to a, best first."""
        rows = [self.row(word) for word in (a, b, c)]
        return self._nearest(self._wanted(np.array([rows]))[0], rows, count)

    def answer(
        self, questions: Mapping[str, Sequence[tuple[str, str, str, str]]]
    ) -> list[Answered]:
        """Answer the questions whose four words are all known, ignoring case."""
        return [self._answer(kind, asked) for kind, asked in questions.items()]

    def _answer(self, kind: str, questions: Sequence[tuple[str, ...]]) -> Answered:
        known = [
            rows
            for words in questions
            if None not in (rows := [self._lower.get(word.lower()) for word in words])
        ]
        right = 0
        for begin in range(0, len(known), BLOCK):
            rows = np.array(known[begin : begin + BLOCK])
            cosines = self._wanted(rows[:, :3]) @ self.table.T
            cosines[:, self._repeated] = -np.inf
            np.put_along_axis(cosines, rows[:, :3], -np.inf, axis=1)
            right += int((cosines.argmax(axis=1) == rows[:, 3]).sum())
        return Answered(kind, len(questions), len(known), right)

    def _wanted(self, rows: np.ndarray) -> Float[np.ndarray, "Q D"]:
        a, b, c = (self.table[rows[:, i]] for i in range(3))
        wanted = b - a + c
        return wanted / np.maximum(np.linalg.norm(wanted, axis=1, keepdims=True), 1e-12)

    def _nearest(
        self, vector: np.ndarray, without: Iterable[int], count: int
    ) -> list[Neighbour]:
        cosines = self.table @ vector
        cosines[list(without)] = -np.inf
        best = np.argsort(-cosines, kind="stable")[:count]
        return [
            Neighbour(self.words[row], float(cosines[row]))
            for row in best
            if np.isfinite(cosines[row])
        ]


def read_questions(path: str) -> dict[str, list[tuple[str, str, str, str]]]:
    """Read `: kind` and lines of four words, as in word2vec's questions-words.txt."""
    lines, questions, kind = Lines(path), {}, "questions"
    for number, line in enumerate(lines):
        if line.startswith(":"):
            kind = line[1:].strip()
        elif words := line.split():
            if len(words) != 4:
                raise UserError(
                    f"{lines.where(number)}: {len(words)} words, but a question has "
                    "four: a is to b as c is to d"
                )
            questions.setdefault(kind, []).append(tuple(words))
    if not questions:
        raise UserError(f"{path} has no questions, which are lines of four words")
    return questions
