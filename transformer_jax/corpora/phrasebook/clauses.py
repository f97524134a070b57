"""Clauses of the phrasebook: verbs with their auxiliaries, objects, places and times.

English needs do-support, fronted auxiliaries and participles where Portuguese has one
verb form. The subject is dropped only where the form alone shows the person, and tenses
whose forms coincide are told apart by an adverb, so that each sentence has one meaning.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from transformer_jax.corpora.phrasebook import lexicon
from transformer_jax.corpora.phrasebook.lexicon import Verb
from transformer_jax.corpora.phrasebook.nominals import Describer, Nominal
from transformer_jax.corpora.phrasebook.twins import (
    Branch,
    Leaf,
    Twin,
    adverbial,
    phrase,
    word,
)

BE = {
    "present": {"I": "am", "he": "is", "they": "are"},
    "preterite": {"I": "was", "he": "was", "they": "were"},
    "imperfect": {"I": "was", "he": "was", "they": "were"},
}
PERIPHRASES = {  # the Portuguese auxiliary, its tense, and what English adds to it
    "progressive": ("estar", "present", ""),
    "background": ("estar", "imperfect", ""),
    "future": ("ir", "present", "going to"),
    "able": ("poder", "present", ""),
    "willing": ("querer", "present", "to"),
    "obliged": ("precisar", "present", "to"),
}
TIMES = {
    "preterite": "past",
    "present": "habit",
    "progressive": "now",
    "future": "future",
    "willing": "future",
    "obliged": "future",
    "able": "future",
}
LASTING = ("gostar", "precisar")
FAMILIES = (lexicon.TRANSITIVE, lexicon.DATIVE, lexicon.INTRANSITIVE, lexicon.MOTION)
AUXILIARIES = {verb.infinitive: verb for verb in lexicon.AUXILIARY}
VERBS = {verb.infinitive: verb for verb in lexicon.TRANSITIVE + lexicon.MOTION}


class Group(NamedTuple):
    """A verb and its auxiliaries; `front` precedes the subject in questions."""

    source: list[Twin]
    front: list[Twin]
    target: list[Twin]
    tail: list[Twin]


class Teller(Describer):
    """Draws clauses about what people do."""

    def group(
        self,
        verb: Verb,
        tense: str,
        subject: Nominal,
        negated: bool = False,
        question: bool = False,
        clitic: Twin | None = None,
    ) -> Group:
        """Grow a verb in one of the simple tenses or with an auxiliary."""
        before = [word("NEG", "não", "not")] if negated else []
        clitics = [clitic] if clitic else []
        if tense in ("perfect", "yet"):
            return self._perfect(verb, tense, subject, clitics)
        if tense in PERIPHRASES:
            return self._periphrasis(verb, tense, subject, before, clitics, question)
        form = verb.source[tense][subject.person]
        if negated or question:
            front = [word("AUX", "", support(tense, subject))]
            english = verb.target
        else:
            front, english = [], finite(verb, tense, subject)
        main = word("V", form, english)
        return Group([*before, *clitics, main], front, [*before, main], [])

    def _perfect(self, verb, tense, subject, clitics) -> Group:
        main = word("V", verb.source["preterite"][subject.person], verb.past_participle)
        have = [word("AUX", "", "has" if subject.english == "he" else "have")]
        if tense == "perfect":
            already = word("ADV", "já", "already")
            return Group([already, *clitics, main], have, [already, main], [])
        yet, no = word("ADV", "ainda", "yet"), word("NEG", "não", "not")
        return Group([yet, no, *clitics, main], have, [no, main], [yet])

    def _periphrasis(self, verb, tense, subject, before, clitics, question) -> Group:
        name, when, added = PERIPHRASES[tense]
        helper = AUXILIARIES[name] if name != "ir" else VERBS["ir"]
        form = helper.source[when][subject.person]
        ongoing = tense in ("progressive", "background")
        main = word(
            "V",
            verb.gerund if ongoing else verb.infinitive,
            verb.ing if ongoing else verb.target,
        )
        if tense in ("willing", "obliged"):  # these are full verbs in English
            supported = bool(before) or question
            front = [word("AUX", "", support(when, subject))] if supported else []
            english = helper.target if supported else finite(helper, when, subject)
            auxiliary = word("V", form, english)
            first = [auxiliary]
        else:
            english = "can" if tense == "able" else BE[when][subject.english]
            auxiliary = word("AUX", form, english)
            front, first = [auxiliary], []
        extra = [word("AUX", "", added, like=auxiliary)] if added else []
        source = [*before, auxiliary, *clitics, main]
        return Group(source, front, [*before, *first, *extra, main], [])

    def clause(
        self,
        subject: Nominal,
        group: Group,
        source: Sequence[Twin] = (),
        target: Sequence[Twin] | None = None,
        question: bool = False,
        label: str = "S",
    ) -> Twin:
        """Join a subject, its verb group and what follows the verb."""
        target = source if target is None else target
        fronted = group.front if question else []
        inner = [] if question else group.front
        verb_phrase = phrase(
            "VP",
            [*group.source, *source],
            [*inner, *group.target, *target, *group.tail],
        )
        return phrase(
            "SQ" if question else label,
            [subject.twin, verb_phrase],
            [*fronted, subject.twin, verb_phrase],
        )

    def acting(
        self,
        subject: Nominal,
        tense: str = "",
        question: bool = False,
        timed: float = 0.8,
        brief: bool = False,
        negated: bool = False,
        label: str = "S",
    ) -> Twin:
        """Grow a clause about what the subject does, with any suitable verb."""
        families = [(60, lexicon.TRANSITIVE), (13, lexicon.DATIVE)]
        if not brief:
            families += [(17, lexicon.INTRANSITIVE), (13, lexicon.MOTION)]
        family = self.weigh(families)
        verb, kind = self._action(family, tense, subject.person)
        tense = tense or self._tense(verb, subject.person, question)
        simple = tense in ("present", "preterite", "progressive", "future")
        negated = negated or (simple and not question and self.chance(0.18))
        plain = negated or question or tense in ("perfect", "yet")
        group = self.group(verb, tense, subject, negated, question)
        habit = tense == "present" and verb.infinitive != "precisar"
        when = self._when(verb, tense, subject, timed)
        early = bool(when) and not (negated or question or brief or label != "S")
        early = early and self.chance(0.3)
        relative = early or not when  # otherwise the time seems to belong to it
        source, target = self._complements(verb, kind, plain, habit, relative)
        placed = not brief and family is lexicon.TRANSITIVE and self.chance(0.6)
        if placed and (sites := lexicon.SCENES.get(verb.infinitive)):
            place = self.place(sites)
            source, target = [*source, place], [*target, place]
        late = [] if early else when
        subject = self.dropped(subject, verb, tense)
        clause = self.clause(
            subject, group, [*source, *late], [*target, *late], question, label
        )
        return phrase(label, [*when, word(",", "", ","), clause]) if early else clause

    def _when(
        self, verb: Verb, tense: str, subject: Nominal, probability: float
    ) -> list[Twin]:
        """Perhaps add a time, and always if the verb form shows no tense."""
        unclear = subject.person == "1p" and tense == "preterite"
        if tense not in TIMES or verb.infinitive in LASTING:
            return []
        if not unclear and not self.chance(probability):
            return []
        return [adverbial(self.pick(lexicon.ADVERBIALS[TIMES[tense]]))]

    def _action(
        self, family: Sequence[Verb], tense: str, person: str
    ) -> tuple[Verb, str]:
        """Draw a verb and the kind of the noun after it.

        Half of the time the kind is drawn first, so that nouns with few verbs are not
        rare.
        """
        verbs = _allowed(family[0].infinitive, tense, person)
        if self.chance(0.5) or family is lexicon.INTRANSITIVE:
            verb = self.pick(verbs)
            return verb, self.pick(verb.kinds) if verb.kinds else ""
        kinds = sorted({kind for verb in verbs for kind in verb.kinds})
        kind = self.weigh([(len(lexicon.NOUNS[kind]), kind) for kind in kinds])
        return self.pick([verb for verb in verbs if kind in verb.kinds]), kind

    def _tense(self, verb: Verb, person: str, question: bool) -> str:
        options = [(8, "preterite"), (3, "progressive"), (3, "future")]
        options += [(13, "present"), (2, "able"), (2, "willing"), (2, "obliged")]
        if not question:
            options += [(3, "perfect"), (2, "yet")]
        return self.weigh([o for o in options if allows(verb, o[1], person)])

    def dropped(self, subject: Nominal, verb: Verb, tense: str) -> Nominal:
        """Leave out the pronoun, nine times in ten, if the verb form replaces it."""
        name, when, _ = PERIPHRASES.get(tense, ("", "preterite", ""))
        helper = AUXILIARIES.get(name) or (VERBS["ir"] if name else verb)
        forms = helper.source[when if name or tense in ("perfect", "yet") else tense]
        if (subject.person, tense) == ("1p", "future"):
            return subject  # "vamos comer" alone would be "let us eat"
        if subject.person[0] != "1" or forms[subject.person] == forms["3s"]:
            return subject
        if self.chance(0.12):
            return subject
        english = {"1s": "I", "1p": "we"}[subject.person]
        return subject._replace(twin=phrase("NP", [word("PRON", "", english)]))

    def _complements(
        self, verb: Verb, kind: str, plain: bool, habit: bool, relative: bool
    ) -> tuple[list[Twin], list[Twin]]:
        """Draw the complements of a verb, in the order of each language."""
        if verb in lexicon.INTRANSITIVE:
            places = [self.place([kind])] if kind and self.chance(0.8) else []
            return places, places
        thing = self.thing(kind, plain, habit)
        if verb not in lexicon.MOTION:
            self.relate(verb.target, thing.noun)
        if verb in lexicon.DATIVE:
            recipient = self.weigh([(3, self.name), (2, self.relative)])().twin
            to = phrase("PP", [word("PREP", "a", ""), recipient])
            return [thing.twin, to], [recipient, thing.twin]
        twin = self._with_relative_clause(thing, verb) if relative else thing.twin
        if verb.preposition:
            twin = phrase("PP", [word("PREP", verb.preposition, verb.particle), twin])
        elif verb.particle:
            particle = word("PRT", "", verb.particle)
            return [twin], [particle, twin]
        return [twin], [twin]

    def _with_relative_clause(self, thing: Nominal, verb: Verb) -> Twin:
        """Perhaps say how a thing was acquired: o livro que a Ana comprou."""
        kind = thing.noun.kind if thing.noun else "person"
        options = [VERBS["comprar"], VERBS["trazer"]]
        options = [v for v in options if kind in v.kinds and v is not verb]
        whole = thing.twin.target[0]
        first = whole.children[0] if isinstance(whole, Branch) else whole
        definite = isinstance(first, Leaf) and first.word == "the"
        if not options or not definite or not self.chance(0.6):
            return thing.twin
        subject = self.weigh([(3, self.name), (2, self.relative)])()
        acquired = self.pick(options)
        self.relate(acquired.target, thing.noun)
        group = self.group(acquired, "preterite", subject)
        return self.restricted(thing.twin, "that", self.clause(subject, group))

    def restricted(self, head: Twin, pronoun: str, clause: Twin) -> Twin:
        """Attach a relative clause to a noun phrase."""
        clause = phrase("SBAR", [word("REL", "que", pronoun), clause])
        return phrase("NP", [head, clause])

    def someone_who(self) -> Nominal:
        """Draw a person who is identified by a relative clause."""
        noun = self.noun("person")
        person = self.determined(noun, "the", self.chance(0.25), 0.1)
        silent = person._replace(twin=Twin((), ()))
        clause = self.acting(
            silent, self.pick(("preterite", "progressive")), brief=True
        )
        return person._replace(twin=self.restricted(person.twin, "who", clause))


def allows(verb: Verb, tense: str, person: str) -> bool:
    """Return whether a verb makes sense, and has one meaning, in a tense."""
    name = verb.infinitive
    if name in LASTING:
        return tense == "present" and person != "1p"
    if name in lexicon.ACCIDENTAL:
        return tense in ("preterite", "perfect")
    if person == "1p" and tense in ("present", "obliged"):
        return False  # compramos, precisamos: also "we bought", "we needed"
    if tense == "present":
        return name not in lexicon.ONCE and verb not in lexicon.DATIVE
    if tense in ("progressive", "background"):
        return name not in lexicon.STATIVE
    return not (name == "ir" and tense == "future")


@cache
def _allowed(first: str, tense: str, person: str) -> list[Verb]:
    """Return the verbs of the family that starts with `first` that allow a tense."""
    family = next(f for f in FAMILIES if f[0].infinitive == first)
    tenses = (tense,) if tense else ("preterite", "present")
    return [verb for verb in family if any(allows(verb, t, person) for t in tenses)]


def support(tense: str, subject: Nominal) -> str:
    """Return the form of "do" in a tense."""
    if tense == "preterite":
        return "did"
    return "does" if subject.english == "he" else "do"


def finite(verb: Verb, tense: str, subject: Nominal) -> str:
    """Return the English form of a verb in a simple tense."""
    if tense == "preterite":
        return verb.past
    return verb.third if subject.english == "he" else verb.target
