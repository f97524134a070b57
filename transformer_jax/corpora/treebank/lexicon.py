"""The words of the treebank, their inflection and which of them go together."""

from typing import NamedTuple

Takes = tuple[tuple[str, str], ...]  # (preposition, kind of noun after it)

PAST, PRESENT, BASE, PARTICIPLE = "past", "present", "base", "participle"

NOUNS = {  # irregular plurals after a /
    "person": """boy girl teacher doctor farmer painter queen king sailor baker lawyer
        singer nurse soldier captain man/men woman/women child/children""",
    "kin": "daughter son brother sister friend neighbor cousin uncle aunt",
    "animal": "dog cat horse bird goat rabbit donkey fox/foxes mouse/mice goose/geese",
    "text": "book letter story/stories poem report article song message",
    "food": "cake pie sandwich/sandwiches soup salad pancake potato/potatoes",
    "thing": "map key ring coat lamp coin picture ticket doll violin umbrella",
    "vehicle": "car boat bicycle truck wagon tractor",
    "container": "box/boxes basket drawer bag chest",
    "surface": "table shelf/shelves bench/benches desk",
    "place": """garden kitchen village market harbor castle forest school hotel church/
        churches theater library/libraries""",
    "event": "storm concert wedding war festival election meeting",
    "topping": "cream cheese honey butter sugar",
    "blade": "knife/knives sword",
    "lens": "telescope camera",
    "tool": "hammer wrench/wrenches screwdriver",
    "trait": "beard scarf/scarves mustache hat wig",
}
NAMES = str.split("Maria John Anna Peter Clara Tom Julia Paul Emma Oscar Lucy Henry")
ADJECTIVES = {
    "person kin": "old young tall famous clever happy tired brave poor rich kind",
    "animal": "old young black white hungry small fast",
    "text": "long short famous strange boring beautiful",
    "food": "warm cold fresh huge delicious",
    "thing container surface": "old new small wooden golden cheap heavy",
    "vehicle": "old new red slow expensive",
    "place": "old quiet small famous beautiful",
    "event": "long terrible wonderful recent",
    "topping": "fresh sweet",
    "blade lens tool": "new heavy rusty expensive",
    "trait": "long red strange black",
}
MODIFIERS = {  # what may follow a noun: preposition and kind
    "person": "with trait, from place",
    "kin": "of person, with trait",
    "animal": "of person, from place",
    "text": "about event, about animal, from person, on surface, in container",
    "food": "with topping, on surface, from place",
    "thing": "in container, on surface, of person, from person",
    "vehicle": "near place, of person",
    "container": "under surface, of person",
    "surface": "in place",
    "place": "near place",
    "event": "in place",
}
AGAIN = {  # what may follow a modifier, because it does not fit the noun inside
    ("from", "person"): ("about", "event"),
    ("with", "trait"): ("from", "place"),
}
TRANSITIVE = """
    cut cuts cut cut: food: with blade
    carve carves carved carved: food: with blade
    repair repairs repaired repaired: vehicle: with tool
    break breaks broke broken: thing vehicle container: with tool
    watch watches watched watched: person animal vehicle: with lens
    find finds found found: thing text animal: with lens
    put puts put put: thing text food: in container, on surface
    leave leaves left left: thing text: in container, on surface
    buy buys bought bought: thing text vehicle: from person
    borrow borrows borrowed borrowed: thing text vehicle: from person
    steal steals stole stolen: thing animal: from person
    warn warns warned warned: person kin: about event, about animal
    ask asks asked asked: person kin: about event
    take takes took taken: person animal kin: to place
    read reads read read: text:
    write writes wrote written: text:
    eat eats ate eaten: food:
    like likes liked liked: person kin animal text food thing vehicle place:
    love loves loved loved: person kin animal text:
    see sees saw seen: person kin animal thing vehicle place:
    know knows knew known: person kin text place:
    visit visits visited visited: person kin place:
    sell sells sold sold: thing vehicle animal food: to person
    describe describes described described: place event thing: to person
"""
VERBS = {
    "alone": """sleep sleeps slept slept, sing sings sang sung, dance dances danced
        danced, laugh laughs laughed laughed, wait waits waited waited, arrive arrives
        arrived arrived, work works worked worked""",
    "particle": """pick picks picked picked/up, throw throws threw thrown/away, bring
        brings brought brought/back, take takes took taken/out""",
    "dative": """give gives gave given, show shows showed shown, send sends sent sent,
        offer offers offered offered, lend lends lent lent""",
    "saying": """say says said said, think thinks thought thought, know knows knew
        known, believe believes believed believed, hope hopes hoped hoped""",
    "wish": """want wants wanted wanted, try tries tried tried, plan plans planned
        planned, hope hopes hoped hoped""",
    "order": """tell tells told told, ask asks asked asked, persuade persuades persuaded
        persuaded, help helps helped helped""",
}
BE = {PAST: ("was", "were"), PRESENT: ("is", "are")}
DETERMINERS = (
    str.split("the the the the a this that every my her his our"),
    str.split("the the the the these those some many two three my her our"),
)
PRONOUNS = (("he", "him", 0), ("she", "her", 0), ("they", "them", 1), ("we", "us", 1))
ANIMATE = ("person", "kin")
OWNED = ("animal", "text", "thing", "vehicle", "container")
WHEN = ("yesterday", "last week", "every day", "this morning", "last summer")
OFTEN = ("often", "never", "always", "sometimes", "rarely")
CONJUNCTIONS = ("because", "while", "when", "before", "after", "although")
THE = (["the"], ["the"])
ONE = (["the", "the", "a", "this", "that", "every"],)
MINE = (["my", "her", "his", "our"],)
DETERMINERS_OF = {  # singular, and plural if there is one
    "person": (
        ["the", "the", "the", "the", "a", "a", "this", "that", "every"],
        ["the", "the", "the", "these", "those", "some", "many", "two", "three"],
    ),
    "kin": (
        ["the", "my", "her", "his", "our"],
        ["the", "my", "her", "his", "our", "two"],
    ),
    "place": (["the", "the", "the", "the", "a", "this", "that", "our"],),
    "event": (["the", "the", "the", "a", "this", "that"], ["the", "those", "two"]),
    "topping": ([""],),
    "trait": (["a"],),
} | dict.fromkeys(("blade", "lens", "tool"), (str.split("the the a my her his our"),))


class Verb(NamedTuple):
    """A verb: its forms, the kinds of its object, and what may follow the object."""

    base: str
    third: str
    past: str
    participle: str
    particle: str = ""
    kinds: tuple[str, ...] = ()
    takes: Takes = ()

    def form(self, tense: str, plural: bool) -> str:
        """Return the form in a tense that agrees with the subject."""
        if tense == PRESENT:
            return self.base if plural else self.third
        return getattr(self, tense)


def _nouns(text: str) -> list[tuple[str, str]]:
    pairs = [entry.partition("/") for entry in text.split()]
    return [(one, many or one + "s") for one, _, many in pairs]


def _verbs(text: str) -> list[Verb]:
    return [_verb(entry.replace("/", " ")) for entry in text.split(",")]


def _action(line: str) -> Verb:
    forms, kinds, takes = line.split(":")
    return _verb(forms)._replace(kinds=tuple(kinds.split()), takes=_takes(takes))


def _verb(forms: str) -> Verb:
    base, third, past, participle, *particle = forms.split()
    return Verb(base, third, past, participle, " ".join(particle))


def _takes(text: str) -> Takes:
    pairs = [entry.split() for entry in text.split(",") if entry.strip()]
    return tuple((preposition, kind) for preposition, kind in pairs)


NOUNS_OF = {kind: _nouns(text) for kind, text in NOUNS.items()}
VERBS_OF = {kind: _verbs(text) for kind, text in VERBS.items()}
ADJECTIVES_OF = {
    kind: text.split() for kinds, text in ADJECTIVES.items() for kind in kinds.split()
}
MODIFIERS_OF = {kind: _takes(text) for kind, text in MODIFIERS.items()}
ACTIONS = [_action(line) for line in TRANSITIVE.strip().splitlines()]
SIMPLE = [verb for verb in ACTIONS if not verb.takes]
RELATED = {kind for verb in SIMPLE for kind in verb.kinds}  # may have relative clauses
