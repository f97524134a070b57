"""Lines from outside the grammar of the small talk, and what is answered to them.

They are sentences about other things, lines of the grammar with their words out of
order, and lines with words that do not exist. A tenth of the nouns and of the made-up
words occur in the validation split alone, another tenth in the test.
"""

import re
from random import Random

from transformer_jax.data.draws import split_of
from transformer_jax.family.conversation.smalltalk.lexicon import Exchange

UNKNOWN = "Sorry, I do not know about that"  # an answer to other topics
UNCLEAR = "Sorry, I do not understand"  # an answer to no sentence at all
FALLBACKS = (UNKNOWN, UNCLEAR)

NOUNS = """
    airport algebra ant anthem apron army arrow asteroid atom avalanche axe bacteria
    ballot banjo bank basement battery battle beard beetle bell bicycle billionaire
    bishop blanket bomb bone bottle bottom brain brake bridge bucket budget bug button
    cable cactus camera candle canyon capital carpet cartoon castle cave ceiling century
    chair champion chemist church cinema circus clock cloud coast code coin comet
    computer concert constitution continent copper coral country court crab crime crown
    cube currency curtain deer desert diamond dictionary dinosaur director dragon drum
    earthquake eclipse economy electron elephant elevator email emperor empire engine
    equation error exam explosion factory farmer festival fever finger flag flood flute
    football formula fossil fox fraction frog fuel furniture galaxy gas ghost giraffe
    glacier glass goal gold government grammar gravity guitar hammer helicopter hero
    hotel hurricane iceberg idiom insect internet iron joke jungle kangaroo key keyboard
    king kingdom knife knot language laptop laser law leaf library license lion lizard
    lottery magnet mammal map market mathematics medal melody mermaid metal microscope
    minister mirror molecule monkey monster moon mosque motor mouse mouth movie museum
    mushroom mystery nail nation needle nest newspaper novel number oak ocean octopus
    office oil opera orchestra oven owl oxygen painting palace pancreas paper parliament
    parrot password penguin philosophy phone photograph piano pillow pirate planet
    plastic platform poem poet poison police politics population prescription president
    price prime printer prison problem professor program pyramid queen question radio
    railway rainbow recipe record republic revolution riddle river road robot rocket
    root ruler salary satellite scientist screen screw sea secret sentence shark sheep
    ship silver skeleton skin skirt sky snake soap software song spider stadium star
    station statue stomach stone street sugar suitcase sun sword syllable table tail tax
    team telephone temperature temple tennis theory thief thunder ticket tiger toilet
    tooth tower toy train treasure treaty triangle truck trumpet tunnel umbrella uniform
    university vaccine valley verb video village violin virus volcano wall wallet war
    whale wheel window wire witch wizard wolf wool word world worm wound yacht zebra zoo
""".split()
VERBS = """
    add adopt answer avoid bend boil borrow break bring build burn calculate carry catch
    change choose close collect compare connect copy count cut deliver describe design
    destroy discover divide download draw drive drop explain explore fill find finish
    fix fold follow forget guess hang hide hold hunt imagine improve install invent join
    keep kick kill lend lift lose measure melt mend mix move multiply open order pass
    pay peel pick print prove pull push recommend remove rent repeat replace save send
    share shut solve spell spend start steal stop teach tell test throw touch translate
    turn understand use wake warm weigh win wrap
""".split()
ADJECTIVES = """
    afraid ancient bitter blind bright cheap common correct dangerous dark deep
    different dirty empty expensive false famous fast fat flat free funny hard healthy
    heavy high illegal important large legal light long loud modern narrow new old poor
    popular possible quick rare real red rich round safe sharp short similar simple slow
    small smart smooth soft square strange strong tall thick thin tiny true ugly useful
    weak wet wide wild yellow young
""".split()
FRAMES = """What is the {noun} of the {noun}?|What is a {noun}?|
    What is the {adj} {noun}?|
    What are {noun}s made of?|What does a {noun} {verb}?|
    What is the name of the {noun}?|
    What is {noun} plus {noun}?|What happened to the {noun}?|What's a {adj} {noun}?|
    What's the {noun} of the {noun}?|What {noun} should I {verb}?|
    Who was the first {noun}?|Who is the {adj} {noun}?|Who {verb}s the {noun}?|
    Who wrote the {noun}?|Who invented the {noun}?|Who won the {noun}?|
    Where is the {noun}?|Where can I {verb} a {noun}?|Where do {noun}s {verb}?|
    When was the {noun} built?|When does the {noun} {verb}?|When did the {noun} begin?|
    Why is the {noun} {adj}?|Why do {noun}s {verb}?|Why are there {adj} {noun}s?|
    How do I {verb} a {noun}?|How do you {verb} the {adj} {noun}?|
    How {adj} is a {noun}?|
    How {adj} is the {noun}?|How many {noun}s are in a {noun}?|How far is the {noun}?|
    How much does a {noun} cost?|How old is the {noun}?|How does a {noun} work?|
    Can you {verb} my {noun}?|Can you {verb} a {noun}?|Can {noun}s {verb}?|
    Can you tell me about the {noun}?|Can I {verb} the {noun}?|Could you {verb} it?|
    Do you know a {adj} {noun}?|Do {noun}s {verb}?|Do you believe in {noun}s?|
    Do you have a {noun}?|Does the {noun} {verb}?|Did you {verb} the {noun}?|
    Is the {noun} {adj}?|Is it {adj} to {verb} a {noun}?|Is there a {noun} here?|
    Are {noun}s {adj}?|Are there {noun}s on the {noun}?|Have you seen the {noun}?|
    Have you ever {verb}ed a {noun}?|Should I {verb} the {noun}?|
    Would you {verb} a {noun}?|Which {noun} is {adj}?|Which {noun} do you {verb}?|
    Which is the {adj} {noun}?|Tell me about {noun}s|Tell me the {noun}|
    Tell me a {adj} {noun}|Please {verb} the {noun}|Give me a {noun}|
    Show me your {noun}|Write a {noun} about a {noun}|Explain the {noun}|
    Translate {noun} for me|My {noun} is {adj}|My {noun} does not {verb}|
    The {noun} is {adj}|The {noun} and the {noun} {verb}|There is a {noun} here|
    I {verb} the {noun}|I have a {adj} {noun}|I think that {noun}s {verb}|
    I saw a {noun} today|I want a {noun}|I need a {adj} {noun}|
    We {verb} {noun}s|They {verb} the {adj} {noun}|You are a {noun}|
    {noun}|{noun} and {noun}|{adj} {noun}|{verb} the {noun}"""
CONSONANTS, VOWELS = (
    "b c d f g k l m n p r s t v w z bl br dr fl gr kl pl sh st".split(),
    "aeiou",
)


class OffTopic:
    """Draws lines of a split that the grammar does not have, with their answers."""

    def __init__(self, random: Random, split: str):
        """Use only the nouns that belong to `split`, so that splits differ."""
        self.random, self.split = random, split
        self.nouns = [noun for noun in NOUNS if split_of(noun) == split]
        self.frames = [" ".join(frame.split()) for frame in FRAMES.split("|")]

    def draw(self, line: str) -> Exchange:
        """Draw an exchange: about other things, made-up words, or a damaged `line`."""
        kind = self.random.random()
        if kind < 0.6:
            return self._other_topic(), UNKNOWN
        words = line.rstrip("?").split()
        if kind < 0.8 and len(words) >= 4:
            self.random.shuffle(words)
            shuffled = " ".join(words)
            if shuffled != line.rstrip("?"):
                return shuffled + "?" * line.endswith("?"), UNCLEAR
        if kind < 0.9:
            words[self.random.randrange(len(words))] = self._made_up()
            words.append(self._made_up())
            return " ".join(words) + "?" * line.endswith("?"), UNCLEAR
        number = self.random.randint(1, 5)
        return " ".join(self._made_up() for _ in range(number)), UNCLEAR

    def _other_topic(self) -> str:
        line = self.random.choice(self.frames)
        for slot, words in (
            ("{noun}", self.nouns),
            ("{verb}", VERBS),
            ("{adj}", ADJECTIVES),
        ):
            while slot in line:
                line = line.replace(slot, self.random.choice(words), 1)
        return re.sub(r"\ba(?= [aeiou])", "an", line)

    def _made_up(self) -> str:
        """Make up a word of the split."""
        while True:
            syllables = self.random.randint(1, 3)
            word = "".join(
                self.random.choice(CONSONANTS) + self.random.choice(VOWELS)
                for _ in range(syllables)
            )
            word += self.random.choice(["", *CONSONANTS[:14]])
            if len(word) > 3 and split_of(word) == self.split:
                return word
