"""Small talk of more topics, with lines that the grammar does not have."""

from collections.abc import Callable
from random import Random

from transformer_jax.family.conversation.smalltalk.lexicon import (
    CITIES,
    CURIOUS,
    DAYS,
    HOBBIES,
    HOURS,
    MORE_CURIOUS,
    NUMBERS,
    Exchange,
)
from transformer_jax.family.conversation.smalltalk.off_topic import OffTopic
from transformer_jax.family.conversation.smalltalk.talker import Talker


class WideTalker(Talker):
    """Draws dialogues in which a line may also be from outside the grammar."""

    def __init__(self, random: Random, split: str):
        super().__init__(random)
        self.off_topic = OffTopic(random, split)

    def _scenes(self) -> list[Callable[[], list[Exchange]]]:
        more = [self._time, self._hobby, self._journey, self._curiosity]
        return [*super()._scenes(), *more, *[self._off_topic] * 3]

    def _curiosity(self) -> list[Exchange]:
        return [self.pick(CURIOUS + MORE_CURIOUS)]

    def _off_topic(self) -> list[Exchange]:
        scenes = [s for s in self._scenes() if s != self._off_topic]
        return [self.off_topic.draw(self.pick(scenes)()[0][0])]

    def _time(self) -> list[Exchange]:
        hour, use = self.pick(HOURS)
        guess = self.pick(HOURS)[0]
        right = "Yes" if guess == hour else "No"
        told = (f"It is {hour} o'clock", f"Then it is time for {use}")
        questions = [
            ("What time did I say?", f"You said {hour} o'clock"),
            ("Why?", f"Because it is {hour} o'clock"),
            (f"Did I say {guess}?", f"{right}, you said {hour}"),
        ]
        return [told, self.pick(questions)]

    def _hobby(self) -> list[Exchange]:
        hobby, day = self.pick(HOBBIES), self.pick(DAYS)
        tell = self.pick(("I like to", "I love to", "I often"))
        told = (f"{tell} {hobby}", f"Do you {hobby} every day?")
        questions = [
            ("Yes, I do", f"Then you {hobby} very well"),
            ("No, I do not", f"You should {hobby} more often"),
            (f"Only on {day}", f"I hope that you {hobby} next {day}"),
            ("What do I like?", f"You like to {hobby}"),
        ]
        return [told, self.pick(questions)]

    def _journey(self) -> list[Exchange]:
        city, day, number = self.pick(CITIES), self.pick(DAYS), self.pick(NUMBERS)
        tell = self.pick(("I am flying to", "I am going to", "I will travel to"))
        told = (f"{tell} {city} on {day}", f"How long will you stay in {city}?")
        questions = [
            (f"{number.title()} days", f"You will like {number} days in {city}"),
            ("Where am I going?", f"You are going to {city}"),
            ("When do I leave?", f"You leave on {day}"),
        ]
        return [told, self.pick(questions)]
