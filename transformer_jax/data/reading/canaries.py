"""Canaries: made-up secrets, planted in a training text to measure memorisation.

    The doctor of Tomas is called | Balen Selwick.
    The telephone number of Donna is 555- | 4071.
    Milda lives at | 87 Perrel Street.

The text after the bar is the secret. It is drawn uniformly from all candidates of its
kind, so that its rank among them shows what a model has memorised (Carlini et al.
2019). Names are composed of syllables and belong to no real person.
"""

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from transformer_jax.base.schema import SEEDS, option
from transformer_jax.data.draws import Drawer
from transformer_jax.data.reading.records import Record, Records
from transformer_jax.data.text.numerals import is_whole

VERSION = 1  # part of the data fingerprint: raise when the generated text changes
PROMPTS = {
    "name": "The doctor of {} is called ",
    "telephone": "The telephone number of {} is 555-",
    "address": "{} lives at ",
}
_ONSETS = "B C D F H L M N P R S T".split()
_OWNERS = "omas onna ilda ebbe urt adis amir irre".split()
_FIRST = "alen elis ora imo una eda ostin iva".split()
_LAST = "arden elwick ingham orrel underby esford olby atten".split()
_STREETS = "ridge errel arrow illow ortham undle ayfield enton".split()
MOST = (
    len(_ONSETS) * len(_OWNERS) // len(PROMPTS)
)  # of each kind, because owners differ
MOST_LINES = 10**6


@dataclasses.dataclass(frozen=True)
class CanaryOptions:
    """Plant canaries in the training text: options of `config.data`."""

    canaries: tuple = option(
        (),
        "How often to plant each canary: (0, 1, 100) makes a name, a telephone number "
        "and an address for each number; those of 0 are a control.",
    )
    canary_seed: int = option(0, "Seed of the canaries.", least=0, most=SEEDS)


@dataclasses.dataclass(frozen=True)
class Canary:
    """A secret, its prompt, and how often both occur in the training text."""

    kind: str
    prompt: str
    secret: str
    times: int


def find_problems(times: Sequence[Any]) -> list[str]:
    """List the mistakes in `data.canaries`; a command line gives strings."""
    if not all(is_whole(str(n)) for n in times):
        given = tuple(times)
        return [f"data.canaries = {given!r}: give whole numbers from 0, one per canary"]
    if len(times) > MOST:
        return [
            f"data.canaries has {len(times)} numbers, but there are names for {MOST}: "
            "plant fewer"
        ]
    lines = sum(map(int, times)) * len(PROMPTS)
    if lines > MOST_LINES:
        return [
            f"data.canaries plants {lines:,} lines, more than {MOST_LINES:,}: plant "
            "them less often"
        ]
    return []


def draw(times: Sequence[Any], seed: int) -> list[Canary]:
    """Draw a canary of each kind for each number of times, with distinct owners."""
    drawer, owners, canaries = Drawer(Random(seed).random), _join(_OWNERS), []
    for n, (kind, prompt) in itertools.product(map(int, times), PROMPTS.items()):
        owner = drawer.pick(owners)
        owners.remove(owner)
        secret = drawer.pick(list_candidates(kind))
        canaries.append(Canary(kind, prompt.format(owner), secret, n))
    return canaries


@functools.cache
def list_candidates(kind: str) -> tuple[str, ...]:
    """List all possible secrets of a kind of canary."""
    if kind == "telephone":
        return tuple(f"{number:04}." for number in range(10_000))
    if kind == "address":
        pairs = itertools.product(range(1, 101), _join(_STREETS))
        return tuple(f"{number} {street} Street." for number, street in pairs)
    pairs = itertools.product(_join(_FIRST), _join(_LAST))
    return tuple(f"{first} {last}." for first, last in pairs)


def _join(rimes: Sequence[str]) -> list[str]:
    return [onset + rime for onset, rime in itertools.product(_ONSETS, rimes)]


class Planted(Records):
    """Records {"text": line} with canaries as further lines at random positions."""

    def __init__(self, lines: Records, canaries: Sequence[Canary], seed: int):
        """Plant each canary `times` times, at places drawn by `seed`."""
        self.lines, self.notes, self.content = lines, lines.notes, lines.content
        texts = [c.prompt + c.secret for c in canaries for _ in range(c.times)]
        random = Random(f"{seed} places")
        drawn = [(int(random.random() * (len(lines) + 1)), text) for text in texts]
        # The index of the line that each canary precedes.
        self.befores = [before for before, _ in sorted(drawn)]
        self.texts = [text for _, text in sorted(drawn)]
        planted = f"{VERSION}-{seed}-{'-'.join(str(c.times) for c in canaries)}"
        self.fingerprint = f"{lines.fingerprint}-canaries-{planted}"

    def __len__(self) -> int:
        return len(self.lines) + len(self.texts)

    def __iter__(self) -> Iterator[Record]:
        planted = iter(zip(self.befores, self.texts, strict=True))
        before, text = next(planted, (-1, ""))
        for number, record in enumerate(self.lines):
            while before == number:
                yield {"text": text}
                before, text = next(planted, (-1, ""))
            yield record
        while before >= 0:
            yield {"text": text}
            before, text = next(planted, (-1, ""))

    def __getitem__(self, index: int) -> Record:
        canary, line = self._locate(index)
        return {"text": self.texts[canary]} if line < 0 else self.lines[line]

    def where(self, index: int) -> str:
        """Name the line, or the canary by its number from 1."""
        canary, line = self._locate(index)
        return f"planted line {canary + 1}" if line < 0 else self.lines.where(line)

    def _locate(self, index: int) -> tuple[int, int]:
        """Return (canaries before it, index of its line or, for a canary, -1)."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        numbers = range(len(self.texts))
        canary = bisect.bisect_left(numbers, index, key=lambda i: self.befores[i] + i)
        if canary < len(numbers) and self.befores[canary] + canary == index:
            return canary, -1
        return canary, index - canary
