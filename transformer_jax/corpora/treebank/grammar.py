"""The sentences of the treebank: a random grammar over the lexicon.

A phrase that could attach to two others is drawn only where the words decide; otherwise
it always attaches low, to the last phrase that can take it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from transformer_jax.corpora.treebank.lexicon import (
    ACTIONS,
    ADJECTIVES,
    ADJECTIVES_OF,
    AGAIN,
    ANIMATE,
    BASE,
    BE,
    CONJUNCTIONS,
    DETERMINERS,
    DETERMINERS_OF,
    MINE,
    MODIFIERS_OF,
    NAMES,
    NOUNS_OF,
    OFTEN,
    ONE,
    OWNED,
    PARTICIPLE,
    PAST,
    PRESENT,
    PRONOUNS,
    RELATED,
    SIMPLE,
    THE,
    VERBS_OF,
    WHEN,
    Takes,
)
from transformer_jax.data.draws import Drawer
from transformer_jax.data.reading.trees import WORD, Tree

DEEP = 2  # phrases at this depth or deeper contain no clauses
LOW = 3  # and at this depth or deeper, no other phrases


class Nominal(NamedTuple):
    """A noun phrase with its number, for agreement, and the kind of its noun."""

    tree: Tree
    plural: bool
    kind: str


class Speaker(Drawer):
    """Draws sentences as trees."""

    def sentence(self) -> Tree:
        """Draw a sentence with its full stop or question mark."""
        draw = self._random()
        if draw < 0.10:
            return self.question()
        if draw < 0.16:
            return self.existential()
        if draw < 0.26:
            first, second = self.clause(DEEP), self.clause(DEEP)
            return _phrase("S", first, ",", self.pick(("and", "but")), second, ".")
        if draw < 0.36:
            before = _phrase("SBAR", self.pick(CONJUNCTIONS), self.clause(DEEP))
            return _phrase("S", before, ",", *self.clause(DEEP).children, ".")
        if draw < 0.42:
            before = _phrase("PP", "after", self.nominal("event").tree)
            return _phrase("S", before, ",", *self.clause(1).children, ".")
        return _phrase("S", *self.clause(0).children, ".")

    def question(self) -> Tree:
        """Draw a question: yes or no, who, where, when, why or which."""
        tense, subject = self.pick((PAST, PRESENT)), self.subject(DEEP)
        do = "did" if tense == PAST else ("does", "do")[subject.plural]
        draw = self._random()
        if draw < 0.4:
            rest = self.verb_phrase(BASE, subject.plural, 1)
            return _phrase("SQ", do, subject.tree, rest, "?")
        if draw < 0.6:
            asked = _phrase("WHNP", "who")
            rest = _phrase("SQ", self.predicate(False, 1))
        elif draw < 0.8:
            asked = _phrase("WHADVP", self.pick(("where", "when", "why")))
            rest = self.verb_phrase(BASE, subject.plural, DEEP, extras=False)
            rest = _phrase("SQ", do, subject.tree, rest)
        else:
            verb = self.pick(SIMPLE)
            kind = self.pick([kind for kind in verb.kinds if kind not in ANIMATE])
            asked = _phrase("WHNP", "which", self.noun(kind, self.chance(0.3)))
            rest = _phrase("SQ", do, subject.tree, _phrase("VP", verb.base))
        return _phrase("SBARQ", asked, rest, "?")

    def existential(self) -> Tree:
        """Draw "There is a cat in the garden." or the like."""
        kind = self.pick(("person", "animal", "thing", "vehicle"))
        thing = self.plain(kind, (("a",), ("some", "many", "two")))
        place = _phrase("PP", "in", self.nominal("place").tree)
        be = BE[self.pick((PAST, PRESENT))][thing.plural]
        there = _phrase("NP", "there")
        thing = _phrase("NP", thing.tree, place)
        return _phrase("S", there, _phrase("VP", be, thing), ".")

    def clause(self, depth: int) -> Tree:
        """Draw a subject with its predicate, or a passive."""
        if self.chance(0.1):
            return self.passive(depth)
        subject = self.subject(depth)
        often = []
        if self.chance(0.08):
            often = [_phrase("ADVP", self.pick(OFTEN))]
        rest = self.predicate(subject.plural, depth)
        return _phrase("S", subject.tree, *often, rest)

    def passive(self, depth: int) -> Tree:
        """Draw "the cake was eaten by Anna" or the like."""
        verb = self.pick(SIMPLE)
        thing = self.nominal(self.pick(verb.kinds), depth + 1)
        by = _phrase("PP", "by", self.subject(DEEP, pronouns=False).tree)
        done = _phrase("VP", verb.participle, by)
        be = BE[self.pick((PAST, PRESENT))][thing.plural]
        return _phrase("S", thing.tree, _phrase("VP", be, done))

    # Verb phrases

    def predicate(self, plural: bool, depth: int) -> Tree:
        """Draw a finite verb phrase that agrees with its subject."""
        draw = self._random()
        if draw < 0.12:
            return _phrase("VP", "will", self.verb_phrase(BASE, plural, depth))
        if draw < 0.22:
            rest = self.verb_phrase(PARTICIPLE, plural, depth)
            return _phrase("VP", ("has", "have")[plural], rest)
        if draw < 0.30:
            rest = self.verb_phrase(BASE, plural, depth)
            return _phrase("VP", "did not", rest)
        tense = self.pick((PAST, PRESENT))
        if draw < 0.38:
            return self.state(tense, plural)
        if draw < 0.48 and depth < LOW:
            first = self.verb_phrase(tense, plural, LOW, extras=False)
            second = self.verb_phrase(tense, plural, depth + 1)
            return _phrase("VP", first, "and", second)
        return self.verb_phrase(tense, plural, depth)

    def state(self, tense: str, plural: bool) -> Tree:
        """Draw a state: very happy, in the garden, afraid of war."""
        be, quality = BE[tense][plural], self.pick(ADJECTIVES["person kin"].split())
        draw = self._random()
        if draw < 0.4:
            very = ["very"] if self.chance(0.4) else []
            return _phrase("VP", be, _phrase("ADJP", *very, quality))
        if draw < 0.7:
            return _phrase("VP", be, _phrase("PP", "in", self.nominal("place").tree))
        of_event = _phrase("PP", "of", self.nominal("event", LOW).tree)
        return _phrase("VP", be, _phrase("ADJP", "afraid", of_event))

    def verb_phrase(
        self, tense: str, plural: bool, depth: int, extras: bool = True
    ) -> Tree:
        """Draw a verb in a tense with its objects, and perhaps a time or a reason."""
        draw = self._random()
        if draw < 0.18 and depth < DEEP:
            return self.with_clause(tense, plural, depth)
        if draw < 0.40:
            verb = self.pick(VERBS_OF["alone"])
            parts: list[Tree | str] = [verb.form(tense, plural)]
            if self.chance(0.5):
                preposition = self.pick(("in", "near"))
                place = self.nominal("place", depth + 1)
                parts.append(_phrase("PP", preposition, place.tree))
            return _phrase("VP", *parts, *self.extras(depth, extras))
        more = self.extras(depth, extras)
        if draw < 0.50:
            return _phrase("VP", *self.giving(tense, plural), *more)
        if draw < 0.58:
            return _phrase("VP", *self.particle(tense, plural), *more)
        return _phrase("VP", *self.acting(tense, plural, depth, bool(more)), *more)

    def acting(
        self, tense: str, plural: bool, depth: int, more: bool
    ) -> list[Tree | str]:
        """Draw a verb, its object and other complement; no phrase attaches lower."""
        verb = self.pick(ACTIONS)
        preposition, kind = self.pick(verb.takes) if verb.takes else ("", "")
        if kind and (verb.base in ("put", "leave") or self.chance(0.6)):
            goal = [_phrase("PP", preposition, self.nominal(kind, LOW).tree)]
        else:
            goal = []
        if self.chance(0.12) and set(ANIMATE) & {*verb.kinds}:
            thing = _phrase("NP", self.pick([them for _, them, _ in PRONOUNS]))
        else:
            depth = DEEP if goal or more else depth + 1
            thing = self.nominal(self.pick(verb.kinds), depth, verb.takes).tree
        return [verb.form(tense, plural), thing, *goal]

    def giving(self, tense: str, plural: bool) -> list[Tree | str]:
        """Draw a verb with two objects, in either order."""
        verb = self.pick(VERBS_OF["dative"])
        whom = self.subject(LOW, pronouns=False).tree
        gift = self.nominal(self.pick(("thing", "text", "food")), LOW).tree
        if self.chance(0.5):
            return [verb.form(tense, plural), whom, gift]
        return [verb.form(tense, plural), gift, _phrase("PP", "to", whom)]

    def particle(self, tense: str, plural: bool) -> list[Tree | str]:
        """Draw a verb with a particle, before or after its object."""
        verb = self.pick(VERBS_OF["particle"])
        thing = self.nominal(self.pick(("thing", "text", "food")), LOW).tree
        after = [_phrase("PRT", verb.particle), thing]
        if self.chance(0.5):
            after.reverse()
        return [verb.form(tense, plural), *after]

    def with_clause(self, tense: str, plural: bool, depth: int) -> Tree:
        """Draw a verb with a clause: says that …, wants to …, tells whom to …."""
        draw = self._random()
        if draw < 0.5:
            verb = self.pick(VERBS_OF["saying"])
            that = ["that"] if self.chance(0.6) else []
            said = _phrase("SBAR", *that, self.clause(depth + 1))
            return _phrase("VP", verb.form(tense, plural), said)
        to = _phrase("VP", "to", self.verb_phrase(BASE, plural, depth + 1))
        if draw < 0.75:
            verb = self.pick(VERBS_OF["wish"])
            return _phrase("VP", verb.form(tense, plural), _phrase("S", to))
        verb, whom = self.pick(VERBS_OF["order"]), self.subject(LOW, pronouns=False)
        return _phrase("VP", verb.form(tense, plural), whom.tree, _phrase("S", to))

    def extras(self, depth: int, wanted: bool) -> list[Tree]:
        """Draw an optional end of a verb phrase: a time, or a clause with a reason."""
        draw = self._random() if wanted else 1.0
        if draw < 0.12:
            return [_phrase("NP", self.pick(WHEN))]
        if draw < 0.18:
            preposition = self.pick(("before", "after", "during"))
            return [_phrase("PP", preposition, self.nominal("event").tree)]
        if draw < 0.30 and depth < DEEP:
            return [_phrase("SBAR", self.pick(CONJUNCTIONS), self.clause(DEEP))]
        return []

    # Noun phrases

    def subject(self, depth: int, pronouns: bool = True) -> Nominal:
        """Draw a subject: a pronoun, a name or a noun phrase."""
        draw = self._random()
        if draw < 0.2 and pronouns:
            they, _, plural = self.pick(PRONOUNS)
            return Nominal(_phrase("NP", they), bool(plural), "person")
        if draw < 0.35:
            return Nominal(_phrase("NP", self.pick(NAMES)), False, "person")
        if draw < 0.4 and depth < DEEP:
            name, noun = _phrase("NP", self.pick(NAMES)), self.plain("kin", MINE)
            return Nominal(_phrase("NP", name, ",", noun.tree, ","), False, "person")
        return self.nominal(self.pick(ANIMATE), depth)

    def nominal(self, kind: str, depth: int = LOW, barred: Takes = ()) -> Nominal:
        """Draw a noun phrase; phrases of `barred` kinds would attach to the verb."""
        draw = self._random()
        options = [m for m in MODIFIERS_OF.get(kind, ()) if m not in barred]
        if draw < 0.12:
            return self.coordinated(kind, options if depth < LOW else [])
        if draw < 0.18 and kind in OWNED:
            owner = _phrase("NP", *self.plain("person", ONE).tree.children, "'s")
            plural = self.chance(0.3)
            thing = _phrase("NP", owner, self.noun(kind, plural))
            return Nominal(thing, plural, kind)
        if draw < 0.38 and depth < DEEP and kind in RELATED:
            thing = self.plain(kind)
            return _extended(thing, self.relative(thing, depth))
        if draw < 0.70 and depth < LOW and options:
            return self.modified(kind, depth, options, barred)
        return self.plain(kind)

    def plain(self, kind: str, determiners: Sequence[Sequence[str]] = ()) -> Nominal:
        """Draw a determiner and a noun, perhaps with an adjective."""
        options = determiners or DETERMINERS_OF.get(kind, DETERMINERS)
        plural = self.chance(0.35) and len(options) > 1
        before = [self.pick(options[plural])]
        if self.chance(0.25) and kind in ADJECTIVES_OF:
            before.append(self.pick(ADJECTIVES_OF[kind]))
        text = " ".join([*before, self.noun(kind, plural)]).strip()
        if text[:2] == "a " and text[2] in "aeiou":
            text = "an" + text[1:]
        return Nominal(_phrase("NP", text), plural, kind)

    def noun(self, kind: str, plural: bool) -> str:
        """Draw a noun of a kind."""
        return self.pick(NOUNS_OF[kind])[plural]

    def coordinated(self, kind: str, options: Sequence[tuple[str, str]]) -> Nominal:
        """Join nouns of a kind: "the map of the king and the key" has only one tree."""
        first = self.plain(kind)
        options = [option for option in options if option[1] != kind]
        if options and self.chance(0.3):
            preposition, other = self.pick(options)
            after = _phrase("PP", preposition, self.plain(other).tree)
            first = _extended(first, after)
        more = [",", self.plain(kind).tree] if self.chance(0.15) else []
        last = self.plain(kind).tree
        return Nominal(_phrase("NP", first.tree, *more, "and", last), True, kind)

    def modified(
        self, kind: str, depth: int, options: Sequence[tuple[str, str]], barred: Takes
    ) -> Nominal:
        """Draw a noun with one or two phrases after it."""
        preposition, other = self.pick(options)
        head = self.plain(kind, THE if preposition == "of" else ())
        inner = self.plain(other)
        if depth < DEEP and self.chance(0.4) and _told_apart(head, inner):
            return self.followed(head, preposition, inner, depth)
        again = AGAIN.get((preposition, other))
        if again is not None and again in options and self.chance(0.4):
            after = _phrase("PP", again[0], self.plain(again[1]).tree)
            return _extended(head, _phrase("PP", preposition, inner.tree), after)
        inner = self.nominal(other, max(depth + 1, DEEP), barred)
        return _extended(head, _phrase("PP", preposition, inner.tree))

    def followed(
        self, head: Nominal, preposition: str, inner: Nominal, depth: int
    ) -> Nominal:
        """Join two nouns and a relative clause, which fits only one of them."""
        if self.chance(0.5):
            clause = self.relative(head, depth, inner)
            return _extended(head, _phrase("PP", preposition, inner.tree), clause)
        low = _extended(inner, self.relative(inner, depth, head))
        return _extended(head, _phrase("PP", preposition, low.tree))

    def relative(
        self, thing: Nominal, depth: int, rival: Nominal | None = None
    ) -> Tree:
        """Draw a relative clause that fits a noun but not its rival.

        The pronoun (who or which) or the number of the verb decides.
        """
        animate, that = thing.kind in ANIMATE, [] if rival else ["that"]
        if rival and animate and rival.kind in ANIMATE:
            rest = self.verb_phrase(PRESENT, thing.plural, LOW, extras=False)
            return _phrase("SBAR", _phrase("WHNP", "who"), _phrase("S", rest))
        verb = self.pick([verb for verb in SIMPLE if thing.kind in verb.kinds])
        who = self.subject(LOW)
        if self.chance(0.5):
            rest = self.predicate(thing.plural, depth + 1)
            if not animate:
                by = _phrase("PP", "by", self.subject(LOW, pronouns=False).tree)
                be = BE[self.pick((PAST, PRESENT))][thing.plural]
                rest = _phrase("VP", be, _phrase("VP", verb.participle, by))
            pronoun = self.pick(["who" if animate else "which", *that])
            return _phrase("SBAR", _phrase("WHNP", pronoun), _phrase("S", rest))
        tense = self.pick((PAST, PRESENT))
        action = _phrase("VP", verb.form(tense, who.plural))
        clause = _phrase("S", who.tree, action)
        if not rival and self.chance(0.3):
            return _phrase("SBAR", clause)
        pronoun = self.pick(["whom" if animate else "which", *that])
        return _phrase("SBAR", _phrase("WHNP", pronoun), clause)


def _told_apart(first: Nominal, second: Nominal) -> bool:
    """Return whether a relative clause can fit only one of two nouns."""
    if not {first.kind, second.kind} <= RELATED:
        return False
    animate = [nominal.kind in ANIMATE for nominal in (first, second)]
    return animate[0] != animate[1] or (all(animate) and first.plural != second.plural)


def _extended(head: Nominal, *after: Tree) -> Nominal:
    return head._replace(tree=_phrase("NP", head.tree, *after))


def _phrase(label: str, *parts: Tree | str) -> Tree:
    """Make a phrase from phrases and from texts, whose words get the tag XX."""
    children: list[Tree] = []
    for part in parts:
        if isinstance(part, Tree):
            children.append(part)
        else:
            children += [Tree(WORD, (word,)) for word in part.split()]
    return Tree(label, tuple(children))
