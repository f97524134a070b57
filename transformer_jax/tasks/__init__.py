"""Find a task by its name.

A task is a module that ends in `TASK = TaskDefinition(...)`, and an entry point that
names it (`transformer_jax/base/entry_points.py`), or the full name of its module:
"mypackage.reverse". It is composed of parts; those that several tasks share are in
`parts/`. `protocols.py` defines what training, evaluation and prediction require of a
task.
"""

from transformer_jax import sharding
from transformer_jax.base import entry_points, extensions
from transformer_jax.base.errors import UserError, nearest
from transformer_jax.tasks.protocols import TaskDefinition

_others: dict[str, TaskDefinition] = {}  # found by the full names of their modules


def names() -> list[str]:
    """List the values of `config.task`, including imported tasks of other packages."""
    return [*sorted(entry_points.names("tasks")), *sorted(_others)]


def find(name: str) -> TaskDefinition:
    """Return the definition of the task that `config.task` names."""
    if name in _others:
        return _others[name]
    task = entry_points.find("tasks", name)
    if task is None and "." in name:
        task = getattr(extensions.load(name, "the task"), "TASK", None)
        if not isinstance(task, TaskDefinition):
            raise UserError(f"{name} has no TASK = TaskDefinition(...): see tasks/")
        _others[name] = task
    if task is None:
        raise UserError(f"unknown task {name!r}.{nearest(name, names())}")
    sharding.add_rules(task.rules)
    return task


def option_classes() -> list[type]:
    """List the classes of search options, for the flags of commands."""
    return list(dict.fromkeys(find(name).options for name in names()))


def evaluation_classes() -> dict[str, type]:
    """Return, by task, the class of the keys that `evaluate` can change."""
    found = {name: find(name).evaluation for name in names()}
    return {name: cls for name, cls in found.items() if cls is not None}
