"""Find a task by its name.

A task is a file of this folder that ends in `TASK = TaskDefinition(...)`, or such a
module of another package, with its full name: "mypackage.reverse". It is composed of
parts; those that several tasks share are in `parts/`. `protocols.py` defines what
training, evaluation and prediction require of a task.
"""

import importlib
import pkgutil

from transformer_jax.errors import UserError, nearest
from transformer_jax.keys import extensions
from transformer_jax.tasks.protocols import TaskDefinition

_others: dict[str, TaskDefinition] = {}  # of other packages, found so far


def names() -> list[str]:
    """List the values of `config.task`, including imported tasks of other packages."""
    found = {module.name for module in pkgutil.iter_modules(__path__)}
    return [*sorted(found - {"protocols", "parts"}), *sorted(_others)]


def find(name: str) -> TaskDefinition:
    """Return the definition of the task that `config.task` names."""
    if "." in name and name not in _others:
        task = getattr(extensions.load(name, "the task"), "TASK", None)
        if not isinstance(task, TaskDefinition):
            raise UserError(f"{name} has no TASK = TaskDefinition(...): see tasks/")
        _others[name] = task
    if name in _others:
        return _others[name]
    if name not in names():
        raise UserError(f"unknown task {name!r}.{nearest(name, names())}")
    return importlib.import_module(f"{__name__}.{name}").TASK


def option_classes() -> list[type]:
    """List the classes of search options, for the flags of commands."""
    return list(dict.fromkeys(find(name).options for name in names()))


def evaluation_classes() -> dict[str, type]:
    """Return, by task, the class of the keys that `evaluate` can change."""
    found = {name: find(name).evaluation for name in names()}
    return {name: cls for name, cls in found.items() if cls is not None}
