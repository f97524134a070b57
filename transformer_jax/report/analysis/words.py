"""Divide texts into words, names and numbers, and mark how two texts differ.

Words are runs of letters and digits with inner apostrophes and hyphens; other signs
are tokens of their own, and so is each Chinese or Japanese character, because no space
separates words there.
"""

import collections
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

ALONE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"  # kana and Chinese characters
_RUN = rf"[^\W{ALONE}]+"
_TOKEN = re.compile(rf"[{ALONE}]|{_RUN}(?:['’-]{_RUN}|(?<=\d)[.,:]\d+)*|[^\w\s]")
_LETTERS = re.compile(r"[^\W\d_]{2,}")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
RARELY = 0.1  # share of lower-case uses up to which a capitalised word is a name


class Span(NamedTuple):
    """A piece of a text, marked "right", "wrong" or not at all ("")."""

    text: str
    mark: str = ""


def tokens(text: str) -> list[str]:
    """Return words and signs."""
    return _TOKEN.findall(text)


def words(text: str) -> list[str]:
    """Return words without signs, in lower case."""
    return [token for token in tokens(text.casefold()) if token[0].isalnum()]


def ngrams(sequence: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """Return all runs of `size` items."""
    return [tuple(sequence[i : i + size]) for i in range(len(sequence) - size + 1)]


def numbers(text: str) -> set[str]:
    """Return the numbers, without the separators that languages write differently."""
    return {re.sub(r"\D", "", found) for found in _NUMBER.findall(text)}


class Names:
    """The names in pairs of texts.

    A word of two letters or more is a name if some pair has it capitalised on both
    sides, and if the targets rarely write it in lower case, unlike "In" or "Hand".
    """

    def __init__(self) -> None:
        self._copied: set[str] = set()
        self._forms: collections.Counter[str] = collections.Counter()

    def add(self, source: str, target: str) -> None:
        """Read a pair."""
        read = _LETTERS.findall(target)
        self._forms.update(read)
        capitals = {word for word in read if word[0].isupper()}
        self._copied |= capitals.intersection(_LETTERS.findall(source))

    def vocabulary(self) -> set[str]:
        """Return the words of all targets read, in lower case."""
        return {word.casefold() for word in self._forms}

    def known(self) -> dict[str, str]:
        """Return the names of all pairs read, by their form in lower case."""
        return {
            word.casefold(): word
            for word in sorted(self._copied)
            if self._forms[word.lower()] <= RARELY * self._forms[word]
        }


def letters(text: str) -> list[str]:
    """Return the runs of two letters or more, in lower case."""
    return _LETTERS.findall(text.casefold())


def names_in(text: str, known: Mapping[str, str]) -> set[str]:
    """Return the known names in a text, which may be all in lower case."""
    return {known[word] for word in letters(text) if word in known}


def mark(text: str, reference: str, other: str | None = None) -> list[Span]:
    """Mark the words that the reference does not have as "wrong".

    With another answer, mark only the words that it does not have in this place, those
    in the reference as "right".
    """
    found, expected = tokens(text), {*tokens(reference.casefold())}
    folded = [token.casefold() for token in found]
    marks = ["right" if token in expected else "wrong" for token in folded]
    if other is None:
        marks = [kind * (kind == "wrong") for kind in marks]
    else:
        others = tokens(other.casefold())
        matcher = difflib.SequenceMatcher(None, folded, others, autojunk=False)
        for begin, _, size in matcher.get_matching_blocks():
            marks[begin : begin + size] = [""] * size
    spans, place = [Span("")], 0
    for token, kind in zip(found, marks, strict=True):
        begin = text.index(token, place)
        gap, place = text[place:begin], begin + len(token)
        between = kind if spans[-1].mark == kind else ""
        for piece, own in ((gap, between), (token, kind)):
            if spans[-1].mark == own:
                spans[-1] = Span(spans[-1].text + piece, own)
            else:
                spans.append(Span(piece, own))
    return [span for span in [*spans, Span(text[place:])] if span.text]
