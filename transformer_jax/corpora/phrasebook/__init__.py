"""The phrasebook: a small Portuguese-English corpus that behaves like language.

Sentences are drawn from a grammar in which every Portuguese sentence has exactly one
translation, with gold word alignments and constituency trees. A hash of the English
text assigns each pair to its split, so splits of any size never share a sentence.
Run `python -m transformer_jax.corpora.phrasebook` for a tour.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple
from zlib import crc32

from ml_collections import ConfigDict

from transformer_jax.corpora.phrasebook import lexicon
from transformer_jax.corpora.phrasebook.grammar import Speaker
from transformer_jax.corpora.phrasebook.twins import align, bracket, detokenize, spell
from transformer_jax.data.draws import check_split, split_of
from transformer_jax.data.reading.sources import GeneratedSource

VERSION = 1  # part of the data fingerprint: raise when the generated text changes
SPLITS = ("train", "validation", "test", "test_combinations")
_LENGTHS = range(5, 23)  # of a Portuguese sentence, with its punctuation
_PATIENCE = 2000  # sentences in sequence without a new one before giving up


class Pair(NamedTuple):
    """A sentence in both languages, as text, as aligned words and as trees."""

    source: str
    target: str
    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    alignment: tuple[tuple[int, int], ...]
    source_tree: str
    target_tree: str


def generate(split: str, size: int, seed: int = 0) -> list[Pair]:
    """Return the first `size` pairs of a split, always the same for a seed.

    `test_combinations` holds the sentences with an adjective and noun, or a verb and
    object, that never meet in the other splits.
    """
    check_split(split, SPLITS)
    speaker = Speaker(Random(f"{split} {seed}").random)
    pairs: list[Pair] = []
    sources, targets = set(), set()
    idle = 0
    while len(pairs) < size:
        if idle == _PATIENCE:
            raise ValueError(
                f"{split!r} has about {len(pairs)} sentences: {size} were asked for"
            )
        idle += 1
        twin = speaker.sentence()
        spelled = spell(twin)
        leaves = [[leaf for leaf in side if leaf] for side in spelled]
        words, their_words = (tuple([leaf.word for leaf in side]) for side in leaves)
        source, target = detokenize(words), detokenize(their_words)
        if _split_of(target, speaker.relations) != split:
            continue
        if source in sources or target in targets or len(words) not in _LENGTHS:
            continue
        sources.add(source)
        targets.add(target)
        idle = 0
        tree, their_tree = (
            bracket(tree, iter(side))
            for (tree,), side in zip(twin, spelled, strict=True)
        )
        alignment = align(*leaves)
        pairs.append(
            Pair(source, target, words, their_words, alignment, tree, their_tree)
        )
    return pairs


def word_for_word(pairs: Iterable[Pair], sentences: Sequence[str]) -> list[str]:
    """Translate sentences with a dictionary learnt from the alignments of pairs."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for pair in pairs:
        links = defaultdict(list)
        for i, j in pair.alignment:
            links[i].append(pair.target_words[j].lower())
        for i, token in enumerate(pair.source_words):
            counts[token.lower()].update(links[i] or [""])
    best = {
        token: min(options, key=lambda option: (-options[option], option))
        for token, options in counts.items()
    }
    return [_capitalized(_looked_up(best, sentence)) for sentence in sentences]


def _hold_out() -> frozenset[str]:
    """Choose about 9 % of the pairs of lexemes: "red+car", "eat>cake".

    Nouns with fewer than three verbs keep them all, to remain in training.
    """
    verbs = lexicon.TRANSITIVE + lexicon.DATIVE
    relations = []
    for kind, nouns in lexicon.NOUNS.items():
        takers = {verb.target for verb in verbs if kind in verb.kinds}
        adjectives = [a.target for a in lexicon.ADJECTIVES if kind in a.kinds]
        for noun in (noun.target[0] for noun in nouns):
            relations += [f"{adjective}+{noun}" for adjective in adjectives]
            relations += [f"{verb}>{noun}" for verb in takers if len(takers) > 2]
    return frozenset(r for r in relations if crc32(r.encode()) % 11 == 0)


def _split_of(target: str, relations: set[str]) -> str:
    if not HELD_OUT.isdisjoint(relations):
        return "test_combinations"
    return split_of(target)


def _looked_up(dictionary: dict[str, str], sentence: str) -> str:
    words = sentence.replace(",", " ,").replace(".", " .").replace("?", " ?").split()
    return detokenize(filter(None, (dictionary.get(w.lower(), w) for w in words)))


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


HELD_OUT = _hold_out()  # pairs of lexemes that only test_combinations has


def pairs(data: ConfigDict) -> GeneratedSource:
    """Return the sentence pairs, Portuguese to English, as a source for translation."""

    def make(split: str, size: int) -> list[dict[str, str]]:
        return [{"source": p.source, "target": p.target} for p in generate(split, size)]

    return GeneratedSource("phrasebook", VERSION, SPLITS, make)


def lines(data: ConfigDict) -> GeneratedSource:
    """Return the target sentences, as a source for models of one language."""

    def make(split: str, size: int) -> list[dict[str, str]]:
        return [{"text": p.target} for p in generate(split, size)]

    return GeneratedSource("phrasebook", VERSION, SPLITS, make, ("en",))


def trees(data: ConfigDict) -> GeneratedSource:
    """Return the trees of the target sentences, in brackets."""

    def make(split: str, size: int) -> list[dict[str, str]]:
        return [{"tree": p.target_tree} for p in generate(split, size)]

    return GeneratedSource("phrasebook", VERSION, SPLITS, make)
