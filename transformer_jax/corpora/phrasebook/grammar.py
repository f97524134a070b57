"""The sentences of the phrasebook: a random grammar over the lexicon.

A `Speaker` draws one sentence at a time and grows both of its languages at once:
statements, questions, descriptions, passives, comparisons, pronouns before the verb,
reported speech and sentences of two clauses.
"""

from transformer_jax.corpora.phrasebook import lexicon
from transformer_jax.corpora.phrasebook.clauses import BE, TIMES, VERBS, allows
from transformer_jax.corpora.phrasebook.inflection import grade
from transformer_jax.corpora.phrasebook.nominals import (
    FITTING,
    INANIMATE,
    SITES,
    Nominal,
)
from transformer_jax.corpora.phrasebook.questions import ASKED_VERBS, BEING, Asker
from transformer_jax.corpora.phrasebook.twins import Twin, adverbial, phrase, word

GREETINGS = [
    VERBS[name]
    for name in str.split("ver ajudar visitar convidar cumprimentar esperar procurar")
]
GAINS = [VERBS[name] for name in ("comprar", "encontrar", "trazer")]
FOLLOW_UPS = {  # what one does with a thing just bought, found or brought
    kind: [VERBS[name] for name in names.split()]
    for kinds, names in {
        "food": "comer cortar",
        "meal": "comer",
        "drink": "beber",
        "book writing press": "ler",
        "garment footwear accessory": "lavar perder usar",
        "device": "perder quebrar",
        "trinket": "perder",
        "dish": "lavar quebrar",
        "cutlery": "lavar",
        "vehicle": "lavar consertar vender",
    }.items()
    for kind in kinds.split()
}
COMMUNITIES = [
    noun
    for kind in ("town", "venue")
    for noun in lexicon.NOUNS[kind]
    if noun.target[0] in ("city", "village", "school")
]
ANIMAL_VERBS = [VERBS["comer"]] + [
    verb
    for verb in lexicon.INTRANSITIVE
    if verb.infinitive in ("dormir", "correr", "descansar")
]
COMPARABLE = [
    kind
    for kind in INANIMATE
    if len(lexicon.NOUNS[kind]) > 1
    and any(a.graded and a.copula == "ser" for a in FITTING[kind])
]
WEATHER = (
    ("choveu", "rains", "rained", "chovendo", "chover"),
    ("nevou", "snows", "snowed", "nevando", "nevar"),
)
PASSIVE_VERBS = [v for v in ASKED_VERBS if v.infinitive not in ("ver", "usar", "jogar")]


class Speaker(Asker):
    """Draws sentences; `relations` then holds the lexeme pairs of the last one."""

    def sentence(self) -> Twin:
        """Draw a sentence in both languages."""
        self.forget()
        twin, mark = self.weigh(
            [
                (50, self._statement),
                (9, self._yes_no),
                (9, self.wh_question),
                (6, self._copular),
                (3, self._location),
                (3, self._existential),
                (7, self._passive),
                (5, self._comparison),
                (6, self._person_clitic),
                (7, self._antecedent),
                (5, self._reported),
                (4, self._because),
                (7, self._scene),
                (3, self._weather),
                (4, self._animal),
            ]
        )()
        return phrase("TOP", [twin, word(mark, mark, mark)])

    def _statement(self) -> tuple[Twin, str]:
        if self.chance(0.2):
            return self.acting(self.someone_who(), brief=True), "."
        return self.acting(self.subject()), "."

    def _yes_no(self) -> tuple[Twin, str]:
        return self.acting(self.subject(asked=True), question=True), "?"

    def _copular(self) -> tuple[Twin, str]:
        kind = self.pick([kind for kind, options in FITTING.items() if options])
        human = kind in ("person", "kin") and self.chance(0.4)
        thing = self.subject() if human else self.known(kind)
        copulas = {adjective.copula for adjective in FITTING[kind]}
        if human or len(copulas) < 2 or self.chance(0.3):
            return self._predication(thing, self.chance(0.25)), "."
        first = self._predication(thing, False, "ser")
        again = thing._replace(twin=Twin((), word("PRON", "", _pronoun(thing)).target))
        second = self._predication(again, False, "estar")
        but = [word(",", ",", ","), word("CC", "mas", "but")]
        return phrase("S", [first, *but, second]), "."

    def _predication(self, subject: Nominal, past: bool, copula: str = "") -> Twin:
        """Describe a subject; English has one verb for ser and estar."""
        kind = subject.noun.kind if subject.noun else "person"
        options = [a for a in FITTING[kind] if copula in ("", a.copula)]
        adjective = self.state(subject, options)
        tense = "imperfect" if past else "present"
        form = BEING[adjective.copula].source[tense]
        verb = word("V", form[subject.person], BE[tense][subject.english])
        no = [word("NEG", "não", "not")] if not copula and self.chance(0.2) else []
        stressed = adjective.graded and self.chance(0.4)
        very = [word("ADV", "muito", "very")] if stressed else []
        quality = word("ADJ", adjective.source[subject.agreement], adjective.target)
        state = phrase("ADJP", [*very, quality])
        verb_phrase = phrase("VP", [*no, verb, state], [verb, *no, state])
        if subject.person[0] == "1" and form[subject.person] != form["3s"]:
            pronoun = "I" if subject.person == "1s" else "we"
            subject = subject._replace(twin=word("PRON", "", pronoun))
        return phrase("S", [subject.twin, verb_phrase])

    def _location(self) -> tuple[Twin, str]:
        thing = self.known(self.pick([*SITES]))
        past, question = self.chance(0.3), self.chance(0.3)
        tense = "imperfect" if past else "present"
        form = BEING["estar"].source[tense][thing.person]
        verb = word("V", form, BE[tense][thing.english])
        no = [word("NEG", "não", "not")] if self.chance(0.2) and not question else []
        where = self.site_of(thing.noun)
        if not question:
            verb_phrase = phrase("VP", [*no, verb, where], [verb, *no, where])
            return phrase("S", [thing.twin, verb_phrase]), "."
        verb_phrase = phrase("VP", [verb, where], [where])
        return phrase("SQ", [thing.twin, verb_phrase], [verb, thing.twin, where]), "?"

    def _existential(self) -> tuple[Twin, str]:
        noun = self.noun(self.pick([kind for kind in SITES if kind != "kin"]))
        key = self.pick(("a", "many", "some", "several", self.number(), self.number()))
        thing = self.determined(noun, key, described=0.5)
        past = self.chance(0.3)
        be = BE["imperfect" if past else "present"][thing.english]
        verb = word("V", "havia" if past else "há", be)
        rest = [verb, thing.twin, self.site_of(noun)]
        return phrase("S", [word("EX", "", "there"), phrase("VP", rest)]), "."

    def _passive(self) -> tuple[Twin, str]:
        verb = self.pick(PASSIVE_VERBS)
        kind = self.pick([k for k in verb.kinds if k in INANIMATE])
        thing = self.known(kind, described=0.5)
        self.relate(verb.target, thing.noun)
        participle = verb.participle[:-1] + ("a" if thing.gender == "f" else "o")
        participle += "s" * thing.plural
        being = BEING["ser"].source["preterite"][thing.person]
        agent = self.weigh([(3, self.name), (2, self.relative), (4, self.someone)])()
        when = []
        if self.chance(0.5):
            when = [adverbial(self.pick(lexicon.ADVERBIALS["past"]))]
        rest = [
            word("AUX", being, BE["preterite"][thing.english]),
            word("V", participle, verb.past_participle),
            phrase("PP", [word("PREP", "por", "by"), agent.twin]),
            *when,
        ]
        return phrase("S", [thing.twin, phrase("VP", rest)]), "."

    def _comparison(self) -> tuple[Twin, str]:
        kind = "person" if self.chance(0.5) else self.pick(COMPARABLE)
        first = self.name() if kind == "person" else self.known(kind)
        second = self.relative() if kind == "person" else self.known(kind)
        while second.noun == first.noun:
            second = self.known(kind)
        adjective = self.state(first, [*filter(_comparable, FITTING[kind])])
        form = BEING["ser"].source["present"][first.person]
        verb = word("V", form, BE["present"][first.english])
        if kind == "person" and self.chance(0.5):
            best = self._graded(adjective, first, "est", "most")
            the, noun = self._one_of(first.gender, adjective)
            where = self.determined(self.pick(COMMUNITIES), "the").twin
            where = phrase("PP", [word("PREP", "de", "in"), where])
            rest = phrase("NP", [the, noun, *best, where], [the, *best, noun, where])
        else:
            than = phrase("PP", [word("PREP", "do que", "than"), second.twin])
            rest = phrase("ADJP", [*self._graded(adjective, first, "er", "more"), than])
        return phrase("S", [first.twin, phrase("VP", [verb, rest])]), "."

    def _graded(
        self, adjective: lexicon.Adjective, subject: Nominal, ending: str, adverb: str
    ) -> list[Twin]:
        """Grow "mais alto": one English word, "taller", or two, "more famous"."""
        quality = adjective.source[subject.agreement]
        graded = grade(adjective.target, ending, adverb)
        if " " in graded:
            return [word("ADV", "mais", adverb), word("ADJ", quality, adjective.target)]
        whole = word("ADJ", quality, graded)
        return [Twin(word("ADV", "mais", "", like=whole).source, ()), whole]

    def _one_of(self, gender: str, adjective: lexicon.Adjective) -> tuple[Twin, Twin]:
        """Draw the group that a superlative compares with."""
        options = [noun for noun in lexicon.NOUNS["person"] if noun.gender == gender]
        noun = self.pick(options[:4])
        self.relations.add(f"{adjective.target}+{noun.target[0]}")
        name = word("N", noun.source[0], noun.target[0])
        return self.determiner("the", noun, False), name

    def _person_clitic(self) -> tuple[Twin, str]:
        """Say who was seen or helped, with a pronoun before the verb."""
        subject = self.subject()
        clitic = self.pick(["me", "me", "nos", "nos", "o", "a", "os", "as"])
        if subject.person[0] == "1":
            clitic = self.pick(("o", "a", "os", "as"))
        verb = self.pick(GREETINGS)
        tenses = ["preterite", "preterite", "perfect", "yet"]
        if clitic in ("me", "nos"):  # o and a would change shape after an infinitive
            tenses += ["future", "able", "obliged", "progressive"]
        tense = self.pick([t for t in tenses if allows(verb, t, subject.person)])
        negated = tense not in ("perfect", "yet") and self.chance(0.2)
        pronoun = word("CL", clitic, lexicon.CLITICS[clitic])
        group = self.group(verb, tense, subject, negated, clitic=pronoun)
        rest = [word("PRT", "", verb.particle)] if verb.particle else []
        rest.append(Twin((), pronoun.target))
        tail = [self.place(("venue", "town"))] if self.chance(0.6) else []
        if tense == "preterite" or (tense in TIMES and self.chance(0.5)):
            tail.append(adverbial(self.pick(lexicon.ADVERBIALS[TIMES[tense]])))
        if group.source[0].source[0].label != "CL":  # a sentence never starts with one
            subject = self.dropped(subject, verb, tense)
        return self.clause(subject, group, tail, [*rest, *tail]), "."

    def _antecedent(self) -> tuple[Twin, str]:
        """Refer to a thing, or a person, just mentioned: comprou uma maçã e a comeu."""
        subject, time = self.subject(), []
        if subject.person == "1p" or self.chance(0.3):
            time = [adverbial(self.pick(lexicon.ADVERBIALS["past"]))]
        give = self.chance(0.4)
        if give:
            first, other = self.pick(GREETINGS[1:5]), self._acquaintance()
            second = self.pick(lexicon.DATIVE[:2])
            gift = self.thing(self.pick(second.kinds), plain=True)
            self.relate(second.target, gift.noun)
            clitic = "lhes" if other.plural else "lhe"
        else:
            first = self.pick(GAINS)
            kind = self.pick([k for k in first.kinds if k in FOLLOW_UPS])
            other = self.thing(kind, plain=True)
            second = self.pick(FOLLOW_UPS[kind])
            clitic = {"m": "o", "f": "a"}[other.gender] + "s" * other.plural
            self.relate(first.target, other.noun)
            self.relate(second.target, other.noun)
        pronoun = word("CL", clitic, _object_pronoun(other))
        then = self.group(second, "preterite", subject, clitic=pronoun)
        after = [gift.twin] if give else []
        english = [Twin((), pronoun.target), *after, *time]
        following = phrase(
            "VP", [*then.source, *after, *time], [*then.target, *english]
        )
        group = self.group(first, "preterite", subject)
        rest = [other.twin, word("CC", "e", "and"), following]
        return self.clause(self.dropped(subject, first, "preterite"), group, rest), "."

    def _acquaintance(self) -> Nominal:
        return self.weigh([(3, self.name), (3, self.relative), (1, self.couple)])()

    def _reported(self) -> tuple[Twin, str]:
        """Report what a person says, thinks or knows."""
        verb, tense = self.pick(
            (("dizer", "preterite"), ("achar", "present"), ("saber", "present"))
        )
        person = self.weigh([(3, self.name), (2, self.relative), (2, self.someone)])()
        if tense == "present" and self.chance(0.6):
            person = Nominal(
                phrase("NP", [word("PRON", "eu", "I")]), "m", False, "1s", "I"
            )
        group = self.group(BEING[verb], tense, person)
        told = self.weigh([(3, self.name), (2, self.relative), (3, self.someone)])()
        clause = self.acting(told, timed=0.4, brief=True)
        content = phrase("SBAR", [word("COMP", "que", "that"), clause])
        return self.clause(
            self.dropped(person, BEING[verb], tense), group, [content]
        ), "."

    def _because(self) -> tuple[Twin, str]:
        subject = self.weigh([(3, self.name), (2, self.relative), (2, self.someone)])()
        tense = self.pick(("preterite", "future"))
        main = self.acting(subject, tense, timed=0.3, brief=True, negated=True)
        spoken = "eles" if subject.plural else "ele"
        if subject.gender == "f":
            spoken = "elas" if subject.plural else "ela"
        english = lexicon.PRONOUNS[spoken][0]
        pronoun = word("PRON", spoken, english)
        one = subject._replace(twin=phrase("NP", [pronoun]), noun=None)
        reason = self._predication(one, tense == "preterite", "estar")
        reason = phrase("SBAR", [word("COMP", "porque", "because"), reason])
        return phrase("S", [main, reason]), "."

    def _scene(self) -> tuple[Twin, str]:
        """Tell what was going on when, or while, something happened."""
        first, second = self.name(), self.weigh([(2, self.name), (2, self.relative)])()
        background = self.acting(
            second, "background", timed=0.0, brief=self.chance(0.5)
        )
        comma = word(",", ",", ",")
        if self.chance(0.5):
            event = self.acting(first, "background", timed=0.0, brief=self.chance(0.5))
            when = word("COMP", "enquanto", "while")
        else:
            verb = self.pick(lexicon.MOTION[1:])
            place = self.determined(self.noun(self.pick(verb.kinds)), "the").twin
            group = self.group(verb, "preterite", first)
            to = phrase("PP", [word("PREP", "a", verb.particle), place])
            event, when = (
                self.clause(first, group, [to]),
                word("COMP", "quando", "when"),
            )
        return phrase("S", [phrase("SBAR", [when, event]), comma, background]), "."

    def _animal(self) -> tuple[Twin, str]:
        """Tell what an animal does: it eats and drinks, sleeps and runs."""
        key = self.pick(("the", "my", "our", "those", "these", "many", "several"))
        animal = self.determined(self.noun("animal"), key, self.chance(0.4), 0.5)
        tense = self.pick(("preterite", "progressive", "present"))
        verb = self.pick(ANIMAL_VERBS)
        group = self.group(verb, tense, animal, negated=self.chance(0.15))
        rest = []
        if verb in lexicon.TRANSITIVE:
            food = self.thing(self.pick(verb.kinds), plain=True)
            self.relate(verb.target, food.noun)
            rest = [food.twin]
        if self.chance(0.6):
            rest.append(self.place(("town", "land")))
        rest.append(adverbial(self.pick(lexicon.ADVERBIALS[TIMES[tense]])))
        return self.clause(animal, group, rest), "."

    def _weather(self) -> tuple[Twin, str]:
        it = word("PRON", "", "it")
        verb, rains, rained, raining, if_it = self.pick(WEATHER)
        if self.chance(0.4):
            rain = phrase(
                "S", [it, phrase("VP", [word("V", if_it, rains), *_tomorrow()])]
            )
            condition = phrase("SBAR", [word("COMP", "se", "if"), rain])
            plan = self.acting(self.subject(), "future", timed=0.0, brief=True)
            return phrase("S", [condition, word(",", ",", ","), plan]), "."
        where = self.place(("town", "land"))
        if self.chance(0.5):
            past = adverbial(self.pick(lexicon.ADVERBIALS["past"]))
            rest = [word("V", verb, rained), word("ADV", "muito", "a lot"), where, past]
            return phrase("S", [it, phrase("VP", rest)]), "."
        now = [word("AUX", "está", "is"), word("V", raining, rains[:-1] + "ing"), where]
        plan = self.acting(self.subject(), "progressive", timed=0.0, brief=True)
        weather = phrase("S", [it, phrase("VP", now)])
        return phrase("S", [weather, word("CC", "e", "and"), plan]), "."


def _tomorrow() -> list[Twin]:
    return [adverbial(lexicon.ADVERBIALS["future"][0])]


def _comparable(adjective: lexicon.Adjective) -> bool:
    return adjective.graded and adjective.copula == "ser"


def _pronoun(nominal: Nominal) -> str:
    if nominal.plural:
        return "they"
    return {"m": "he", "f": "she"}[nominal.gender] if nominal.human else "it"


def _object_pronoun(nominal: Nominal) -> str:
    if nominal.plural:
        return "them"
    return {"m": "him", "f": "her"}[nominal.gender] if nominal.human else "it"
