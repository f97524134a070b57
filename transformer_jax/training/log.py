"""Write what a training run does to the log and metrics.jsonl, and read metrics.jsonl.

`window.py` measures the steps; hooks take the entries further.
"""

import json
import logging
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from transformer_jax import hosts
from transformer_jax.base import files
from transformer_jax.cli import Bar, PlainHandler
from transformer_jax.runs.folder import Folder
from transformer_jax.runs.steps import DAMAGED
from transformer_jax.training.hooks import Hook

# The log lines are what the command prints, so they are shown in a notebook as well.
console = logging.getLogger("transformer_jax.console")
console.setLevel(logging.INFO)
console.propagate = False
console.handlers = [PlainHandler("stdout")]

WRITTEN = {"loss": ".4f", "perplexity": ".3f", "accuracy": ".2%"}


def in_words(values: dict[str, Any], summary: str = "") -> str:
    """Write 'loss 1.2345  perplexity 3.437  accuracy 71.02%', as far as known.

    Values that are part of the summary are left out.
    """
    names = [k for k in WRITTEN if k in values and f"{k} = " not in summary]
    return "  ".join(f"{k} {values[k]:{WRITTEN[k]}}" for k in names)


class RunLog:
    """Write log lines for people and metrics.jsonl for programs, in one process."""

    def __init__(self, folder: Folder, active: bool, hooks: Sequence[Hook] = ()):
        """Write, and pass entries to `hooks`, only if `active`, as in process 0."""
        self.active, self._folder, self.hooks = active, folder, hooks
        self.path = folder.path / "metrics.jsonl"
        self._bar = Bar(active and sys.stderr.isatty())

    def cut_back(self, step: int) -> None:
        """Remove the entries that a run resumed at this step will write again.

        These are all later entries and the final scores, because a kill between two
        final scores would otherwise leave the first twice.
        """
        if not self.active:
            return
        entries, lost = _parse(self.path)
        if lost:
            place = files.move_aside(
                self.path, self.path.parent / DAMAGED, self.path.name
            )
            console.info(f"warning    {lost}: the file is kept as {place}")
        kept = [
            json.dumps(e) + "\n"
            for e in entries
            if e["step"] <= step and e["kind"] in ("train", "validation")
        ]
        files.write(self.path, "".join(kept))

    @property
    def width(self) -> int:
        """The columns of the terminal that shows the log; 0 if it is not a terminal."""
        if sys.stdout is None or not sys.stdout.isatty():
            return 0
        return shutil.get_terminal_size().columns

    def say(self, line: str) -> None:
        """Print a line."""
        if self.active:
            self._bar.clear()
            console.info(line)

    def record(self, step: int, kind: str, values: dict[str, Any]) -> None:
        """Append an entry to metrics.jsonl, and pass it to the hooks."""
        if not self.active:
            return
        self._folder.check_there()
        entry = {"step": step, "kind": kind, "time": round(time.time(), 3), **values}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        self._folder.push_soon()
        for hook in self.hooks:
            hook.record(step, kind, values)

    def progress(self, step: int, total: int, text: str = "") -> None:
        """Redraw the progress bar."""
        self._bar.show(step, total, text)

    def close(self) -> None:
        """Clear the bar, and close the hooks."""
        self._bar.clear()
        for hook in self.hooks:
            hook.close()


def read_entries(path: pathlib.Path) -> list[dict[str, Any]]:
    """Read a metrics.jsonl, skipping unreadable lines."""
    return _parse(path)[0]


def _parse(path: pathlib.Path) -> tuple[list[dict[str, Any]], str]:
    """Return the entries of a metrics.jsonl and a description of unreadable lines.

    A last line cut short by a kill is ignored.
    """
    if not os.path.lexists(path):
        return [], ""
    if not path.is_file():
        return [], f"{path} is not a regular file"
    entries, bad = [], []
    *lines, last = path.read_bytes().split(b"\n")
    for number, line in enumerate([*lines, last], 1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if _is_entry(entry):
            entries.append(entry)
        elif line.strip() and number <= len(lines):
            bad.append(number)
    if not bad:
        return entries, ""
    return entries, f"{path}: {len(bad)} lines cannot be read, the first is {bad[0]}"


def _is_entry(entry: Any) -> bool:
    """Return whether a line has the keys and types of an entry."""
    if not isinstance(entry, dict) or type(entry.get("step")) is not int:
        return False
    names = {"loss", "seconds", "bleu", "chrf", *WRITTEN} & entry.keys()
    numbers = all(isinstance(entry[name], int | float) for name in names)
    return numbers and isinstance(entry.get("kind"), str)


def rank(config: ConfigDict, values: dict[str, Any]) -> float:
    """Return the ranking score of a validation, for which higher is better."""
    name = config.checkpoint.best
    return -values[name] if name == "loss" else values[name]


def stopped_early(config: ConfigDict, path: pathlib.Path, step: int) -> bool:
    """Return whether the last evaluations up to a step brought no improvement."""
    patience = config.train.patience
    if not patience:
        return False
    entries = read_entries(path)
    ranks = [
        rank(config, e)
        for e in entries
        if e["kind"] == "validation"
        and e["step"] <= step
        and isinstance(e.get(config.checkpoint.best), int | float)
    ]
    enough = len(ranks) > patience
    stop = enough and max(ranks[-patience:]) <= max(ranks[:-patience])
    # Only process 0 reliably sees the complete file, and all must stop at one step.
    return hosts.broadcast_from_first(stop)


def training_seconds(path: pathlib.Path) -> float:
    """Add up the seconds of updates and validations over all starts of a run.

    Compiling, saving, and the steps after the last entry of each start are left out.
    """
    entries = read_entries(path)
    parts = [e for e in entries if e["kind"] in ("train", "validation")]
    return round(sum(part.get("seconds", 0.0) for part in parts), 1)


def count_skipped(path: pathlib.Path) -> int:
    """Count the batches of a run skipped by `train.on_divergence = "skip"`."""
    return sum(e.get("skipped", 0) for e in read_entries(path) if e["kind"] == "train")
