"""What is measured in training, and where it is written: the log, metrics.jsonl,
TensorBoard. (What answers are worth is in `scores.py`.)"""

import json
import math
import pathlib
import sys
import time
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from transformer_jax import sharding
from transformer_jax.cli import Bar, duration
from transformer_jax.errors import UserError
from transformer_jax.losses import Sums

WRITTEN = {"loss": ".4f", "perplexity": ".3f", "accuracy": ".2%"}


def in_words(values: dict[str, Any], summary: str = "") -> str:
    """'loss 1.2345  perplexity 3.437  accuracy 71.02%': those that there are.

    What a summary beside them says already is not said again.
    """
    names = [k for k in WRITTEN if k in values and f"{k} = " not in summary]
    return "  ".join(f"{k} {values[k]:{WRITTEN[k]}}" for k in names)


class LogWindow:
    """What happened since the last log line."""

    def __init__(self, task: Any, schedule: Any, last: int):
        self.task, self.schedule, self.last = task, schedule, last
        self.last_step = 0
        self.text = ""
        self._empty()

    def _empty(self) -> None:
        self.sums, self.norms, self.steps = Sums(0.0, 0.0, 0.0, 0.0), [], 0
        self.tokens = self.places = self.kept = 0
        self.began = time.monotonic()

    def restart_clock(self) -> None:
        """Evaluations and saves are not training time."""
        self.began = time.monotonic() if not self.steps else self.began

    def leave_out(self, seconds: float) -> None:
        """Waiting for a program to be compiled is not training time either."""
        self.began += seconds

    def add(self, step: int, shape: Any, outcome: dict) -> None:
        """Waits for a step and adds it; stops the run at the first bad number."""
        host = jax.device_get(outcome)
        sums, norm = jax.tree.map(float, host["sums"]), float(host["grad_norm"])
        if not (math.isfinite(sums.loss) and math.isfinite(norm)):
            raise UserError(
                f"step {step}: the loss is {sums.loss} and the gradient norm {norm}. "
                "Nothing of it was saved; lower optim.constant, lengthen "
                "optim.warmup_steps or set optim.clip_norm, and start again"
            )
        self.last_step = step
        self.sums, self.steps = self.sums + sums, self.steps + 1
        self.norms.append(norm)
        self.tokens += sums.weight
        self.kept += host["kept"]  # of the rows of this process
        self.places += shape.rows * shape.lengths[-1]
        self.text = f"loss {sums.loss / max(sums.weight, 1):.4f}"

    def take(self) -> dict[str, float]:
        """The window's values; the next window begins."""
        seconds = time.monotonic() - self.began
        step_seconds = seconds / self.steps
        values = {
            **self.task.objective.means(self.sums),
            "seconds": round(seconds, 3),
            "learning_rate": float(self.schedule(self.last_step - 1)),
            "grad_norm": float(np.mean(self.norms)),
            f"{self.task.objective.unit}_per_second": self.tokens / seconds,
            "samples_too_long": self.kept,
            "seconds_left": step_seconds * (self.last - self.last_step),
        }
        if self.task.objective.unit == "tokens":
            values["padding"] = 1 - self.tokens / self.places
        self._empty()
        return values

    def line(self, values: dict[str, float]) -> str:
        unit = self.task.objective.unit
        padding = f"padding {values['padding']:.0%}  " if "padding" in values else ""
        return (
            f"step {self.last_step:>6}  {in_words(values)}  lr "
            f"{values['learning_rate']:.2e}  |grad| {values['grad_norm']:.3f}  "
            f"{values[f'{unit}_per_second']:,.0f} {unit}/s  {padding}"
            f"left {duration(values['seconds_left'])}"
        )


class RunLog:
    """Log lines for people, metrics.jsonl for programs; one process writes."""

    def __init__(self, folder: pathlib.Path, tensorboard: bool, active: bool):
        self.active = active
        self.path = folder / "metrics.jsonl"
        self._bar = Bar(active and sys.stderr.isatty())
        self._board = (
            _open_board(folder / "tensorboard") if tensorboard and active else None
        )

    def cut_back(self, step: int) -> None:
        """Forgets what a run resumed at a step will write again.

        That is what lies after the step, and the scores of the end: a kill between two
        of them would leave the first to be written twice.
        """
        if not self.active:
            return
        kept = [
            json.dumps(e) + "\n"
            for e in read_entries(self.path)
            if e["step"] <= step and e["kind"] in ("train", "validation")
        ]
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text("".join(kept))
        temporary.replace(self.path)

    def say(self, line: str) -> None:
        if self.active:
            self._bar.clear()
            print(line, flush=True)

    def record(self, step: int, kind: str, values: dict[str, Any]) -> None:
        if not self.active:
            return
        entry = {"step": step, "kind": kind, "time": round(time.time(), 3), **values}
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def progress(self, step: int, total: int, text: str = "") -> None:
        self._bar.show(step, total, text)

    def close(self) -> None:
        self._bar.clear()
        if self._board is not None:
            self._board.close()


def read_entries(path: pathlib.Path) -> list[dict[str, Any]]:
    """The entries of a metrics.jsonl; a last line cut short by a kill is no entry."""
    entries = []
    if path.exists():
        for line in path.read_text().split("\n"):
            try:
                entries.append(json.loads(line))
            except ValueError:
                continue
    return entries


def rank(config: ConfigDict, values: dict[str, Any]) -> float:
    """A validation score as a number of which more is better."""
    name = config.checkpoint.best
    return -values[name] if name == "loss" else values[name]


def stopped_early(config: ConfigDict, path: pathlib.Path, step: int) -> bool:
    """Whether a run's last evaluations, up to a step, brought nothing better."""
    patience = config.train.patience
    if not patience:
        return False
    entries = read_entries(path)
    ranks = [
        rank(config, e)
        for e in entries
        if e["kind"] == "validation" and e["step"] <= step
    ]
    enough = len(ranks) > patience
    stop = enough and max(ranks[-patience:]) <= max(ranks[:-patience])
    # Only process 0 surely sees all of the file, and all must stop after the same step.
    return sharding.broadcast_from_first(stop)


def training_seconds(path: pathlib.Path) -> float:
    """What updates and validations took, all parts of a run that was stopped together.

    Compiling, saving, and the steps after the last entry of a part are not counted.
    """
    entries = read_entries(path)
    parts = [e for e in entries if e["kind"] in ("train", "validation")]
    return round(sum(part.get("seconds", 0.0) for part in parts), 1)


def _open_board(folder: pathlib.Path) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))
