"""Find what packages add to this one, by name: tasks, models, data, figures.

    [transformer_jax.tasks]
    reverse = mypackage.reverse:TASK

A package lists its additions in its metadata, as entry points (`entry_points` in its
setup.py, or a table of its pyproject.toml). This package does the same: its core, each
system of `family/` and the data of `corpora/` have a file `entry_points.txt`, which
setup.py puts into the metadata. These files are read directly, so that a checkout needs
no new installation after each change. A module is imported when its name is first used.
Those of forms, optimizers and hooks add options, so they are imported with the first
config.
"""

import configparser
import functools
import importlib
import importlib.metadata
import pathlib
from typing import Any

from transformer_jax.base.errors import UserError

PACKAGE = "transformer_jax"
HERE = pathlib.Path(__file__).parent.parent  # the package

_packages: set[str] = set()  # from which something has been imported


def names(group: str) -> list[str]:
    """List the names of a group, such as "tasks": ours, then those of others."""
    return [*_own().get(group, {}), *sorted(_foreign(group))]


def find(group: str, name: str) -> Any:
    """Import the object listed under a name; None if no package lists it."""
    place = _own().get(group, {}).get(name) or _foreign(group).get(name)
    return load(place, f"{PACKAGE}.{group}: {name}") if place else None


def require(group: str, name: str) -> Any:
    """Import the object listed under a name; refuse a name that no package lists."""
    found = find(group, name)
    if found is None:
        raise UserError(
            f"there is no entry point {PACKAGE}.{group}: {name}: install the package "
            "that has it"
        )
    return found


def load(place: str, what: str) -> Any:
    """Import "module:attribute"."""
    module, _, attribute = place.partition(":")
    _packages.add(module.partition(".")[0])
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"the entry point {what} = {place} cannot be imported ({error}): install "
            "its package again"
        ) from error


def packages() -> set[str]:
    """Return the packages whose entry points have been imported."""
    return {*_packages}


def files() -> list[pathlib.Path]:
    """List the files with the entry points of this package."""
    return [
        HERE / "entry_points.txt",
        *sorted(HERE.glob("*/entry_points.txt")),
        *sorted(HERE.glob("family/*/entry_points.txt")),
    ]


@functools.cache
def _own() -> dict[str, dict[str, str]]:
    """Read the entry points of this package, by group."""
    parser = configparser.ConfigParser(delimiters="=")
    parser.optionxform = str  # type: ignore[assignment]  # names keep their case
    parser.read(files(), encoding="utf-8")
    return {
        section.removeprefix(f"{PACKAGE}."): dict(parser[section])
        for section in parser.sections()
    }


@functools.cache
def _foreign(group: str) -> dict[str, str]:
    """Return the entry points of the other packages that are installed.

    Those in the metadata of this package are left out: they are as old as its
    installation, and may name what its files do not have any more.
    """
    found = importlib.metadata.entry_points(group=f"{PACKAGE}.{group}")
    own = _own().get(group, {})
    listed: dict[str, str] = {}
    for entry in found:
        if entry.dist and entry.dist.name.replace("-", "_") == PACKAGE:
            continue
        known = {**own, **listed}.get(entry.name, entry.value)
        if known != entry.value:
            raise UserError(
                f"two packages have the entry point {PACKAGE}.{group}: {entry.name}, "
                f"{known} and {entry.value}: uninstall one of them"
            )
        listed[entry.name] = entry.value
    return {name: place for name, place in listed.items() if name not in own}
