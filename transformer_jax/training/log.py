"""Measure a training run, and write the measurements to the log, metrics.jsonl and
TensorBoard. (The scores of answers are in `scores.py`.)"""

import functools
import json
import logging
import math
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from transformer_jax import files, hosts
from transformer_jax.cli import Bar, PlainHandler, duration
from transformer_jax.losses import Sums
from transformer_jax.planning import flops, targets
from transformer_jax.runs.folder import Folder
from transformer_jax.runs.steps import DAMAGED
from transformer_jax.tasks.protocols import Task
from transformer_jax.training.divergence import Divergence

# The log lines are what the command prints, so they are shown in a notebook as well.
console = logging.getLogger("transformer_jax.console")
console.setLevel(logging.INFO)
console.propagate = False
console.handlers = [PlainHandler("stdout")]

SLOW = 1.2  # a process slower than this multiple of the median is named in the log
PART = 0.1  # a process that works for less of the time cannot hold up others
BRIEF = 2.0  # seconds; a shorter window says nothing about slow processes
WRITTEN = {"loss": ".4f", "perplexity": ".3f", "accuracy": ".2%"}


def in_words(values: dict[str, Any], summary: str = "") -> str:
    """Write 'loss 1.2345  perplexity 3.437  accuracy 71.02%', as far as known.

    Values that are part of the summary are left out.
    """
    names = [k for k in WRITTEN if k in values and f"{k} = " not in summary]
    return "  ".join(f"{k} {values[k]:{WRITTEN[k]}}" for k in names)


class Utilization(NamedTuple):
    """The operations of a step and the peak of the hardware, from which MFU follows."""

    count: Callable[[Any], float]  # shape of a batch → FLOPs
    peak: float  # FLOP/s of all devices


def utilization(run: Any) -> Utilization | None:
    """Return what a training (`train.Training`) uses; None if no peak is known."""
    peak = targets.peak_of(run.mesh, run.config.model.dtype)
    if not peak:
        return None

    @functools.cache
    def count(shape: Any) -> float:
        batch = run.feed.abstract(shape)
        return flops.count_step(run.task.objective, run.abstract.params, batch)

    return Utilization(count, peak)


class LogWindow:
    """The steps since the last log line, added up."""

    def __init__(
        self,
        task: Task,
        schedule: Any,
        last: int,
        work: Utilization | None,
        divergence: Divergence,
    ):
        self.task, self.schedule, self.last = task, schedule, last
        self.work, self.divergence = work, divergence
        self.last_step = self.applied = 0
        self.text = ""
        self._empty()

    def _empty(self) -> None:
        self.sums, self.norms = Sums(0.0, 0.0, 0.0, 0.0), []
        self.steps = self.skipped = 0
        self.tokens = self.places = self.kept = 0
        self.operations = 0.0
        self.waited = 0.0  # seconds waited for the devices, so for the slowest host
        self.began = time.monotonic()

    def restart_clock(self) -> None:
        """Restart the clock, because evaluations and saves are not training time."""
        if not self.steps + self.skipped:
            self.began = time.monotonic()

    def leave_out(self, seconds: float) -> None:
        """Subtract the time spent waiting for a compilation."""
        self.began += seconds

    def add(self, step: int, shape: Any, outcome: dict) -> None:
        """Wait for a step, and add it if its loss and gradient are finite."""
        began = time.monotonic()
        host = jax.device_get(outcome)
        self.waited += time.monotonic() - began
        sums, norm = jax.tree.map(float, host["sums"]), float(host["grad_norm"])
        good = math.isfinite(sums.loss) and math.isfinite(norm)
        self.last_step, self.applied = step, int(host.get("applied", step))
        if not (good and host.get("good", True)):
            self.divergence.meet(step, sums.loss, norm, host["squares"])
            self.skipped += 1
            return
        self.divergence.pass_by()
        self.sums, self.steps = self.sums + sums, self.steps + 1
        self.norms.append(norm)
        self.tokens += sums.weight
        self.kept += host["kept"]  # of the rows of this process
        self.places += shape.rows * shape.lengths[-1]
        if self.work:
            self.operations += self.work.count(shape)
        self.text = f"loss {sums.loss / max(sums.weight, 1):.4f}"

    def take(self) -> dict[str, float]:
        """Return the window's values, and begin the next window."""
        seconds = time.monotonic() - self.began
        step_seconds = seconds / (self.steps + self.skipped)
        values = {
            **(self.task.objective.means(self.sums) if self.steps else {}),
            "seconds": round(seconds, 3),
            "learning_rate": float(self.schedule(max(self.applied - 1, 0))),
            **({"grad_norm": float(np.mean(self.norms))} if self.steps else {}),
            f"{self.task.objective.unit}_per_second": self.tokens / seconds,
            "samples_too_long": self.kept,
            "seconds_left": step_seconds * (self.last - self.last_step),
        }
        if self.skipped:
            values["skipped"] = self.skipped
        if self.task.objective.unit == "tokens" and self.steps:
            values["padding"] = 1 - self.tokens / self.places
        if self.work:
            values["mfu"] = self.operations / seconds / self.work.peak
        if found := find_slowest(seconds - self.waited, self.waited):
            values["slowest_process"], values["slowest_factor"] = found
        self._empty()
        return values

    def line(self, values: dict[str, float]) -> str:
        """Format the values as a log line."""
        unit = self.task.objective.unit
        padding = f"padding {values['padding']:.0%}  " if "padding" in values else ""
        mfu = f"MFU {values['mfu']:.1%}  " if "mfu" in values else ""
        gradient = skipped = slowest = ""
        if "grad_norm" in values:
            gradient = f"|grad| {values['grad_norm']:.3f}  "
        if "skipped" in values:
            skipped = f"skipped {values['skipped']}  "
        if "slowest_process" in values:
            name = hosts.name_of(int(values["slowest_process"]))
            slowest = f"  slowest {name}, {values['slowest_factor']:.1f} × the median"
        return (
            f"step {self.last_step:>6}  {in_words(values)}  lr "
            f"{values['learning_rate']:.2e}  {gradient}{skipped}"
            f"{values[f'{unit}_per_second']:,.0f} {unit}/s  {padding}{mfu}"
            f"left {duration(values['seconds_left'])}{slowest}"
        )


def find_slowest(busy: float, waited: float) -> tuple[int, float] | None:
    """Return (process, multiple of the median) for a host much slower than the others.

    All processes finish a step together, so the time that each did not wait for its
    devices is compared. It must be a good part of the window to slow down others.
    """
    if jax.process_count() == 1:
        return None
    own = np.array([busy, waited], np.float32)
    seconds, rest = np.asarray(multihost_utils.process_allgather(own)).T
    slowest = int(seconds.argmax())
    whole = float(seconds[slowest] + rest[slowest])
    factor = float(seconds[slowest] / max(statistics.median_low(seconds), 1e-9))
    if whole < BRIEF or seconds[slowest] < PART * whole or factor <= SLOW:
        return None
    return slowest, round(factor, 2)


class RunLog:
    """Write log lines for people and metrics.jsonl for programs, in one process."""

    def __init__(self, folder: Folder, tensorboard: bool, active: bool):
        self.active, self._folder = active, folder
        self.path = folder.path / "metrics.jsonl"
        self._bar = Bar(active and sys.stderr.isatty())
        self._board = (
            _open_board(folder.path / "tensorboard") if tensorboard and active else None
        )

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

    def say(self, line: str) -> None:
        """Print a line."""
        if self.active:
            self._bar.clear()
            console.info(line)

    def write(self, window: LogWindow) -> None:
        """Record and print a window, and begin the next one."""
        values = window.take()
        self.record(window.last_step, "train", values)
        self.say(window.line(values))

    def record(self, step: int, kind: str, values: dict[str, Any]) -> None:
        """Append an entry to metrics.jsonl, and its numbers to TensorBoard."""
        if not self.active:
            return
        entry = {"step": step, "kind": kind, "time": round(time.time(), 3), **values}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        self._folder.push_soon()
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def progress(self, step: int, total: int, text: str = "") -> None:
        """Redraw the progress bar."""
        self._bar.show(step, total, text)

    def close(self) -> None:
        """Clear the bar and close the TensorBoard file."""
        self._bar.clear()
        if self._board is not None:
            self._board.close()


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


def _open_board(folder: pathlib.Path) -> Any:
    try:
        from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return SummaryWriter(str(folder))
