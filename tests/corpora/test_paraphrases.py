"""Paraphrases: two wordings of one meaning, and splits without common meanings."""

import random
import re
from functools import cache

import pytest

from transformer_jax.corpora import paraphrases
from transformer_jax.corpora.paraphrases import Wording, generate
from transformer_jax.corpora.phrasebook import lexicon
from transformer_jax.corpora.phrasebook.grammar import Speaker
from transformer_jax.corpora.phrasebook.twins import (
    Branch,
    Leaf,
    adverbial,
    phrase,
    word,
)
from transformer_jax.data.text.retrieval import share_words

SIZES = {"train": 400, "validation": 60, "test": 60, "test_reworded": 20}


@cache
def sample(split):
    return generate(split, SIZES[split])


def leaves(label, *words):
    return [word(label, w, w) for w in words]


def tree(subject, *verb):
    """An English sentence: a subject and the parts of the verb phrase."""
    return Branch(
        "TOP",
        (phrase("S", [subject, phrase("VP", verb)]).target[0], Leaf(".", ".", ())),
    )


@pytest.mark.parametrize("split", paraphrases.SPLITS)
def test_a_split_is_always_the_same_and_its_pairs_are_two_wordings(split):
    found = sample(split)
    assert found[:9] == generate(split, 9)
    assert len({(r["source"], r["target"]) for r in found}) == len(found)
    for record in found:
        assert record["source"] != record["target"]
        for text in record.values():
            assert re.fullmatch(r"[A-ZÀ-Ý].*[.?]", text) and "  " not in text
            assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", text, re.IGNORECASE)


def test_no_wording_of_training_is_held_out():
    texts = {split: {t for r in sample(split) for t in r.values()} for split in SIZES}
    assert not texts["train"] & texts["validation"]
    assert not texts["train"] & (texts["test"] | texts["test_reworded"])


def test_a_reworded_pair_shares_few_words_and_a_plain_one_most():
    shares = {
        split: share_words([(r["source"], r["target"]) for r in sample(split)])
        for split in SIZES
    }
    assert shares["test_reworded"] < 0.25 < 0.6 < shares["test"]
    for record in sample("test_reworded"):
        assert share_words([(record["source"], record["target"])]) <= 0.25


def test_every_word_with_a_synonym_is_changed_and_keeps_its_form():
    tree = Branch(
        "TOP",
        (
            Branch("S", (
                Branch("NP", (Leaf("DET", "the", ()), Leaf("N", "cars", ()))),
                Branch("VP", (
                    Leaf("AUX", "are", ()), Leaf("AUX", "going", ()),
                    Leaf("AUX", "to", ()), Leaf("V", "stop", ()),
                    Leaf("ADJ", "taller", ()), Leaf("ADJ", "happier", ()),
                )),
            )),
            Leaf("?", "?", ()),
        ),
    )  # fmt: skip
    changed = Wording(lambda: 0.99, 1.0).say(tree)
    assert changed == "The automobiles will stop taller gladder?"
    plain = Wording(lambda: 0.0, 0.0).say(tree)
    assert plain == "The cars are going to stop taller happier?"


def test_going_to_a_place_and_how_many_are_not_changed():
    def renamed(*pairs):
        return Wording(lambda: 0.0, 1.0)._rename([Leaf(*pair, ()) for pair in pairs])

    going = ("AUX", "is"), ("V", "going"), ("PRT", "to")
    assert renamed(*going) == ["is", "heading", "to"]
    future = ("AUX", "is"), ("AUX", "going"), ("AUX", "to")
    assert renamed(*future, ("V", "eat")) == ["will", "consume"]
    assert renamed(("WH", "how"), ("WH", "many")) == ["how", "many"]
    assert renamed(("V", "needs"), ("AUX", "to")) == ["has to"]
    assert renamed(("V", "looked"), ("PRT", "for")) == ["sought"]
    assert renamed(("V", "read")) == ["read"]  # present or past: ambiguous


def test_sentences_are_put_in_plain_order():
    name, thing = (
        phrase("NP", leaves("NAME", "Ana")),
        phrase("NP", leaves("N", "books")),
    )
    time = adverbial(lexicon.ADVERBIALS["past"][0])
    by = phrase("PP", [*leaves("PREP", "by"), name])
    wording = Wording(lambda: 0.99, 0.0)

    def say(*parts):
        return wording.say(tree(*parts))

    passive = thing, *leaves("AUX", "were"), *leaves("V", "eaten"), by, time
    assert say(*passive) == "Ana ate books yesterday."
    dative = phrase("NP", leaves("PRON", "he")), *leaves("V", "gave"), name, thing
    assert say(*dative) == "He gave books to Ana."
    inner = phrase("S", [name, phrase("VP", leaves("V", "slept"))])
    front = phrase("S", [time, *leaves(",", ","), inner])
    whole = Branch("TOP", (front.target[0], Leaf(".", ".", ())))
    assert wording.say(whole) == "Ana slept yesterday."
    often = Wording(lambda: 0.0, 1.0)
    often.chance = lambda probability: probability == often.rate / 2 and next(order)
    order = iter([False, True])
    assert often.say(whole) == "Yesterday, Ana slept."


def test_synonyms_are_not_words_of_the_phrasebook():
    known = {w for nouns in lexicon.NOUNS.values() for n in nouns for w in n.target}
    known |= {adjective.target for adjective in lexicon.ADJECTIVES}
    table = paraphrases._tables()
    others = [other for (label, _), other in table.items() if label in ("N", "ADJ")]
    assert not known & set(others)
    assert len(others) == len(set(others)) > 200
    assert table["N", "wallets"] == "purses" and table["V", "arrives at"] == "reaches"


def test_unknown_splits_and_impossible_sizes_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="unknown split 'dev'"):
        generate("dev", 1)
    monkeypatch.setattr(paraphrases, "_PATIENCE", 3)
    with pytest.raises(ValueError, match="'test_reworded' has about"):
        generate("test_reworded", 10**6)


def test_every_sentence_of_the_phrasebook_can_be_worded():
    speaker = Speaker(random.Random(3).random)
    for _ in range(300):
        [tree] = speaker.sentence().target
        for rate in (0.0, 0.5, 1.0):
            assert Wording(random.Random(1).random, rate).say(tree)
