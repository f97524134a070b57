"""Save and restore a training's state by Orbax, with our own retention and signature.

Saving is asynchronous and atomic: a step's folder appears under its name only when
whole and signed. Orbax alone would delete the resume point when it keeps the best, and
would restore flipped bits without a word; here the newest n and the best k are both
kept, and what is restored must have the fingerprints that were saved with it.
"""

import gc
import logging
import math
import pathlib
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers as policies

from transformer_jax import hosts
from transformer_jax.errors import UserError
from transformer_jax.runs import signature
from transformer_jax.runs.signature import Identity
from transformer_jax.sharding import Params, path_name

logger = logging.getLogger(__name__)


class TrainState(flax.struct.PyTreeNode):
    """All that a step reads and writes. `step` counts the updates applied."""

    step: Any
    params: Any
    opt_state: Any
    key: Any
    ema: Any = None  # a running mean of the parameters, if one is kept


class Damaged(Exception):
    """A checkpoint that must not be used, and why."""


class Checkpoints:
    """The checkpoints of one folder, by step.

    Only a `writer` saves, deletes old steps and clears what a killed one left half
    made. To a reader that is a save in progress: it changes nothing. An `identity` is
    signed with what is saved, and refuses to restore what has another one.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        keep_last: int = 1,
        keep_best: int = 0,
        writer: bool = False,
        identity: Identity | None = None,
    ):
        # Its warnings and progress belong to another audience than this run's log.
        logging.getLogger("absl").setLevel(logging.ERROR)
        self.folder, self.identity = pathlib.Path(folder).absolute(), identity
        keep: list[policies.PreservationPolicy] = [policies.LatestN(keep_last)]
        if keep_best:
            keep.append(
                policies.BestN(
                    get_metric_fn=_score,
                    n=keep_best,
                    keep_checkpoints_without_metrics=False,
                )
            )
        self._options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy(keep),
            best_fn=_score,
            best_mode="max",
            create=writer,
            cleanup_tmp_directories=writer,
            read_only=not writer,
        )
        self._opened: ocp.CheckpointManager | None = None

    @property
    def _manager(self) -> ocp.CheckpointManager:
        if self._opened is None:
            self._opened = ocp.CheckpointManager(self.folder, options=self._options)
        return self._opened

    def steps(self) -> list[int]:
        """List the whole checkpoints, oldest first; an empty folder is none."""
        found = self.folder.glob("[0-9]*/_CHECKPOINT_METADATA")
        return sorted(int(f.parent.name) for f in found if f.parent.name.isdigit())

    def best_step(self) -> int | None:
        """Return the step of the best score; None if none was scored."""
        scores = {s: self._manager.metrics(s) for s in self.steps()}
        ranked = [(m["score"], -s) for s, m in scores.items() if m]
        return -max(ranked)[1] if ranked else None

    def save(self, step: int, state: TrainState, score: float | None = None) -> None:
        """Begin to save a state; a score that is not finite never ranks."""
        rest = {"step": state.step, "opt_state": state.opt_state, "key": state.key}
        items = {"params": state.params, "rest": rest}
        if state.ema is not None:
            items["ema"] = state.ema
        self._save(step, items, score)

    def save_params(self, step: int, params: Params) -> None:
        """Begin to save parameters without the rest of a state."""
        self._save(step, {"params": params}, None)

    def _save(self, step: int, items: dict[str, Any], score: float | None) -> None:
        found = {name: signature.examine(item) for name, item in items.items()}
        if bad := [f"{name}/{bad}" for name, f in found.items() for bad in f.bad]:
            raise UserError(
                f"step {step}: {bad[0]} is not finite any more. Nothing of it was "
                "saved; lower optim.constant, lengthen optim.warmup_steps or set "
                "optim.clip_norm, and start again"
            )
        arrays = {name: findings.fingerprints for name, findings in found.items()}
        signed = {"step": step, "arrays": arrays}
        signed |= self.identity.content if self.identity else {}
        self.wait()
        rankable = score is not None and math.isfinite(score)
        saved: dict[str, Any] = {
            name: ocp.args.StandardSave(item) for name, item in items.items()
        }
        saved[signature.ITEM] = ocp.args.JsonSave(signed)
        self._manager.save(
            step,
            args=ocp.args.Composite(**saved),
            metrics={"score": score} if rankable else None,
            force=True,
        )
        logger.debug("saving     %s", self.folder / str(step))

    def wait(self) -> None:
        """Wait until what was saved is whole."""
        if self._opened is not None:
            self._opened.wait_until_finished()

    def restore(self, step: int, like: TrainState) -> TrainState:
        """Restore the state at a step, placed as `like` (abstract, with shardings).

        A running mean that is wanted only since then begins with the parameters.
        """
        rest = {"step": like.step, "opt_state": like.opt_state, "key": like.key}
        wanted = {"params": like.params, "rest": rest}
        if like.ema is not None and (self.folder / str(step) / "ema").is_dir():
            wanted["ema"] = like.ema
        found = self._restore(step, wanted)
        state = TrainState(**found.pop("rest"), **found)
        if int(state.step) != step:
            raise Damaged(
                f"{self.folder / str(step)}: it is a copy of step {state.step}"
            )
        if like.ema is not None and state.ema is None:
            state = state.replace(ema=jax.tree.map(jnp.copy, state.params))
        return state

    def restore_params(self, step: int, like: Any, name: str = "params") -> Params:
        """Restore the parameters, or (`ema`) their running mean."""
        return self._restore(step, {name: like})[name]

    def _restore(self, step: int, items: dict[str, Any]) -> dict[str, Any]:
        folder = self.folder / str(step)
        # Process 0 alone looks: a disk may show the others something else.
        signed, damage = hosts.decide_in_first(lambda: self._look(step))
        if damage:
            raise Damaged(f"{folder}: {damage}")
        # All open the folder, as Orbax wants it; process 0's finding counts.
        difference = self._find_difference(step, items)
        if difference := hosts.broadcast_from_first(difference):
            raise UserError(
                f"{folder} does not fit this config: {difference}. Continue the run "
                "with the config it was trained with, or use another --workdir"
            )
        asked = signature.as_signed(items, signed)
        try:
            restored = self._manager.restore(
                step,
                args=ocp.args.Composite(
                    **{name: ocp.args.StandardRestore(x) for name, x in asked.items()}
                ),
            )
            problem = ""
        except Exception as error:  # Orbax raises many kinds, pages long: keep one line
            problem = str(error).strip().split("\n")[0][:200] or "error"
            logger.debug("%s cannot be restored", folder, exc_info=True)
        if problem:
            _drop_coroutines()
        if problems := [line for line in hosts.gather(problem) if line]:
            raise Damaged(f"{folder} cannot be restored: {problems[0]}")
        found = {name: restored[name] for name in items}
        # Each process checks what its own devices have been given.
        problem = signature.find_problem(found, signed)
        if problems := [line for line in hosts.gather(problem) if line]:
            raise Damaged(f"{folder}: {problems[0]}")
        logger.debug("restored   %s (%s)", folder, ", ".join(items))
        return signature.as_asked(found, items)

    def _look(self, step: int) -> tuple[dict[str, Any], str]:
        """Return what a checkpoint was signed with, if at all, and what is wrong."""
        folder = self.folder / str(step)
        if (folder / signature.OLD).exists():
            changed = ", ".join(signature.changed_files(folder)[:3])
            return {}, f"{changed} changed since it was saved" if changed else ""
        if not (folder / signature.ITEM).exists():
            logger.warning("warning    %s is not signed: nobody can check it", folder)
            return {}, ""
        try:
            item = epath.Path(folder / signature.ITEM)
            signed = dict(ocp.JsonCheckpointHandler().restore(item))
            other, difference = signed["step"], ""
            if self.identity:
                difference = self.identity.find_difference(signed)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return {}, f"its {signature.ITEM} changed since it was saved"
        if difference:
            raise UserError(f"{folder} {difference}")
        return signed, f"it is a copy of step {other}" if other != step else ""

    def _find_difference(self, step: int, items: dict[str, Any]) -> str:
        """Name the first array that has another shape than is asked for."""
        handler = ocp.StandardCheckpointHandler()
        for item, like in items.items():
            try:
                stored = handler.metadata(self._manager.directory / str(step) / item)
            except Exception:  # any damage: restoring it will say of which kind
                return ""
            found, wanted = _shapes(stored.tree), _shapes(like)
            for name in [*wanted, *found]:
                there, here = (s.get(name, "nothing") for s in (found, wanted))
                if there != here:
                    return f"{item}/{name} is {there} there, but {here} by the config"
        return ""

    def set_aside(self, step: int) -> pathlib.Path:
        """Move a damaged checkpoint out of the way of the one that replaces it."""
        self.close()  # a manager remembers the steps that it found
        aside = self.folder.parent / "damaged" / f"{self.folder.name}-{step}"
        if jax.process_index() == 0:
            aside.parent.mkdir(exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)
            (self.folder / str(step)).rename(aside)
        hosts.broadcast_from_first(None)  # no other process may see it there any more
        return aside

    def close(self) -> None:
        """Finish what is being saved, and let go of the folder."""
        if self._opened is not None:
            self.wait()
            self._manager.close()
            self._opened = None


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


def average(checkpoints: Checkpoints, steps: Sequence[int], like: Any) -> Params:
    """Return the mean of the parameters at several steps (the paper takes 5)."""
    add = jax.jit(lambda a, b: jax.tree.map(lambda x, y: x + y, a, b), donate_argnums=0)
    total = checkpoints.restore_params(steps[0], like)
    for step in steps[1:]:
        total = add(total, checkpoints.restore_params(step, like))
    divide = jax.jit(lambda a: jax.tree.map(lambda x: x / len(steps), a))
    return divide(total)


def _drop_coroutines() -> None:
    """Drop what is left of a failed restore, before it complains at an odd time."""
    complain, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        gc.collect()
    finally:
        sys.unraisablehook = complain


def _score(metrics: dict[str, float]) -> float:
    return metrics["score"]


def _shapes(tree: Any) -> dict[str, Any]:
    """Return the shape of each leaf, and of each node without any, by its path."""

    def shape(leaf):
        kind = getattr(leaf, "dtype", None)
        if kind is not None and jnp.issubdtype(kind, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, leaf)  # as it is stored
        return getattr(leaf, "shape", "empty")

    leaves = jax.tree_util.tree_leaves_with_path(
        tree, is_leaf=lambda x: not jax.tree.leaves(x)
    )
    return {path_name(path): shape(leaf) for path, leaf in leaves}
