"""The embedded treebank: English sentences with their trees, drawn from a grammar.

The labels and their shapes are the Penn Treebank's, without traces. The words decide
each attachment: one cuts cake with a knife, but eats cake with cream; one puts a letter
on the table, but reads the letter on the table; the daughter of the kings who sings is
not the kings who sing. So each sentence has one tree, which a parser can learn.
"""

from random import Random

from ml_collections import ConfigDict

from transformer_jax.corpora.treebank.grammar import Speaker
from transformer_jax.data.draws import check_split, split_of
from transformer_jax.data.reading import trees
from transformer_jax.data.reading.sources import GeneratedSource

VERSION = 1  # part of the data fingerprint: raise when the generated text changes
SPLITS = ("train", "validation", "test")
LENGTHS = range(4, 26)  # of a sentence in words, punctuation included


def generate(split: str, size: int) -> list[dict[str, str]]:
    """Return the first `size` records of a split: sentences and linearised trees."""
    check_split(split, SPLITS)
    speaker = Speaker(Random(f"treebank {split}").random)
    targets: dict[str, str] = {}
    while len(targets) < size:
        sentence = speaker.sentence()
        words = trees.words(sentence)
        words[0] = words[0][:1].upper() + words[0][1:]
        source = " ".join(words)
        if len(words) in LENGTHS and split_of(source) == split:
            targets.setdefault(source, trees.linearise(sentence))
    return [{"source": source, "target": target} for source, target in targets.items()]


def pairs(data: ConfigDict) -> GeneratedSource:
    """Return sentences and their trees as a source for parsing."""
    return GeneratedSource("treebank", VERSION, SPLITS, generate)
