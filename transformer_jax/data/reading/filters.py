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

FOREIGN = 0.5  # the largest share of letters outside the expected script


@dataclasses.dataclass(frozen=True)
class FilterOptions:
    """Select the training pairs to leave out: the options of `config.filter`."""

    empty: bool = option(True, "Drop pairs with an empty side.")
    max_ratio: float = option(
        0.0, "Largest length ratio of the sides; 0 means any.", least=0
    )
    identical: bool = option(False, "Drop pairs whose target is their source.")
    duplicates: bool = option(False, "Drop repeated pairs.")
    source_script: str = option(
        "", "Drop sources in other scripts than this (latin, …); empty keeps all."
    )
    target_script: str = option("", "The same for the targets.")


def make(
    settings: ConfigDict, max_length: int, ends: int = 1
) -> Callable[[Mapping[str, str], Mapping[str, Sequence[int]]], str | None]:
    """Make a function (record, columns) → the reason for leaving a pair out, or None.

    It remembers the pairs it has seen, so each build of a store makes its own. `ends`
    is the number of special tokens in a column.
    """
    seen: set[bytes] = set()

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
        if settings.duplicates:
            digest = hashlib.blake2b(
                f"{len(given)} {given}{target}".encode(), digest_size=16
            ).digest()
            if digest in seen:
                return "that repeat an earlier pair"
            seen.add(digest)
        return None

    return find_fault


def foreign_share(text: str, script: str) -> float:
    """Return the share of a text's letters that are not in a script."""
    scripts = Counter(name for c in text if (name := script_of(c)))
    total = sum(scripts.values())
    return 1 - scripts[script.lower()] / total if total else 0.0


@functools.cache
def script_of(character: str) -> str:
    """Return the script of a letter (latin, han, …), or "" for other characters."""
    if not character.isalpha():
        return ""
    name = unicodedata.name(character, "").lower()
    first = name.split(" ")[0].split("-")[0]
    return "han" if first == "cjk" else first
