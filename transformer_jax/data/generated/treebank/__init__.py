"""The embedded treebank: English sentences with their trees, drawn from a grammar.

The labels and their shapes are the Penn Treebank's, without traces. What hangs where
is told by the words: one cuts cake with a knife, but eats cake with cream; one puts a
letter on the table, but reads the letter on the table; the daughter of the kings who
sings is not the kings who sing. So a sentence has one tree, and a parser can learn it.
"""

from random import Random
from zlib import crc32

from transformer_jax.data import trees
from transformer_jax.data.generated.treebank.grammar import Speaker

VERSION = 1  # part of the data fingerprint: raise when the generated text changes
SPLITS = ("train", "validation", "test")
LENGTHS = range(4, 26)  # of a sentence in words, punctuation included


def generate(split: str, size: int) -> list[dict[str, str]]:
    """The first `size` records of a split: a sentence and its linearised tree."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: choose from {', '.join(SPLITS)}")
    speaker = Speaker(Random(f"treebank {split}"))
    found: dict[str, str] = {}
    while len(found) < size:
        sentence = speaker.sentence()
        words = trees.words(sentence)
        words[0] = words[0][:1].upper() + words[0][1:]
        source = " ".join(words)
        if len(words) in LENGTHS and _split_of(source) == split:
            found.setdefault(source, trees.linearise(sentence))
    return [{"source": source, "target": target} for source, target in found.items()]


def tree(record: dict[str, str]) -> trees.Tree:
    """The tree of a record; of the tags it has those of punctuation."""
    return trees.restore(record["target"].split(), record["source"].split())[0]


def _split_of(source: str) -> str:
    return {0: "validation", 1: "test"}.get(crc32(source.encode()) % 10, "train")
