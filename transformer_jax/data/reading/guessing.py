"""Guess from a few examples what files hold: their form, columns and task.

A guess is shown, with the reason, in a config that its user can correct.
"""

import collections
import csv
import dataclasses
import itertools
import os
import pathlib
import re
from collections.abc import Sequence

from transformer_jax.base import files
from transformer_jax.base.errors import UserError
from transformer_jax.data.reading import tables
from transformer_jax.data.reading.records import HEADERS
from transformer_jax.data.text.text import Lines

SAMPLE = 2000  # examples that are looked at
MOST_LABELS = 50
LABELS = frozenset(
    "label labels class category sentiment score rating polarity stars target y".split()
)
SPLITS = {
    "train": r"train|training",
    "validation": r"valid|validation|val|dev|development",
    "test": r"test|eval",
}
JSON = (".jsonl", ".ndjson", ".json")
ARROW = (".parquet", ".arrow", ".feather")


@dataclasses.dataclass(frozen=True)
class Guess:
    """The task, the form and the columns that files seem to have."""

    task: str
    form: str  # of `data.source`
    splits: dict[str, dict[str, str]]  # split → field or "files" → path
    columns: dict[str, str]  # field → column
    sample: list[dict[str, str]]  # records of the training split
    labels: dict[str, int]  # how often each label occurs in the sample
    why: str


def guess(paths: Sequence[str]) -> Guess:
    """Guess what files hold, from their names and their first examples."""
    for path in paths:
        if not os.path.exists(path):
            raise UserError(files.describe_missing(path))
    kinds = {_kind(path) for path in paths}
    if len(kinds) > 1:
        raise UserError(
            f"these files are of several forms ({', '.join(sorted(kinds))}): give "
            "those of one form, with train, validation or test in their names"
        )
    [kind] = kinds
    if kind == "text":
        return _guess_text(paths)
    splits = {split: {"files": path} for split, path in _by_split(paths).items()}
    form, rows = _read_rows(kind, splits["train"]["files"])
    return _guess_columns(form, splits, rows)


def _kind(path: str) -> str:
    plain = path.removesuffix(".gz").lower()
    if os.path.isdir(path):
        if tables.saved_files(path) is None:
            raise UserError(
                f"{path} is a folder that datasets has not saved: name its files"
            )
        return "arrow"
    if plain.endswith(JSON):
        return "jsonl"
    if plain.endswith(ARROW):
        return "arrow"
    return "csv" if plain.endswith((".csv", ".tsv")) else "text"


def _by_split(paths: Sequence[str]) -> dict[str, str]:
    """Sort files by the split that their names contain; without any, it is train."""
    found: dict[str, str] = {}
    for path in paths:
        words = re.split(r"[^a-z]+", pathlib.Path(path).name.lower())
        split = next(
            (s for s, p in SPLITS.items() if any(re.fullmatch(p, w) for w in words)),
            "train",
        )
        if split in found:
            raise UserError(
                f"{found[split]} and {path} both seem to be {split}: give one file per "
                "split, with train, validation or test in its name"
            )
        found[split] = path
    if "train" not in found:
        raise UserError(f"none of {', '.join(paths)} seems to be the training split")
    return found


def _guess_text(paths: Sequence[str]) -> Guess:
    """Guess plain text: two files of the same number of lines are a pair."""
    sides = collections.defaultdict(list)
    for path in paths:
        sides[pathlib.Path(path.removesuffix(".gz")).suffix].append(path)
    if len(sides) == 2 and len({len(side) for side in sides.values()}) == 1:
        (one, first), (other, second) = sides.items()
        splits: dict[str, dict[str, str]] = {}
        named = _by_split(first), _by_split(second)
        for split in named[0]:
            pair = {"source": named[0][split], "target": named[1].get(split, "")}
            counts = [len(Lines(path)) for path in pair.values() if path]
            if len({*counts}) != 1 or len(counts) != 2:
                raise UserError(
                    f"{pair['source']} and {pair['target']} are no pair: they have "
                    f"{counts} lines"
                )
            splits[split] = pair
        texts = [Lines(path) for path in splits["train"].values()]
        sample = [
            {"source": source, "target": target}
            for source, target in itertools.islice(zip(*texts, strict=True), SAMPLE)
        ]
        why = f"files ending in {one} and {other} have the same numbers of lines"
        return Guess("translation", "text", splits, {}, sample, {}, why)
    splits = {split: {"text": path} for split, path in _by_split(paths).items()}
    lines = itertools.islice(Lines(splits["train"]["text"]), SAMPLE)
    sample = [{"text": line} for line in lines]
    return Guess("language", "text", splits, {}, sample, {}, "a file of plain text")


def _read_rows(kind: str, path: str) -> tuple[str, list[dict[str, str]]]:
    """Return the form of a file of columns, and its first rows, as text."""
    if kind == "arrow":
        named = tables.saved_files(path) if os.path.isdir(path) else [path]
        return kind, list(tables.read_rows((named or [path])[0], SAMPLE))
    if kind == "jsonl":
        rows = []
        lines = Lines(path)
        for i, line in enumerate(itertools.islice(lines, SAMPLE)):
            try:
                found = files.parse_json(line)
                if not isinstance(found, dict):
                    raise ValueError(f"it is of type {type(found).__name__}")
                flat = tables.flatten(found)
                rows.append({k: v if isinstance(v, str) else str(v) for k, v in flat})
            except ValueError as error:
                raise UserError(
                    f"{lines.where(i)} is no JSON object: {error}"
                ) from None
        return kind, rows
    return _read_csv(path)


def _read_csv(path: str) -> tuple[str, list[dict[str, str]]]:
    lines = list(itertools.islice(Lines(path), SAMPLE))
    mark = tables.find_delimiter([line for line in lines if line][: tables.LOOKED_AT])
    rows = [row for row in csv.reader((x + "\n" for x in lines), delimiter=mark) if row]
    first, rest = rows[0], rows[1:]
    known = {cell.strip().lower() for cell in first} & HEADERS
    names = all(re.fullmatch(r"[^\d\W][\w .-]{0,30}", cell.strip()) for cell in first)
    unlike = rest and all(
        cell not in {r[i] for r in rest if i < len(r)} for i, cell in enumerate(first)
    )
    header = bool(known) or (names and bool(unlike) and len({*first}) == len(first))
    columns = first if header else [str(i + 1) for i in range(len(first))]
    kept = rest if header else rows
    return "csv", [
        dict(zip(columns, row, strict=True)) for row in kept if len(row) == len(columns)
    ]


def _guess_columns(
    form: str, splits: dict[str, dict[str, str]], rows: list[dict[str, str]]
) -> Guess:
    """Guess which columns are texts, and which is a label."""
    if not rows:
        raise UserError(f"{splits['train']['files']} has no examples")
    names = [name for name in rows[0] if all(name in row for row in rows)]
    values = {name: [row[name] for row in rows] for name in names}
    length = {name: sum(map(len, values[name])) / len(rows) for name in names}
    kinds = {name: len({*values[name]}) for name in names}
    most = max(2, min(MOST_LABELS, len(rows) // 5))
    labels = [n for n in names if 2 <= kinds[n] <= most and length[n] <= 40]
    labels.sort(key=lambda n: (n.lower().split(".")[-1] not in LABELS, names.index(n)))
    texts = [
        name
        for name in names
        if name not in labels[:1] and kinds[name] > most / 2
        if not all(re.fullmatch(r"[\d.,eE+-]*", value) for value in values[name])
    ]
    named = bool(labels) and labels[0].lower().split(".")[-1] in LABELS
    if labels and texts and (named or len(texts) == 1):
        text = max(texts, key=lambda name: length[name])
        columns = {"text": text, "label": labels[0]}
        why = f"{labels[0]!r} has {kinds[labels[0]]} different values"
        task = "classification"
    elif len(texts) >= 2:
        ordered = sorted(sorted(texts, key=lambda n: -length[n])[:2], key=names.index)
        columns = {"source": ordered[0], "target": ordered[1]}
        why, task = f"{ordered[0]!r} and {ordered[1]!r} are texts", "translation"
    elif texts:
        columns, task = {"text": texts[0]}, "language"
        why = f"{texts[0]!r} is the only text"
    else:
        raise UserError(
            f"{splits['train']['files']} has no column of text among {', '.join(names)}"
        )
    sample = [{f: row[column] for f, column in columns.items()} for row in rows]
    counts = (
        collections.Counter(r["label"] for r in sample) if "label" in columns else {}
    )
    return Guess(task, form, splits, columns, sample, dict(counts), why)
