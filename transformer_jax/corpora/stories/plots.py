"""Plots of the stories: stages, each with the sentences that may tell it.

A line with "-" begins a stage and "?" an optional one, of which a story has one at
most. "=" names shared stages, "+" adds a wording to the shared endings; indented lines
are other wordings. {A} is the hero and {B} the helper; he, him and his are the hero's
pronouns. A word in braces is a slot of `lexicon`, whose value stays the same throughout
a story. The second word of a title is the slot that the plot is about.
"""

import dataclasses
import re

_SHARED = """
opening:
- Once upon a time, there was a {trait} {kind} named {A} in a {size} {place}.
  Once there was a {trait} {kind} called {A} who lived in a {size} {place}.
  Long ago, a {trait} {kind} named {A} lived in a {size} {place}.
  In a {size} {place} there lived a {trait} {kind} whose name was {A}.
  {A} was a {trait} {kind} from a {size} {place}.
sadness:
? {He} was very {feeling}.
  {A} sat down and cried.
  {A} felt {feeling} and did not know what to do.
  This made {A} very {feeling}.
meeting:
- Then {he} met a {trait2} {job} named {B}.
  Just then, a {trait2} {job} called {B} came along.
  The next day, {A} met {B}, a {trait2} {job}.
  A {trait2} {job} named {B} heard about it and came to see {him}.
offer:
? "Do not worry," said {B}, "I will help you."
  {A} told {B} the whole story.
  "Why are you so {feeling}?" asked {B}.
  {B} listened to {A} and smiled.
thanks:
? {A} thanked {B} with all {his} heart.
  {A} gave {B} a {gift} to say thank you.
  "Thank you," said {A}, and {he} gave {B} a {gift}.
ending:
- From that day on, {A} and {B} were good friends.
  {A} went home with a smile, and the whole {place} was happy.
  And {A} never forgot the {trait2} {job}.
  That night, {A} slept very well.
  And so {A} and {B} lived happily in the {place}.
"""

_PLOTS = """
lost thing:
- One {day}, {A} lost {his} {colour} {thing} in the {wild}.
  One {day}, {A} played in the {wild} and lost {his} {colour} {thing}.
- {He} looked under every {spot}, but {he} could not find the {thing}.
  {A} searched behind every {spot} until it was dark, but the {thing} was gone.
= sadness meeting offer
- {B} took a {tool}, and together they went back to the {wild}.
  {B} knew the {wild} well and looked for the {thing} with {him}.
- At last they found the {colour} {thing} behind a {spot}.
  Soon {B} saw the {colour} {thing} under a {spot}.
= thanks
+ After that, {A} always took good care of {his} {thing}.

cooking dish:
- One {day}, {A} wanted to make {dish} for {his} {relative}.
  {A} wanted to cook {dish} because {his} {relative} was ill.
- But there was no {food} in the kitchen.
  {He} looked everywhere in the kitchen, but {he} had no {food}.
= sadness meeting offer
- {B} went home and came back with a basket full of {food}.
  {B} had a lot of {food} at home and gave {him} some.
- So {A} made the {dish}, and {his} {relative} liked it very much.
  Together they made the best {dish} in the whole {place}.
= thanks
+ After that, {A} and {his} {relative} ate {dish} with {B} every Sunday.

rescue animal:
- One {day}, {A} heard a {fur} {animal} crying in a {trap}.
  One {day}, {A} found a {fur} {animal} that had fallen into a {trap}.
- {He} tried to pull it out, but the {trap} was too deep.
  {A} wanted to save the {animal}, but {he} was not strong enough.
= sadness meeting offer
- {B} brought a {tool} and went to the {trap} with {him}.
  {B} ran to get a {tool} and climbed down into the {trap}.
- Together they saved the {fur} {animal}.
  After a while, the {animal} was free and jumped for joy.
= thanks
+ From then on, the {fur} {animal} followed {A} wherever {he} went.

journey town:
- One {day}, {A} wanted to visit {his} {relative} in {town}.
  {A} missed {his} {relative} and decided to travel to {town}.
- But there was a wide {barrier} on the way to {town}.
  {He} walked for hours, but then {he} came to a wide {barrier}.
= sadness meeting offer
- {B} had a {ride} and took {him} across the {barrier}.
  {B} showed {A} how to cross the {barrier} with a {ride}.
- In the evening {A} came to {town} and kissed {his} {relative}.
  Two days later, {A} was in {town} with {his} {relative}.
= thanks
+ {A} stayed in {town} for a {time} and sent a letter to {B}.

learning skill:
- {A} wanted to learn to {skill}.
  More than anything, {A} wished to {skill} well.
- But nobody in the {place} wanted to teach {him}.
  {He} tried every {day}, but it was too hard for {him}.
= sadness meeting offer
- {B} could {skill} very well and taught {him} for a {time}.
  For a whole {time}, {B} showed {A} how to {skill}.
- In the end, {A} could {skill} better than all the others.
  After a {time}, {A} could {skill} almost as well as {B}.
= thanks
+ Now {A} teaches the children of the {place} to {skill}.

building building:
- One {day}, {A} began to build a {colour} {building}.
  {A} wanted to build a {colour} {building} for {his} {relative}.
- But {he} did not have enough {material}.
  Soon all the {material} was gone, and the {building} was not ready.
= sadness meeting offer
- {B} brought {material} and a {tool}, and they worked together.
  {B} sold {him} some {material} and helped with a {tool}.
- After a {time}, the {colour} {building} was ready.
  When the {building} was ready, everybody in the {place} came to see it.
= thanks
+ The {colour} {building} is still there, and {A} is proud of it.

storm weather:
- One {day}, {A} was on the way home when the {weather} came.
  One {day}, {A} went into the {wild}, and the {weather} began.
- {He} lost {his} way and could not see a thing in the {weather}.
  Because of the {weather}, {A} could not find the way home.
= sadness meeting offer
- {B} had a {light} and took {him} to a warm house.
  {B} held up a {light} and showed {him} the way.
- When the {weather} was over, {A} was safe at home.
  They drank hot milk, and the {weather} did not frighten {A} any more.
= thanks
+ Since then, {A} has never gone out without a {light}.

contest rival:
- One {day}, there was a great {race} in the {place}.
  {A} wanted to win the {race} of the {place}.
- But a big {rival} was the best and always won the {race}.
  {He} had to beat the big {rival}, and nobody thought that {he} could.
= sadness meeting offer
- {B} trained with {A} for a {time}.
  {B} knew the {rival} and told {A} a secret.
- On the day of the {race}, {A} was faster than the {rival} and won.
  This time {A} beat the {rival}, and the people cheered.
= thanks
+ Even the {rival} shook hands with {A} after the {race}.

present thing:
- {A} wanted to buy a {colour} {thing} for {his} {relative}.
  One {day}, {A} saw a {colour} {thing} that {his} {relative} would like.
- But the {thing} was too expensive, and {he} had no money.
  {He} counted {his} money, but it was not enough for the {thing}.
= sadness meeting
- {B} said that {he} could {chore} to earn some money.
  "If you {chore} for me, I will pay you," said {B}.
- {A} worked for a {time} and bought the {colour} {thing}.
  So {A} worked hard, and soon {he} could pay for the {thing}.
= thanks
+ When {A} gave {his} {relative} the {colour} {thing}, they both laughed for joy.

garden crop:
- One {day}, {A} planted {crop} behind the house.
  {A} wanted to grow the best {crop} in the {place}.
- But there was no rain, and the {crop} became dry.
  For a whole {time} it did not rain, and the {crop} did not grow.
= sadness meeting offer
- {B} came every {day} with a {water} of water.
  {B} gave {him} a big {water} of water for the {crop}.
- After a {time}, the {crop} were big and beautiful.
  Soon there were so many {crop} that {A} could sell them.
= thanks
+ Every year, {A} took the best {crop} to {B}.
"""


@dataclasses.dataclass(frozen=True)
class Stage:
    """One step of a plot: its wordings, and whether it may be left out."""

    wordings: tuple[str, ...]
    optional: bool = False


@dataclasses.dataclass(frozen=True)
class Plot:
    """The stages of a story, and the slot that it is about."""

    name: str
    about: str
    stages: tuple[Stage, ...]


def _read_blocks(text: str) -> dict[str, list[tuple[str, list[str]]]]:
    """Return the title of each block and its lines by mark."""
    blocks: dict[str, list[tuple[str, list[str]]]] = {}
    lines: list[tuple[str, list[str]]] = []
    for line in filter(None, text.splitlines()):
        if line[0].isalpha():
            lines = blocks[line.rstrip(":")] = []
        elif line[0] == " ":
            lines[-1][1].append(line.strip())
        else:
            lines.append((line[0], [line[2:]]))
    return blocks


def _stage(mark: str, wordings: list[str]) -> Stage:
    return Stage(tuple(wordings), mark == "?")


def _plot(title: str, lines: list[tuple[str, list[str]]]) -> Plot:
    name, about = title.split()
    stages = [SHARED["opening"]]
    for mark, wordings in lines:
        if mark == "=":
            stages += [SHARED[shared] for shared in wordings[0].split()]
        elif mark == "+":  # the plot's own ending
            stages.append(Stage((*SHARED["ending"].wordings, *wordings)))
        else:
            stages.append(_stage(mark, wordings))
    return Plot(name, about, tuple(stages))


SHARED = {name: _stage(*lines[0]) for name, lines in _read_blocks(_SHARED).items()}
PLOTS = tuple(_plot(title, lines) for title, lines in _read_blocks(_PLOTS).items())
SLOT = re.compile(r"\{(\w+)\}")
