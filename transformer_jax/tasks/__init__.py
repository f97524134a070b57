"""Find a task by its name.

A task is a module that ends in `TASK = TaskDefinition(...)`, and an entry point that
names it (`transformer_jax/base/entry_points.py`), or the full name of its module:
"mypackage.reverse". It is composed of parts; those that several tasks share are in
`parts/`. `protocols.py` defines what training, evaluation and prediction require of a
task.
"""

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from transformer_jax import sharding
from transformer_jax.base import entry_points, extensions, files, schema
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


def define_flags(flags: Any, *kinds: str) -> None:
    """Define a flag for each option that a command can change of its runs.

    The `kinds` are "search" and "evaluation", fields of TaskDefinition. Only the tasks
    of the runs on the command line are imported; all of them if it asks for help, or
    has a flag that is not defined.
    """
    words = [part for word in sys.argv[1:] for part in (word, *word.split("=", 1))]
    places = [part for word in words for part in word.split(",") if part]
    found = list(filter(None, map(_task_of, places)))
    _classes.update({kind: _classes_of(kind, found or names()) for kind in kinds})
    given = {word.lstrip("-").partition("=")[0] for word in words if word[:1] == "-"}
    classes = [cls for kind in kinds for cls in _classes[kind]]
    fields = {field.name for cls in classes for field in schema.fields(cls)}
    known = {"", "help", *fields, *flags.FLAGS}
    if given - known - {f"no{name}" for name in known}:
        _classes.update({kind: _classes_of(kind, names()) for kind in kinds})
    for kind in kinds:
        schema.define_flags(flags, *_classes[kind])


def given_flags(values: Any, kind: str) -> dict[str, Any]:
    """Return the options of `define_flags` that were set on the command line."""
    return schema.given_flags(values, *_classes[kind])


def tasks_with(kind: str, name: str) -> list[str]:
    """List the tasks that have an option of this name."""
    found = {task: getattr(find(task), kind) for task in names()}
    return [t for t, cls in found.items() if cls and name in schema.defaults(cls)]


_classes: dict[str, list[type]] = {}  # whose options are flags, by kind


def _classes_of(kind: str, found: Sequence[str]) -> list[type]:
    return list(dict.fromkeys(filter(None, (getattr(find(n), kind) for n in found))))


def _task_of(folder: str) -> str:
    """Return the task of a run; "" if this is no folder of a run that can be read."""
    try:
        task = files.read_object(pathlib.Path(folder) / "config.json").get("task", "")
    except (OSError, ValueError):
        return ""
    return task if task in names() else ""
