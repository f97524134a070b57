"""Search the settings with which each side of a benchmark is fastest on a machine.

    python benchmarks/settings.py --help

Every benchmark against another package tries environment variables and arguments of all
sides before it measures, each in a process of its own: every combination, or, where a
trial takes minutes, one setting after the other. It prints them, and measures each
side with its fastest.
"""

import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Settings = dict[str, Any]  # names in capitals are environment variables; "": not set

# glibc takes large pages, which saves page faults in big arrays.
PAGES = {"GLIBC_TUNABLES": ("", "glibc.malloc.hugetlb=1")}
# The Math Kernel Library chooses slower code on processors that are not Intel's.
MKL = {"MKL_ENABLE_INSTRUCTIONS": ("", "AVX2")}


def combine(choices: Mapping[str, Sequence[Any]]) -> list[Settings]:
    """Return every combination of the choices."""
    each = itertools.product(*choices.values())
    return [dict(zip(choices, values, strict=True)) for values in each]


def factor_cores() -> list[tuple[int, int]]:
    """Return the ways to split the cores into workers and threads of each."""
    cores = os.cpu_count() or 1
    return [(n, cores // n) for n in range(1, cores + 1) if cores % n == 0]


def count_threads() -> list[int]:
    """Return all cores, and half of them."""
    cores = os.cpu_count() or 1
    return list(dict.fromkeys([cores, max(cores // 2, 1)]))


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the environment of a process with these settings."""
    named = {name: value for name, value in settings.items() if name.isupper()}
    kept = {k: v for k, v in os.environ.items() if k not in named}
    return kept | {name: str(value) for name, value in named.items() if value != ""}


def describe(settings: Settings) -> str:
    """Put settings into words, without the environment variables that are not set."""
    told = [f"{name}={value}" for name, value in settings.items() if value != ""]
    return ", ".join(told) or "nothing set"


def search(
    side: str, tried: Sequence[Settings], measure: Callable[[Settings], float]
) -> Settings:
    """Measure each of the settings once, print all speeds, and return the fastest.

    `measure` returns a speed, or raises `RuntimeError` if a side cannot run so.
    """
    speeds = []
    for settings in tried:
        try:
            speeds.append(measure(settings))
            said = f"{speeds[-1]:,.1f}"
        except RuntimeError as error:
            speeds.append(0.0)
            said = f"does not run: {str(error).strip().splitlines()[-1][:80]}"
        print(f"tried      {side}: {describe(settings)}: {said}", flush=True)
    best = max(range(len(tried)), key=speeds.__getitem__)
    if not speeds[best]:
        sys.exit(f"error: the {side} side runs with none of its settings")
    print(f"chosen     {side}: {describe(tried[best])}", flush=True)
    return tried[best]


def search_in_turn(
    side: str,
    choices: Mapping[str, Sequence[Any]],
    measure: Callable[[Settings], float],
) -> Settings:
    """Search one setting after the other, each with the best values of those before."""
    best = {name: values[0] for name, values in choices.items()}
    for name, values in choices.items():
        if len(values) > 1:
            best = search(side, [{**best, name: value} for value in values], measure)
    return best


if __name__ == "__main__":
    print(__doc__ if "--help" in sys.argv else "--help says what this is for")
