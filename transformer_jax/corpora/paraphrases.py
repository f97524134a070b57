"""Paraphrases: two English wordings of one meaning, from the phrasebook's trees.

A wording changes words (car, automobile), times (last week, a week ago), contractions
(did not, didn't), and the order: passive or active, "gave Ana the book" or "gave the
book to Ana", the time in front or at the end. All wordings of a sentence have the same
meaning, so a hash of one of them, the plain one, assigns it to its split.
"""

import functools
import itertools
import re
from random import Random
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.corpora.phrasebook import inflection, lexicon
from transformer_jax.corpora.phrasebook.grammar import Speaker
from transformer_jax.corpora.phrasebook.twins import Branch, Leaf, detokenize
from transformer_jax.data.draws import Drawer, check_split, split_of
from transformer_jax.data.reading.sources import GeneratedSource
from transformer_jax.data.text.retrieval import share_words

Tree = Any  # a Leaf, or a Branch where its label says so
VERSION = 1  # part of the data fingerprint: raise when the generated text changes
SPLITS = ("train", "validation", "test", "test_reworded")
RATES = {  # how often a word is changed, on each side
    "train": ((0.0, 0.5, 1.0), (0.0, 0.5, 1.0)),
    "validation": ((0.0,), (0.5,)),
    "test": ((0.0,), (0.25,)),
    "test_reworded": ((0.0,), (1.0,)),
}
MOST_SHARED = 0.25  # share of common words in a pair of test_reworded
_LENGTHS = range(4, 23)  # of a plain wording, with its punctuation
_PATIENCE = 2000  # sentences in sequence without a new one before giving up

_NOUNS = """
boy=lad girl=lass man=gentleman/gentlemen woman=lady teacher=educator doctor=physician
student=pupil cook=chef lawyer=attorney actor=performer singer=vocalist farmer=grower
friend=pal soldier=trooper writer=author queen=monarch father=dad mother=mom
grandfather=grandpa grandmother=grandma aunt=auntie cat=kitty dog=hound horse=steed
rabbit=bunny pig=hog monkey=ape cookie=biscuit letter=epistle note=memo/memos
poem=verse message=dispatch story=tale article=essay newspaper=gazette magazine=journal
coat=jacket dress=gown blouse=top shoe=sneaker hat=cap phone=telephone clock=timepiece
lamp=lantern doll=puppet computer=machine bicycle=bike wallet=purse gift=present
ball=sphere pen=marker map=chart glass=tumbler plate=platter cup=mug bottle=flask
bowl=basin gate=portal car=automobile bus=coach truck=lorry taxi=cab flower=blossom
violin=fiddle mathematics=algebra soccer=football movie=film program=broadcast
song=tune painting=canvas/canvases portrait=likeness couch=sofa shelf=rack box=crate
backpack=rucksack closet=wardrobe basket=hamper bathroom=washroom bedroom=dormitory
house=residence church=chapel store=shop hotel=inn garden=yard
city=metropolis/metropolises forest=wood square=plaza village=hamlet street=road
school=academy hospital=clinic museum=gallery market=bazaar restaurant=diner
station=terminal airport=airfield theater=playhouse river=stream sea=ocean
farm=ranch/ranches island=isle mountain=peak beach=shore rice=grain juice=nectar
meat=flesh bread=toast
"""
_ADJECTIVES = """
expensive=costly cheap=affordable new=recent beautiful=lovely big=large small=little
old=aged strong=sturdy young=youthful intelligent=clever rich=wealthy famous=renowned
nice=kind fast=quick slow=sluggish dangerous=risky heavy=weighty interesting=fascinating
long=lengthy short=brief sad=sorrowful difficult=hard easy=simple delicious=tasty
ancient=historic quiet=calm tired=weary sick=ill happy=glad busy=occupied
worried=anxious angry=furious nervous=tense cold=chilly hot=warm closed=locked
empty=vacant dirty=filthy clean=spotless broken=shattered wet=soaked red=crimson
yellow=golden
"""
# A verb without its particle, and another with everything that follows it.
_VERBS = """
eat=consume drink=sip prepare=make/made/made cut=slice read=peruse write=compose
buy=purchase see=spot find=discover lose=misplace look_for=seek/sought/sought
close=shut/shut/shut clean=tidy wash=rinse put_on=don break=smash bring=fetch carry=haul
study=learn teach=explain help=assist visit=call_on invite=summon greet=salute
wait_for=await draw=sketch build=construct repair=fix drive=steer watch=view
sing=perform plant=sow like=enjoy need=require feed=nourish give=hand show=present
send=mail lend=loan sleep=slumber work=labor run=jog swim=bathe cry=weep/wept/wept
rest=relax walk=stroll travel=journey go=head return=go_back/went_back/gone_back
arrive_at=reach say=state think=believe want=wish
"""
_FIXED = {  # words of any label; the longest are changed first
    "yesterday": "the day before",
    "last night": "yesterday evening",
    "last week": "a week ago",
    "last month": "a month ago",
    "last year": "a year ago",
    "this morning": "early today",
    "every day": "daily",
    "every morning": "at dawn",
    "every week": "weekly",
    "on sundays": "at weekends",
    "sometimes": "now and then",
    "in the morning": "before noon",
    "at night": "after dark",
    "now": "at present",
    "at this moment": "just now",
    "tomorrow": "in a day",
    "next week": "in seven days",
    "next month": "in thirty days",
    "on saturday": "at the weekend",
    "tonight": "this evening",
    "very": "really",
    "many": "lots of",
    "several": "a number of",
    "some": "a few",
    "another": "one more",
    "is going to": "will",
    "are going to": "will",
    "am going to": "will",
    "did not": "didn't",
    "does not": "doesn't",
    "do not": "don't",
    "is not": "isn't",
    "are not": "aren't",
    "was not": "wasn't",
    "were not": "weren't",
    "has not": "hasn't",
    "have not": "haven't",
    "can not": "can't",
    "because": "since",
    "while": "as",
    "two": "a pair of",
    "twelve": "a dozen",
    "needs to": "has to",
    "need to": "have to",
}
_LONGEST = 3  # most words that are changed together


def generate(split: str, size: int, seed: int = 0) -> list[dict[str, str]]:
    """Return the first `size` pairs of a split, always the same for a seed.

    `test` changes a quarter of the words that have a synonym. `test_reworded` changes
    all of them, and its pairs share at most a quarter of their words. No two splits
    have a meaning in common, except for these two.
    """
    check_split(split, SPLITS)
    kind = split.partition("_")[0]
    speaker = Speaker(Random(f"paraphrases {kind} {seed}").random)
    pairs: dict[str, dict[str, str]] = {}
    idle = 0
    while len(pairs) < size:
        if idle == _PATIENCE:
            raise ValueError(
                f"{split!r} has about {len(pairs)} sentences: {size} were asked for"
            )
        idle += 1
        tree: Tree = speaker.sentence().target[0]
        plain = Wording(lambda: 1.0, 0.0).say(tree)
        if split_of(plain) != kind or plain in pairs:
            continue
        if len(re.findall(r"\w+|[.,?]", plain)) not in _LENGTHS:
            continue
        draw = Random(f"{split} {plain}").random
        sides = (Wording(draw, Drawer(draw).pick(rates)) for rates in RATES[split])
        source, target = (side.say(tree) for side in sides)
        if source == target:
            continue
        if split == "test_reworded" and share_words([(source, target)]) > MOST_SHARED:
            continue
        pairs[plain] = {"source": source, "target": target}
        idle = 0
    return [*pairs.values()]


class Wording(Drawer):
    """Puts trees into words, changing a random share of what can be changed."""

    def __init__(self, random, rate: float):
        """Make each possible change with a probability of about `rate`, 0 to 1."""
        super().__init__(random)
        self.rate = rate

    def say(self, tree: Tree) -> str:
        """Write a tree as a sentence."""
        sentence, mark = tree.children
        if not self.chance(self.rate / 2):
            sentence = self._order(_settle(sentence))
        words = [*_leaves(sentence), mark]
        named = self._rename(words) if self.rate else [leaf.word for leaf in words]
        text = detokenize(named)
        text = re.sub(r"\b(a|A)(?= [aeiou])", r"\1n", text)
        return text[0].upper() + text[1:]

    def _order(self, tree: Tree) -> Tree:
        """Perhaps move the time of a statement to the front."""
        if not _is(tree, "S") or len(tree.children) != 2:
            return tree
        subject, verb = tree.children
        if not _is(verb, "VP") or not _is(verb.children[-1], "ADVP"):
            return tree
        if _has(verb, "SBAR") or not self.chance(self.rate / 2):
            return tree
        *rest, time = verb.children
        comma = Leaf(",", ",", ())
        return Branch("S", (time, comma, subject, Branch("VP", tuple(rest))))

    def _rename(self, leaves: list[Leaf]) -> list[str]:
        """Change words, trying the longest sequences first."""
        words: list[str] = []
        while leaves:
            for count in range(_LONGEST, 0, -1):
                part = leaves[:count]
                if other := _other(part):
                    break
            changed = other and self.chance(self.rate)
            words += [other] if changed else [leaf.word for leaf in part]
            leaves = leaves[len(part) :]
        return words


def _settle(tree: Tree) -> Tree:
    """Put a tree in its plain order: active, the recipient and the time at the end."""
    if not isinstance(tree, Branch):
        return tree
    tree = Branch(tree.label, tuple(map(_settle, tree.children)))
    children = tree.children
    labels = [child.label for child in children]
    if labels == ["ADVP", ",", "S"]:
        time, _, inner = children
        *rest, verb = inner.children
        if _is(verb, "VP"):
            verb = Branch("VP", (*verb.children, time))
        return Branch("S", (*rest, verb))
    if labels == ["NP", "VP"] and (agent := _agent(children[1])):
        return _active(tree, agent)
    if tree.label == "VP" and (i := _recipient(children)) >= 0:
        recipient, thing = children[i : i + 2]
        to = Branch("PP", (Leaf("PREP", "to", ()), recipient))
        return Branch("VP", (*children[:i], thing, to, *children[i + 2 :]))
    return tree


def _agent(verb: Tree) -> Tree | None:
    """Return the agent of a passive: "was painted by Miguel"."""
    labels = [child.label for child in verb.children[:3]]
    if labels != ["AUX", "V", "PP"]:
        return None
    first, *rest = verb.children[2].children
    return rest[0] if isinstance(first, Leaf) and first.word == "by" else None


def _active(tree: Tree, agent: Tree) -> Tree:
    thing, verb = tree.children
    past = _pasts()[verb.children[1].word]
    rest = verb.children[3:]
    return Branch("S", (agent, Branch("VP", (Leaf("V", past, ()), thing, *rest))))


def _recipient(children: tuple) -> int:
    """Return the index of a recipient that precedes the gift, or -1."""
    for i in range(1, len(children) - 1):
        verb, one, other = children[i - 1 : i + 2]
        given = _is(verb, "V") and verb.word in _dative()
        if given and _is(one, "NP") and _is(other, "NP"):
            return i
    return -1


def _is(tree: Tree, label: str) -> bool:
    return tree.label == label


def _has(tree: Tree, label: str) -> bool:
    if not isinstance(tree, Branch):
        return False
    return any(_is(child, label) or _has(child, label) for child in tree.children)


def _leaves(tree: Tree) -> list[Leaf]:
    if not isinstance(tree, Branch):
        return [tree]
    return [leaf for child in tree.children for leaf in _leaves(child)]


def _other(leaves: list[Leaf]) -> str:
    """Return other words with the same meaning, or ""."""
    words = " ".join(leaf.word.lower() for leaf in leaves)
    if other := _tables().get((leaves[0].label, words)):
        return other
    # "Going to" a place is not a future, and "how many" is not "many".
    fixed = leaves[-1].label != "PRT" and leaves[0].label != "WH"
    return _FIXED.get(words, "") if fixed else ""


@functools.cache
def _pasts() -> dict[str, str]:
    verbs = lexicon.TRANSITIVE
    return {verb.past_participle: verb.past for verb in verbs}


@functools.cache
def _dative() -> frozenset[str]:
    verbs = lexicon.DATIVE
    forms = [(v.target, v.third, v.past, v.past_participle, v.ing) for v in verbs]
    return frozenset(form for each in forms for form in each)


@functools.cache
def _tables() -> dict[tuple[str, str], str]:
    """Map (label, words) to other words, in every unambiguous form."""
    pairs: dict[tuple[str, str], set[str]] = {}
    for label, forms in (*_noun_forms(), *_adjective_forms(), *_verb_forms()):
        for ours, theirs in forms:
            pairs.setdefault((label, ours), set()).add(theirs)
    return {ours: min(others) for ours, others in pairs.items() if len(others) == 1}


def _read(entries: str) -> dict[str, str]:
    parts = (entry.partition("=") for entry in entries.split())
    return {ours: theirs for ours, _, theirs in parts}


def _noun_forms():
    others = _read(_NOUNS)
    for noun in (n for nouns in lexicon.NOUNS.values() for n in nouns):
        if other := others.get(noun.target[0]):
            one, _, many = other.partition("/")
            theirs = one, many or inflection.add_s(one)
            yield "N", zip(noun.target, theirs, strict=True)


def _adjective_forms():
    for entry in _ADJECTIVES.split():
        ours, theirs = entry.split("=")
        yield "ADJ", [(ours, theirs)]
        for ending, adverb in (("er", "more"), ("est", "most")):
            graded = inflection.grade(ours, ending, adverb)
            yield "ADJ", [(graded, inflection.grade(theirs, ending, adverb))]


def _verb_forms():
    others = _read(_VERBS)
    families = lexicon.TRANSITIVE, lexicon.DATIVE, lexicon.INTRANSITIVE
    for verb in itertools.chain(*families, lexicon.MOTION, lexicon.AUXILIARY):
        name = "_".join(filter(None, (verb.target, verb.particle)))
        if not (other := others.get(name) or others.get(verb.target)):
            continue
        tail = f" {verb.particle}" if name in others and verb.particle else ""
        ours = (verb.target, verb.third, verb.past, verb.past_participle, verb.ing)
        yield (
            "V",
            [
                (form + tail, theirs)
                for form, theirs in zip(ours, _conjugate(other), strict=True)
            ],
        )


def _conjugate(entry: str) -> tuple[str, ...]:
    """Return the base, third person, past, participle and -ing of a verb."""
    base, *given = entry.split("/")
    verb, *rest = base.split("_")
    regular = inflection.past_of(verb)
    past, participle = (g.split("_")[0] for g in given) if given else (regular,) * 2
    forms = base.split("_")[0], inflection.add_s(verb), past, participle
    return tuple(" ".join([f, *rest]) for f in (*forms, inflection.ing_of(verb)))


def pairs(data: ConfigDict) -> GeneratedSource:
    """Return questions and their paraphrases as a source of similar texts."""
    return GeneratedSource("paraphrases", VERSION, SPLITS, generate)
