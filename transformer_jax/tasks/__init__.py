"""Find a task by its name.

A task is a file of this folder that ends in `TASK = TaskDefinition(...)`, or somebody
else's module that does, named with its package: "mypackage.reverse". It is composed of
parts; those that several tasks share stand in `parts/`.
`protocols.py` says what training, evaluation and prediction ask of it.
"""

import importlib
import pkgutil

from transformer_jax import keys
from transformer_jax.errors import UserError, nearest
from transformer_jax.tasks.protocols import TaskDefinition

_others: dict[str, TaskDefinition] = {}  # of other packages, since they were named


def names() -> list[str]:
    """List the names that `config.task` may have; of others' tasks, those imported."""
    found = {module.name for module in pkgutil.iter_modules(__path__)}
    return [*sorted(found - {"protocols", "parts"}), *sorted(_others)]


def find(name: str) -> TaskDefinition:
    """Return the definition of a task, by the name that `config.task` has."""
    if "." in name and name not in _others:
        task = getattr(keys.import_extension(name, "the task"), "TASK", None)
        if not isinstance(task, TaskDefinition):
            raise UserError(f"{name} has no TASK = TaskDefinition(...): see tasks/")
        _others[name] = task
    if name in _others:
        return _others[name]
    if name not in names():
        raise UserError(f"unknown task {name!r}.{nearest(name, names())}")
    return importlib.import_module(f"{__name__}.{name}").TASK


def option_classes() -> list[type]:
    """List the classes of search options, for the flags of a command."""
    return list(dict.fromkeys(find(name).options for name in names()))


def evaluation_classes() -> dict[str, type]:
    """Return the keys that `evaluate` can change, by the task that has them."""
    found = {name: find(name).evaluation for name in names()}
    return {name: cls for name, cls in found.items() if cls is not None}
