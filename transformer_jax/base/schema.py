"""Declare options as fields of a dataclass: default, meaning, bounds and choices.

A dataclass declares each option by `option`. Its fields give the defaults of a config
section, the flags of a command line and the checks of values, so these always agree.
A number is at most MOST unless its option declares another upper bound. This refuses
nan and infinity, and absurd sizes before anything is allocated for them.
"""

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from transformer_jax.base.errors import nearest

FLAG_KINDS = {bool: "bool", int: "integer", float: "float", str: "string"}

BOUNDS = {
    "least": ("at least", operator.ge),
    "above": ("more than", operator.gt),
    "most": ("at most", operator.le),
    "below": ("less than", operator.lt),
}

MOST = 10**6  # no size of a model or of an example is larger
SEEDS = 2**32 - 1  # the largest seed: JAX reads 32 bits

# Names, or a function that returns them, for a table that may still grow.
Choices = Iterable[str] | Callable[[], Iterable[str]]


def option(
    default: Any,
    meaning: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    choices: Choices | None = None,
    of: str = "",
) -> Any:
    """Declare an option with its meaning and its allowed values.

    `least` and `most` are inclusive bounds, `above` and `below` exclusive ones. `of`
    names the part of a task that the option is of; tasks without it do not have it.
    """
    if type(default) not in (*FLAG_KINDS, tuple):
        raise TypeError(f"an option cannot be of type {type(default).__name__}")
    metadata = {
        "meaning": meaning,
        "least": least,
        "above": above,
        "most": most,
        "below": below,
        "choices": choices,
        "of": of,
    }
    return dataclasses.field(default=default, metadata=metadata)


def narrow(
    field: dataclasses.Field, default: Any, choices: Choices | None = None
) -> Any:
    """Redeclare an option with another default and, if given, fewer choices."""
    declared: dict[str, Any] = dict(field.metadata)
    if choices:
        declared["choices"] = choices
    return option(default, **declared)


def derived(default: Any, meaning: str) -> Any:
    """Declare a field that is not a config option, because the data determine it."""
    return dataclasses.field(default=default, metadata={"derived": meaning})


def collect(name: str, declared: Mapping[str, Any]) -> type:
    """Make a dataclass of options whose names are known only at run time."""
    fields = [(own, type(field.default), field) for own, field in declared.items()]
    return dataclasses.make_dataclass(name, fields, frozen=True)


def fields(cls: type) -> list[dataclasses.Field]:
    """List the fields that are options, in order of declaration."""
    return [f for f in dataclasses.fields(cls) if "derived" not in f.metadata]


def defaults(cls: type) -> dict[str, Any]:
    """Return the default of each option, in order of declaration."""
    return {f.name: f.default for f in fields(cls)}


def choices(field: dataclasses.Field) -> tuple[str, ...]:
    """List the choices of an option; none if any value is allowed."""
    found: Any = field.metadata["choices"]
    if callable(found):
        found = found()
    return tuple(found or ())


def find_problems(section: str, values: Any, cls: type | None = None) -> list[str]:
    """Check the types, choices and bounds of the values of a config section.

    The values are an instance of a dataclass of options or, if `cls` names that class,
    a mapping, which may lack some of the options.
    """
    cls, values = cls or type(values), _as_mapping(values)
    found = (
        find_problem(f"{section}.{field.name}", values[field.name], field)
        for field in fields(cls)
        if field.name in values
    )
    return [problem for problem in found if problem]


def find_problem(name: str, value: Any, field: dataclasses.Field) -> str | None:
    """Check the type of a value, then its choices and bounds."""
    return (
        find_wrong_type(name, value, field.default)
        or find_wrong_choice(name, value, choices(field))
        or find_beyond_bounds(name, value, field)
    )


def find_wrong_type(name: str, value: Any, default: Any) -> str | None:
    """Compare a value's type with its default's; an int is accepted as a float.

    Unlike in Python, a bool is not accepted as an int.
    """
    want = type(default)
    if type(value) is want or (type(value) is int and want is float):
        return None
    return (
        f"{name} = {value!r} is of type {type(value).__name__}, "
        f"not {want.__name__} (default: {default!r})"
    )


def find_wrong_choice(name: str, value: Any, allowed: Sequence[str]) -> str | None:
    """Check that a value is one of its choices, if it has any; suggest the nearest."""
    if value in allowed or not allowed:
        return None
    hint = nearest(value, allowed)
    return f"{name} = {value!r}: choose {' | '.join(allowed)}.{hint}"


def find_beyond_bounds(name: str, value: Any, field: dataclasses.Field) -> str | None:
    """Compare a number with the bounds of its option."""
    limits = {bound: field.metadata[bound] for bound in BOUNDS}
    limits = {bound: limit for bound, limit in limits.items() if limit is not None}
    if type(field.default) in (int, float) and not limits.keys() & {"most", "below"}:
        limits |= {} if value <= MOST else {"most": MOST}
    if all(BOUNDS[bound][1](value, limit) for bound, limit in limits.items()):
        return None
    must = " and ".join(f"{BOUNDS[b][0]} {limit}" for b, limit in limits.items())
    what = "a share," if limits == {"least": 0, "below": 1} else "must be"
    return f"{name} = {value}: {what} {must}"


def define_flags(flags: Any, *classes: type) -> None:
    """Define a flag for each option of these classes; equal names share a flag.

    `flags` is the absl module. A flag defaults to None, which leaves the value to the
    run's config.
    """
    for name, field in _fields_of(classes).items():
        kind = type(field.default)
        if kind not in FLAG_KINDS:
            raise TypeError(f"{name} of type {kind.__name__} cannot be a flag")
        define = getattr(flags, f"DEFINE_{FLAG_KINDS[kind]}")
        define(name, None, field.metadata["meaning"])


def given_flags(flag_values: Any, *classes: type) -> dict[str, Any]:
    """Return the options that were set on the command line."""
    values = {name: flag_values[name].value for name in _fields_of(classes)}
    return {name: value for name, value in values.items() if value is not None}


def _fields_of(classes: tuple[type, ...]) -> dict[str, dataclasses.Field]:
    return {field.name: field for cls in classes for field in fields(cls)}


def _as_mapping(values: Any) -> Mapping[str, Any]:
    if not dataclasses.is_dataclass(values):
        return values
    return {f.name: getattr(values, f.name) for f in dataclasses.fields(values)}
