"""Dialogues of the small talk, scene by scene."""

import re
from collections.abc import Callable
from random import Random

from transformer_jax.family.conversation.smalltalk.lexicon import (
    AGAIN,
    CITIES,
    CURIOUS,
    DAYS,
    FIXED,
    FOODS,
    GREETINGS,
    HER,
    JOBS,
    KINDS,
    MOODS,
    NAMES,
    NUMBERS,
    PARTING,
    PLANS,
    RELATIVES,
    THANKS,
    WEATHER,
    Exchange,
)


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
