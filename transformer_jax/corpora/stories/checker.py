"""Check stories by exact rules: does a text keep to the grammar and to itself?

Each sentence is matched with every wording of the grammar. Of the readings of a
sentence the one that agrees best with the story so far counts.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from transformer_jax.corpora.stories import set_articles, vocabulary, words_of
from transformer_jax.corpora.stories.lexicon import GENDERS, KINDS, PRONOUNS, SLOTS
from transformer_jax.corpora.stories.plots import PLOTS, SLOT

RULES = ("words", "sentences", "names", "pronouns", "things", "order", "end")
GENDER_OF = {kind: gender for gender, kinds in KINDS.items() for kind in kinds} | {
    form: "he" if male else "she"
    for forms in PRONOUNS.values()
    for male, form in enumerate(forms)
}


class Reading(NamedTuple):
    """A sentence read as one of the wordings, with the words in its slots."""

    wording: str
    values: dict[str, str]  # slot → word; pronouns apart
    genders: frozenset[str]  # of the hero's pronouns and kind


class Verdict(NamedTuple):
    """Each rule of a story, kept or broken, and the share of its words that exist."""

    kept: dict[str, bool]
    real_words: float

    @property
    def consistent(self) -> bool:
        """Return whether the story keeps all rules."""
        return all(self.kept.values())


def check(story: str) -> Verdict:
    """Check one story.

    words: all exist. sentences: all are of the grammar. names: hero and helper stay
    the same. pronouns: those of the hero agree. things: every other slot stays the
    same. order: the stages of one plot, in order and none left out. end: the last
    sentence is an ending.
    """
    text = story.strip()
    words, broken = words_of(text), set()
    real = sum(word in vocabulary() for word in words) / max(len(words), 1)
    if real < 1:
        broken.add("words")
    read: list[Reading] = []
    known: dict[str, str] = {}
    for sentence in split_sentences(text):
        readings = read_sentence(sentence)
        if not readings:
            broken.add("sentences")
            continue
        faults, best = min(
            ((_faults(r, known), r) for r in readings), key=lambda pair: len(pair[0])
        )
        broken |= faults
        known = best.values | known
        read.append(best)
    wordings = [reading.wording for reading in read]
    if not any(_follows(plot.stages, wordings) for plot in PLOTS):
        broken.add("order")
    if not wordings or wordings[-1] not in _endings():
        broken.add("end")
    return Verdict({rule: rule not in broken for rule in RULES}, real)


def rates(stories: Sequence[str]) -> dict[str, float]:
    """Return the share of stories that keep each rule, all rules, and of real words."""
    verdicts = [check(story) for story in stories]
    shares = {
        rule: sum(v.kept[rule] for v in verdicts) / len(verdicts) for rule in RULES
    }
    shares["consistent"] = sum(v.consistent for v in verdicts) / len(verdicts)
    shares["real words"] = sum(v.real_words for v in verdicts) / len(verdicts)
    return shares


def split_sentences(text: str) -> list[str]:
    """Divide a text after each full stop; the rest counts as a sentence, too."""
    return [part for part in re.split(r'(?<=\.) |(?<=\.") |(?<=\?) ', text) if part]


@functools.lru_cache(10_000)
def read_sentence(sentence: str) -> tuple[Reading, ...]:
    """Return every reading of a sentence by the grammar."""
    if set_articles(sentence) != sentence:
        return ()
    found = []
    for wording, pattern, slots in _patterns():
        if match := pattern.fullmatch(sentence):
            values = {slot: word for slot, word in zip(slots, match.groups())}  # noqa: B905
            genders = set()
            for slot, word in zip(slots, match.groups(), strict=True):
                if slot.lower() in (*PRONOUNS, "kind"):
                    genders.add(GENDER_OF[word.lower()])
                    values.pop(slot, None)
            found.append(Reading(wording, values, frozenset(genders)))
    return tuple(found)


def _faults(reading: Reading, known: dict[str, str]) -> set[str]:
    """List the rules that a reading breaks, given the slots of earlier sentences."""
    faults = set()
    for slot, value in reading.values.items():
        if known.get(slot, value) != value:
            faults.add("names" if slot in ("A", "B") else "things")
    values = known | reading.values
    if "A" in values and values["A"] == values.get("B"):
        faults.add("names")
    hero = GENDERS.get(known.get("A", reading.values.get("A", "")))
    if hero and reading.genders - {hero}:
        faults.add("pronouns")
    return faults


def _follows(stages: Iterable, wordings: Sequence[str]) -> bool:
    """Return whether wordings tell these stages, in order."""
    place = 0
    for stage in stages:
        if place < len(wordings) and wordings[place] in stage.wordings:
            place += 1
        elif not stage.optional:
            return False
    return place == len(wordings)


@functools.cache
def _endings() -> frozenset[str]:
    return frozenset(w for plot in PLOTS for w in plot.stages[-1].wordings)


@functools.cache
def _patterns() -> list[tuple[str, re.Pattern, list[str]]]:
    """Compile each wording of the grammar; its slots in order."""
    wordings = {w: None for p in PLOTS for stage in p.stages for w in stage.wordings}
    return [(w, re.compile(_pattern(w)), SLOT.findall(w)) for w in wordings]


def _pattern(wording: str) -> str:
    parts, place = [], 0
    for slot in SLOT.finditer(wording):
        parts.append(_words(wording[place : slot.start()]))
        parts.append(f"({'|'.join(map(re.escape, _values(slot[1])))})")
        place = slot.end()
    return "".join(parts) + _words(wording[place:])


def _words(text: str) -> str:
    """Match words as they are; an article before a slot may be either."""
    return re.sub(r"\b([Aa]) $", r"\1n? ", re.escape(text).replace(r"\ ", " "))


def _values(slot: str) -> list[str]:
    if slot in ("A", "B"):
        return [*GENDERS]
    if slot == "kind":
        return [kind for kinds in KINDS.values() for kind in kinds]
    if slot.lower() in PRONOUNS:
        forms = PRONOUNS[slot.lower()]
        return [form.title() for form in forms] if slot[0].isupper() else [*forms]
    return SLOTS[slot]
