"""Handle non-finite losses and gradients according to `train.on_divergence`.

    stop   end the run; its last checkpoint is from before
    skip   leave the parameters as before the batch, and go on with the next batch
    back   return to the last checkpoint, and go on from there at half the rate

Each event is logged and recorded, with the parameters whose gradient is not finite and
the examples of the batch. A run that is killed and continued meets the same events, so
its result is bit-identical; the change made by `back` is kept in the run's config
(`optim.lowered`).
"""

import copy
import json
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from transformer_jax import hosts
from transformer_jax.data import store as stores
from transformer_jax.runs.checkpoint import NotFinite, TrainState
from transformer_jax.sharding import by_path
from transformer_jax.training.parts import StepOutcome, Training

LOWER = 0.5  # the factor of the learning rate after each return
SHOWN = 3  # names in a message; FILE has all
FILE = "divergences.jsonl"


def keep_if_finite(
    old: TrainState, new: TrainState, updates: Any, outcome: StepOutcome
) -> tuple[TrainState, StepOutcome]:
    """Return the new state if it is finite, otherwise the old one at the next step.

    The optimizer counts the updates applied, which therefore determine the rate.
    """
    sizes = [outcome.sums.loss, outcome.grad_norm, optax.tree.norm(updates)]
    good = jnp.isfinite(jnp.stack([jnp.float32(size) for size in sizes])).all()
    found = jax.tree.map(
        lambda a, b: jnp.where(good, b, a),
        (old.params, old.opt_state, old.ema),
        (new.params, new.opt_state, new.ema),
    )
    params, opt_state, ema = found
    applied = optax.tree.get_all_with_path(opt_state, "count")[0][1]
    state = new.replace(params=params, opt_state=opt_state, ema=ema)
    return state, outcome.replace(good=good, applied=applied)


class Divergence:
    """How a training run handles and reports non-finite losses and gradients."""

    def __init__(self, training: Training):
        self.training, self.in_sequence = training, 0
        settings = training.config.train
        self.most = settings.divergences if settings.on_divergence == "skip" else 0

    def note_finite(self) -> None:
        """Note a finite step."""
        self.in_sequence = 0

    def report(self, step: int, loss: float, norm: float, squares: np.ndarray) -> None:
        """Report a non-finite step; raise unless its batch was skipped."""
        self.in_sequence += 1
        places = self._list_examples(step)
        names = name_parameters(self.training.abstract.params, squares)
        self._write(step, loss, norm, names, places)
        about = [
            f"step {step}: {in_words(names, len(squares))}",
            f"step {step}: its batch has {len(places)} examples: "
            f"{_first(places)} ({FILE} has all)",
        ]
        what = f"step {step}: the loss is {loss} and the gradient norm {norm}"
        if self.in_sequence <= self.most:
            for line in [f"{what}: the batch is left out", *about]:
                self.training.log.say(f"skipped    {line}")
            return
        skipped = f"{self.most} batches before it were skipped. " if self.most else ""
        raise NotFinite(
            f"{what}. {skipped}The step was not saved; lower the rate "
            "(optim.learning_rate or optim.constant), lengthen optim.warmup_steps or "
            "set optim.clip_norm, and start again",
            *about,
        )

    def _list_examples(self, step: int) -> list[str]:
        """List the places in the data of the examples in a step's batch."""
        plan = copy.copy(self.training.feed.plan)  # a thread is using the original
        store, records = self.training.feed.store, self.training.prepared.train.records
        numbers = store.column(stores.RECORD)[plan.batch(index=step - 1).real]
        return [records.where(int(number)) for number in numbers]

    def _write(
        self, step: int, loss: float, norm: float, names: list[str], places: list[str]
    ) -> None:
        if not self.training.log.active:
            return
        entry = {"step": step, "loss": str(loss), "gradient_norm": str(norm)}
        entry |= {"not_finite": names, "examples": places}
        with (self.training.folder.path / FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")


def name_parameters(params: Any, squares: np.ndarray) -> list[str]:
    """Name the parameters whose gradient is not finite, those next to the loss first.

    If the problem began in the backward pass, it began there.
    """
    sizes = zip(by_path(params), squares, strict=True)
    bad = [name for name, size in sizes if not math.isfinite(size)]
    return sorted(bad, key=_depth)


def in_words(names: list[str], count: int) -> str:
    """Describe which gradients are not finite."""
    if not names:
        return "the gradients are finite"
    which = f"all {count}" if len(names) == count else f"{len(names)} of {count}"
    return f"the gradients of {which} parameters are not finite: {_first(names)}"


def _depth(name: str) -> tuple[int, int]:
    """Rank a parameter by how late the backward pass reaches it."""
    stages = {"encoder": 1, "embedding": 2, "source_embedding": 2}
    layer = re.search(r"layer_(\d+)", name)
    return stages.get(name.partition("/")[0], 0), -int(layer[1]) if layer else -(10**9)


def _first(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def go_back(training: Training, error: NotFinite) -> ConfigDict:
    """Return the config to continue with from the last checkpoint.

    Raise the error if the run does not go back, or has done so too often.
    """
    config, settings = copy.deepcopy(training.config), training.config.train
    done = len(config.optim.lowered)
    if settings.on_divergence != "back" or done >= settings.divergences:
        raise error
    training.saver.wait()
    saver = training.saver
    begin = hosts.decide_in_first(
        lambda: max([0, *saver.regular.steps(), *saver.emergency.steps()])
    )
    config.optim.lowered = (*config.optim.lowered, (begin, LOWER))
    for line in error.problems:
        training.log.say(f"diverged   {line}")
    training.log.say(
        f"back       to step {begin:,}, from there on {LOWER} times the rate "
        f"({done + 1} of at most {settings.divergences} times)"
    )
    if training.log.active:
        training.folder.note_start(config)
    return config
