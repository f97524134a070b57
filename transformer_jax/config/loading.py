"""Load a config file, and apply the command line."""

import ast
import importlib.util
import os
import pathlib
import re
import runpy
import traceback
from typing import Any

from ml_collections import ConfigDict

from transformer_jax import keys
from transformer_jax.config import checks
from transformer_jax.config.defaults import items, renew
from transformer_jax.config.smoke import shrink
from transformer_jax.errors import UserError, nearest


def load(
    spec: str,
    overrides: dict[str, str] | None = None,
    smoke: bool = False,
    data: bool = True,
) -> ConfigDict:
    """Load the config of `path.py[:variant]`, apply overrides, check and lock it.

    `quickstart` alone names configs/quickstart.py of this package. With `smoke`, the
    config is shrunk to a few small steps before the overrides are applied. Without
    `data`, the data files need not exist.
    """
    config = _run_file(spec)
    if smoke:
        shrink(config)
    problems = []
    for key, text in (overrides or {}).items():
        problem = _override(config, key, text)
        if problem:
            problems.append(problem)
    for name in config.imports:
        keys.import_extension(str(name), "imports:")
    values = renew(config.task, config.model.name, dict(items(config)))
    config.update_from_flattened_dict(values)

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


def _run_file(spec: str) -> ConfigDict:
    path, _, variant = spec.partition(":")
    file = pathlib.Path(path)
    if not os.path.isfile(file):
        known = shipped()
        if file.stem not in known or (file.suffix and len(file.parts) > 2):
            hint = nearest(file.stem, known)
            names = ", ".join(known)
            raise UserError(f"there is no config file {path}.{hint} Shipped: {names}")
        file = known[file.stem]
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
        text = _unknown_key(error) or f"{type(error).__name__}: {said}"
        raise UserError(f"{file}, line {line}: {text}") from None
    return config.lock()


def _unknown_key(error: Exception) -> str:
    """Describe a key that a locked config lacks, if this is the error."""
    match = re.search(r'Key "(.+?)" does not exist', str(error).replace("\\", ""))
    if not match:
        return ""
    known = re.findall(r"(\w+)\\*': ", str(error))  # the error lists its neighbours
    hint = nearest(match[1], known) or f" Known: {', '.join(known)}"
    return f"there is no key {match[1]!r}.{hint}"


def _override(config: ConfigDict, key: str, text: str) -> str | None:
    """Set a key from its text on the command line; return the problem, if any."""
    known = dict(items(config))
    if key not in known:
        section, _, last = key.rpartition(".")
        siblings = [k for k in known if k.rpartition(".")[0] == section]
        elsewhere = [k for k in known if k.rpartition(".")[2] == last]
        hint = nearest(key, elsewhere) or nearest(key, siblings) or nearest(key, known)
        if not hint:
            hint = f" Known: {', '.join(siblings or known)}"
        return f"--config.{key}: there is no such key.{hint}"
    old = known[key]
    kind = type(old).__name__
    try:
        value = _parse(text, old)
    except (ValueError, SyntaxError):
        return f"--config.{key}: {text!r} is not of type {kind} (default: {old!r})"
    with config.unlocked():
        config.update_from_flattened_dict({key: value})
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
