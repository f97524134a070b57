"""Tags of words, from trees or CoNLL's columns, and the spans that they encode.

    She     gave    the     old     man     a       book
    B-NP    O       B-NP    I-NP    I-NP    B-NP    I-NP

B begins a span, I continues it, and O is outside all spans. Older files use B only
where two spans of a kind touch; both conventions are read. A tag without a prefix is a
span of one word, so for parts of speech the F1 by span equals the accuracy.
"""

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from transformer_jax.base.errors import UserError
from transformer_jax.data.reading import trees
from transformer_jax.data.reading.trees import Tree

OUTSIDE = "O"
PHRASES = ("NP", "PP", "ADJP", "ADVP")
PRONOUNS = ("PRON", "CL")  # the phrasebook's, if they are outside all phrases
NO_WORD = re.compile(r"\d+[-.]\d+|-DOCSTART-")  # CoNLL-U's ranges; CoNLL 2003's headers


class Span(NamedTuple):
    """Words `begin` to `end`, exclusive, of one kind."""

    kind: str
    begin: int
    end: int


@dataclasses.dataclass(frozen=True)
class Lexicon:
    """The tags of some sentences, and the most frequent tag of each word."""

    tags: tuple[str, ...]
    words: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rare: str = ""  # the most frequent tag of words that occur once

    @classmethod
    def count(cls, records: Iterable[Mapping[str, str]]) -> "Lexicon":
        """Count the tags of each word; ties go to the first."""
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for record in records:
            for word, tag in zip(*split(record), strict=True):
                counts[word][tag] += 1
        total, rare = Counter[str](), Counter[str]()
        for tags in counts.values():
            total += tags
            rare += tags if tags.total() == 1 else Counter()
        if len(total) < 2:
            raise UserError(
                f"the training split has the tags {sorted(total)}: there must be at "
                "least two. Check the files and columns that config.data names"
            )
        likeliest = {word: c.most_common(1)[0][0] for word, c in counts.items()}
        return cls(
            tuple(sorted(total)), likeliest, (rare or total).most_common(1)[0][0]
        )

    def look_up(self, words: Sequence[str]) -> list[str]:
        """Tag each word by itself, as a baseline."""
        return [self.words.get(word, self.rare) for word in words]


def split(record: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the words and tags of a record; raise if their numbers differ."""
    words, tags = record["text"].split(), record["tags"].split()
    if len(words) != len(tags):
        raise UserError(
            f"{record['text'][:60]!r} has {len(words)} words, but {len(tags)} tags: "
            f"{record['tags'][:60]!r}"
        )
    return words, tags


def find_spans(tags: Sequence[str]) -> list[Span]:
    """Return the spans that tags encode, as CoNLL's conlleval reads them."""
    spans: list[Span] = []
    begin, kind = 0, ""
    for i, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, rest = tag.partition("-")
        if prefix == "I" and rest and rest == kind:
            continue
        if kind:
            spans.append(Span(kind, begin, i))
        begin, kind = i, ""
        if prefix in ("B", "I") and rest:
            kind = rest
        elif tag != OUTSIDE:
            spans.append(Span(tag, i, i + 1))
    return spans


def score_tags(
    answers: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return the accuracy of words, and precision, recall and F1 of all spans.

    A span is right if its kind and both of its ends are right.
    """
    right = words = both = found = wanted = 0
    for answer, reference in zip(answers, references, strict=True):
        words += len(reference)
        right += sum(a == r for a, r in zip(answer, reference, strict=False))
        ours, theirs = set(find_spans(answer)), set(find_spans(reference))
        both += len(ours & theirs)
        found += len(ours)
        wanted += len(theirs)
    return {
        "accuracy": right / max(words, 1),
        "precision": both / max(found, 1),
        "recall": both / max(wanted, 1),
        "f1": 2 * both / max(found + wanted, 1),
    }


def outermost_phrases(tree: Tree) -> list[str]:
    """Return BIO tags of the outermost phrases (`PHRASES`) of a tree.

    A phrase whose only part is a phrase gives way to the inner one.
    """
    tags: list[str] = []
    around, begun = None, 0
    for step, node in trees.walk(tree):
        kind = node.label.removeprefix("WH")
        if step == "(" and around is None and kind in PHRASES and not _is_shell(node):
            around, begun = node, len(tags)
        elif step == trees.WORD and around is not None:
            prefix = "I" if len(tags) > begun else "B"
            tags.append(f"{prefix}-{around.label.removeprefix('WH')}")
        elif step == trees.WORD:
            tags.append("B-NP" if kind in PRONOUNS else OUTSIDE)
        elif node is around:
            around = None
    return tags


TAGSETS = {"phrases": outermost_phrases, "pos": trees.tags}  # of the words of a tree


def read_trees(text: str, tagset: str) -> list[dict[str, str]]:
    """Read bracketed trees as words with tags, except those that are only traces."""
    cleaned = [trees.clean(tree) for tree in trees.read(text)]
    return [as_record(tree, tagset) for tree in cleaned if tree is not None]


def as_record(tree: trees.Tree, tagset: str) -> dict[str, str]:
    """Return the words of a clean tree with their tags."""
    return {
        "text": " ".join(trees.words(tree)),
        "tags": " ".join(TAGSETS[tagset](tree)),
    }


def read_sentence(
    block: str, word_column: int = 1, tag_column: int = 0
) -> list[dict[str, str]]:
    """Read a sentence in CoNLL's format: one line per word, in columns.

    Columns are separated by tabs or spaces and count from 1; the tag is in the last one
    by default (0). Comments and lines without a word (`NO_WORD`) are left out. Spaces
    inside a word become "_".
    """
    separator = "\t" if "\t" in block else None  # with tabs, spaces separate nothing
    rows = [line.split(separator) for line in block.split("\n")]
    width = len(rows[-1])
    words, tags = [], []
    where = (
        f"the word is in column {word_column}, its tag in {tag_column or 'the last'} "
        "(data.text_column, data.tags_column)"
    )
    for number, row in enumerate(rows, 1):
        if row[0].startswith("#") and len(row) != width:
            continue
        if NO_WORD.fullmatch(row[0]) and (word_column > 1 or row[0] == "-DOCSTART-"):
            continue
        has = f"line {number}: {' '.join(row)!r} has {len(row)} columns"
        if len(row) != width:
            raise UserError(f"{has}, but the sentence's last line has {width}: {where}")
        if (least := max(word_column, tag_column, 2)) > width:
            raise UserError(f"{has}, and must have {least} or more: {where}")
        word, tag = ("_".join(row[i - 1].split()) for i in (word_column, tag_column))
        if not (word and tag):
            raise UserError(f"{has}, one of which is empty: {where}")
        words.append(word)
        tags.append(tag)
    return [{"text": " ".join(words), "tags": " ".join(tags)}] if words else []


def _is_shell(node: Tree) -> bool:
    """Return whether a phrase has one part, which is not a word."""
    [first, *others] = node.children
    return (
        not others and isinstance(first, Tree) and isinstance(first.children[0], Tree)
    )
