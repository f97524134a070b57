"""Noun phrases of the phrasebook, with everything that agrees with their nouns.

A `Describer` draws names, people, things and places. It records the pairs of lexemes
that it combines, by which the held-out combinations are recognised.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from transformer_jax.corpora.phrasebook import lexicon
from transformer_jax.corpora.phrasebook.lexicon import NOUNS, Adjective, Noun
from transformer_jax.corpora.phrasebook.twins import Twin, first_leaf, phrase, word
from transformer_jax.data.draws import Drawer

INANIMATE = [kind for kind in NOUNS if kind not in ("person", "kin", "animal")]
OWNED = str.split(
    "book writing garment footwear accessory device trinket vehicle instrument"
)
ACQUAINTED = ("friend", "neighbor", "teacher", "doctor", "lawyer")
CONSUMED = ["food", "meal", "drink", "book", "writing", "press", "plant", "song"]
UNIQUE = ["room", "building", "town", "street", "venue", "land", "sound"]
SINGULAR = (*lexicon.MASS, *UNIQUE)
SITES = {  # where things and creatures are found
    "trinket": "surface container room",
    "book": "surface container room",
    "dish": "surface room",
    "cutlery": "surface container",
    "food": "container",
    "animal": "town street land waters",
    "vehicle": "town street",
    "person": "room venue street",
    "kin": "room venue street",
}


class Nominal(NamedTuple):
    """A noun phrase and what agrees with it: verbs, adjectives and pronouns."""

    twin: Twin
    gender: str
    plural: bool = False
    person: str = "3s"
    english: str = "he"  # the pronoun whose verb forms it takes
    noun: Noun | None = None

    @property
    def agreement(self) -> str:
        """The form of an adjective that agrees: "fp" is feminine plural."""
        return self.gender + "sp"[self.plural]

    @property
    def human(self) -> bool:
        """Return whether it names people."""
        return self.noun is None or self.noun.kind in ("person", "kin")


class Describer(Drawer):
    """Draws noun phrases; `relations` collects pairs such as red+book, eat>cake."""

    def __init__(self, random: Callable[[], float]):
        super().__init__(random)
        self.relations: set[str] = set()
        self._mentioned: set[str] = set()

    def forget(self) -> None:
        """Start a new sentence."""
        self.relations, self._mentioned = set(), set()

    def relate(self, verb: str, noun: Noun | None) -> None:
        """Note that a verb takes a noun, rather than a name, as its object."""
        if noun:
            self.relations.add(f"{verb}>{noun.target[0]}")

    def noun(self, kind: str) -> Noun:
        """Draw a noun, somewhat more often one of the first in the list."""
        options = NOUNS[kind]
        noun = options[int(self._random() ** 1.2 * len(options))]
        if noun.target[0] in self._mentioned:  # repetition is rare: draw once more
            noun = self.pick(options)
        self._mentioned.add(noun.target[0])
        return noun

    def subject(self, asked: bool = False) -> Nominal:
        """Draw a subject, which in a question is never the speaker."""
        draw = self.weigh(
            [
                (20, self.name),
                (14, self.relative),
                (28, self.someone),
                (8, self.couple),
                (34, lambda: self.pronoun(asked)),
            ]
        )
        return draw()

    def pronoun(self, asked: bool = False) -> Nominal:
        """Draw a personal pronoun, which in a question is never the speaker."""
        if asked:
            subject = self.pick(("você", "você", "vocês", "ele", "ela", "eles", "elas"))
        else:
            subject = self.pick(
                str.split("eu eu eu eu eu nós nós nós nós você ele ela eles elas")
            )
        english, person, verb = lexicon.PRONOUNS[subject]
        gender = "f" if subject in ("ela", "elas") else "m"
        twin = phrase("NP", [word("PRON", subject, english)])
        return Nominal(twin, gender, person[1] == "p", person, verb)

    def name(self) -> Nominal:
        """Draw a name that is not yet in the sentence."""
        gender = self.pick("fm")
        fresh = [n for n in lexicon.NAMES[gender] if n not in self._mentioned]
        name = self.pick(fresh)
        self._mentioned.add(name)
        article = word("DET", {"f": "a", "m": "o"}[gender], "")
        return Nominal(phrase("NP", [article, word("NAME", name, name)]), gender)

    def couple(self) -> Nominal:
        """Draw a name and a second person: a Ana e o Paulo."""
        first, second = self.name(), self.weigh([(2, self.name), (1, self.relative)])()
        parts = [first.twin, word("CC", "e", "and"), second.twin]
        gender = "f" if first.gender == second.gender == "f" else "m"
        return Nominal(phrase("NP", parts), gender, True, "3p", "they")

    def relative(self) -> Nominal:
        """Draw a member of someone's family."""
        noun = self.noun("kin")
        shared = noun.target[0] not in ("wife", "husband")
        return self.weigh(
            [
                (6, lambda: self.determined(noun, "my")),
                (2, lambda: self.determined(noun, "our" if shared else "my")),
                (4, lambda: self.owned(noun)),
            ]
        )()

    def someone(self) -> Nominal:
        """Draw people by what they are: the teacher, some nurses."""
        noun = self.noun("person")
        styles = [(9, "the"), (2, "a"), (1, "these"), (1, "each"), (1, "those")]
        if noun.target[0] in ACQUAINTED:
            styles += [(3, "my"), (2, "our")]
        key = self.weigh(styles)
        if key in ("a", "each"):
            return self.determined(noun, key, False, 0.25)
        if self.chance(0.15):
            key = self.pick(("some", "many", "several", *lexicon.NUMBERS[:4]))
        return self.determined(noun, key, self.chance(0.3), 0.35)

    def thing(self, kind: str, plain: bool = False, bare: bool = False) -> Nominal:
        """Draw an object; `plain` where questions and negations forbid "some"."""
        if kind == "kin":
            return self.relative()
        if kind == "person":
            return self.name() if self.chance(0.4) else self.someone()
        noun = self.noun(kind)
        if kind in ("subject", "sport") or (bare and kind in CONSUMED):
            return self.undetermined(noun)
        if kind in lexicon.MASS or kind in UNIQUE:
            key = self.pick(("the", "the", "the", "these", "those"))
            return self.determined(noun, key, False, 0.3)
        paired = kind == "footwear"
        styles = [(34, "the"), (6, "these"), (5, "those")]
        styles += [] if paired else [(16, "a"), (3, "another")]
        if kind in OWNED:
            styles += [(8, "my"), (3, "our"), (16, "owned")]
        if not plain:
            styles += [(8, self.number()), (4, "some"), (3, "many")]
            styles += [(3, "several"), (3, "all")]
        key = self.weigh(styles)
        if key == "owned":
            return self.owned(noun, paired or self.chance(0.25), 0.3)
        return self.determined(noun, key, paired or self.chance(0.3), 0.5)

    def known(self, kind: str, described: float = 0.0) -> Nominal:
        """Draw a person or thing that can be the topic of a sentence."""
        if kind == "kin":
            return self.relative()
        if kind == "person" and self.chance(0.4):
            return self.name()
        noun = self.noun(kind)
        if kind in ("subject", "sport"):  # a matemática: the article has no translation
            the = self.determiner("the", noun, False).source[0]
            article = word("DET", first_leaf(the).word, "")
            name = word("N", noun.source[0], noun.target[0])
            return _third(phrase("NP", [article, name]), noun, False)
        if kind in OWNED and self.chance(0.35):
            return self.owned(noun, self.chance(0.3), described)
        key = self.weigh([(5, "the"), (2, "these"), (2, "those")])
        return self.determined(noun, key, self.chance(0.35), described)

    def number(self) -> str:
        """Draw a number, the small ones more often."""
        return lexicon.NUMBERS[int(self._random() ** 1.6 * len(lexicon.NUMBERS))]

    def place(self, kinds: Sequence[str]) -> Twin:
        """Draw a place: na cozinha, in the kitchen."""
        noun = self.noun(self.pick(kinds))
        key = "the" if self.chance(0.85) else self.pick(("our", "a", "those"))
        several = noun.kind in ("surface", "container") and self.chance(0.2)
        site = self.determined(noun, key, several, 0.2)
        return phrase("PP", [word("PREP", "em", noun.preposition), site.twin])

    def site_of(self, noun: Noun | None) -> Twin:
        """Draw a place where a thing or a person may be."""
        return self.place(SITES[noun.kind if noun else "person"].split())

    def determined(
        self, noun: Noun, key: str, plural: bool = False, described: float = 0.0
    ) -> Nominal:
        """Grow a noun after a determiner, perhaps with an adjective."""
        singular_only = noun.kind in SINGULAR or key in ("a", "each", "another")
        forms = lexicon.DETERMINERS.get(key, ((), ()))[0]
        plural = not singular_only and (plural or "-" in forms or key == "all")
        before = [word("DET", "todos" if noun.gender == "m" else "todas", "all")]
        before = before if key == "all" else []
        determiner = self.determiner("the" if key == "all" else key, noun, plural)
        adjective = self.adjective(noun, plural, described)
        name = word("N", noun.source[plural], noun.target[plural])
        twin = phrase(
            "NP",
            [*before, determiner, name, *adjective],
            [*before, determiner, *adjective, name],
        )
        return _third(twin, noun, plural)

    def determiner(self, key: str, noun: Noun, plural: bool) -> Twin:
        """Grow a determiner that agrees with a noun; `key` is its English form."""
        source, target = lexicon.DETERMINERS[key]
        form = source[(noun.gender == "f") + 2 * plural]
        return word("DET", form, target[plural])

    def undetermined(self, noun: Noun) -> Nominal:
        """Grow a bare mass noun or plural: bebe café, lê livros."""
        plural = noun.kind not in lexicon.MASS
        name = word("N", noun.source[plural], noun.target[plural])
        return _third(phrase("NP", [name]), noun, plural)

    def owned(
        self, noun: Noun, plural: bool = False, described: float = 0.0
    ) -> Nominal:
        """Grow a possession: o livro da Maria, Maria's book."""
        the = self.determiner("the", noun, plural).source[0]
        article = word("DET", first_leaf(the).word, "")
        adjective = self.adjective(noun, plural, described)
        name = word("N", noun.source[plural], noun.target[plural])
        if self.chance(0.35):
            pronoun, english = self.pick(
                (("ele", "his"), ("ela", "her"), ("eles", "their"), ("elas", "their"))
            )
            owner = word("PRON", pronoun, english)
            before, link = [owner], word("PREP", "de", "")
        else:
            person = self.determined(self.noun("person"), "the")
            owner = (self.name() if self.chance(0.6) else person).twin
            link = word("PREP", "de", "'s")
            before = [phrase("NP", [owner, link])]
        twin = phrase(
            "NP",
            [article, name, *adjective, phrase("PP", [link, owner])],
            [*before, *adjective, name],
        )
        return _third(twin, noun, plural)

    def adjective(self, noun: Noun, plural: bool, probability: float) -> list[Twin]:
        """Perhaps draw an adjective that goes with a noun and agrees with it."""
        options = FITTING.get(noun.kind)
        if not options or not self.chance(probability):
            return []
        chosen = self.pick(options)
        self.relations.add(f"{chosen.target}+{noun.target[0]}")
        form = chosen.source[noun.gender + "sp"[plural]]
        return [word("ADJ", form, chosen.target)]

    def state(self, subject: Nominal, options: Sequence[Adjective] = ()) -> Adjective:
        """Draw an adjective for the state of a subject."""
        kind = subject.noun.kind if subject.noun else "person"
        chosen = self.pick(options or FITTING[kind])
        if subject.noun:
            self.relations.add(f"{chosen.target}+{subject.noun.target[0]}")
        return chosen


def _third(twin: Twin, noun: Noun, plural: bool) -> Nominal:
    person, english = ("3p", "they") if plural else ("3s", "he")
    return Nominal(twin, noun.gender, plural, person, english, noun)


FITTING = {
    kind: [adjective for adjective in lexicon.ADJECTIVES if kind in adjective.kinds]
    for kind in [*NOUNS]
}
FITTING["kin"] = FITTING["person"]
