"""Save and restore a training's state by Orbax, with our own retention and signature.

Saving is asynchronous and atomic: a step's folder appears under its name only when
whole and signed. Orbax alone would delete the resume point when it keeps the best, and
would restore flipped bits without a word; here the newest n and the best k are both
kept, and what is restored must have the fingerprints that were saved with it.
"""

import contextlib
import gc
import logging
import math
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath

from transformer_jax import cli, hosts
from transformer_jax.errors import UserError
from transformer_jax.runs import signature, steps
from transformer_jax.runs.remote import is_remote, move_aside
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


class NotFinite(UserError):
    """Numbers of a training that are not finite: they are never saved."""


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
        folder: Any,
        keep_last: int = 1,
        keep_best: int = 0,
        writer: bool = False,
        identity: Identity | None = None,
    ):
        # Its messages belong to another audience; what it raises is said here.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        self.folder, self.identity = folder, identity
        if not is_remote(folder):
            self.folder = pathlib.Path(folder).absolute()
        self._keep_last, self._keep_best = keep_last, keep_best
        self._scores: dict[int, float] = {}  # of a writer's checkpoints
        self._options = ocp.CheckpointManagerOptions(
            preservation_policy=_Keeps(self.choose_kept),
            create=writer,
            cleanup_tmp_directories=writer,
            read_only=not writer,
        )
        self._opened: ocp.CheckpointManager | None = None
        self._saving: int | None = None  # a step that may not be whole yet

    @property
    def _manager(self) -> ocp.CheckpointManager:
        if self._opened is None:
            if not self._options.read_only:
                self.clear()
                self._scores = dict(hosts.decide_in_first(self._read_scores))
            self._opened = ocp.CheckpointManager(self.folder, options=self._options)
            _hear_no_late_ends(sys.unraisablehook)
        return self._opened

    def steps(self) -> list[int]:
        """List the whole checkpoints, oldest first; an empty folder is none."""
        return steps.list_whole(self.folder)

    def clear(self) -> None:
        """Move away what is no checkpoint, before it is in the way of one."""
        hosts.decide_in_first(lambda: steps.clear(self.folder))
        hosts.decide_in_first(lambda: steps.clear_scores(self.folder))

    def best_step(self) -> int | None:
        """Return the step of the best score; None if none was scored."""
        ranked = [(score, -step) for step, score in self._read_scores()]
        return -max(ranked)[1] if ranked else None

    def _read_scores(self) -> list[tuple[int, float]]:
        """Read how checkpoints were scored, those whose score can be read."""
        found = [(s, steps.read_score(self.folder / str(s))) for s in self.steps()]
        return [(step, about["score"]) for step, about in found if about]

    def choose_kept(self, found: Sequence[int]) -> set[int]:
        """Choose which of these steps are kept: the newest and the best."""
        ranked = [step for step in found if step in self._scores]
        ranked.sort(key=lambda step: (-self._scores[step], step))
        return {*sorted(found)[-self._keep_last :], *ranked[: self._keep_best]}

    def save(self, step: int, state: TrainState) -> None:
        """Begin to save a state."""
        rest = {"step": state.step, "opt_state": state.opt_state, "key": state.key}
        items = {"params": state.params, "rest": rest}
        if state.ema is not None:
            items["ema"] = state.ema
        self._save(step, items)

    def score(self, step: int, score: float) -> None:
        """Note how a checkpoint was scored, and delete those that are kept no longer.

        It is saved by then: an evaluation takes long, and what it scores must outlive
        a kill. A score that is not finite never ranks.
        """
        self.wait()
        if not math.isfinite(score) or step not in self._manager.all_steps():
            return
        place = self.folder / str(step)
        hosts.decide_in_first(lambda: steps.write_score(place, score))
        self._scores[step] = score
        found = self._manager.all_steps()
        for old in sorted({*found} - self.choose_kept(found)):
            self._manager.delete(old)

    def save_params(self, step: int, params: Params, of: Sequence[int] = ()) -> None:
        """Begin to save parameters without the rest of a state: the mean of steps."""
        self._save(step, {"params": params}, {"averaged": list(of)})

    def averaged_steps(self, step: int) -> list[int]:
        """Return the steps whose mean was saved; [] if that was not written down."""
        signed, _ = hosts.decide_in_first(lambda: self._look(step))
        return signed.get("averaged", [])

    def _save(
        self,
        step: int,
        items: dict[str, Any],
        about: dict[str, Any] | None = None,
    ) -> None:
        found = {name: signature.examine(item) for name, item in items.items()}
        if bad := [f"{name}/{bad}" for name, f in found.items() for bad in f.bad]:
            raise NotFinite(
                f"step {step}: {bad[0]} is not finite any more. Nothing of it was "
                "saved; lower optim.constant, lengthen optim.warmup_steps or set "
                "optim.clip_norm, and start again"
            )
        arrays = {name: findings.fingerprints for name, findings in found.items()}
        signed = {"step": step, "arrays": arrays, **(about or {})}
        signed |= self.identity.content if self.identity else {}
        self.wait()
        saved: dict[str, Any] = {
            name: ocp.args.StandardSave(item) for name, item in items.items()
        }
        saved[signature.ITEM] = ocp.args.JsonSave(signed)
        with self._said_plainly(step):
            self._manager.save(step, args=ocp.args.Composite(**saved), force=True)
        self._saving = step
        logger.debug("saving     %s", self.folder / str(step))

    def wait(self) -> None:
        """Wait until what was saved is whole."""
        if self._opened is not None and self._saving is not None:
            step, self._saving = self._saving, None
            with self._said_plainly(step):
                self._opened.wait_until_finished()

    def check(self) -> None:
        """Stop the run if what was being saved could not be, without waiting for it."""
        if self._saving is None or jax.process_count() > 1:
            return
        if not self._manager.is_saving_in_progress():
            self.wait()

    @contextlib.contextmanager
    def _said_plainly(self, step: int) -> Iterator[None]:
        """Say in one line that a disk is full; leave nothing half made behind."""
        try:
            yield
        except Exception as error:  # Orbax raises what its storage does, pages long
            words = str(error)
            if isinstance(error, UserError) or not (why := _find_reason(words)):
                raise
            logger.debug("step %d cannot be saved", step, exc_info=True)
        else:
            return
        self._saving = None
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it is said below
        if jax.process_index() == 0:
            steps.remove_half_made(self.folder, step)
        _drop_coroutines()
        kept = f"step {self.steps()[-1]} is kept" if self.steps() else "none was before"
        raise UserError(
            f"step {step} cannot be saved in {self.folder}: {why}. Of the checkpoints "
            f"{kept}; make room, and start the same command again to continue"
        )

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

    def set_aside(self, step: int) -> Any:
        """Move a damaged checkpoint out of the way of the one that replaces it."""
        self.close()  # a manager remembers the steps that it found
        bad, place = self.folder / str(step), self.folder.parent / steps.DAMAGED

        def move() -> str:
            return str(move_aside(bad, place, f"{self.folder.name}-{step}"))

        moved = hosts.decide_in_first(move)  # and no other sees it there
        return type(self.folder)(moved)

    def close(self) -> None:
        """Finish what is being saved, and let go of the folder."""
        if self._opened is not None:
            self.wait()
            self._manager.close()
            self._opened = None


class _Keeps:
    """Say in Orbax's way which checkpoints are kept."""

    def __init__(self, choose: Callable[[Sequence[int]], set[int]]):
        self.choose = choose

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any):
        kept = self.choose([checkpoint.step for checkpoint in checkpoints])
        return [checkpoint.step in kept for checkpoint in checkpoints]


def _drop_coroutines() -> None:
    """Drop what is left of a failed restore, before it complains at an odd time."""
    complain, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        gc.collect()
    finally:
        _hear_no_late_ends(complain)


def _hear_no_late_ends(complain: Callable[[Any], Any]) -> None:
    heard = isinstance(complain, _LateEnds)
    sys.unraisablehook = complain if heard else _LateEnds(complain)


class _LateEnds:
    """Say nothing of reads and writes that end when another has closed their loop."""

    def __init__(self, complain: Callable[[Any], Any]):
        self.complain = complain

    def __call__(self, problem: Any) -> None:
        if str(problem.exc_value) != "Event loop is closed":
            self.complain(problem)


def _find_reason(words: str) -> str:
    """Find in the message of an error what only the owner of the disk can mend."""
    reasons = [os.strerror(number) for number in cli.OF_THE_MACHINE]
    return next((reason for reason in reasons if reason in words), "").lower()


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
