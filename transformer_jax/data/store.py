"""Every example encoded once, into memory-mapped columns on disk.

A column is ragged (values and offsets). A store is keyed by the fingerprint of its
records and of what encoded them, built under a temporary name and renamed: a killed
build leaves nothing that could be mistaken for a store. Nothing is dropped without an
entry in its ledger.
"""

import hashlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

FORMAT = 2  # of the files; part of the fingerprint
SHOWN = 3  # examples of each reason in a ledger


class Store:
    """The encoded examples of one split."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        about = json.loads((folder / "store.json").read_text())
        self.size: int = about["size"]
        self.ledger: dict[str, Any] = about["ledger"]
        self._columns = {
            name: (
                _map(folder / f"{name}.values.npy"),
                _map(folder / f"{name}.offsets.npy"),
            )
            for name in about["columns"]
        }

    def __len__(self) -> int:
        return self.size

    def row(self, column: str, index: int) -> np.ndarray:
        values, offsets = self._columns[column]
        return values[offsets[index] : offsets[index + 1]]

    def rows(self, indices: Iterable[int]) -> list[dict[str, np.ndarray]]:
        return [{c: self.row(c, i) for c in self._columns} for i in indices]

    def lengths(self, column: str) -> np.ndarray:
        return np.diff(self._columns[column][1])


def build(
    root: pathlib.Path,
    records: Iterable[dict[str, Any]],
    encode: Callable[[dict[str, Any]], dict[str, list[int]]],
    fingerprint: str,
    reject: Callable[[dict[str, list[int]]], str | None] = lambda columns: None,
) -> Store:
    """The store of these records: opened if it exists, else built.

    `reject` names the reason for which an encoded example is left out, or None.
    """
    key = hashlib.sha256(f"{FORMAT}:{fingerprint}".encode()).hexdigest()[:24]
    folder = root / key
    if (folder / "store.json").is_file():
        return Store(folder)
    root.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=f".{key}.", dir=root))
    try:
        _write(temporary, records, encode, reject)
        try:
            os.rename(temporary, folder)
        except OSError:  # another process of this host was first: its store is the same
            if not (folder / "store.json").is_file():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Store(folder)


def _write(folder, records, encode, reject) -> None:
    values: dict[str, list[np.ndarray]] = {}
    offsets: dict[str, list[int]] = {}
    dropped: dict[str, dict[str, Any]] = {}
    size = 0
    for number, record in enumerate(records):
        columns = encode(record)
        reason = reject(columns)
        if reason:
            entry = dropped.setdefault(reason, {"count": 0, "records": []})
            entry["count"] += 1
            if entry["count"] <= SHOWN:
                entry["records"].append({"number": number + 1, **record})
            continue
        for name, row in columns.items():
            values.setdefault(name, []).append(np.asarray(row, np.int32))
            ends = offsets.setdefault(name, [0])
            ends.append(ends[-1] + len(row))
        size += 1
    for name in values:
        np.save(folder / f"{name}.values.npy", np.concatenate(values[name]))
        np.save(folder / f"{name}.offsets.npy", np.asarray(offsets[name], np.int64))
    about = {"size": size, "columns": sorted(values), "ledger": dropped}
    text = json.dumps(about, indent=1, ensure_ascii=False)
    (folder / "store.json").write_text(text)


def _map(path: pathlib.Path) -> np.ndarray:
    array = np.load(path, mmap_mode="r")
    return array if array.size else np.load(path)
