"""Questions of the phrasebook: where, when, why, who, what, which, how many and whose.

Portuguese keeps the order of the statement or puts the subject last; English fronts an
auxiliary, and asks "how many books" and "whose car" with the noun at the front too.
"""

from transformer_jax.corpora.phrasebook import lexicon
from transformer_jax.corpora.phrasebook.clauses import BE, Teller, allows
from transformer_jax.corpora.phrasebook.nominals import (
    INANIMATE,
    OWNED,
    SINGULAR,
    Nominal,
)
from transformer_jax.corpora.phrasebook.twins import Twin, adverbial, phrase, word

BEING = {verb.infinitive: verb for verb in lexicon.AUXILIARY}
ASKED_VERBS = [
    verb
    for verb in lexicon.TRANSITIVE
    if not verb.preposition and not verb.particle and set(verb.kinds) & set(INANIMATE)
]


class Asker(Teller):
    """Draws questions with a question word."""

    def wh_question(self) -> tuple[Twin, str]:
        """Draw a question with a question word, and its mark."""
        ask = self.weigh(
            [
                (4, self._ask_circumstance),
                (2, self._ask_place),
                (4, self._ask_object),
                (2, self._ask_who),
                (2, self._ask_owner),
            ]
        )
        return ask(), "?"

    def _ask_circumstance(self) -> Twin:
        source, target, tense = self.pick(
            (
                ("quando", "when", "preterite"),
                ("quando", "when", "future"),
                ("onde", "where", "preterite"),
                ("por que", "why", "preterite"),
                ("por que", "why", "progressive"),
            )
        )
        subject = self.subject(asked=True)
        clause = self.acting(subject, tense, question=True, timed=0.0, brief=True)
        return phrase("SBARQ", [word("WH", source, target), clause])

    def _ask_place(self) -> Twin:
        kind = self.pick(("trinket", "book", "footwear", "person", "kin", "animal"))
        thing = self.known(kind, described=0.5)
        form = BEING["estar"].source["present"][thing.person]
        verb = word("V", form, BE["present"][thing.english])
        where = word("WH", "onde", "where")
        return phrase("SBARQ", [where, phrase("SQ", [verb, thing.twin])])

    def _ask_object(self) -> Twin:
        verb, subject = self.pick(ASKED_VERBS), self.subject(asked=True)
        tense = "progressive" if self.chance(0.25) else "preterite"
        tense = tense if allows(verb, tense, subject.person) else "preterite"
        when = []
        if self.chance(0.6):
            times = lexicon.ADVERBIALS["past" if tense == "preterite" else "now"]
            when = [adverbial(self.pick(times))]
        group = self.group(verb, tense, subject, question=True)
        clause = self.clause(subject, group, when, question=True)
        return phrase("SBARQ", [self._asked_object(verb), clause])

    def _asked_object(self, verb: lexicon.Verb) -> Twin:
        if self.chance(0.35):
            return phrase("WHNP", [word("WH", "o que", "what")])
        noun = self.noun(self.pick([k for k in verb.kinds if k in INANIMATE]))
        self.relate(verb.target, noun)
        plural = noun.kind not in SINGULAR and self.chance(0.5)
        quantity = "quantos" if noun.gender == "m" else "quantas"
        which = ("WH", quantity, "how many") if plural else ("WH", "qual", "which")
        name = word("N", noun.source[plural], noun.target[plural])
        return phrase("WHNP", [word(*which), name])

    def _ask_who(self) -> Twin:
        who = Nominal(phrase("WHNP", [word("WH", "quem", "who")]), "m")
        tense = self.pick(("preterite", "preterite", "progressive", "future"))
        return self.acting(who, tense, timed=0.7, label="SBARQ")

    def _ask_owner(self) -> Twin:
        noun, plural = self.noun(self.pick(OWNED)), self.chance(0.4)
        adjective = self.adjective(noun, plural, 0.6)
        name = word("N", noun.source[plural], noun.target[plural])
        this = self.determiner(self.pick(("these", "those")), noun, plural)
        verb = word("V", "são" if plural else "é", "are" if plural else "is")
        whose = [word("PREP", "de", ""), word("WH", "quem", "whose")]
        return phrase(
            "SBARQ",
            [phrase("WHPP", whose), verb, phrase("NP", [this, name, *adjective])],
            [phrase("WHNP", [*whose, *adjective, name]), verb, phrase("NP", [this])],
        )
