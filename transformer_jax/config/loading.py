"""Load a config file, and apply the command line."""

import ast
import importlib.util
import os
import pathlib
import re
import runpy
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.base import extensions
from transformer_jax.base.errors import UserError, nearest
from transformer_jax.config import checks
from transformer_jax.config.defaults import items
from transformer_jax.config.smoke import shrink
from transformer_jax.data.reading.sources import SPLITS
from transformer_jax.data.text.text import find_files

OF_RUNS = ("train.initial", "train.teacher")  # options that name a run, a folder


def load(
    spec: str,
    overrides: dict[str, str] | None = None,
    smoke: bool = False,
    data: bool = True,
    change: Callable[[ConfigDict], None] | None = None,
) -> ConfigDict:
    """Load the config of `path.py[:variant]`, apply overrides, check and lock it.

    `quickstart` alone names configs/quickstart.py of this package. With `smoke`, the
    config is shrunk to a few small steps before the overrides are applied. Without
    `data`, the data files need not exist. `change` changes the config before that.
    """
    config = _run_file(spec)
    if change is not None:
        change(config)
    if smoke:
        shrink(config)
    problems = []
    for option, text in (overrides or {}).items():
        problem = _override(config, option, text)
        if problem:
            problems.append(problem)
    for name in config.imports:
        extensions.load(str(name), "imports:")

    problems += checks.find_problems(config, data)
    if problems:
        raise UserError(*problems)
    return config


def shipped() -> dict[str, pathlib.Path]:
    """List the config files that are shipped with the package, by name."""
    return {p.stem: p for p in sorted(shipped_folder().glob("*.py"))}


def variants(name: str) -> tuple[str, ...]:
    """List the VARIANTS of a shipped config, or ("",) if it has none."""
    return tuple(runpy.run_path(str(shipped()[name])).get("VARIANTS", ("",)))


def shipped_folder() -> pathlib.Path:
    """Find the folder of the shipped configs, in a checkout or in a wheel."""
    here = pathlib.Path(__file__).parents[1]
    inside = here / "configs"  # exists in a wheel; in a checkout, it is one level up
    return inside if inside.is_dir() else here.parent / "configs"


def find_file(spec: str) -> pathlib.Path:
    """Find the file of `path.py[:variant]`, or of a shipped config's name."""
    path = spec.partition(":")[0]
    file = pathlib.Path(path)
    if not os.path.isfile(file):
        known = shipped()
        if file.stem not in known or (file.suffix and len(file.parts) > 2):
            hint = nearest(file.stem, known)
            names = ", ".join(known)
            raise UserError(f"there is no config file {path}.{hint} Shipped: {names}")
        file = known[file.stem]
    return file


def named_files(config: ConfigDict) -> Iterator[str]:
    """Yield the files that the values of a config name, alone, in lists or by patterns.

    Relative paths start at `data.folder` or at the current folder. Of a folder that is
    named, as of a split's folder in `data.folder`, all files are yielded.
    """
    start = str(config.data.get("folder", ""))
    for option, value in items(config):
        for entry in value if isinstance(value, tuple | list) else [value]:
            parts = entry.split(",") if isinstance(entry, str) else []
            for part in filter(None, map(str.strip, parts)):
                for folder in {"", start}:
                    yield from find_files(part, folder)
                    if option.endswith("_files") or option in OF_RUNS:
                        yield from _files_below(os.path.join(folder, part))
    for split in SPLITS:
        yield from _files_below(os.path.join(start, split))


def _files_below(folder: str) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        yield from (os.path.join(place, name) for name in names)


def _run_file(spec: str) -> ConfigDict:
    variant = spec.partition(":")[2]
    file = find_file(spec)
    module_spec = importlib.util.spec_from_file_location(f"config_{file.stem}", file)
    if module_spec is None or module_spec.loader is None:
        raise UserError(f"{file} is not a Python file: a config's name ends in .py")
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
        config = module.get_config(variant) if variant else module.get_config()
    except UserError:
        raise
    except Exception as error:  # any error of a user's file is shown with its line
        frames = traceback.extract_tb(error.__traceback__)
        own = [f.lineno for f in frames if f.filename == module_spec.origin]
        line = own[-1] if own else getattr(error, "lineno", 1)
        said = str(error).strip("\"'").split("\n")[0][:300]
        text = _unknown_key(error) or _other_type(error)
        text = text or f"{type(error).__name__}: {said}"
        raise UserError(f"{file}, line {line}: {text}") from None
    return config.lock()


def _unknown_key(error: Exception) -> str:
    """Describe an option that the config lacks, if this is the error."""
    section, name, outer = None, "", []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        found = frame.f_locals
        if isinstance(found.get("self"), ConfigDict):
            section = found["self"]
            name = str(found.get("key", found.get("attribute")))
        else:
            section = None  # the error comes from elsewhere
            outer += [value for value in found.values() if type(value) is ConfigDict]
    kinds = (KeyError, AttributeError)
    if section is None or not isinstance(error, kinds) or name in section:
        return ""
    for root in outer:
        sections = {"": root, **{f"{n}.": root[n] for n in root}}
        for path, one in sections.items():
            if one is section:
                siblings = [f"{path}{sibling}" for sibling in section]
                hint = _name_others(f"{path}{name}", [*dict(items(root))], siblings)
                return f"there is no option {f'{path}{name}'!r}.{hint}"
    return f"there is no option {name!r}.{_name_others(name, [], [*section])}"


def _other_type(error: Exception) -> str:
    """Describe a value that has another type than its option, if this is the error."""
    pattern = r"field '(\w+)'.*of original type <class '(\w+)'>.*<class '(\w+)'>"
    if not (match := re.search(pattern, str(error))):
        return ""
    option, given, wanted = match.groups()
    return f"{option!r} is of type {wanted}, but the given value of type {given}"


def _name_others(option: str, known: list[str], siblings: list[str]) -> str:
    """Name the option nearest to an unknown one, or those of its section."""
    section, dot, last = option.rpartition(".")
    elsewhere = [k for k in known if k.rpartition(".")[2] == last]
    if hint := nearest(option, elsewhere):
        return hint
    if not siblings:  # there is no such section
        return nearest(option, known) or f" Known: {', '.join(known)}"
    # Without the section, which is equal and makes all names look alike.
    close = nearest(last, [sibling.rpartition(".")[2] for sibling in siblings])
    if close:
        return close.replace("'", f"'{section}{dot}", 1)
    return f" Known: {', '.join(siblings)}"


def _override(config: ConfigDict, option: str, text: str) -> str | None:
    """Set an option from its text on the command line; return the problem, if any."""
    known = dict(items(config))
    if option not in known:
        section = option.rpartition(".")[0]
        siblings = [k for k in known if k.rpartition(".")[0] == section]
        hint = _name_others(option, [*known], siblings)
        return f"--config.{option}: there is no such option.{hint}"
    old = known[option]
    kind = type(old).__name__
    try:
        value = _parse(text, old)
    except (ValueError, SyntaxError):
        return f"--config.{option}: {text!r} is not of type {kind} (default: {old!r})"
    with config.unlocked():
        config.update_from_flattened_dict({option: value})
    return None


def _parse(text: str, like: Any) -> Any:
    if isinstance(like, str):
        return text
    if isinstance(like, bool):
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    if isinstance(like, tuple):
        if not text.startswith(("(", "[")):
            return tuple(part.strip() for part in text.split(",") if part.strip())
        value = ast.literal_eval(text)
        return tuple(value) if isinstance(value, tuple | list) else (value,)
    return type(like)(text)
