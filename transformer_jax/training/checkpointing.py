"""Decide when a training saves its state, where, and from which save it continues.

Regular checkpoints are averaged, ranked and thinned out. The one that a preemption
leaves, or that is saved because of the time, counts for none of that: else a run that
was stopped, or is slow, would end otherwise.
"""

import time
from collections.abc import Sequence

from ml_collections import ConfigDict

from transformer_jax import hosts
from transformer_jax.errors import UserError
from transformer_jax.runs.checkpoint import Checkpoints, Damaged, TrainState
from transformer_jax.runs.folder import Folder


class Saver:
    """The checkpoints of a training: the regular ones, and the newest in between."""

    def __init__(self, config: ConfigDict, folder: Folder):
        kept, identity = config.checkpoint, folder.identity(config)
        self._folder = folder
        self.every, self.last = kept.every, config.train.steps
        self._seconds, self._saved = 60 * kept.minutes, time.monotonic()
        self._look_every = config.log.every
        self.regular = Checkpoints(
            folder.checkpoints, kept.keep_last, kept.keep_best, True, identity
        )
        self.emergency = Checkpoints(folder.preempted, writer=True, identity=identity)

    def due(self, step: int) -> bool:
        """Return whether a regular checkpoint is saved after this step."""
        return step % self.every == 0 or step == self.last

    def overdue(self, step: int) -> bool:
        """Return whether nothing was saved for `checkpoint.minutes`; all agree.

        The clock of process 0 counts. As the others must ask for it, they do so only
        after the steps that have a log line.
        """
        if not self._seconds or step % self._look_every:
            return False
        late = time.monotonic() - self._saved >= self._seconds
        return hosts.broadcast_from_first(late)

    def restore(self, like: TrainState) -> tuple[int, TrainState, list[str]] | None:
        """Restore the newest good checkpoint; see `restore_newest`."""
        self.regular.clear()
        self.emergency.clear()
        return restore_newest([self.regular, self.emergency], like)

    def save(self, step: int, state: TrainState) -> None:
        """Begin to save a regular checkpoint."""
        self._folder.push()  # the entries that a continued run is to find
        self.regular.save(step, state)
        self._saved = time.monotonic()

    def save_between(self, step: int, state: TrainState) -> None:
        """Begin to save a checkpoint that only this run's continuation looks at."""
        self._folder.push()
        self.emergency.save(step, state)
        self._saved = time.monotonic()

    def save_preempted(self, step: int, state: TrainState) -> None:
        """Save before the process is stopped, unless a regular checkpoint is there."""
        self._folder.push()
        if not self.due(step):
            self.emergency.save(step, state)
        self.wait()

    def check(self) -> None:
        """Stop the run if what was being saved could not be: a disk is full."""
        self.regular.check()
        self.emergency.check()

    def wait(self) -> None:
        """Wait until all that is being saved is whole."""
        self.regular.wait()
        self.emergency.wait()

    def close(self) -> None:
        """Finish what is being saved."""
        self.regular.close()
        self.emergency.close()


def restore_newest(
    places: Sequence[Checkpoints], like: TrainState
) -> tuple[int, TrainState, list[str]] | None:
    """Restore the newest good checkpoint: (step, state, what was passed over).

    What is damaged is kept, but moved away, as its step will be saved again.
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
            "no checkpoint can be read: move the run directory away to start anew",
            *damaged,
        )
    return None
