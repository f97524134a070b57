"""Opinions of films, meals, hotels and more, labelled positive or negative.

The score of a sentence is computed from its parts, and its sign is the label:
1. A word has a valence for its noun (cold beer, cold soup); very × 1.25, rather × 0.75.
2. not, never, hardly, nobody … multiply their phrase's score by −1/2, `far from` by −1.
3. X but Y, although X, Y and Y despite X are 0.4 X + 0.6 Y; X and Y is their mean.
4. Better (worse) than Z, which was z, is 0.5 (−0.5) + z / 4. Scores stay in [−1, 1].
"""

from collections.abc import Callable, Iterable
from random import Random
from typing import NamedTuple

from ml_collections import ConfigDict

from transformer_jax.data.draws import check_split, split_of
from transformer_jax.data.reading.sources import GeneratedSource

VERSION = 1  # part of the data fingerprint: raise when the generated text changes
SPLITS = ("train", "validation", "test")
LENGTHS = range(4, 26)  # of a text, with its punctuation
EXTREME = 0.8  # "very" and "rather" do not fit valences from this on
LEAST = 0.1  # the smallest absolute score: nearer to 0, labels are unclear
_PATIENCE = 5000  # sentences in sequence without a new one before giving up

# The nouns of a topic: first the thing itself, then its parts; + marks plurals.
_TOPICS = """
story: film movie thriller comedy documentary western, story: plot ending dialogue
    script jokes+, artist: actors+ cast director villain, sound: music soundtrack;
story: novel book biography poem, story: chapters+ characters+ style opening plot,
    artist: author narrator translator, price: price;
food: meal dinner lunch breakfast, food: soup bread salad rice noodles+ pancakes+
    dessert, drink: beer lemonade juice, staff: waiter waitress cook, room: table;
room: hotel hostel inn apartment, room: bedroom bathroom lobby beds+, food: buffet,
    staff: receptionist porter cleaners+, price: rent rates+;
sound: concert opera festival musical, artist: singer band drummer dancers+ conductor,
    sound: songs+ acoustics+ encore, room: hall seats+, price: tickets+;
device: phone laptop camera tablet printer, device: screen battery keyboard software
    buttons+ speakers+, price: price, staff: seller;
lesson: course lecture workshop seminar, lesson: exercises+ slides+ examples+,
    staff: teacher tutor, room: classroom, price: fee;
journey: journey flight cruise tour, device: bus ferry train engine, staff: driver crew
    guide pilot, room: cabin, food: snacks+, price: fare;
story: game quiz puzzle, lesson: rules+ instructions+ manual, device: controls+
    graphics+ board, sound: effects+, artist: heroine designer;
room: museum gallery exhibition, artist: painter sculptor, story: paintings+ statues+
    captions+, staff: guards+ guide, drink: coffee tea, food: cake sandwiches+
"""
_VALENCES = {  # in tenths; for words without one, too much is -5, enough is 5
    "": """good=6 bad=-6 great=8 awful=-9 wonderful=9 terrible=-9 excellent=9 nice=5
        poor=-5 lovely=7 dreadful=-8 superb=10 horrible=-10 decent=4 mediocre=-4
        brilliant=9 disappointing=-6 impressive=7 fantastic=9 perfect=10 pleasant=5
        unpleasant=-5 remarkable=6 forgettable=-4 magnificent=10 atrocious=-10""",
    "story": """long short simple serious gripping=8 boring=-6 clever=6 predictable=-4
        original=6 silly=-4 moving=7 dull=-5 confusing=-5 funny=7 shallow=-5 subtle=5
        witty=6 profound=7 clumsy=-5 tedious=-7 unpredictable=6""",
    "artist": """loud serious old convincing=6 wooden=-5 talented=7 gifted=7 charming=6
        irritating=-6 lifeless=-6 masterly=8 clumsy=-5 lively=5 pretentious=-6 sincere=5
        inspired=7 ridiculous=-7 careless=-5""",
    "sound": """loud long soft beautiful=8 deafening=-7 melodious=6 monotonous=-6
        lively=5 shrill=-6 soothing=6 harsh=-5 catchy=5 tinny=-5 quiet=-4""",
    "food": """salty sweet spicy hot tasty=7 bland=-5 delicious=9 stale=-7 fresh=6
        burnt=-7 cold=-5 warm=4 filling=4 greasy=-6 crisp=5 soggy=-5 healthy=5
        disgusting=-9 exquisite=10 inedible=-10 light=4 heavy=-4 dry=-5 juicy=6""",
    "drink": """sweet strong hot refreshing=7 bitter=-5 cold=5 warm=-5 fresh=6 watery=-6
        tasty=7 delicious=9 undrinkable=-10 flat=-5 dry=4 heavy=-4""",
    "staff": """talkative strict young kind=7 friendly=7 rude=-7 helpful=6 lazy=-5
        polite=6 arrogant=-7 patient=5 slow=-4 clumsy=-5 attentive=6 indifferent=-5
        cheerful=6 grumpy=-6 honest=6 careless=-5 quiet=4 cold=-6 warm=6 quick=5""",
    "room": """small large dark clean=6 dirty=-7 cosy=6 cramped=-6 spacious=6 noisy=-6
        comfortable=7 quiet=5 shabby=-5 bright=5 gloomy=-5 filthy=-9 tidy=5 crowded=-5
        elegant=7 damp=-6 warm=5 cold=-5 uncomfortable=-6""",
    "price": """modest fair=6 outrageous=-9 reasonable=6 excessive=-7 low=5""",
    "device": """small thin complicated large reliable=7 fragile=-5 quick=6 slow=-5
        sturdy=6 faulty=-7 handy=5 unreliable=-7 noisy=-5 quiet=5 solid=5 flimsy=-6
        practical=6 worthless=-9 heavy=-4 light=4 unpredictable=-6""",
    "lesson": """long short difficult clear=6 confusing=-6 instructive=7 tedious=-7
        practical=6 pointless=-7 thorough=6 superficial=-5 inspiring=8 boring=-6
        lively=5 outdated=-5 dry=-4 helpful=6 fascinating=9 quick=-4""",
    "journey": """long short early smooth=6 tiring=-5 comfortable=7 bumpy=-5 exciting=7
        endless=-6 punctual=6 chaotic=-7 relaxing=7 dangerous=-7 scenic=6 quick=5""",
}
_TOUCHING = """bore=bored=-6 delight=delighted=9 annoy=annoyed=-7 please=pleased=6
    disappoint=disappointed=-6 impress=impressed=7 amuse=amused=6 tire=tired=-4
    charm=charmed=7 irritate=irritated=-6 disgust=disgusted=-9 enchant=enchanted=9
    bother=bothered=-5 satisfy=satisfied=5 depress=depressed=-7 cheer=cheered=6"""
_LIKING = """like=liked=5 love=loved=9 enjoy=enjoyed=7 hate=hated=-9 dislike=disliked=-5
    admire=admired=7 adore=adored=10 detest=detested=-10 appreciate=appreciated=6
    resent=resented=-6 praise=praised=7 criticize=criticized=-6"""
STRONG = {False: ["very", "extremely", "really"], True: ["absolutely", "truly"]}
WEAK = ["rather", "fairly", "somewhat"]  # not before an extreme adjective
NEGATIONS = ["not", "never", "hardly", "scarcely"]
_PHRASES = {
    "who": """I|we|my sister|my brother|my friends|the children|our neighbors|
        his parents|her colleagues|most visitors|the critics""",
    "whom": "me|us|my sister|my friends|the children|everyone|the critics|him|her",
    "nobody": "nobody|no one|few people|hardly anyone",
    "reversing": "far from|anything but|by no means",
    "affirming": """I must say that|I think that|we found that|it is true that|
        my friends say that|everyone agrees that|nobody doubts that|
        no one can deny that|I am sure that|I do not deny that""",
    "denying": """I would not say that|I do not think that|nobody could say that|
        we never felt that|it is not true that|I doubt that|few would claim that|
        hardly anyone believes that|I can not agree that|nobody told us that""",
    "others": """the last one|the first one|the one before|the one in paris|
        the one last year|the one downtown|the one on sunday""",
    "when": """yesterday|last night|on monday|this time|once again|in spring|
        last summer|on tuesday|at christmas|that evening""",
}


class Said(NamedTuple):
    """Some words and their score, from -1 to 1."""

    words: str
    score: float


class Noun(NamedTuple):
    """Something to be judged; `whole` if it is the topic itself, not a part."""

    word: str
    kind: str
    be: str
    whole: bool


def generate(split: str, size: int) -> list[dict[str, str]]:
    """Return the first `size` records of a split; each two have both labels."""
    check_split(split, SPLITS)
    random = Random(split)
    critic = Critic(random)
    records: list[dict[str, str]] = []
    texts: set[str] = set()
    label, idle = "", 0
    while len(records) < size:
        if idle == _PATIENCE:
            raise ValueError(
                f"{split!r} has about {len(records)} opinions: {size} were asked for"
            )
        label = label or random.choice(("positive", "negative"))
        idle += 1
        said = critic.sentence()
        text, score = said.words, round(said.score, 2)
        fits = abs(score) >= LEAST and (score > 0) == (label == "positive")
        fits = fits and len(text.split()) in LENGTHS and split_of(text) == split
        if text in texts or not fits:
            continue
        texts.add(text)
        records.append({"text": text, "label": label, "score": f"{score:.2f}"})
        other = "negative" if label == "positive" else "positive"
        label, idle = other if len(records) % 2 else "", 0
    return records


def intensify(score: float) -> float:
    """Score "very good" from "good"."""
    return max(-1.0, min(1.0, 1.25 * score))


def negate(score: float) -> float:
    """Score "not bad" from "bad": somewhat good."""
    return -score / 2


def contrast(lesser: float, weightier: float) -> float:
    """Score "X but Y", where Y weighs more."""
    return 0.4 * lesser + 0.6 * weightier


class Critic:
    """Draws one sentence at a time, with its score."""

    def __init__(self, random: Random):
        self.random = random
        self.pick = random.choice

    def chance(self, probability: float) -> bool:
        """Return True with a given probability."""
        return self.random.random() < probability

    def weigh(self, options: Iterable[tuple[int, Callable[..., Said]]]):
        """Draw an option in proportion to the weight before it."""
        weights, ways = zip(*options, strict=True)
        return self.random.choices(ways, weights)[0]

    def some(self, name: str) -> str:
        """Draw one of the PHRASES of this name."""
        return self.pick(PHRASES[name])

    def sentence(self) -> Said:
        """Draw an opinion of a topic, with its score."""
        nouns = self.random.sample(self.pick(TOPICS), 2)
        ways = (
            (42, lambda first, _: self._part(first)),
            (7, self._contrast),
            (5, self._concession),
            (3, self._despite),
            (34, self._addition),
            (6, self._comparison),
            (3, self._denied_twice),
        )
        words, score = self.weigh(ways)(*nouns)
        early = self.some("when") + " , " if self.chance(0.1) else ""
        return Said(f"{early}{words} .", score)

    def _contrast(self, first: Noun, second: Noun) -> Said:
        one, other = self._two(-1, first, second)
        link = self.pick((", but", "but", ", yet", ", however ,"))
        return Said(f"{one.words} {link} {other.words}", contrast(one[1], other[1]))

    def _concession(self, first: Noun, second: Noun) -> Said:
        """Concede one opinion and insist on the other, in either order."""
        one, other = self._two(-1, first, second)
        link = self.pick(("although", "though", "even though", "while"))
        parts = [f"{link} {one.words}", other.words]
        self.random.shuffle(parts)
        return Said(" , ".join(parts), contrast(one.score, other.score))

    def _despite(self, first: Noun, second: Noun) -> Said:
        other = self._part(second)
        adjective = self._adjective(first)
        while adjective.score * other.score > 0:
            adjective = self._adjective(first)
        link = self.pick(("despite", "in spite of"))
        one = f"{link} the {adjective.words} {first.word}"
        parts = [one, other.words]
        self.random.shuffle(parts)
        return Said(" , ".join(parts), contrast(adjective.score, other.score))

    def _addition(self, first: Noun, second: Noun) -> Said:
        one, other = self._two(1, first, second)
        link = self.pick(("and", ", and", "; besides ,"))
        return Said(f"{one.words} {link} {other.words}", (one[1] + other[1]) / 2)

    def _comparison(self, noun: Noun, _: Noun) -> Said:
        step, word = self.pick(((0.5, "better"), (-0.5, "worse")))
        way = self.pick(("", "", "much", "far", "no", "hardly", "not"))
        if way in ("much", "far"):
            step = intensify(step)
        elif way:
            step = negate(step)
        other = self._quality(noun)
        than = self.some("others")
        if noun.be == "were":
            than = than.replace("one", "ones")
        than += f" , which {noun.be} {other.words}"
        words = f"the {noun.word} {noun.be} {way} {word} than {than}"
        return Said(" ".join(words.split()), step + other.score / 4)

    def _denied_twice(self, first: Noun, second: Noun) -> Said:
        one, other = self._two(1, first, second, self._described)
        words = f"{self.some('denying')} {one.words} or that {other.words}"
        return Said(words, negate((one.score + other.score) / 2))

    def _two(self, sign: int, first: Noun, second: Noun, grow=None):
        """Grow two opinions that agree (1) or not (-1); only the second is framed."""
        one, grow = (grow or self._clause)(first), grow or self._part
        other = grow(second)
        while one.score * other.score * sign < 0 or one == other:
            other = grow(second)
        return one, other

    def _part(self, noun: Noun) -> Said:
        """Grow a clause, perhaps framed: `I would not say that …`."""
        words, score = self._clause(noun)
        if self.chance(0.88):
            return Said(words, score)
        if self.chance(0.5):
            return Said(f"{self.some('affirming')} {words}", score)
        return Said(f"{self.some('denying')} {words}", negate(score))

    def _clause(self, noun: Noun) -> Said:
        ways = [(10, self._described), (4, self._touching), (4, self._liked)]
        ways += [(2, self._throughout), (4 * noun.whole, self._named)]
        return self.weigh(ways)(noun)

    def _described(self, noun: Noun) -> Said:
        words, score = self._quality(noun)
        return Said(f"the {noun.word} {noun.be} {words}", score)

    def _named(self, noun: Noun) -> Said:
        words, score = self._graded(noun)
        article = "an" if words[0] in "aeiou" else "a"
        words = f"{article} {words} {noun.word}"
        if self.chance(0.15):
            return Said(f"it was {self.pick(NEGATIONS)} {words}", negate(score))
        return Said(f"it was {words}", score)

    def _touching(self, noun: Noun) -> Said:
        verb, score = self._acted(self.pick(TOUCHING))
        return Said(f"the {noun.word} {verb} {self.some('whom')}", score)

    def _liked(self, noun: Noun) -> Said:
        base, past, score = self.pick(LIKING)
        if self.chance(0.15):
            return Said(f"{self.some('nobody')} {past} the {noun.word}", negate(score))
        verb, score = self._acted((base, past, score))
        return Said(f"{self.some('who')} {verb} the {noun.word}", score)

    def _acted(self, verb: tuple[str, str, float]) -> Said:
        """Put a verb into the past, perhaps with an adverb or denied."""
        base, past, score = verb
        if self.chance(0.75):
            return Said(past, score)
        if self.chance(0.4):
            return Said(f"really {past}", intensify(score))
        denied = self.pick((f"did not {base}", f"never {past}", f"hardly {past}"))
        return Said(denied, negate(score))

    def _throughout(self, noun: Noun) -> Said:
        words, score = self._graded(noun)
        every, none = "everything about", "nothing about"
        if noun.be == "were":
            every, none = "each of", self.pick(("none of", "not one of"))
        if self.chance(0.6):
            return Said(f"{every} the {noun.word} was {words}", score)
        return Said(f"{none} the {noun.word} was {words}", negate(score))

    def _quality(self, noun: Noun) -> Said:
        """Describe something: the words after `was`."""
        ways = [(28, self._graded), (5, self._denied), (3, self._measured)]
        ways += [(2, self._paired), (2, self._corrected)]
        return self.weigh(ways)(noun)

    def _graded(self, noun: Noun) -> Said:
        words, score = self._adjective(noun)
        extreme = abs(score) >= EXTREME
        if self.chance(0.2):
            return Said(f"{self.pick(STRONG[extreme])} {words}", intensify(score))
        if not extreme and self.chance(0.2):
            return Said(f"{self.pick(WEAK)} {words}", 0.75 * score)
        return Said(words, score)

    def _denied(self, noun: Noun) -> Said:
        words, score = self._adjective(noun)
        if self.chance(0.2):
            return Said(f"{self.some('reversing')} {words}", -score)
        if self.chance(0.3):
            strong = self.pick(STRONG[abs(score) >= EXTREME])
            return Said(f"not {strong} {words}", negate(intensify(score)))
        return Said(f"{self.pick(NEGATIONS)} {words}", negate(score))

    def _measured(self, noun: Noun) -> Said:
        scale = self.pick(SCALES[noun.kind])
        words, score = self.pick(((f"too {scale}", -0.5), (f"{scale} enough", 0.5)))
        if self.chance(0.3):
            return Said(f"not {words}", negate(score))
        return Said(words, score)

    def _paired(self, noun: Noun) -> Said:
        one, other = self._two(1, noun, noun, self._adjective)
        score = (one.score + other.score) / 2
        if self.chance(0.6):
            return Said(f"neither {one.words} nor {other.words}", negate(score))
        return Said(f"both {one.words} and {other.words}", score)

    def _corrected(self, noun: Noun) -> Said:
        """Grow `good but slow`, or `not good but slow`, where not governs good only."""
        one, other = self._two(-1, noun, noun, self._adjective)
        if self.chance(0.5):
            one = Said(f"not {one.words}", negate(one.score))
        return Said(f"{one.words} but {other.words}", contrast(one[1], other[1]))

    def _adjective(self, noun: Noun) -> Said:
        return self.pick(ADJECTIVES[noun.kind])


def _topics() -> list[list[Noun]]:
    topics = []
    for text in _TOPICS.split(";"):
        nouns = []
        for i, group in enumerate(text.split(",")):
            kind, words = group.split(":")
            for word in words.split():
                be = "were" if word.endswith("+") else "was"
                nouns.append(Noun(word.rstrip("+"), kind.strip(), be, i == 0))
        topics.append(nouns)
    return topics


def _adjectives(kind: str) -> list[Said]:
    entries = (_VALENCES[""] + " " + _VALENCES[kind]).split()
    pairs = (entry.split("=") for entry in entries if "=" in entry)
    return [Said(word, int(tenths) / 10) for word, tenths in pairs]


def _verbs(text: str) -> list[tuple[str, str, float]]:
    entries = (entry.split("=") for entry in text.split())
    return [(base, past, int(tenths) / 10) for base, past, tenths in entries]


TOPICS = _topics()
ADJECTIVES = {kind: _adjectives(kind) for kind in _VALENCES if kind}
SCALES = {
    kind: [entry for entry in text.split() if "=" not in entry]
    for kind, text in _VALENCES.items()
}
TOUCHING, LIKING = _verbs(_TOUCHING), _verbs(_LIKING)
PHRASES = {
    name: [" ".join(phrase.split()) for phrase in text.split("|")]
    for name, text in _PHRASES.items()
}


def labelled(data: ConfigDict) -> GeneratedSource:
    """Return the opinions with their labels, or their scores for regression."""
    wanted = "score" if data.answers == "numbers" else "label"

    def make(split: str, size: int) -> list[dict[str, str]]:
        found = generate(split, size)
        return [{"text": r["text"], "label": r[wanted]} for r in found]

    return GeneratedSource("opinions", VERSION, SPLITS, make, (wanted,))


def lines(data: ConfigDict) -> GeneratedSource:
    """Return the text of the opinions alone."""

    def make(split: str, size: int) -> list[dict[str, str]]:
        return [{"text": record["text"]} for record in generate(split, size)]

    return GeneratedSource("opinions", VERSION, SPLITS, make, ("text",))
