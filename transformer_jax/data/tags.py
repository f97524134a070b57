"""Tags of words: from trees, from CoNLL's columns, and the spans that they spell.

    She     gave    the     old     man     a       book
    B-NP    O       B-NP    I-NP    I-NP    B-NP    I-NP

B begins a span, I continues it, and O is outside of all spans. Older files use B only
where two spans of a kind touch; both forms are read. A tag without a prefix is a span
of one word, so that of parts of speech F1 by span is the accuracy.
"""

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from transformer_jax.data import trees
from transformer_jax.data.trees import Tree
from transformer_jax.errors import UserError

OUTSIDE = "O"
PHRASES = ("NP", "PP", "ADJP", "ADVP")
PRONOUNS = ("PRON", "CL")  # of the phrasebook, where they are in no phrase
NO_WORD = re.compile(r"\d+[-.]\d+|-DOCSTART-")  # CoNLL-U's ranges; CoNLL 2003


class Span(NamedTuple):
    """Words `begin` to `end`, the last excluded, of one kind."""

    kind: str
    begin: int
    end: int


@dataclasses.dataclass(frozen=True)
class Lexicon:
    """Hold the tags of some sentences, and the most frequent one of each word."""

    tags: tuple[str, ...]
    words: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rare: str = ""  # the most frequent one of the words that came once

    @classmethod
    def count(cls, records: Iterable[Mapping[str, str]]) -> "Lexicon":
        """Count the tags of each word; of equally frequent ones, take the first."""
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for record in records:
            for word, tag in zip(*split(record), strict=True):
                counts[word][tag] += 1
        total, rare = Counter[str](), Counter[str]()
        for found in counts.values():
            total += found
            rare += found if found.total() == 1 else Counter()
        if len(total) < 2:
            raise UserError(
                f"the training split has the tags {sorted(total)}: there must be two "
                "at least"
            )
        likeliest = {word: c.most_common(1)[0][0] for word, c in counts.items()}
        return cls(
            tuple(sorted(total)), likeliest, (rare or total).most_common(1)[0][0]
        )

    def look_up(self, words: Sequence[str]) -> list[str]:
        """Tag words by themselves: the baseline."""
        return [self.words.get(word, self.rare) for word in words]


def split(record: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the words of a record and their tags, or refuse unequal numbers."""
    words, tags = record["text"].split(), record["tags"].split()
    if len(words) != len(tags):
        raise UserError(
            f"{record['text'][:60]!r} has {len(words)} words, but {len(tags)} tags: "
            f"{record['tags'][:60]!r}"
        )
    return words, tags


def find_spans(tags: Sequence[str]) -> list[Span]:
    """Return the spans that tags spell, as CoNLL's conlleval reads them."""
    found: list[Span] = []
    begin, kind = 0, ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, rest = tag.partition("-")
        if prefix == "I" and rest and rest == kind:
            continue
        if kind:
            found.append(Span(kind, begin, place))
        begin, kind = place, ""
        if prefix in ("B", "I") and rest:
            kind = rest
        elif tag != OUTSIDE:
            found.append(Span(tag, place, place + 1))
    return found


def outermost_phrases(tree: Tree) -> list[str]:
    """Return BIO tags of the phrases (`PHRASES`) of a tree that are inside no other.

    A phrase whose only part is a phrase is skipped for the inner one.
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


TAGSETS = {"phrases": outermost_phrases, "pos": trees.tags}  # of words with a tree


def read_trees(text: str, tagset: str) -> list[dict[str, str]]:
    """Read bracketed trees as words with tags; one of traces alone has no words."""
    found = [trees.clean(tree) for tree in trees.read(text)]
    return [
        {"text": " ".join(trees.words(tree)), "tags": " ".join(TAGSETS[tagset](tree))}
        for tree in found
        if tree is not None
    ]


def read_sentence(
    block: str, word_column: int = 1, tag_column: int = 0
) -> list[dict[str, str]]:
    """Read a sentence in CoNLL's form: a line for each word, tabs or spaces between.

    Columns count from 1; the tag is in the last one by default (0). Comments and what
    is no word (`NO_WORD`) are left out. Spaces inside of a word become "_".
    """
    separator = "\t" if "\t" in block else None  # of a comment, spaces separate nothing
    rows = [line.split(separator) for line in block.split("\n")]
    width = len(rows[-1])
    words, tags = [], []
    for row in rows:
        if row[0].startswith("#") and len(row) != width:
            continue
        if NO_WORD.fullmatch(row[0]) and (word_column > 1 or row[0] == "-DOCSTART-"):
            continue
        if len(row) != width or max(word_column, tag_column, 2) > width:
            raise UserError(
                f"{' '.join(row)!r} has {len(row)} columns, and the sentence's last "
                f"line {width}: the word is in column {word_column}, its tag in "
                f"{tag_column or 'the last'} (data.text_column, data.tags_column)"
            )
        words.append("_".join(row[word_column - 1].split()))
        tags.append("_".join(row[tag_column - 1].split()))
    return [{"text": " ".join(words), "tags": " ".join(tags)}] if words else []


def _is_shell(node: Tree) -> bool:
    """Return whether a phrase has one part, and this part is no word."""
    [first, *others] = node.children
    return (
        not others and isinstance(first, Tree) and isinstance(first.children[0], Tree)
    )
