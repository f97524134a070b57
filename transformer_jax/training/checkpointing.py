"""Decide when and where a training run saves its state, and where it continues.

Regular checkpoints are averaged, ranked and thinned out. A checkpoint saved because of
a preemption or the time is not, because otherwise a run that was stopped, or is slow,
would give other results.
"""

import time
from collections.abc import Sequence

from ml_collections import ConfigDict

from transformer_jax import hosts
from transformer_jax.base.errors import UserError
from transformer_jax.runs.checkpoint import Checkpoints, Damaged, TrainState
from transformer_jax.runs.folder import Folder


class Saver:
    """The checkpoints of a training run: regular ones, and the newest in between."""

    def __init__(self, config: ConfigDict, folder: Folder):
        """Open both folders of checkpoints, which carry the run's identity."""
        settings, identity = config.checkpoint, folder.identity(config)
        self._folder = folder
        self.every, self.last = settings.every, config.train.steps
        self._seconds, self._saved = 60 * settings.minutes, time.monotonic()
        self._look_every = config.log.every
        self.regular = Checkpoints(
            folder.checkpoints,
            settings.keep_last,
            settings.keep_best,
            writer=True,
            identity=identity,
            regular=self.saves_at,
        )
        self.emergency = Checkpoints(folder.preempted, writer=True, identity=identity)

    def saves_at(self, step: int) -> bool:
        """Return whether a regular checkpoint is saved after this step."""
        return step % self.every == 0 or step == self.last

    def too_long_since_save(self, step: int) -> bool:
        """Return whether nothing was saved for `checkpoint.minutes`; all agree.

        The clock of process 0 decides. Because the others must ask it, they do so only
        after the steps that have a log line.
        """
        if not self._seconds or step % self._look_every:
            return False
        late = time.monotonic() - self._saved >= self._seconds
        return hosts.broadcast_from_first(late)

    def restore(self, like: TrainState) -> tuple[int, TrainState, list[str]] | None:
        """Restore the newest valid checkpoint; see `restore_newest`."""
        self.regular.clear()
        self.emergency.clear()
        return restore_newest([self.regular, self.emergency], like)

    def save(self, step: int, state: TrainState) -> None:
        """Begin to save a regular checkpoint."""
        self._prepare()
        self.regular.save(step, state)
        self._saved = time.monotonic()

    def save_between(self, step: int, state: TrainState) -> None:
        """Begin to save a checkpoint that is only used to continue this run."""
        self._prepare()
        self.emergency.save(step, state)
        self._saved = time.monotonic()

    def save_preempted(self, step: int, state: TrainState) -> None:
        """Save before the process stops, unless a regular checkpoint was saved."""
        self._prepare()
        if not self.saves_at(step):
            self.emergency.save(step, state)
        self.wait()

    def _prepare(self) -> None:
        hosts.decide_in_first(self._folder.check_there)
        self._folder.push()  # the log entries up to here, for a continued run

    def check(self) -> None:
        """Raise if an asynchronous save has failed, for instance on a full disk."""
        self.regular.check()
        self.emergency.check()

    def wait(self) -> None:
        """Wait until all saves are complete."""
        self.regular.wait()
        self.emergency.wait()

    def close(self) -> None:
        """Finish all saves."""
        self.regular.close()
        self.emergency.close()


def restore_newest(
    places: Sequence[Checkpoints], like: TrainState
) -> tuple[int, TrainState, list[str]] | None:
    """Restore the newest valid checkpoint: (step, state, notes on damaged ones).

    Damaged checkpoints are moved aside, because their steps will be saved again.
    """
    numbers = [(s, i) for i, place in enumerate(places) for s in place.steps()]
    numbers = hosts.broadcast_from_first(sorted(numbers, key=lambda n: (-n[0], n[1])))
    found = [(step, places[i]) for step, i in numbers]
    damaged: list[str] = []
    for i, (step, place) in enumerate(found):
        try:
            state = place.restore(step, like)
        except Damaged as error:
            damaged.append(str(error))
            continue
        for bad_step, bad_place in found[:i]:
            damaged.append(f"kept as {bad_place.set_aside(bad_step)}")
        return step, state, damaged
    if damaged:
        raise UserError(
            "no checkpoint can be read: move the run directory away to start afresh",
            *damaged,
        )
    return None
