"""Import modules of other packages that a config names, if the user consents.

A config file is the user's own word, and the modules that it names are imported. A run
or a bundle may come from a stranger. The modules that it names are imported only with
`--allow_imports` or `load(…, allow_imports=True)`, unless a config file named them
before, and never from inside the run.
"""

import importlib
import os
import pathlib
import pkgutil
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from transformer_jax.base.errors import UserError

_imported: set[str] = set()  # at the word of the user
_allowed = False  # whether a flag of this command allows any


def allow() -> None:
    """Consent, for this process, to the modules that the opened runs name."""
    global _allowed
    _allowed = True


def load(name: str, what: str) -> ModuleType:
    """Import a module named in a config, such as mypackage.more.

    Only a module whose source mentions `transformer_jax` is imported, because any other
    was not written for this package.
    """
    try:
        found = _find(name)
        if not found or not found[-1].origin:
            raise ImportError(f"there is no module {name}")
        origin = found[-1].origin
        if b"transformer_jax" not in pathlib.Path(origin).read_bytes():
            raise ImportError(f"{origin} does not mention transformer_jax")
        module = importlib.import_module(name)
    except Exception as error:  # the module may raise anything
        reason = str(error).split("\n")[0]
        raise UserError(
            f"{what} {name!r} cannot be imported ({type(error).__name__}: {reason}): "
            "install its package, or start where Python finds it"
        ) from None
    _imported.add(name)
    return module


def packages() -> set[str]:
    """Return the packages whose modules have been imported at the word of the user."""
    return {name.partition(".")[0] for name in _imported}


def check(names: Iterable[str], run: pathlib.Path, place: Any, allowed: bool) -> None:
    """Refuse modules named by a run without consent, or that lie inside the run."""
    names = list(dict.fromkeys(names))
    for name in names:
        inside = [spec.origin for spec in _find(name) if _is_inside(spec.origin, run)]
        if inside:
            raise UserError(
                f"{place / 'config.json'} names the module {name}, which lies in the "
                f"run itself ({inside[0]}): no file of a run is executed"
            )
    unknown = [name for name in names if name not in _imported]
    if unknown and not (allowed or _allowed):
        raise UserError(
            f"{place / 'config.json'} names modules of other packages, and their code "
            f"would be executed: {', '.join(unknown)}. If you trust it, consent with "
            "--allow_imports, or in Python load(…, allow_imports=True)"
        )


def _find(name: str) -> list[ModuleSpec]:
    """Find a module and the packages around it; [] if it does not exist.

    `importlib.util.find_spec` would import these packages, before they can be checked.
    """
    found: list[ModuleSpec] = []
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        part = ".".join(parts[:i])
        if i == 1:
            spec = _find_top(part)
        else:
            known = getattr(sys.modules.get(found[-1].name), "__path__", None)
            places = known or found[-1].submodule_search_locations or ()
            spec = _find_below([*places], part)
        if spec is None:
            return []
        found.append(spec)
    return found


def _find_top(name: str) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if spec := finder.find_spec(name, None):
            return spec
    return None


def _find_below(places: Sequence[str], name: str) -> ModuleSpec | None:
    """Find a module in the folders of its package."""
    portions: list[str] = []  # of a namespace package
    for place in places:
        finder: Any = pkgutil.get_importer(place)
        spec = finder.find_spec(name) if finder else None
        if spec and spec.loader:
            return spec
        portions += (spec.submodule_search_locations or []) if spec else []
    if not portions:
        return None
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = portions
    return spec


def _is_inside(origin: str | None, run: pathlib.Path) -> bool:
    if not origin:
        return False
    pairs = [(p(origin), p(run)) for p in (os.path.abspath, os.path.realpath)]
    return any(pathlib.Path(file).is_relative_to(folder) for file, folder in pairs)
