"""Small talk: dialogues of two speakers in which the second has one right answer.

The first speaker says something and asks about it, so that the second's reply follows
from the last three turns, and often not from fewer: `My name is Ana`, `Nice to meet
you, Ana`, `What is my name?`, `Your name is Ana`. Only the turns of the second speaker
are replies to learn.
"""

import re
from collections.abc import Callable, Iterator
from random import Random

from transformer_jax.data.generated.draws import check_split, split_of

VERSION = 1  # part of the data fingerprint: raise when the generated text changes
SPLITS = ("train", "validation", "test")
SEPARATOR = " __eou__ "
FIXED = ("Hi how are you", "I am fine")
_PATIENCE = 50_000  # dialogues in sequence without a new one before giving up

# A line and its answer, in any context.
_GREETINGS = """Hello=Hello to you|Hi=Hi there|Good morning=Good morning to you|
    Good afternoon=Good afternoon to you|Good evening=Good evening to you|
    Hello, how are you?=I am fine, thank you|How are you today?=I am fine today|
    Hey, what is new?=Nothing is new here|Are you well?=Yes, I am very well"""
_CURIOUS = """What is your name?=My name is Robin|How old are you?=I am very young|
    Where do you live?=I live in a computer|Do you have a family?=No, I live alone|
    What do you do?=I answer questions|Can you dance?=No, I have no legs|
    Can you sing?=No, but I can write|What do you like?=I like good company|
    Are you a robot?=Yes, I am a friendly robot|Do you sleep?=No, I never sleep|
    What do you eat?=I never eat anything|Who made you?=Clever people made me"""
_PARTING = """Goodbye=Goodbye|Bye=Bye|See you soon=See you soon|
    Good night=Sleep well|I have to go now=Take care|Have a nice day=You too"""
_THANKS = "Thank you|Thanks a lot|Thank you very much|That is kind of you|Many thanks"
_NAMES = """Ana Tom Eva Paul Mia Leo Nora Max Lucy Ivan Rosa Omar Emma Hugo Clara Felix
    Julia David Sara Peter Maria Simon Laura Adam Helen Marco Alice Victor Irene Daniel
    Sofia Martin Olga Bruno Vera Oscar Greta Nils Carmen Yusuf"""
_CITIES = """Paris London Rome Berlin Madrid Lisbon Vienna Prague Oslo Dublin Athens
    Cairo Tokyo Delhi Lima Boston Chicago Toronto Sydney Nairobi"""
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
_JOBS = """baker:bread:a bakery|teacher:lessons:a school|nurse:visits:a hospital|
    farmer:cheese:a farm|waiter:coffee:a restaurant|gardener:flowers:a park|
    tailor:coats:a workshop|painter:pictures:a studio|cook:soup:a kitchen|
    librarian:lists:a library|carpenter:tables:a workshop|brewer:beer:a cellar|
    writer:stories:an office|potter:cups:a studio|actor:plays:a theater|
    florist:bouquets:a shop|banker:money:a bank|lawyer:contracts:an office|
    jeweler:rings:a shop|miller:flour:a mill|mechanic:repairs:a garage|
    engineer:engines:a factory|sailor:journeys:a harbor|priest:sermons:a church"""
_WEATHER = """raining::an umbrella|snowing::warm boots|hailing::a strong hat|
    cold::a thick coat|windy::a scarf|foggy::a lamp|stormy::a raincoat|icy::gloves|
    sunny:nice:sunglasses|warm:nice:a light shirt|hot:nice:some water|
    mild:nice:a sweater|dry:nice:your bicycle"""
_FOODS = """fruit:apples pears plums cherries grapes melons bananas peaches oranges|
    vegetables:carrots beans peas onions spinach cabbage tomatoes pumpkins leeks|
    meat:chicken beef ham bacon sausages lamb turkey duck|
    drinks:tea coffee milk lemonade cocoa cider juice water|
    sweets:chocolate biscuits honey cake candy jam waffles muffins"""
_RELATIVES = """mother=she father=he sister=she brother=he aunt=she uncle=he cousin=he
    grandmother=she grandfather=he daughter=she son=he wife=she husband=he niece=she
    nephew=he neighbor=he boss=she"""
_MOODS = """tired=You should sleep|hungry=You should eat|thirsty=You should drink|
    bored=You should read|sick=You should see a doctor|sad=You should call a friend|
    cold=You should wear a coat|nervous=You should breathe slowly|
    happy=I am glad to hear that|excited=I wish you much fun|late=You should run|
    angry=You should count to ten|lost=You should look at a map"""
_PLANS = """swim in the lake|play football|visit the museum|bake a cake|
    paint the door|read a novel|watch a film|ride a horse|climb a mountain|
    clean the house|write letters|buy shoes|wash the car|study history|plant roses|
    repair the roof|see the dentist|cook dinner|learn Spanish|play chess|go fishing|
    feed the birds|sell the boat"""
_KINDS = "brothers sisters cousins children uncles aunts nephews nieces"
_AGAIN = "Can you say that again?|What did you say?|Sorry, what was that?|Pardon?"
_NUMBERS = "two three four five six seven eight nine ten"

Exchange = tuple[str, str]  # a line of the first speaker, the second's answer


def generate(split: str, size: int, turns: int = 3) -> list[dict[str, str]]:
    """Return the first `size` replies of a split, each with the `turns` before it.

    With fewer than three turns some contexts have several replies. All are from the
    split's own dialogues, and no context is in two splits.
    """
    if turns < 1:
        raise ValueError(f"turns is {turns}: keep at least 1, as context")
    examples: dict[Exchange, None] = {}
    idle = 0
    for dialogue in _draw(split):
        if idle == _PATIENCE or len(examples) >= size:
            break
        idle += 1
        for i in range(1, len(dialogue), 2):
            context = SEPARATOR.join(dialogue[max(0, i - turns) : i])
            if _split_of(context) == split and (context, dialogue[i]) not in examples:
                examples[context, dialogue[i]] = None
                idle = 0
    _check(split, "replies", len(examples), size)
    return [{"context": c, "reply": r} for c, r in [*examples][:size]]


def dialogues(split: str, size: int) -> list[list[str]]:
    """Return the first `size` dialogues of a split: lists of 2 to 8 turns."""
    kept: dict[tuple[str, ...], None] = {}
    idle = 0
    for dialogue in _draw(split):
        if idle == _PATIENCE or len(kept) >= size:
            break
        idle = idle + 1 if dialogue in kept else 0
        kept[dialogue] = None
    _check(split, "dialogues", len(kept), size)
    return [list(dialogue) for dialogue in [*kept][:size]]


def _draw(split: str) -> Iterator[tuple[str, ...]]:
    """Draw the dialogues of a split without end; `train` starts with the fixed one."""
    check_split(split, SPLITS)
    if split == "train":
        yield FIXED
    talker = Talker(Random(split))
    while True:
        dialogue = talker.dialogue()
        if _split_of(SEPARATOR.join(dialogue)) == split:
            yield dialogue


def _check(split: str, what: str, found: int, size: int) -> None:
    if found < size:
        raise ValueError(f"{split!r} has about {found} {what}: {size} were asked for")


def _split_of(text: str) -> str:
    if text in COMMON:
        return "train"
    return split_of(text)


class Talker:
    """Draws one dialogue at a time, scene by scene."""

    def __init__(self, random: Random):
        self.random = random
        self.pick = random.choice

    def chance(self, probability: float) -> bool:
        """Return True with a given probability."""
        return self.random.random() < probability

    def dialogue(self) -> tuple[str, ...]:
        """Draw a dialogue; `{you}` is a name, and `{again}` is the last answer."""
        size = self.random.choices((1, 2, 3, 4), (1, 3, 4, 4))[0]
        exchanges = self._greeting() if self.chance(0.4) else []
        scenes = self.random.sample(self._scenes(), size)
        for scene in scenes:
            exchanges += scene()
            if self.chance(0.1):
                exchanges.append((self.pick(AGAIN), "{again}"))
        if self.chance(0.3):
            exchanges[size - 1] = self.pick(PARTING)
        turns: list[str] = []
        for line, answer in exchanges[:size]:
            last = turns[-1] if turns else ""
            answer = answer.replace("{you}", _address(last)).replace("{again}", last)
            turns += [line, answer]
        return tuple(turns)

    def _scenes(self) -> list[Callable[[], list[Exchange]]]:
        return [
            self._name,
            self._work,
            self._weather,
            self._food,
            self._number,
            self._relative,
            self._plans,
            self._mood,
            self._thanks,
            self._curiosity,
        ]

    def _greeting(self) -> list[Exchange]:
        return [FIXED if self.chance(0.1) else self.pick(GREETINGS)]

    def _curiosity(self) -> list[Exchange]:
        return [self.pick(CURIOUS)]

    def _thanks(self) -> list[Exchange]:
        return [(self.pick(THANKS), "You are welcome{you}")]

    def _mood(self) -> list[Exchange]:
        mood, advice = self.pick(MOODS)
        told = (f"I am {mood}", advice)
        return [told, ("Why do you say that?", f"Because you are {mood}")]

    def _name(self) -> list[Exchange]:
        ask = self.pick(("What is my name?", "Do you know my name?", "Who am I?"))
        name, other = self.random.sample(NAMES, 2)
        if self.chance(0.2):
            return [(ask, "You have not told me your name")]
        if self.chance(0.4):
            return self._introduction(name, other, ask)
        tell = self.pick(("My name is", "I am", "Call me", "You can call me"))
        told = (f"{tell} {name}", f"Nice to meet you, {name}")
        asked = (ask, f"Your name is {name}")
        corrected = (f"No, my name is {other}", f"Sorry, your name is {other}")
        scene = [told, asked, corrected, (ask, f"Your name is {other}")]
        return scene[: self.pick((1, 2, 4))]

    def _introduction(self, name: str, other: str, ask: str) -> list[Exchange]:
        relative, who = self.pick(RELATIVES)
        told = f"I am {name} and my {relative} is {other}"
        questions = [
            (ask, f"Your name is {name}"),
            (f"Who is {name}?", f"You are {name}"),
            (f"Who is {other}?", f"{other} is your {relative}"),
            (f"What is my {relative}'s name?", f"{HER[who].title()} name is {other}"),
        ]
        met = f"Nice to meet you both, {name} and {other}"
        return [(told, met), self.pick(questions)]

    def _work(self) -> list[Exchange]:
        job, product, place = self.pick(JOBS)
        tell = self.pick(("I am", "I work as", "I have become"))
        told = (f"{tell} {_a(job)}", "Do you like your work?")
        questions = [
            ("Yes, I do", f"Then you are a happy {job}"),
            ("No, I do not", f"Then {place} is not the place for you"),
            ("What is my job?", f"You are {_a(job)}"),
            ("Where do I work?", f"You work in {place}"),
            ("What do people pay me for?", f"They pay you for {product}"),
        ]
        return [told, self.pick(questions)]

    def _weather(self) -> list[Exchange]:
        weather, nice, thing = self.pick(WEATHER)
        city, other = self.random.sample(CITIES, 2)
        told = (f"It is {weather} in {city}", f"Then take {thing} with you")
        opinion = "Yes" if nice else "No"
        questions = [
            ("Why?", f"Because it is {weather} in {city}"),
            ("Where will I need that?", f"You will need {thing} in {city}"),
            (f"Is it nice in {city}?", f"{opinion}, it is {weather} there"),
            (f"Is it {weather} in {other}?", f"I only know about {city}"),
            ("Should I go out?", f"{opinion}, it is {weather}"),
        ]
        return [told, self.pick(questions)]

    def _food(self) -> list[Exchange]:
        kind, foods = self.pick(FOODS)
        i = self.random.randrange(len(foods))
        food, other = foods[i], foods[i - 1]
        if self.chance(0.5):
            told = f"I {self.pick(('like', 'love', 'enjoy'))} {food}"
            asked, yes, no = f"Do you like {other} too?", "{} and {}", "{} but not {}"
        else:
            told = f"I {self.pick(('do not like', 'hate', 'can not stand'))} {food}"
            asked, yes, no = (
                f"Do you like {other}?",
                "{1} but not {0}",
                "neither {} nor {}",
            )
        yes, no = (f"So you like {form.format(food, other)}" for form in (yes, no))
        guess = self.pick(FOODS)[0]
        right = "Yes" if guess == kind else "No"
        questions = [
            (self.pick(("Yes, I do", "Yes", "Of course")), yes),
            (self.pick(("No, I do not", "No", "Not at all")), no),
            (f"Do you mean {guess}?", f"{right}, I mean {kind}"),
        ]
        return [(told, asked), self.pick(questions)]

    def _number(self) -> list[Exchange]:
        number = self.pick(NUMBERS)
        kind, other = self.random.sample(KINDS, 2)
        size = "nice" if number in NUMBERS[:3] else "big"
        told = (f"I have {number} {kind}", f"That is a {size} family")
        questions = [
            (f"How many {kind} do I have?", f"You have {number} {kind}"),
            (f"How many {other} do I have?", f"You only told me about {kind}"),
            ("What did I tell you?", f"You told me that you have {number} {kind}"),
        ]
        return [told, self.pick(questions)]

    def _relative(self) -> list[Exchange]:
        relative, who = self.pick(RELATIVES)
        job, _, place = self.pick(JOBS)
        city, her = self.pick(CITIES), HER[who]
        if self.chance(0.5):
            told = (f"My {relative} is {_a(job)}", f"Does {who} like {her} work?")
            questions = [
                (f"Yes, {who} does", f"Then {who} is a happy {job}"),
                (f"What does {who} do?", f"{who.title()} is {_a(job)}"),
                (f"Who is {_a(job)}?", f"Your {relative} is {_a(job)}"),
                (f"Where does {who} work?", f"{who.title()} works in {place}"),
            ]
        else:
            told = (f"My {relative} lives in {city}", f"Does {who} like {her} home?")
            questions = [
                (f"Yes, {who} does", f"Then {city} is a good place"),
                (f"Where does {who} live?", f"{who.title()} lives in {city}"),
                ("Who lives there?", f"Your {relative} lives in {city}"),
            ]
        return [told, self.pick(questions)]

    def _plans(self) -> list[Exchange]:
        plan, name = self.pick(PLANS), self.pick(NAMES)
        day, guess = self.pick(DAYS), self.pick(DAYS)
        tell = self.pick((f"I am going to {plan} on {day}", f"On {day} I will {plan}"))
        with_whom = "Who is going with you?"
        hope = f"I hope that you and {name} enjoy {day}"
        right = "Yes" if guess == day else "No"
        questions = [
            ("Nobody", f"Then {day} will be quiet"),
            ("What will I do?", f"You will {plan}"),
            ("When will that be?", f"That will be on {day}"),
            (f"Will that be on {guess}?", f"{right}, on {day}"),
        ]
        if self.chance(0.7):
            return [(tell, with_whom), self.pick(questions)]
        friend = (f"My friend {name}", hope)
        return [
            (tell, with_whom),
            friend,
            (f"Who is {name}?", f"{name} is your friend"),
        ]


def _address(last: str) -> str:
    """Return ", Ana" if the last answer addressed Ana, otherwise ""."""
    name = re.search(r"(?:meet you,|our name is) (\w+)$", last)
    return f", {name[1]}" if name else ""


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _list(text: str) -> list[str]:
    return [" ".join(entry.split()) for entry in text.split("|")]


def _pairs(text: str) -> list[Exchange]:
    return [(line, answer) for line, answer in (e.split("=") for e in _list(text))]


GREETINGS, CURIOUS, MOODS = map(_pairs, (_GREETINGS, _CURIOUS, _MOODS))
PARTING = [(line, answer + "{you}") for line, answer in _pairs(_PARTING)]
THANKS, AGAIN, PLANS = map(_list, (_THANKS, _AGAIN, _PLANS))
NAMES, CITIES, DAYS, NUMBERS, KINDS = (
    text.split() for text in (_NAMES, _CITIES, _DAYS, _NUMBERS, _KINDS)
)
JOBS = [tuple(entry.split(":")) for entry in _list(_JOBS)]
WEATHER = [tuple(entry.split(":")) for entry in _list(_WEATHER)]
FOODS = [(e.split(":")[0], e.split(":")[1].split()) for e in _list(_FOODS)]
RELATIVES = [tuple(entry.split("=")) for entry in _RELATIVES.split()]
HER = {"she": "her", "he": "his"}
# Openings are few and common to all splits, so they always count as training.
COMMON = {FIXED[0], SEPARATOR.join(FIXED)} | {line for line, _ in GREETINGS}
