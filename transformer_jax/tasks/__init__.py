"""Find a task by its name.

A task is a file of this folder that ends in `TASK = TaskDefinition(...)`. It is
composed of parts; those that several tasks share stand in `parts/`.
`protocols.py` says what training, evaluation and prediction ask of it.
"""

import importlib
import pkgutil

from transformer_jax.errors import UserError, nearest
from transformer_jax.tasks.protocols import TaskDefinition


def names() -> list[str]:
    """List the names that `config.task` may have."""
    found = {module.name for module in pkgutil.iter_modules(__path__)}
    return sorted(found - {"protocols", "parts"})


def find(name: str) -> TaskDefinition:
    """Return the definition of a task, by the name that `config.task` has."""
    if name not in names():
        raise UserError(f"unknown task {name!r}.{nearest(name, names())}")
    return importlib.import_module(f"{__name__}.{name}").TASK


def option_classes() -> list[type]:
    """List the classes of search options, for the flags of a command."""
    return list(dict.fromkeys(find(name).options for name in names()))


def evaluation_classes() -> dict[str, type]:
    """Return the keys that `evaluate` can change, by the task that has them."""
    found = {name: find(name).evaluation for name in names()}
    return {name: keys for name, keys in found.items() if keys is not None}
