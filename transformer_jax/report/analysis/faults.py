"""The rules that find faults, each in one sentence with its source and reference.

A rule returns what it found, in words, or "" if it found nothing.
"""

import dataclasses
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from transformer_jax.report.analysis.words import (
    letters,
    names_in,
    ngrams,
    numbers,
    tokens,
    words,
)

ENDS = ".!?…。！？"
CLOSING = "\"'”’»)]」』）"
COPIED = 0.5  # share of an answer's words that makes it a copy
UNRELATED = 10.0  # chrF below which an answer has nothing of the reference
SEEN = 0.25  # share of source words that an answer looks at
SHORT, LONG = 0.6, 1.6  # characters of an answer by those of the reference
APART = 3  # words by which such an answer differs from the reference at least
USED, UNUSED = 0.5, 0.25  # attention to a source word: see `unread_words`
PAIRS = frozenset({"pairs"})
SHOWN = 5  # words that a finding names


@dataclasses.dataclass(frozen=True)
class Sentence:
    """An answer with its source and reference."""

    source: str
    reference: str
    answer: str
    chrf: float = 100.0
    # All names, by their form in lower case.
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    vocabulary: Container[str] | None = None  # of all targets, if training's are known
    seen: float = 1.0  # share of source words that some word of the answer looks at
    unread: tuple[str, ...] = ()  # source words that only the reference needs


@dataclasses.dataclass(frozen=True)
class Rule:
    """A fault, the rule in words, and the function that finds it."""

    name: str
    words: str
    find: Callable[[Sentence], str]
    # Any of: pairs (targets say what sources say), training (its text), attention.
    needs: frozenset[str] = frozenset()


def find_empty(one: Sentence) -> str:
    """Find an empty answer."""
    return "empty" * (not one.answer.strip() and bool(one.reference.strip()))


def find_unfinished(one: Sentence) -> str:
    """Find an answer without the full stop of its reference."""
    answer, reference = (
        text.rstrip().rstrip(CLOSING) for text in (one.answer, one.reference)
    )
    if not answer or not reference or reference[-1] not in ENDS or answer[-1] in ENDS:
        return ""
    return f"ends in {tokens(answer)[-1]!r}"


def find_copy(one: Sentence) -> str:
    """Find an answer most of whose words are the source's and not the reference's."""
    answer, source = words(one.answer), {*words(one.source)}
    copied = [w for w in answer if w in source and w not in words(one.reference)]
    if len(copied) < max(2, COPIED * len(answer)) and not (copied and copied == answer):
        return ""
    return _list("copied", copied)


def find_repetition(one: Sentence) -> str:
    """Find words that occur again more often than in the reference."""
    answer, reference = (_repeated(words(t)) for t in (one.answer, one.reference))
    if len(answer) <= len(reference):
        return ""
    return _list("again", map(" ".join, answer))


def _repeated(sequence: list[str]) -> list[tuple[str, ...]]:
    """List the repeated runs: three words anywhere, one or two directly after."""
    again = []
    for size in (1, 2):
        runs = ngrams(sequence, size)
        again += [a for a, b in zip(runs, runs[size:], strict=False) if a == b]
    met: set[tuple[str, ...]] = set()
    for run in ngrams(sequence, 3):
        again += [run] * (run in met)
        met.add(run)
    return again


def find_hallucination(one: Sentence) -> str:
    """Find a fluent answer that has little to do with its source or reference."""
    others = (find_empty, find_copy, find_repetition)
    if len(words(one.answer)) < 3 or any(find(one) for find in others):
        return ""
    if one.chrf < UNRELATED:
        return "almost nothing of the reference"
    if one.seen < SEEN and len(one.source.split()) > 3:
        return f"looks at {one.seen:.0%} of the source's words"
    return ""


def find_missing(one: Sentence) -> str:
    """Find names and numbers of both source and reference that the answer lacks."""
    answer, source, reference = _marks(one)
    return _list("missing", sorted((source & reference) - answer))


def find_added(one: Sentence) -> str:
    """Find names and numbers that neither the source nor the reference has."""
    answer, source, reference = _marks(one)
    return _list("added", sorted(answer - source - reference))


def _marks(one: Sentence) -> list[set[str]]:
    texts = one.answer, one.source, one.reference
    return [numbers(text) | names_in(text, one.names) for text in texts]


def find_unknown(one: Sentence) -> str:
    """Find words that no text has, as if put together from pieces of others."""
    if one.vocabulary is None:
        return ""
    given = letters(one.source)
    found = [word for word in letters(one.answer) if word not in given]
    return _list("unknown", (word for word in found if word not in one.vocabulary))


def find_short(one: Sentence) -> str:
    """Find an answer that is much shorter than its reference."""
    ratio, apart = _lengths(one)
    return f"{ratio:.2f} of the reference" * (ratio < SHORT and apart <= -APART)


def find_long(one: Sentence) -> str:
    """Find an answer that is much longer than its reference."""
    ratio, apart = _lengths(one)
    return f"{ratio:.2f} of the reference" * (ratio > LONG and apart >= APART)


def _lengths(one: Sentence) -> tuple[float, int]:
    """Return the ratio of characters, and the difference of words."""
    answer, reference = one.answer.strip(), one.reference.strip()
    apart = len(words(answer)) - len(words(reference))
    return len(answer) / max(len(reference), 1), apart if answer else 0


def find_unread(one: Sentence) -> str:
    """Find source words that were not looked at: see `unread_words`."""
    return _list("not looked at", one.unread)


def unread_words(
    source: Sequence[str],
    for_answer: Sequence[float],
    for_reference: Sequence[float],
    common: Container[str],
) -> tuple[str, ...]:
    """Return the source words that the model reads for the reference alone.

    Given is the attention to each source word, summed over the pieces of a target.
    Which words are needed at all is measured on the reference, because a model hardly
    looks at some words. `common` words, such as articles, say little.
    """
    return tuple(
        word
        for word, a, r in zip(source, for_answer, for_reference, strict=False)
        if r >= USED and a < UNUSED * r and words(word) and word not in common
    )


def _list(what: str, found: Iterable[str]) -> str:
    """Name the first few of what was found; return "" if there is nothing."""
    named = list(dict.fromkeys(found))
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    return f"{what}: {', '.join(named[:SHOWN])}{more}" if named else ""


RULES = (
    Rule("empty", "The answer is empty, and the reference is not.", find_empty),
    Rule(
        "unfinished",
        f"The reference ends in one of {ENDS} and the answer in no such sign.",
        find_unfinished,
    ),
    Rule(
        "copy of the source",
        f"Two words or more, and at least {COPIED:.0%} of the answer, are words of the "
        "source that the reference does not have; or all are.",
        find_copy,
    ),
    Rule(
        "repetition",
        "Three words in a row occur again, or one or two directly after themselves, "
        "more often than in the reference.",
        find_repetition,
    ),
    Rule(
        "hallucination",
        f"None of the above, and chrF is below {UNRELATED:g}, or the words of the "
        f"answer look at less than {SEEN:.0%} of the words of a source of more than "
        "three (each at the one that it attends to most).",
        find_hallucination,
        PAIRS,
    ),
    Rule(
        "missing name or number",
        "Source and reference have it, the answer has not. A name is a word that some "
        "pair has capitalised on both sides and targets rarely in lower case.",
        find_missing,
        PAIRS,
    ),
    Rule(
        "added name or number",
        "The answer has it, neither the source nor the reference has.",
        find_added,
        PAIRS,
    ),
    Rule(
        "unknown word",
        "Neither the targets of the training text nor the source nor any reference has "
        "this word of two letters or more.",
        find_unknown,
        frozenset({"training"}),
    ),
    Rule(
        "too short",
        f"The answer has less than {SHORT:g} of the reference's characters, and at "
        f"least {APART} words fewer.",
        find_short,
        PAIRS,
    ),
    Rule(
        "too long",
        f"The answer has more than {LONG:g} times the reference's characters, and at "
        f"least {APART} words more.",
        find_long,
        PAIRS,
    ),
    Rule(
        "source word not translated",
        f"A source word gets less than {UNUSED:g} of the attention that it gets when "
        f"the model reads the reference, where it gets {USED:g} or more. Words in more "
        "than 1 % of the sources do not count.",
        find_unread,
        PAIRS | {"attention"},
    ),
)
