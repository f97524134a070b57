"""The embedded treebank: one tree per sentence, decided by its words."""

import hashlib
from collections import Counter, defaultdict
from functools import cache
from random import Random

import pytest

from transformer_jax.corpora.treebank import SPLITS, VERSION, generate
from transformer_jax.corpora.treebank.grammar import Speaker
from transformer_jax.corpora.treebank.lexicon import (
    ADJECTIVES_OF,
    ANIMATE,
    NAMES,
    NOUNS_OF,
    VERBS_OF,
)
from transformer_jax.data.reading import trees


@cache
def records(split="train", size=3000):
    return generate(split, size)


@cache
def phrases():
    """All phrases, each with the phrase around it."""
    found = []

    def visit(tree, parent):
        if not isinstance(tree.children[0], str):
            found.append((tree, parent))
            for child in tree.children:
                visit(child, tree)

    for record in records():
        visit(
            trees.restore(record["target"].split(), record["source"].split())[0], None
        )
    return found


def forms(kind):
    return {form for noun in NOUNS_OF[kind] for form in noun}


def shape(tree):
    if isinstance(tree.children[0], str):
        return []
    return [part.label for part in tree.children]


def test_the_text_matches_this_version():
    text = "".join(f"{r['source']}\t{r['target']}\n" for r in records()[:1000])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert (VERSION, digest) == (1, "dbfd6f0e249a06d1"), (
        "the text changed: raise VERSION"
    )


def test_smaller_sizes_are_a_prefix():
    assert generate("train", 50) == records()[:50]
    assert generate("test", 0) == []


def test_no_sentence_is_in_two_splits_or_twice_in_one():
    sentences = [r["source"] for split in SPLITS for r in records(split, 1000)]
    assert len(set(sentences)) == len(sentences) == 3000


def test_a_split_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="unknown split 'dev': choose from train, val"):
        generate("dev", 1)


def test_trees_are_recovered_exactly():
    nltk = pytest.importorskip("nltk")
    for record in records():
        words = record["source"].split()
        tree, problems = trees.restore(record["target"].split(), words)
        assert not problems
        assert trees.linearise(tree) == record["target"]
        assert nltk.Tree.fromstring(str(tree)).leaves() == words


def test_lengths_go_from_4_to_25_and_each_is_common():
    lengths = Counter(len(r["source"].split()) for r in records())
    assert set(lengths) == set(range(4, 26))
    assert min(lengths.values()) > 20


def test_sentences_of_the_same_kinds_of_words_have_the_same_tree():
    """This is more than one tree per sentence: a parser needs only the kinds."""
    kinds = dict.fromkeys(NAMES, "name") | {
        form: f"{kind}{number}"
        for kind, nouns in NOUNS_OF.items()
        for noun in nouns
        for number, form in enumerate(noun)
    }
    kinds |= {word: "adjective" for words in ADJECTIVES_OF.values() for word in words}
    speaker, found, repeated = Speaker(Random("trees").random), {}, 0
    for _ in range(10_000):
        tree = speaker.sentence()
        key = tuple([kinds.get(word, word) for word in trees.words(tree)])
        repeated += key in found
        target = trees.linearise(tree)
        assert found.setdefault(key, target) == target
    assert repeated > 200


def test_every_construction_occurs_often():
    labels = Counter(tree.label for tree, _ in phrases())
    assert {label for label, count in labels.items() if count > 30} == set(
        "S NP VP PP SBAR WHNP WHADVP ADVP ADJP PRT SQ SBARQ".split()
    )
    joined = Counter(t.label for t, _ in phrases() if ("and",) in [p[1] for p in t[1]])
    assert all(joined[label] > 30 for label in ("NP", "VP", "S"))
    shapes = Counter(" ".join(shape(tree)) for tree, _ in phrases())
    for met in (
        "NP SBAR",
        "NP PP SBAR",
        "NP PP PP",
        "WHNP S",
        "NP PP",
        "SBAR , NP VP .",
    ):
        assert shapes[met] > 10, met


def test_the_noun_after_a_preposition_decides_its_attachment():
    parents = defaultdict(Counter)
    for tree, parent in phrases():
        if tree.label == "PP" and tree.children[0].children == ("with",):
            nouns = set(trees.words(tree))
            for kind in ("blade", "tool", "lens", "trait", "topping"):
                if nouns & forms(kind):
                    parents[kind][parent.label] += 1
    for kind in ("blade", "tool", "lens"):
        assert set(parents[kind]) == {"VP"}
    assert set(parents["trait"]) == set(parents["topping"]) == {"NP"}


def test_the_verb_decides_the_attachment_of_the_same_words():
    """She puts (a letter) (in the box); she reads (a letter (in the box))."""
    places = defaultdict(Counter)
    for tree, _ in phrases():
        if tree.label == "VP" and shape(tree)[:2] == ["XX", "NP"]:
            verb, thing, *rest = tree.children
            for part in (*rest, *thing.children):
                inside = part.label == "PP" and trees.words(part)[0] == "in"
                if inside and forms("container") & {*trees.words(part)}:
                    parent = "VP" if part in rest else "NP"
                    places[verb.children[0]][parent] += 1
    putting = places.keys() & {"put", "puts", "leave", "leaves", "left"}
    assert all(set(places[verb]) == {"VP"} for verb in putting)
    assert all(set(places[verb]) == {"NP"} for verb in places.keys() - putting)
    assert len(putting) > 3 and len(places) > 10


def test_a_relative_clause_attaches_to_the_noun_its_verb_agrees_with():
    plurals = {several for kind in ANIMATE for _, several in NOUNS_OF[kind]}
    animate = plurals | {one for kind in ANIMATE for one, _ in NOUNS_OF[kind]}
    singular = {verb.third for verbs in VERBS_OF.values() for verb in verbs}
    seen = Counter()
    for tree, _ in phrases():
        if shape(tree) == ["NP", "PP", "SBAR"]:
            high, (head, (_, (_, rival)), clause) = True, tree[1]
        elif shape(tree) == ["NP", "PP"] and shape(tree[1][1][1][-1]) == ["NP", "SBAR"]:
            high, rival, (head, clause) = False, tree[1][0], tree[1][1][1][-1][1]
        else:
            continue
        nouns = [trees.words(noun)[-1] for noun in (head, rival)]
        if not animate >= {*nouns}:
            continue
        several = [noun in plurals for noun in nouns]
        who, verb, *_ = trees.words(clause)
        assert several[0] != several[1] and who == "who"
        assert not (several[0] and verb in singular)
        seen[high, several[0]] += 1
    assert len(seen) == 4 and min(seen.values()) > 2


def test_other_splits_use_the_words_and_the_brackets_of_training():
    known = {t for r in records() for t in (r["source"] + " " + r["target"]).split()}
    found = Counter()
    for split in ("validation", "test"):
        for record in records(split, 1000):
            assert {*record["target"].split()} <= known
            found.update(word in known for word in record["source"].split())
    assert found[False] < found.total() / 1000
