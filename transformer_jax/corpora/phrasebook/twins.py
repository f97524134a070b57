"""Pairs of trees grown together: a constituent in two languages, with shared links.

A twin holds the Portuguese and the English side of a constituent. Words that translate
each other share a link, whatever their order, so that alignment and both trees come
for free. Contractions (em + a = na) and "an" are spelled when the tree is complete.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from transformer_jax.corpora.phrasebook.lexicon import CONTRACTIONS

CLOSING = (".", "?", ",", "'s")  # tokens without a space before them


class Leaf(NamedTuple):
    """A word with its label; words of both sides that share a link are aligned."""

    label: str
    word: str
    links: tuple[object, ...]


class Branch(NamedTuple):
    """A constituent over its children."""

    label: str
    children: tuple["Leaf | Branch", ...]


Trees = tuple[Leaf | Branch, ...]


class Twin(NamedTuple):
    """The two sides of a constituent; a side without words is empty."""

    source: Trees
    target: Trees


def word(label: str, source: str, target: str, like: Twin | None = None) -> Twin:
    """Grow words that translate each other, or that `like` translates as well."""
    links = first_leaf(like.source[0]).links if like else (object(),)
    return Twin(
        tuple([Leaf(label, piece, links) for piece in source.split()]),
        tuple([Leaf(label, piece, links) for piece in target.split()]),
    )


def first_leaf(tree: Leaf | Branch) -> Leaf:
    """Return the first word of a tree."""
    while isinstance(tree, Branch):
        tree = tree.children[0]
    return tree


def phrase(
    label: str, source: Sequence[Twin], target: Sequence[Twin] | None = None
) -> Twin:
    """Grow a constituent whose parts may be in another order in English."""
    return Twin(
        _branch(label, [part.source for part in source]),
        _branch(
            label, [part.target for part in (source if target is None else target)]
        ),
    )


def adverbial(entry: tuple[str, str, str]) -> Twin:
    """Grow a fixed adverbial: tagged words of both sides and their links."""
    source, target, pairs = entry
    links = {pair: object() for pair in pairs.split()}

    def leaves(words: str, side: int) -> Trees:
        grown = []
        for position, item in enumerate(words.split()):
            text, _, label = item.partition("/")
            own = [
                k for pair, k in links.items() if int(pair.split("-")[side]) == position
            ]
            grown.append(Leaf(label, text, tuple(own)))
        return (Branch("ADVP", tuple(grown)),)

    return Twin(leaves(source, 0), leaves(target, 1))


def spell(twin: Twin) -> tuple[list[Leaf | None], list[Leaf | None]]:
    """Return the leaves of both sides as they are written.

    A leaf that is absorbed by a contraction is None, so that the tree can be followed.
    """
    (source,), (target,) = twin
    return (
        _capitalized(_contracted(_leaves(source))),
        _capitalized(_with_an(_leaves(target))),
    )


def align(source: list[Leaf], target: list[Leaf]) -> tuple[tuple[int, int], ...]:
    """Return the pairs of word positions that share a link."""
    targets: dict[object, list[int]] = {}
    for j, leaf in enumerate(target):
        for link in leaf.links:
            targets.setdefault(link, []).append(j)
    return tuple(
        (i, j)
        for i, leaf in enumerate(source)
        for j in sorted({j for link in leaf.links for j in targets.get(link, ())})
    )


def bracket(tree: Leaf | Branch, spelled: Iterator[Leaf | None]) -> str:
    """Write a tree as (LABEL child child), its leaves as they are spelled."""
    if isinstance(tree, Leaf):
        leaf = next(spelled)
        return f"({leaf.label} {leaf.word})" if leaf else ""
    children = [bracket(child, spelled) for child in tree.children]
    text = " ".join(filter(None, children))
    return f"({tree.label} {text})" if text else ""


def detokenize(words: Iterable[str]) -> str:
    """Join tokens into text."""
    text = ""
    for token in words:
        text += token if token in CLOSING or not text else " " + token
    return text


def _branch(label: str, parts: Iterable[Trees]) -> Trees:
    children = tuple(tree for part in parts for tree in part)
    return (Branch(label, children),) if children else ()


def _leaves(tree: Leaf | Branch) -> list[Leaf]:
    """Return the leaves from left to right."""
    leaves: list[Leaf] = []
    waiting: list[Leaf | Branch] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Leaf):
            leaves.append(node)
        else:
            waiting.extend(reversed(node.children))
    return leaves


def _contracted(leaves: list[Leaf]) -> list[Leaf | None]:
    spelled: list[Leaf | None] = [*leaves]
    for i, (left, right) in enumerate(pairwise(leaves)):
        fused = CONTRACTIONS.get((left.word, right.word))
        if fused and left.label == "PREP" and right.label in ("DET", "PRON"):
            links = left.links + right.links
            spelled[i : i + 2] = [Leaf("PREP", fused, links), None]
    return spelled


def _with_an(leaves: list[Leaf]) -> list[Leaf]:
    return [
        leaf._replace(word="an")
        if leaf.word == "a" and following.word[0] in "aeiou"
        else leaf
        for leaf, following in zip(leaves, leaves[1:] + leaves[-1:], strict=True)
    ]


def _capitalized(leaves: Sequence[Leaf | None]) -> list[Leaf | None]:
    first, *others = leaves  # a contraction absorbs its second leaf, not the first
    assert first is not None
    return [first._replace(word=first.word[0].upper() + first.word[1:]), *others]
