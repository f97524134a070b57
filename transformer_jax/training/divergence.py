"""Meet numbers that are not finite, as `train.on_divergence` says.

    stop   end the run: its last checkpoint is from before
    skip   keep the parameters as they were before the batch, and go on with the next
    back   begin again at the last checkpoint, from there on at half the rate

Each is said and written down with the parameters whose gradient is not finite and the
examples of the batch. A run that is killed meets the same again, so it ends in the same
bits; what `back` has changed is kept in the run's config (`optim.lowered`).
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
from transformer_jax.runs.folder import Folder
from transformer_jax.sharding import path_name

LOWER = 0.5  # times the rate, after each way back
SHOWN = 3  # names in a message; all are in FILE
FILE = "divergences.jsonl"


def keep_if_finite(
    old: TrainState, new: TrainState, updates: Any, outcome: dict[str, Any]
) -> tuple[TrainState, dict[str, Any]]:
    """Return the new state, or the old one at the next step if anything is not finite.

    The optimizer counts the updates that were applied, and so sets the rate by them.
    """
    sizes = [outcome["sums"].loss, outcome["grad_norm"], optax.tree.norm(updates)]
    good = jnp.isfinite(jnp.stack([jnp.float32(size) for size in sizes])).all()
    found = jax.tree.map(
        lambda a, b: jnp.where(good, b, a),
        (old.params, old.opt_state, old.ema),
        (new.params, new.opt_state, new.ema),
    )
    params, opt_state, ema = found
    applied = optax.tree.get_all_with_path(opt_state, "count")[0][1]
    state = new.replace(params=params, opt_state=opt_state, ema=ema)
    return state, {**outcome, "good": good, "applied": applied}


class Divergence:
    """What a training does when numbers are not finite, and what it says of them."""

    def __init__(self, run: Any):
        """Watch a training (`train.Training`)."""
        self.run, self.in_sequence = run, 0
        settings = run.config.train
        self.most = settings.divergences if settings.on_divergence == "skip" else 0

    def pass_by(self) -> None:
        """Note that a step went well."""
        self.in_sequence = 0

    def meet(self, step: int, loss: float, norm: float, squares: np.ndarray) -> None:
        """Note a step that did not; raise unless its batch has been skipped."""
        self.in_sequence += 1
        places = self._list_examples(step)
        names = name_parameters(self.run.abstract.params, squares)
        self._write(step, loss, norm, names, places)
        about = [
            f"step {step}: {in_words(names, len(squares))}",
            f"step {step}: its batch has {len(places)} examples: "
            f"{_first(places)} ({FILE} has all)",
        ]
        what = f"step {step}: the loss is {loss} and the gradient norm {norm}"
        if self.in_sequence <= self.most:
            for line in [f"{what}: the batch is left out", *about]:
                self.run.log.say(f"skipped    {line}")
            return
        skipped = f"{self.most} batches before it were skipped. " if self.most else ""
        raise NotFinite(
            f"{what}. {skipped}Nothing of it was saved; lower optim.constant, lengthen "
            "optim.warmup_steps or set optim.clip_norm, and start again",
            *about,
        )

    def _list_examples(self, step: int) -> list[str]:
        """Name the places in the data that the batch of a step was made of."""
        plan = copy.copy(self.run.feed.plan)  # a thread works ahead with the other
        store, records = self.run.feed.store, self.run.prepared.train.records
        numbers = store.column(stores.RECORD)[plan.batch(step - 1).real]
        return [records.where(int(number)) for number in numbers]

    def _write(self, step, loss, norm, names, places) -> None:
        if not self.run.log.active:
            return
        entry = {"step": step, "loss": str(loss), "gradient_norm": str(norm)}
        entry |= {"not_finite": names, "examples": places}
        with (self.run.folder.path / FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")


def name_parameters(params: Any, squares: np.ndarray) -> list[str]:
    """Name the parameters whose gradient is not finite, the nearest to the loss first.

    That is where it began, if it began in the backward pass.
    """
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    bad = [n for n, size in zip(names, squares, strict=True) if not math.isfinite(size)]
    return sorted(bad, key=_depth)


def in_words(names: list[str], count: int) -> str:
    """Say which gradients are not finite."""
    if not names:
        return "the gradients are finite"
    which = f"all {count}" if len(names) == count else f"{len(names)} of {count}"
    return f"the gradients of {which} parameters are not finite: {_first(names)}"


def _depth(name: str) -> tuple[int, int]:
    """Rank a parameter by how late the gradient comes to it."""
    stages = {"encoder": 1, "embedding": 2, "source_embedding": 2}
    layer = re.search(r"layer_(\d+)", name)
    return stages.get(name.partition("/")[0], 0), -int(layer[1]) if layer else -(10**9)


def _first(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def go_back(run: Any, error: NotFinite) -> ConfigDict:
    """Return the config with which a training goes on at its last checkpoint.

    Raise the error if it is not to, or has done so too often.
    """
    config, settings = copy.deepcopy(run.config), run.config.train
    done = len(config.optim.lowered)
    if settings.on_divergence != "back" or done >= settings.divergences:
        raise error
    run.saver.wait()
    saver = run.saver
    begin = hosts.decide_in_first(
        lambda: max([0, *saver.regular.steps(), *saver.emergency.steps()])
    )
    config.optim.lowered = (*config.optim.lowered, (begin, LOWER))
    for line in error.problems:
        run.log.say(f"diverged   {line}")
    run.log.say(
        f"back       to step {begin:,}, from there on {LOWER} times the rate "
        f"({done + 1} of at most {settings.divergences} times)"
    )
    if run.log.active:
        run.folder.note_start(config)
    return config


def settle(config: ConfigDict, folder: Folder) -> ConfigDict:
    """Take over how the rate of a run was lowered before it was stopped."""

    def read() -> list:
        stored = folder.stored_config() or {}
        optim = stored.get("optim")
        found = optim.get("lowered") if isinstance(optim, dict) else None
        return found if isinstance(found, list) else []

    if not config.optim.lowered:
        found = hosts.decide_in_first(read)
        config = copy.deepcopy(config)
        config.optim.lowered = tuple(
            tuple(pair) if isinstance(pair, list) else pair for pair in found
        )
    return config
