"""Short stories: a hero wants something, meets an obstacle and is helped.

A story has 6 to 8 sentences. Names, places and things stay the same, pronouns agree
with the hero. `checker` says which of these rules a text breaks.
"""

import functools
import re
from collections.abc import Mapping
from random import Random

from ml_collections import ConfigDict

from transformer_jax.corpora.stories.lexicon import GENDERS, KINDS, PRONOUNS, SLOTS
from transformer_jax.corpora.stories.plots import PLOTS, SLOT, Plot
from transformer_jax.data.draws import Drawer, check_split, split_of
from transformer_jax.data.reading.sources import GeneratedSource

VERSION = 1  # part of the data fingerprint: raise when the generated text changes
SPLITS = ("train", "validation", "test")


def generate(split: str, size: int, seed: int = 0) -> list[str]:
    """Return the first `size` stories of a split."""
    check_split(split, SPLITS)
    return [tell(split, index, seed) for index in range(size)]


def tell(split: str, index: int, seed: int = 0) -> str:
    """Return a story, which depends on split, index and seed alone.

    The hero, the plot and what it is about decide the split, so no such combination is
    in two splits.
    """
    drawer = Drawer(Random(f"stories {split} {seed} {index}").random)
    while True:
        plot, values = drawer.pick(PLOTS), _draw(drawer)
        if split_of(f"{values['A']} {plot.name} {values[plot.about]}") == split:
            return " ".join(_sentences(drawer, plot, values))


def _draw(drawer: Drawer) -> dict[str, str]:
    """Draw a value for each slot."""
    values = {slot: drawer.pick(words) for slot, words in SLOTS.items()}
    names = [*GENDERS]
    values["A"] = drawer.pick(names)
    values["B"] = drawer.pick([name for name in names if name != values["A"]])
    gender = GENDERS[values["A"]]
    values["kind"] = drawer.pick(KINDS[gender])
    for slot, forms in PRONOUNS.items():
        values[slot] = forms[gender == "he"]
        values[slot.title()] = values[slot].title()
    return values


def _sentences(drawer: Drawer, plot: Plot, values: Mapping[str, str]) -> list[str]:
    extra = drawer.pick([None, *(s for s in plot.stages if s.optional)])
    stages = [s for s in plot.stages if not s.optional or s is extra]
    return [fill(drawer.pick(stage.wordings), values) for stage in stages]


def fill(wording: str, values: Mapping[str, str]) -> str:
    """Put values into a wording; "a" becomes "an" before a vowel."""
    return set_articles(SLOT.sub(lambda slot: values[slot[1]], wording))


def set_articles(text: str) -> str:
    """Write "an" before vowels and "a" before other letters."""
    text = re.sub(r"\b([Aa])n?(?= [aeiou])", r"\1n", text)
    return re.sub(r"\b([Aa])n?(?= [b-df-hj-np-tv-z])", r"\1", text)


@functools.cache
def vocabulary() -> frozenset[str]:
    """Return every word that a story may have, as `words_of` divides them."""
    wordings = [w for plot in PLOTS for stage in plot.stages for w in stage.wordings]
    texts = [SLOT.sub(" ", wording) for wording in wordings]
    texts += [" ".join(values) for values in (*SLOTS.values(), *KINDS.values())]
    texts += [" ".join(form.title() for form in f) for f in PRONOUNS.values()]
    texts += [" ".join(f) for f in PRONOUNS.values()] + [" ".join(GENDERS), "a an A An"]
    return frozenset(word for text in texts for word in words_of(text))


def words_of(text: str) -> list[str]:
    """Divide a text into words, without punctuation."""
    return re.findall(r"[A-Za-z]+", text)


def lines(data: ConfigDict) -> GeneratedSource:
    """Return the stories as a source for language models."""

    def make(split: str, size: int) -> list[dict[str, str]]:
        return [{"text": story} for story in generate(split, size)]

    return GeneratedSource("stories", VERSION, SPLITS, make)
