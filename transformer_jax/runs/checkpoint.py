"""Save and restore training states with Orbax, with our own retention and signatures.

Saving is asynchronous and atomic: the folder of a step gets its name only when it is
complete and signed. Orbax alone would delete the resume point when it keeps the best,
and would silently restore flipped bits. Here both the newest n and the best k
checkpoints are kept, and restored arrays must match the fingerprints saved with them.
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

from transformer_jax import cli, hosts
from transformer_jax.base.errors import UserError
from transformer_jax.runs import signature, steps
from transformer_jax.runs.remote import is_remote, move_aside
from transformer_jax.runs.signature import Identity
from transformer_jax.sharding import Params, path_name

logger = logging.getLogger(__name__)


class TrainState(flax.struct.PyTreeNode):
    """Everything that a step reads and writes. `step` counts the updates applied."""

    step: Any
    params: Any
    opt_state: Any
    key: Any
    ema: Any = None  # a running mean of the parameters, if one is kept


class NotFinite(UserError):
    """Raised for non-finite numbers in training, which are never saved."""


class Damaged(Exception):
    """Raised for a checkpoint that must not be used; the message says why."""


class Checkpoints:
    """The checkpoints in one folder, by step.

    Only a `writer` saves, deletes old steps and removes incomplete checkpoints. A
    reader changes nothing, because an incomplete checkpoint may be a save in progress.
    The `identity` is signed with each checkpoint, and one with another identity is not
    restored.
    """

    def __init__(
        self,
        folder: Any,
        keep_last: int = 1,
        keep_best: int = 0,
        writer: bool = False,
        identity: Identity | None = None,
        regular: Callable[[int], bool] = lambda step: True,
    ):
        # Orbax logs for developers through absl; its errors are reported here.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        self.folder, self.identity = folder, identity
        if not is_remote(folder):
            self.folder = pathlib.Path(folder).absolute()
        self._keep_last, self._keep_best = keep_last, keep_best
        self._regular = regular  # whether an undisturbed run saves this step
        self._scores: dict[int, float] = {}  # of a writer's checkpoints
        self._writer = writer
        self._opened: Any = None  # Orbax's manager
        self._saving: int | None = None  # a step that may not be complete yet
        self._inode = 0  # of the folder

    @property
    def _manager(self) -> Any:
        if self._opened is None:
            import orbax.checkpoint as ocp

            if self._writer:
                self.clear()
                self._scores = dict(hosts.decide_in_first(self._read_scores))
            options = ocp.CheckpointManagerOptions(
                preservation_policy=_Keeps(self.choose_kept),
                create=self._writer,
                cleanup_tmp_directories=self._writer,
                read_only=not self._writer,
            )
            self._opened = ocp.CheckpointManager(self.folder, options=options)
            self._inode = self._read_inode()
            _ignore_closed_loops()
        return self._opened

    def steps(self) -> list[int]:
        """List the steps of the complete checkpoints, oldest first."""
        return steps.list_complete(self.folder)

    def clear(self) -> None:
        """Move foreign files aside before they block a checkpoint."""
        hosts.decide_in_first(lambda: steps.set_foreign_aside(self.folder))
        hosts.decide_in_first(lambda: steps.clear_scores(self.folder))

    def best_step(self) -> int | None:
        """Return the step with the best score; None if none was scored."""
        ranked = [(score, -step) for step, score in self._read_scores()]
        return -max(ranked)[1] if ranked else None

    def _read_scores(self) -> list[tuple[int, float]]:
        """Read the scores of the checkpoints, skipping unreadable ones."""
        found = [(s, steps.read_score(self.folder / str(s))) for s in self.steps()]
        return [(step, about["score"]) for step, about in found if about]

    def choose_kept(self, found: Sequence[int]) -> set[int]:
        """Choose which of these steps to keep: the newest and the best.

        The newest always remains. But the step at which the run ended before its end
        was moved takes no place of those that are averaged.
        """
        ranked = [step for step in found if step in self._scores]
        ranked.sort(key=lambda step: (-self._scores[step], step))
        newest = sorted(filter(self._regular, found))[-self._keep_last :]
        return {*sorted(found)[-1:], *newest, *ranked[: self._keep_best]}

    def save(self, step: int, state: TrainState) -> None:
        """Begin to save a state."""
        rest = {"step": state.step, "opt_state": state.opt_state, "key": state.key}
        items = {"params": state.params, "rest": rest}
        if state.ema is not None:
            items["ema"] = state.ema
        self._save(step, items)

    def score(self, step: int, score: float) -> None:
        """Record the score of a saved checkpoint, and delete those no longer kept.

        The checkpoint is saved before it is scored, so that it survives a kill during
        the long evaluation. A non-finite score never ranks.
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

    def save_params(
        self, step: int, params: Params, chosen: Sequence[int], used: Sequence[int]
    ) -> None:
        """Begin to save a mean over chosen steps, of which the intact were used."""
        about = {"chosen": list(chosen), "averaged": list(used)}
        self._save(step, {"params": params}, about)

    def averaged_steps(self, step: int) -> tuple[list[int], list[int]]:
        """Return the steps chosen for a saved mean, and those that were averaged.

        The second list lacks damaged checkpoints. Both are [] if nothing is recorded.
        """
        signed, _ = hosts.decide_in_first(lambda: self._look(step))
        return signed.get("chosen", []), signed.get("averaged", [])

    def _save(
        self,
        step: int,
        items: dict[str, Any],
        about: dict[str, Any] | None = None,
    ) -> None:
        found = {name: signature.examine(item) for name, item in items.items()}
        if bad := [f"{name}/{bad}" for name, f in found.items() for bad in f.bad]:
            raise NotFinite(
                f"step {step}: {bad[0]} is not finite any more. The step was not "
                "saved; lower the rate (optim.learning_rate or optim.constant), "
                "lengthen optim.warmup_steps or set optim.clip_norm, and start again"
            )
        arrays = {name: findings.fingerprints for name, findings in found.items()}
        signed = {"step": step, "arrays": arrays, **(about or {})}
        signed |= self.identity.content if self.identity else {}
        self.wait()
        from orbax.checkpoint import args

        saved: dict[str, Any] = {
            name: args.StandardSave(item) for name, item in items.items()
        }
        saved[signature.ITEM] = args.JsonSave(signed)
        with self._explain_errors(step):
            self._manager.save(step, args=args.Composite(**saved), force=True)
        self._saving = step
        logger.debug("saving     %s", self.folder / str(step))

    def wait(self) -> None:
        """Wait until the last save is complete."""
        if self._opened is not None and self._saving is not None:
            step, self._saving = self._saving, None
            with self._explain_errors(step):
                self._opened.wait_until_finished()

    def check(self) -> None:
        """Raise if the last save has failed, without waiting for it."""
        if self._saving is None or jax.process_count() > 1:
            return
        if not self._manager.is_saving_in_progress():
            self.wait()

    @contextlib.contextmanager
    def _explain_errors(self, step: int) -> Iterator[None]:
        """Report errors such as a full disk in one line, and remove partial files."""
        try:
            yield
        except Exception as error:  # Orbax passes on long errors of its storage
            why = _find_reason(str(error))
            if moved := self._was_moved():
                why = "the run was moved or removed"
            if isinstance(error, UserError) or not why:
                raise
            logger.debug("step %d cannot be saved", step, exc_info=True)
        else:
            return
        self._saving = None
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it is reported below
        if jax.process_index() == 0:
            steps.remove_partial(self.folder, step)
            if moved:  # Orbax made these folders anew
                with contextlib.suppress(OSError):
                    self.folder.rmdir()
                    self.folder.parent.rmdir()
        _drop_coroutines()
        if moved:
            raise UserError(
                f"{self.folder} was moved or removed while step {step} was saved: "
                "start the same command again with --workdir naming its new place"
            )
        kept = "There is no earlier checkpoint"
        if complete := self.steps():
            kept = f"The checkpoint of step {complete[-1]} is kept"
        raise UserError(
            f"step {step} cannot be saved in {self.folder}: {why}. "
            f"{kept}; make room, and start the same command again to continue"
        )

    def _was_moved(self) -> bool:
        """Return whether another folder, or none, is where this one was."""
        return self._opened is not None and self._read_inode() != self._inode

    def _read_inode(self) -> int:
        if is_remote(self.folder):
            return 0
        with contextlib.suppress(OSError):
            return self.folder.stat().st_ino
        return -1

    def restore(self, step: int, like: TrainState) -> TrainState:
        """Restore the state at a step, placed as `like` (abstract, with shardings).

        If `like` has a running mean and the checkpoint does not, it starts from the
        parameters.
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
        """Restore the parameters or, with name `ema`, their running mean."""
        return self._restore(step, {name: like})[name]

    def _restore(self, step: int, items: dict[str, Any]) -> dict[str, Any]:
        folder = self.folder / str(step)
        # Only process 0 looks, because a disk may show the others something else.
        signed, damage = hosts.decide_in_first(lambda: self._look(step))
        if damage:
            raise Damaged(f"{folder}: {damage}")
        # All open the folder, as Orbax requires; process 0 decides.
        difference = self._find_difference(step, items)
        if difference := hosts.broadcast_from_first(difference):
            raise UserError(
                f"{folder} does not fit this config: {difference}. Continue the run "
                "with the config it was trained with, or use another --workdir"
            )
        asked = signature.as_signed(items, signed)
        for _ in range(2):  # a disk or a network may fail once
            restored, problem = self._try_to_restore(step, asked)
            problems = [line for line in hosts.gather(problem) if line]
            if not problems:
                break
        else:
            raise Damaged(f"{folder} cannot be restored: {problems[0]}")
        found = {name: restored[name] for name in items}
        # Each process checks the arrays of its own devices.
        problem = signature.find_problem(found, signed)
        if problems := [line for line in hosts.gather(problem) if line]:
            raise Damaged(f"{folder}: {problems[0]}")
        logger.debug("restored   %s (%s)", folder, ", ".join(items))
        return signature.cast_like(found, items)

    def _try_to_restore(self, step: int, asked: dict[str, Any]) -> tuple[Any, str]:
        """Return the restored items and '', or None and the first line of an error."""
        from orbax.checkpoint import args

        items = {name: args.StandardRestore(x) for name, x in asked.items()}
        try:
            return self._manager.restore(step, args=args.Composite(**items)), ""
        except Exception as error:  # of many kinds, with long messages: keep one line
            folder = self.folder / str(step)
            logger.debug("%s cannot be restored", folder, exc_info=True)
            problem = str(error).strip().split("\n")[0][:200] or "error"
        _drop_coroutines()
        return None, problem

    def _look(self, step: int) -> tuple[dict[str, Any], str]:
        """Return the signature of a checkpoint, if any, and a description of damage."""
        folder = self.folder / str(step)
        if not (folder / signature.ITEM).exists():
            logger.warning("warning    %s is not signed: it cannot be checked", folder)
            return {}, ""
        try:
            signed = signature.read(folder)
            other, difference = signed["step"], ""
            if self.identity:
                difference = self.identity.find_difference(signed)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return {}, f"its {signature.ITEM} changed since it was saved"
        if difference:
            raise UserError(f"{folder} {difference}")
        return signed, f"it is a copy of step {other}" if other != step else ""

    def _find_difference(self, step: int, items: dict[str, Any]) -> str:
        """Describe the first array whose shape differs from the requested one."""
        import orbax.checkpoint as ocp

        handler = ocp.StandardCheckpointHandler()
        for item, like in items.items():
            try:
                stored = handler.metadata(self._manager.directory / str(step) / item)
            except Exception:  # damage of any kind: the restore will report it
                return ""
            found, wanted = _shapes(stored.tree), _shapes(like)
            for name in [*wanted, *found]:
                there, here = (s.get(name, "nothing") for s in (found, wanted))
                if there != here:
                    return f"{item}/{name} is {there} there, but {here} by the config"
        return ""

    def set_aside(self, step: int) -> Any:
        """Move a damaged checkpoint aside, to make room for its replacement."""
        self.close()  # a manager remembers the steps that it found
        bad, place = self.folder / str(step), self.folder.parent / steps.DAMAGED

        def move() -> str:
            return str(move_aside(bad, place, f"{self.folder.name}-{step}"))

        moved = hosts.decide_in_first(move)
        return type(self.folder)(moved)

    def close(self) -> None:
        """Finish the last save, and close the folder."""
        if self._opened is not None:
            self.wait()
            self._manager.close()
            self._opened = None


class _Keeps:
    """Adapt `Checkpoints.choose_kept` to Orbax's interface."""

    def __init__(self, choose: Callable[[Sequence[int]], set[int]]):
        self.choose = choose

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any):
        kept = self.choose([checkpoint.step for checkpoint in checkpoints])
        return [checkpoint.step in kept for checkpoint in checkpoints]


def _drop_coroutines() -> None:
    """Discard the remains of a failed restore, before they warn at an odd time."""
    hook = _ignore_closed_loops()
    hook.muted = True
    try:
        gc.collect()
    finally:
        hook.muted = False


_HOOKS: list[Any] = []


def _ignore_closed_loops() -> "_IgnoreClosedLoops":
    """Install the hook below, unless it is there.

    No hook is ever freed: the threads of TensorStore call it, and Python does not hold
    a hook while it calls it, so freeing one that is just called ends the process.
    """
    found: Any = sys.unraisablehook
    if not isinstance(found, _IgnoreClosedLoops):
        found = _IgnoreClosedLoops(found)
        _HOOKS.append(found)
        sys.unraisablehook = found
    return found


class _IgnoreClosedLoops:
    """A hook that ignores operations that finish after their event loop was closed."""

    def __init__(self, hook: Callable[[Any], Any]):
        self.hook = hook
        self.muted = False

    def __call__(self, problem: Any) -> None:
        """Pass the unraisable exception to the earlier hook, or ignore it."""
        if not self.muted and str(problem.exc_value) != "Event loop is closed":
            self.hook(problem)


def _find_reason(words: str) -> str:
    """Find in an error message a reason that only the owner of the disk can fix."""
    reasons = [os.strerror(number) for number in cli.OF_THE_MACHINE]
    if found := next((reason for reason in reasons if reason in words), ""):
        return found.lower()
    # Orbax may report a failed write only when it misses the file.
    lost = "No ArrayMetadata found" in words and steps.PARTIAL in words
    return "a file that was just written is missing" if lost else ""


def _shapes(tree: Any) -> dict[str, Any]:
    """Return the shape of each leaf and of each empty node, by path."""

    def shape(leaf):
        kind = getattr(leaf, "dtype", None)
        if kind is not None and jnp.issubdtype(kind, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, leaf)  # as it is stored
        return getattr(leaf, "shape", "empty")

    leaves = jax.tree_util.tree_leaves_with_path(
        tree, is_leaf=lambda x: not jax.tree.leaves(x)
    )
    return {path_name(path): shape(leaf) for path, leaf in leaves}
