"""Options as the fields of a dataclass: default, meaning and bounds, written once.

A dataclass declares each option by `key`. From its fields come the defaults of a config
section, the flags of a command line and the check of the bounds, so that they agree.
"""

import dataclasses
from typing import Any

FLAG_KINDS = {bool: "bool", int: "integer", float: "float", str: "string"}


def key(
    default: Any,
    meaning: str,
    *,
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """Declare an option with its meaning and its bounds, both inclusive."""
    if type(default) not in FLAG_KINDS:
        raise TypeError(f"an option of type {type(default).__name__} can be no flag")
    metadata = {"meaning": meaning, "least": least, "most": most}
    return dataclasses.field(default=default, metadata=metadata)


def defaults(cls: type) -> dict[str, Any]:
    """List the defaults in the order of the fields."""
    return {field.name: field.default for field in dataclasses.fields(cls)}


def find_problems(section: str, instance: Any) -> list[str]:
    """Compare each value with its bounds; name values by their section."""
    problems = []
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        least, most = field.metadata["least"], field.metadata["most"]
        limits = []
        if least is not None:
            limits.append(f"at least {least}")
        if most is not None:
            limits.append(f"at most {most}")
        below = least is not None and value < least
        above = most is not None and value > most
        if below or above:
            must = " and ".join(limits)
            problems.append(f"{section}.{field.name} = {value}: must be {must}")
    return problems


def define_flags(flags: Any, *classes: type) -> None:
    """Define a flag for each option of these classes, those of one name once.

    `flags` is the module of absl. A flag defaults to None, because the config of a run
    has the value otherwise.
    """
    for name, field in _fields(classes).items():
        define = getattr(flags, f"DEFINE_{FLAG_KINDS[type(field.default)]}")
        define(name, None, field.metadata["meaning"])


def given_flags(flag_values: Any, *classes: type) -> dict[str, Any]:
    """Read the options that the command line sets."""
    values = {name: flag_values[name].value for name in _fields(classes)}
    return {name: value for name, value in values.items() if value is not None}


def _fields(classes: tuple[type, ...]) -> dict[str, dataclasses.Field]:
    return {f.name: f for cls in classes for f in dataclasses.fields(cls)}
