"""Write and read what a task has learnt from its data, besides tokenizers."""

import dataclasses
import json
import pathlib
from typing import Any

from transformer_jax.base import files
from transformer_jax.base.errors import UserError


def write(path: pathlib.Path, record: Any) -> None:
    """Write a dataclass as JSON."""
    text = json.dumps(dataclasses.asdict(record), ensure_ascii=False, indent=1)
    files.write(path, text + "\n")


def read(path: pathlib.Path, **kinds: Any) -> dict[str, Any]:
    """Read the fields of a dataclass and check their types, which are `kinds`.

    Lists must contain strings, and become tuples.
    """
    try:
        found = files.read_object(path)
        for name, kind in kinds.items():
            value = found[name]
            words = not isinstance(value, list) or all(
                isinstance(word, str) for word in value
            )
            if not isinstance(value, kind) or value is True or not words:
                raise ValueError(f"{name!r} is {value!r}"[:80])
    except (OSError, ValueError, LookupError) as error:
        why = getattr(error, "strerror", None) or str(error).split("\n")[0]
        raise UserError(
            f"{path} is damaged: {why}. Put back a copy of it, or train again with "
            "another --workdir"
        ) from None
    return {
        name: tuple(found[name]) if isinstance(found[name], list) else found[name]
        for name in kinds
    }
