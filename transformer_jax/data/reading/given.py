"""Examples that a Python program holds: lists, data frames, data sets.

They are written as JSON lines beside the run, so that it can be continued, evaluated
and inspected like any other.
"""

import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.base import files
from transformer_jax.base.errors import UserError, nearest
from transformer_jax.data.reading.records import Record, as_text
from transformer_jax.data.reading.sources import SPLITS

MOST_HELD_OUT = 1000


def provide(
    config: ConfigDict,
    splits: Mapping[str, Any],
    columns: Mapping[str, str],
    folder: pathlib.Path,
    say: Callable[[str], None],
    fields: Sequence[str],
) -> None:
    """Write the examples of splits into a folder, and let a config read them there.

    Without validation data, some of the training data are held out.
    """
    found = {
        name: records_of(data, fields, columns, name)
        for name, data in splits.items()
        if data is not None
    }
    if "validation" not in found:
        found["train"], found["validation"] = hold_out(found["train"])
        say(
            f"held out   {len(found['validation']):,} of the examples, evenly spaced, "
            "for validation"
        )
    config.data.source, config.data.folder = "jsonl", str(folder)
    for name in SPLITS:
        config.data[f"{name}_files"] = f"{name}.jsonl" if name in found else ""
        if name in found:
            write(folder / f"{name}.jsonl", found[name])
    for field in fields:
        config.data[f"{field}_column"] = field
    config.eval.splits = ("test",) if "test" in found else ()


def records_of(
    data: Any, fields: Sequence[str], columns: Mapping[str, str], name: str = "train"
) -> list[Record]:
    """Return examples as records of these fields.

    `data` is a pandas DataFrame, a `datasets.Dataset`, a dict of columns, a list of
    dicts, or a list of tuples in the order of the fields. `columns` maps a field to the
    column that holds it, if it has another name.
    """
    places = {field: columns.get(field, field) for field in fields}
    if unknown := sorted(columns.keys() - set(fields)):
        raise UserError(
            f"columns has {unknown[0]!r}, but the fields of an example are "
            f"{', '.join(fields)}.{nearest(unknown[0], fields)}"
        )
    records = []
    for number, row in enumerate(_rows(data, tuple(places.values())), start=1):
        where = f"{name}, example {number}"
        record = {}
        for field, column in places.items():
            if column not in row:
                raise UserError(
                    f"{where} has no {column!r} for the {field}: it has "
                    f"{', '.join(map(str, row))}. Name the right column in columns."
                    f"{nearest(column, map(str, row))}"
                )
            record[field] = as_text(row[column], field, column, where)
        records.append(record)
    if not records:
        raise UserError(f"{name} has no examples")
    return records


def _rows(data: Any, order: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    """Yield the examples of any of the supported forms as mappings."""
    if hasattr(data, "to_dict") and hasattr(data, "columns"):  # of pandas, polars' too
        data = {str(name): list(data[name]) for name in data.columns}
    if isinstance(data, Mapping):
        if splits := [n for n, part in data.items() if hasattr(part, "column_names")]:
            raise UserError(
                f"these are the splits {', '.join(splits)}: give one of them, such as "
                f"data[{splits[0]!r}]"
            )
        lengths = {name: len(column) for name, column in data.items()}
        if len(set(lengths.values())) > 1:
            sizes = ", ".join(f"{name} {count}" for name, count in lengths.items())
            raise UserError(f"the columns have different lengths: {sizes}")
        yield from (
            dict(zip(data, row, strict=True))
            for row in zip(*data.values(), strict=True)
        )
        return
    classes = _class_names(data)
    for number, row in enumerate(data, start=1):
        if isinstance(row, str) and len(order) == 1:
            row = (row,)
        if isinstance(row, Mapping):
            named = {
                name: names[row[name]]
                for name, names in classes.items()
                if isinstance(row.get(name), int) and 0 <= row[name] < len(names)
            }
            yield {**row, **named}
        elif isinstance(row, tuple | list) and len(row) == len(order):
            yield dict(zip(order, row, strict=True))
        else:
            raise UserError(
                f"example {number} is {row!r:.60}: examples are dicts or tuples of "
                f"{', '.join(order)}"
            )


def _class_names(data: Any) -> dict[str, Sequence[str]]:
    """Return the names of the classes of a `datasets.Dataset`, by column."""
    features = getattr(data, "features", None) or {}
    return {
        name: names
        for name, feature in features.items()
        if (names := getattr(feature, "names", None))
    }


def hold_out(records: list[Record]) -> tuple[list[Record], list[Record]]:
    """Take every twentieth example, at most 1,000, for validation."""
    count = max(1, min(MOST_HELD_OUT, len(records) // 20))
    chosen = {i * len(records) // count for i in range(count)}
    kept = [r for i, r in enumerate(records) if i not in chosen]
    if not kept:
        raise UserError("train has a single example: give more, or a validation split")
    return kept, [records[i] for i in sorted(chosen)]


def write(path: pathlib.Path, records: Iterable[Record]) -> None:
    """Write records as JSON lines, unless they are there."""
    text = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records)
    if not (path.is_file() and path.read_text(encoding="utf-8") == text):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, text)
