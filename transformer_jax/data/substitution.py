"""More trees to learn from: parts of a tree are exchanged for those of other trees.

    (S (NP the cat) (VP slept))  and  (NP my aunt)   →   (S (NP my aunt) (VP slept))

A phrase takes the place of one with the same label, and a word that of one with the
same tag ("Substructure Substitution", Shi et al. 2021). The result often means nothing,
but its tree is right, and few trees are no longer learned by heart.
"""

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from random import Random

from ml_collections import ConfigDict

from transformer_jax.base.schema import option
from transformer_jax.data.draws import Drawer
from transformer_jax.data.reading import trees
from transformer_jax.data.reading.records import (
    Concatenation,
    ParsedFile,
    Record,
    Records,
    fingerprint_of,
)
from transformer_jax.data.reading.trees import Tree

VERSION = 1  # part of the data fingerprint: raise when other trees are made
PHRASES = (1, 2, 3)  # that are exchanged, each number equally often
WORDS = 0.1  # share of the words that are exchanged
OPEN = 100  # distinct words of a tag whose words are exchanged; few are grammar
LONGEST = 40  # words of a new tree, unless the old one has more
TRIES = 20

Step = tuple[str, Tree]  # of `trees.walk`


@dataclasses.dataclass(frozen=True)
class SubstitutionOptions:
    """Make more training trees: options of `config.data`."""

    substitutes: int = option(
        0,
        "Treebanks: versions of each training tree with parts of other trees.",
        least=0,
        most=1000,
    )


def find_problems(data: ConfigDict) -> list[str]:
    """List the options that trees cannot be exchanged with."""
    if not data.substitutes or data.source == "trees":
        return []
    return [
        f"data.substitutes = {data.substitutes} exchanges parts of trees that are read "
        f"from files, but data.source is {data.source!r}: set it to trees, or leave "
        "data.substitutes out"
    ]


def adder(
    data: ConfigDict, make: Callable[[Tree], Record]
) -> Callable[[ParsedFile], Records] | None:
    """Return the `Reading.more` of a treebank; None if no versions are wanted."""
    versions = data.substitutes
    return (lambda file: Substituted(file, versions, make)) if versions else None


def without_versions(records: Records) -> Records:
    """Return the records of trees as they were read."""
    if not isinstance(records, Concatenation):
        return records
    parts = (p.records if isinstance(p, Substituted) else p for p in records.parts)
    return Concatenation(list(parts))


class Substituted(Records):
    """The records of a file's trees, then versions of them with parts of others."""

    def __init__(
        self, records: ParsedFile, versions: int, make: Callable[[Tree], Record]
    ):
        """Follow `records`, which `make` has made of each clean tree, by `versions`."""
        self.records, self.versions, self._make = records, versions, make
        given = [records.fingerprint, "substitution", VERSION, versions]
        self.fingerprint = fingerprint_of(given)
        self.notes = (
            *records.notes,
            f"{records.lines.path}: each of the {len(records):,} trees is followed by "
            f"{versions} versions with parts of others (data.substitutes)",
        )

    def __len__(self) -> int:
        return len(self.records) * (1 + self.versions)

    def __getitem__(self, index: int) -> Record:
        if not 0 <= index < len(self):
            raise IndexError(index)
        version, number = divmod(index, len(self.records))
        if not version:
            return self.records[number]
        drawer = Drawer(Random(f"{version} {number}").random)
        return self._make(build(self._exchange.vary(self._steps[number], drawer)))

    def where(self, index: int) -> str:
        """Name the line of a tree, and the number of its version."""
        version, number = divmod(index, len(self.records))
        line = self.records.where(number)
        return f"{line}, version {version}" if version else line

    @functools.cached_property
    def _steps(self) -> list[list[Step]]:
        read = (tree for line in self.records.lines for tree in trees.read(line))
        found = filter(None, map(trees.clean, read))
        return [list(trees.walk(tree)) for tree in found]

    @functools.cached_property
    def _exchange(self) -> "Exchange":
        return Exchange(self._steps)


class Exchange:
    """The phrases and words of trees, by their labels and tags."""

    def __init__(self, found: Sequence[list[Step]]):
        """Collect the parts of trees, each given as the list of `trees.walk`."""
        self.phrases: dict[str, list[list[Step]]] = defaultdict(list)
        self.words: dict[str, list[Step]] = defaultdict(list)
        for steps in found:
            for begin, end in phrases_in(steps):
                self.phrases[steps[begin][1].label].append(steps[begin:end])
            for kind, node in steps:
                if kind == trees.WORD:
                    self.words[node.label].append((kind, node))
        self.open = {
            tag
            for tag, words in self.words.items()
            if len({node.children for _, node in words}) >= OPEN
        }

    def vary(self, steps: list[Step], drawer: Drawer) -> list[Step]:
        """Exchange some phrases below the root, then some words."""
        longest, varied = max(LONGEST, _count_words(steps)), steps
        for _ in range(TRIES):
            varied = steps
            for _ in range(drawer.pick(PHRASES)):
                if found := list(phrases_in(varied)):
                    begin, end = drawer.pick(found)
                    other = drawer.pick(self.phrases[varied[begin][1].label])
                    varied = varied[:begin] + other + varied[end:]
            if _count_words(varied) <= longest:
                break
            varied = steps
        return [self._vary_word(step, drawer) for step in varied]

    def _vary_word(self, step: Step, drawer: Drawer) -> Step:
        kind, node = step
        if kind == trees.WORD and node.label in self.open and drawer.chance(WORDS):
            return drawer.pick(self.words[node.label])
        return step


def phrases_in(steps: Sequence[Step]) -> Iterator[tuple[int, int]]:
    """Yield the (begin, end) of each phrase of a tree but the whole."""
    begins = []
    for place, (kind, _) in enumerate(steps):
        if kind == "(":
            begins.append(place)
        elif kind == ")" and (begin := begins.pop()):
            yield begin, place + 1


def build(steps: Sequence[Step]) -> Tree:
    """Build the tree whose walk these steps are."""
    open_: list[list[Tree]] = [[]]
    for kind, node in steps:
        if kind == "(":
            open_.append([])
        elif kind == trees.WORD:
            open_[-1].append(node)
        else:
            children = open_.pop()
            open_[-1].append(Tree(node.label, tuple(children)))
    [[tree]] = open_
    return tree


def _count_words(steps: Sequence[Step]) -> int:
    return sum(kind == trees.WORD for kind, _ in steps)
