"""Filter training pairs, and count each pair that is left out under one reason.

Each filter has an option in the config's `filter` section. Only training examples are
filtered, never held-out ones. The tag before a source is not part of its text, but
pairs that differ only in the tag are not duplicates.
"""

import dataclasses
import functools
import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.base.schema import option
from transformer_jax.data.reading.records import Tagged
from transformer_jax.data.text import similar

KEY = similar.KEY  # bytes
FOREIGN = 0.5  # the largest share of letters outside the expected script
# Scripts that one text mixes, by the first words of Unicode's names of their letters.
MIXED: dict[str, str] = {
    **dict.fromkeys(("cjk", "hiragana", "katakana", "halfwidth"), "han"),
    "fullwidth": "latin",
}


@dataclasses.dataclass(frozen=True)
class FilterOptions:
    """Select the training pairs to leave out: the options of `config.filter`."""

    empty: bool = option(True, "Drop pairs with an empty side.")
    max_ratio: float = option(
        0.0, "Largest length ratio of the sides; 0 means any.", least=0
    )
    identical: bool = option(False, "Drop pairs whose target is their source.")
    duplicates: bool = option(False, "Drop repeated pairs.")
    near_duplicates: float = option(
        0.0,
        "Drop pairs that are about this similar to an earlier one, such as 0.8.",
        least=0,
        most=1,
    )
    source_script: str = option(
        "", "Drop sources in other scripts than this (latin, …); empty keeps all."
    )
    target_script: str = option("", "The same for the targets.")


Fault = Callable[[Any, Any], str | None]  # (record, row) → why it is left out, or None


class Filter:
    """Finds why an example is left out: by itself, or as an earlier one is like it.

    Two examples are alike if they share a key. It remembers the keys that it has seen,
    so each build of a store makes its own.
    """

    def __init__(
        self,
        find_fault: Fault,
        make_keys: Mapping[str, Callable[[Any], Sequence[bytes]]] | None = None,
    ):
        """Take the keys of an example by the reason for leaving out one that has them.

        All keys have `KEY` bytes.
        """
        self.find_fault, self.make_keys = find_fault, make_keys or {}
        self._seen: dict[str, set[bytes]] = {why: set() for why in self.make_keys}

    def __call__(self, record: Any, row: Any) -> str | None:
        """Return the reason for leaving an example out, or None."""
        if why := self.find_fault(record, row):
            return why
        reason = None
        for why, keys_of in self.make_keys.items():
            keys, seen = keys_of(record), self._seen[why]
            if not reason and not seen.isdisjoint(keys):
                reason = why
            seen.update(keys)
        return reason


def make(settings: ConfigDict, max_length: int, ends: int = 1) -> Filter:
    """Make the filter of pairs of texts.

    `ends` is the number of special tokens in a column.
    """

    def find_fault(record: Mapping[str, str], columns: Mapping[str, Any]) -> str | None:
        given, target = record["source"], record["target"]
        source = given.plain if isinstance(given, Tagged) else given
        sizes = [len(columns[side]) - ends for side in ("source", "target")]
        if settings.empty and not (source.strip() and target.strip()):
            return "with an empty side"
        if max(sizes) > max_length:
            return f"longer than data.max_length {max_length} pieces"
        ratio = settings.max_ratio
        if ratio and max(sizes) > ratio * max(min(sizes), 1):
            return f"with a length ratio beyond filter.max_ratio {ratio:g}"
        if settings.identical and source.strip() == target.strip():
            return "whose target is its source"
        for side, text in (("source", source), ("target", target)):
            script = settings[f"{side}_script"]
            if script and foreign_share(text, script) > FOREIGN:
                return f"whose {side} is not in {script} script"
        return None

    keys: dict[str, Callable[[Any], Sequence[bytes]]] = {}
    if settings.duplicates:
        keys["that repeat an earlier pair"] = lambda r: [_digest(r)]
    if settings.near_duplicates:
        near = functools.partial(similar.keys, threshold=settings.near_duplicates)
        keys["that nearly repeat an earlier pair"] = lambda r: near(
            (r["source"], r["target"])
        )
    return Filter(find_fault, keys)


def _digest(record: Mapping[str, str]) -> bytes:
    given, target = record["source"], record["target"]
    pair = f"{len(given)} {given}{target}"
    return hashlib.blake2b(pair.encode(), digest_size=KEY).digest()


def by_length(
    column: str, most: int, unit: str, ends: int = 0
) -> Callable[[Mapping[str, Any], Mapping[str, Any]], str | None]:
    """Make a filter that drops examples of which a column is longer than these units.

    `ends` is the number of special tokens in the column.
    """

    def find_fault(record: Mapping[str, Any], row: Mapping[str, Any]) -> str | None:
        if len(row[column]) - ends > most:
            return f"longer than data.max_length {most} {unit}"
        return None

    return find_fault


def foreign_share(text: str, script: str) -> float:
    """Return the share of a text's letters that are not in a script."""
    scripts = Counter(name for c in text if (name := script_of(c)))
    total = sum(scripts.values())
    expected = MIXED.get(script.lower(), script.lower())
    return 1 - scripts[expected] / total if total else 0.0


@functools.cache
def script_of(character: str) -> str:
    """Return the script of a letter (latin, han, …), or "" for other characters.

    Kana count as han, because Japanese mixes both.
    """
    if not character.isalpha():
        return ""
    name = unicodedata.name(character, "").lower()
    first = name.split(" ")[0].split("-")[0]
    return MIXED.get(first, first)
