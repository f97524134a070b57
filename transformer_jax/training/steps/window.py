"""Add up the steps between two log lines: loss, speed, and the use of the hardware."""

import functools
import math
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from transformer_jax import config as configs
from transformer_jax import hardware, hosts
from transformer_jax.cli import duration
from transformer_jax.data.batches import Shape
from transformer_jax.losses import Sums
from transformer_jax.training.log import RunLog, in_words
from transformer_jax.training.parts import StepOutcome, Training
from transformer_jax.training.steps import programs
from transformer_jax.training.steps.divergence import Divergence

SLOW = 1.2  # a process slower than this multiple of the median is named in the log
COMMON = ("nll", "accuracy")  # metrics that every log line shows in its own way
PART = 0.1  # a process that works for less of the time cannot hold up others
# Parts of a log line, in the order in which a narrow terminal goes without them.
LEAST_FIRST = ("padding", "perplexity", "MFU", "|grad|", "lr")
BRIEF = 2.0  # seconds; a shorter window says nothing about slow processes


class Utilization(NamedTuple):
    """The operations of a step and the peak of the hardware, from which MFU follows."""

    count: Callable[[Shape], float]  # shape of a batch → FLOPs
    peak: float  # FLOP/s of all devices


def utilization(training: Training) -> Utilization | None:
    """Return how to compute the MFU of a training run; None if no peak is known."""
    peak = hardware.peak_of(training.mesh, configs.dtype_of(training.config))
    if not peak:
        return None

    @functools.cache
    def count(shape: Shape) -> float:
        batch = training.feed.abstract(shape)
        params = training.abstract.params
        return programs.count_step(training.task.objective, params, batch)

    return Utilization(count, peak)


class DispatchedStep(NamedTuple):
    """A step that the devices were given, whose results have not been read."""

    step: int
    shape: Shape
    samples_too_long: int  # in the rows of this process
    outcome: StepOutcome


class LogWindow:
    """The steps since the last log line, added up."""

    def __init__(self, training: Training):
        self.task, self.schedule = training.task, training.schedule
        self.last = training.config.train.steps
        self.work, self.divergence = utilization(training), Divergence(training)
        self.last_step = self.applied = 0
        self.text = ""
        self.metrics: tuple[str, ...] = ()  # those of the task alone
        self._empty()

    def _empty(self) -> None:
        self.sums, self.norms = Sums(0.0, 0.0), []
        self.steps = self.skipped = 0
        self.tokens = self.places = self.samples_too_long = 0
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

    def add(self, dispatched: DispatchedStep) -> None:
        """Wait for a step, and add it if its loss and gradient are finite."""
        step, shape = dispatched.step, dispatched.shape
        began = time.monotonic()
        outcome = jax.device_get(dispatched.outcome)
        self.waited += time.monotonic() - began
        sums, norm = jax.tree.map(float, outcome.sums), float(outcome.grad_norm)
        good = math.isfinite(sums.loss) and math.isfinite(norm)
        if outcome.good is not None:
            good = good and bool(outcome.good)
        self.last_step = step
        self.applied = step if outcome.applied is None else int(outcome.applied)
        if not good:
            self.divergence.report(step, sums.loss, norm, outcome.squares)
            self.skipped += 1
            return
        self.divergence.note_finite()
        self.sums, self.steps = self.sums + sums, self.steps + 1
        self.norms.append(norm)
        self.tokens += sums.weight
        self.metrics = tuple(n for n in sums.metrics if n not in COMMON)
        self.samples_too_long += dispatched.samples_too_long
        self.places += shape.rows * shape.lengths[-1]
        if self.work:
            self.operations += self.work.count(shape)
        left = (time.monotonic() - self.began) / (self.steps + self.skipped)
        left *= self.last - self.last_step
        self.text = f"loss {sums.loss / max(sums.weight, 1):.4f}, left {duration(left)}"

    def write(self, log: RunLog) -> None:
        """Record and print the window, and begin the next one."""
        values = self.take()
        log.record(self.last_step, "train", values)
        log.say(self.line(values, log.width))

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
            "samples_too_long": self.samples_too_long,
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

    def line(self, values: dict[str, float], width: int = 0) -> str:
        """Format the values as a log line, of at most `width` characters if possible.

        A line that is too long loses the parts that tell the least; metrics.jsonl has
        all of them.
        """
        unit = self.task.objective.unit
        parts = [f"step {self.last_step:>6}", *in_words(values).split("  ")]
        parts += [f"{n} {values[n]:.4f}" for n in self.metrics if n in values]
        parts.append(f"lr {values['learning_rate']:.2e}")
        if "grad_norm" in values:
            parts.append(f"|grad| {values['grad_norm']:.3f}")
        if "skipped" in values:
            parts.append(f"skipped {values['skipped']}")
        parts.append(f"{values[f'{unit}_per_second']:,.0f} {unit}/s")
        if "padding" in values:
            parts.append(f"padding {values['padding']:.0%}")
        if "mfu" in values:
            parts.append(f"MFU {values['mfu']:.1%}")
        parts.append(f"left {duration(values['seconds_left'])}")
        if "slowest_process" in values:
            name = hosts.name_of(int(values["slowest_process"]))
            factor = values["slowest_factor"]
            parts.append(f"slowest {name}, {factor:.1f} × the median")
        for name in LEAST_FIRST if width else ():
            if len("  ".join(parts)) > width:
                parts = [part for part in parts if not part.startswith(name)]
        return "  ".join(parts)


def find_slowest(busy: float, waited: float) -> tuple[int, float] | None:
    """Return (process, multiple of the median) for a host much slower than the others.

    All processes finish a step together, so the time that each did not wait for its
    devices is compared. It must be a good part of the window to slow down others.
    """
    if jax.process_count() == 1:
        return None
    own = np.array([busy, waited], np.float32)
    seconds, rest = hosts.gather_numbers(own).T
    slowest = int(seconds.argmax())
    total = float(seconds[slowest] + rest[slowest])
    factor = float(seconds[slowest] / max(statistics.median_low(seconds), 1e-9))
    if total < BRIEF or seconds[slowest] < PART * total or factor <= SLOW:
        return None
    return slowest, round(factor, 2)
