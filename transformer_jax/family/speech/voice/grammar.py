"""Commands to speak: a small grammar, whose sentences are divided into the splits."""

from random import Random

from transformer_jax.data.draws import Drawer, check_split, split_of

SPLITS = ("train", "validation", "test", "test_noise")
NUMBERS = tuple("zero one two three four five six seven eight nine ten".split())
COLOURS = tuple("red green blue yellow black white brown grey".split())
THINGS = tuple(
    "lamp door window box book cup chair table clock radio heater ball shirt key bag "
    "phone".split()
)
PLACES = tuple("kitchen garden hall office bedroom garage".split())


def generate(split: str, size: int, seed: int = 0) -> list[str]:
    """Return the first `size` sentences of a split, always the same for a seed.

    A hash of a sentence assigns it to its split, so no two splits share one, except
    for the two tests, which have the same sentences.
    """
    check_split(split, SPLITS)
    kind = split.partition("_")[0]
    drawer = Drawer(Random(f"speech {kind} {seed}").random)
    found: dict[str, None] = {}
    while len(found) < size:
        sentence = _sentence(drawer)
        if split_of(sentence) == kind:
            found[sentence] = None
    return [*found]


def _sentence(draw: Drawer) -> str:
    begin = draw.weigh([(8, ""), (1, "please "), (1, "now ")])
    middle = draw.weigh([(5, _command), (2, _digits), (1, _two)])(draw)
    return begin + middle


def _command(draw: Drawer) -> str:
    thing, place = _thing(draw), draw.pick(PLACES)
    kind = draw.pick(range(8))
    if kind == 0:
        return f"turn {draw.pick(('on', 'off', 'up', 'down'))} {thing}"
    if kind == 1:
        return f"move {thing} to the {place}"
    if kind == 2:
        return f"{draw.pick(('open', 'close', 'wash', 'find'))} {thing} in the {place}"
    if kind == 3:
        return f"bring me {thing} from the {place}"
    if kind == 4:
        return f"put {thing} in the {draw.pick(('box', 'bag', place))}"
    if kind == 5:
        return f"set {thing} to {draw.pick(NUMBERS)} {draw.pick(NUMBERS)}"
    if kind == 6:
        return f"paint {thing} {draw.pick(COLOURS)}"
    return f"show me {thing} number {draw.pick(NUMBERS)}"


def _digits(draw: Drawer) -> str:
    if draw.chance(0.3):
        return f"count from {draw.pick(NUMBERS)} to {draw.pick(NUMBERS)}"
    return " ".join(
        ["call", *(draw.pick(NUMBERS) for _ in range(draw.pick((3, 4, 5))))]
    )


def _two(draw: Drawer) -> str:
    first, second = draw.pick((("open", "close"), ("take", "find"), ("wash", "take")))
    return f"{first} {_thing(draw)} and {second} {_thing(draw)}"


def _thing(draw: Drawer) -> str:
    colour = f"{draw.pick(COLOURS)} " if draw.chance(0.6) else ""
    return f"the {colour}{draw.pick(THINGS)}"
