"""The training loop, from a config to a run directory that answers.

    python -m transformer_jax.train --config quickstart --workdir runs/quickstart

Step k means: k updates applied, in every log line, checkpoint and evaluation. A batch
and its dropout are functions of (seed, step) alone, so the same command started again
continues to the same bits. Exit codes: 0 done, 2 the user's mistake, 75 preempted or
another process lost, 124 hung.
"""

import collections
import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from absl import flags
from jax.sharding import Mesh
from ml_collections import ConfigDict

from transformer_jax import cli, hosts, losses, optim, sharding
from transformer_jax import config as configs
from transformer_jax.runs import environment, lock, shared
from transformer_jax.runs import run as runs
from transformer_jax.runs.checkpoint import NotFinite, TrainState
from transformer_jax.runs.folder import Folder
from transformer_jax.tasks.protocols import Task
from transformer_jax.training import divergence, report, scoring
from transformer_jax.training import log as metrics
from transformer_jax.training import warm_start as initial
from transformer_jax.training.checkpointing import Saver
from transformer_jax.training.compiled_steps import CompiledSteps
from transformer_jax.training.evaluator import Evaluator
from transformer_jax.training.feed import Feed
from transformer_jax.training.preemption import Preempted, Preemption
from transformer_jax.training.prepare import (
    Prepared,
    make_plan,
    prepare_together,
    settle_shapes,
)
from transformer_jax.training.profile import Profile
from transformer_jax.training.rehearsal import rehearse
from transformer_jax.training.watchdog import Watchdog
from transformer_jax.visualize import training as curves

IN_FLIGHT = 2  # steps dispatched and not yet read; free-running dispatch can deadlock


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_string("config", "", "A config file: path.py[:variant], or a name.")
    flags.DEFINE_string("workdir", "", "The run directory: made, or continued.")
    flags.DEFINE_string("profile", "", "Steps to trace with jax.profiler: 10:20.")
    flags.DEFINE_bool("accept_changes", False, "Continue a run with another config.")
    flags.DEFINE_bool("smoke", False, "Try the config: 20 small steps, shallow model.")
    flags.DEFINE_bool("plots", False, "Draw curves.png into the run directory.")


def main(overrides: dict[str, str]) -> int:
    """Train as the command line asks; return the exit code."""
    args = flags.FLAGS
    cli.require("config", args.config, "a config file, such as configs/quickstart.py")
    cli.require("workdir", args.workdir, "the run directory, such as runs/quickstart")
    config = configs.load(args.config, overrides, args.smoke)
    with hosts.end_together(), curves.drawn(args.workdir, args.plots):
        return train(config, args.workdir, args.accept_changes, args.profile)


def train(
    config: ConfigDict,
    workdir: str | os.PathLike,
    accept_changes: bool = False,
    profiled: str = "",
) -> int:
    """Train a run, or continue it, or report that it is done; return the exit code.

    The steps `profiled`, such as "10:20", are traced into the run directory.
    """
    folder = Folder(workdir)
    profile = Profile(profiled, folder.path)
    folder.check_place()
    mesh = open_mesh(config)
    shared.prove(folder.place)
    config = settle_shapes(config, folder, mesh.devices.flat[0].platform)
    config = divergence.settle(config, folder)
    result = hosts.decide_in_first(lambda: folder.read_result())
    if result is not None and is_done(config, folder, result["step"]):
        hosts.decide_in_first(lambda: folder.adopt(config, accept_changes, False))
        report.print_result(result, folder, already=True)
        return 0
    folder.check_writable()
    with lock.alone(folder.place), contextlib.ExitStack() as stack:
        stack.callback(folder.push, everything=True)
        first = jax.process_index() == 0
        hosts.decide_in_first(lambda: folder.adopt(config, accept_changes))
        log = metrics.RunLog(folder, config.log.tensorboard, first)
        stack.callback(log.close)
        if result is not None:
            log.say(f"continues  the run that had ended at step {result['step']:,}")
        prepared = prepare_together(config, folder, log)
        with Preemption(config.timeout.preemption) as preemption:
            stack.callback(profile.close)
            result = None
            while result is None:
                with contextlib.closing(
                    build(config, folder, mesh, prepared, log)
                ) as run:
                    try:
                        train_steps(run, preemption, profile)
                        result = scoring.finish(run, preemption.requested_meanwhile)
                    except Preempted as stopped:
                        with run.watchdog.phase("saving", config.timeout.save):
                            run.saver.wait()
                        log.say(f"preempted  {stopped}; the same command continues")
                        return cli.PREEMPTED
                    except NotFinite as error:
                        config = divergence.go_back(run, error)
    report.print_result(result, folder)
    return 0


def open_mesh(config: ConfigDict) -> Mesh:
    """Join the other processes, and make the mesh that the config asks for."""
    hosts.connect(config.timeout.start, metrics.console.info)
    environment.use_compile_cache()
    mesh = sharding.make_mesh(config.mesh, config.mesh.platform)
    rows, devices = config.data.row_multiple, sharding.row_devices(mesh)
    parts = devices * config.train.accumulation
    if rows % parts and jax.process_index() == 0:
        metrics.console.info(
            f"note       data.row_multiple {rows} does not divide over {devices} "
            "devices (mesh data × fsdp): batches are filled up with empty rows"
        )
    return mesh


def is_done(config: ConfigDict, folder: Folder, step: int) -> bool:
    """Return whether a run that ended at a step would end there by this config too."""
    return step >= config.train.steps or metrics.stopped_early(
        config, folder.path / "metrics.jsonl", step
    )


@dataclasses.dataclass(frozen=True)
class Training:
    """All that a training consists of, save its state."""

    config: ConfigDict
    folder: Folder
    mesh: Mesh
    prepared: Prepared
    task: Task
    feed: Feed
    padding: float  # share of the places in the plan that hold no token
    schedule: Callable  # updates applied → learning rate
    init: Callable  # key → TrainState on the mesh
    update: Any  # jitted: (state, batch) → (state, outcome)
    abstract: TrainState  # the shapes and places of a state
    compiled: CompiledSteps
    saver: Saver
    validation: Evaluator
    log: metrics.RunLog
    watchdog: Watchdog

    def close(self) -> None:
        """End the threads, and finish what is being saved."""
        self.compiled.close()
        self.saver.close()
        self.watchdog.close()


def build(
    config: ConfigDict,
    folder: Folder,
    mesh: Mesh,
    prepared: Prepared,
    log: metrics.RunLog,
) -> Training:
    """Build what the config describes; nothing is computed or compiled yet."""
    task = prepared.task
    planned = make_plan(config, task, prepared.train)
    feed = Feed(task, prepared.train.store, planned, mesh)
    init, abstract, update = make_update(config, task, mesh)
    # The largest first, then in the order in which they are needed.
    shapes = [feed.plan.largest, *(b.shape for b in feed.plan.epoch(0))]
    return Training(
        config=config,
        folder=folder,
        mesh=mesh,
        prepared=prepared,
        task=task,
        feed=feed,
        padding=planned.padding,
        schedule=optim.make_schedule(config),
        init=init,
        update=update,
        abstract=abstract,
        compiled=CompiledSteps(update, abstract, feed.abstract, shapes, mesh),
        saver=Saver(config, folder),
        validation=Evaluator(task, prepared.held_out["validation"], mesh),
        log=log,
        watchdog=Watchdog(),
    )


def make_update(
    config: ConfigDict, task: Task, mesh: Mesh
) -> tuple[Any, TrainState, Any]:
    """Return (key → a new state, what a state looks like, state and batch → a step)."""
    optimizer = optim.make_optimizer(config)

    def init(key: jax.Array) -> TrainState:
        params_key, root_key = jax.random.split(key)
        params = task.objective.init(params_key)
        ema = params if config.optim.ema else None
        return TrainState(jnp.int32(0), params, optimizer.init(params), root_key, ema)

    key = jax.random.key(config.seed)
    abstract = sharding.abstract(jax.eval_shape(init, key), mesh)
    places = jax.tree.map(lambda x: x.sharding, abstract)
    step = functools.partial(
        train_step,
        loss=task.objective.loss,
        optimizer=optimizer,
        micro_batches=config.train.accumulation,
        ema_decay=config.optim.ema,
        skip=config.train.on_divergence == "skip",
    )
    update = jax.jit(
        step, donate_argnums=0, out_shardings=(places, sharding.replicated(mesh))
    )
    return jax.jit(init, out_shardings=places), abstract, update


def train_steps(run: Training, preemption: Preemption, profile: Profile) -> None:
    """Train to the last step, or to an early stop; raise `Preempted` when asked to."""
    config, log, saver, compiled = run.config, run.log, run.saver, run.compiled

    # The header: what a careful person wants to know before an hour is spent.
    for line in report.header(run):
        log.say(line)

    # The rehearsal: what needs most memory, once, on a state that is thrown away. If it
    # does not fit, the run fails here and not at hour nine.
    largest = run.feed.plan.largest
    limits, watchdog = config.timeout, run.watchdog
    with watchdog.phase("compiling", limits.compile):
        with jax.set_mesh(run.mesh):
            compiled.start(run.update.lower(run.abstract, run.feed.abstract(largest)))
        rehearse(run, runs.decode_options(config))
    compiled.pop_wait_seconds()

    # The state: of the newest good checkpoint, or a new one.
    with watchdog.phase("restoring", limits.save):
        begin, state = restore_or_init(run)
    if log.active:
        run.folder.note_start(config)
    log.cut_back(begin)
    if scoring.was_left(run, begin):
        scoring.validate(run, begin, state, preemption.requested_meanwhile)
    if metrics.stopped_early(config, log.path, begin):
        return

    # The steps.
    last = config.train.steps
    work, bad = metrics.utilization(run), divergence.Divergence(run)
    window = metrics.LogWindow(run.task, run.schedule, last, work, bad)
    in_flight: collections.deque = collections.deque()
    for step, batch in watchdog.steps(run.feed.batches(begin, last), limits.step):
        with watchdog.phase(f"compiling for step {step}", limits.compile):
            update = compiled.get(batch.shape)
        profile.reach(step)
        with jax.set_mesh(run.mesh), jax.transfer_guard("disallow"):
            state, outcome = update(state, batch.arrays)
        window.leave_out(compiled.pop_wait_seconds())
        saver.check()
        in_flight.append((step, batch.shape, {**outcome, "kept": batch.kept}))
        if profile.ends_with(step):
            jax.block_until_ready(state)
            log.say(f"profile    {profile.close()}")
        due, stop = saver.due(step), preemption.requested(step)
        overdue = not due and not stop and saver.overdue(step)
        # The step before is read while this one runs; before a save, all are: what is
        # not finite must never reach a checkpoint.
        while len(in_flight) >= (1 if due or stop or overdue else IN_FLIGHT):
            window.add(*in_flight.popleft())
            if window.last_step % config.log.every == 0 or window.last_step == last:
                log.write(window)
        log.progress(step, last, window.text)
        if due:
            with watchdog.phase(f"saving step {step}", limits.save):
                saver.save(step, state)
            if scoring.is_due(run, step) and not stop:
                scoring.validate(run, step, state, preemption.requested_meanwhile)
            window.restart_clock()
            if metrics.stopped_early(config, log.path, step):
                break
        if overdue:
            with watchdog.phase(f"saving step {step}", limits.save):
                saver.save_between(step, state)
            window.restart_clock()
        if stop:
            with watchdog.phase(f"saving step {step}", limits.save):
                saver.save_preempted(step, state)
            raise Preempted(f"saved step {step}")
    with watchdog.phase("saving the last step", limits.save):
        saver.wait()


def train_step(
    state: TrainState,
    batch: dict,
    *,
    loss,
    optimizer,
    micro_batches: int,
    ema_decay: float = 0.0,
    skip: bool = False,
) -> tuple[TrainState, dict[str, Any]]:
    """Apply one update from one planned batch, taken in `micro_batches` parts.

    With `skip`, an update that is not finite leaves the parameters as they are.
    """
    key = jax.random.fold_in(state.key, state.step)
    gradient = losses.gradient(loss, micro_batches)
    grads, sums = gradient(state.params, batch, key)
    weight = jnp.maximum(sums.weight, 1.0)  # the one division
    grads = jax.tree.map(lambda g: g / weight, grads)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    ema = state.ema
    if ema is not None:  # of what is there so far, as long as that is little
        decay = jnp.minimum(ema_decay, (1 + state.step) / (10 + state.step))
        ema = optax.incremental_update(params, ema, 1 - decay)
    new = TrainState(state.step + 1, params, opt_state, state.key, ema)
    # The norm is made of these; when it is not finite they say where.
    squares = [optax.tree.norm(g, squared=True) for g in jax.tree.leaves(grads)]
    outcome = {"sums": sums, "grad_norm": optax.tree.norm(grads)}
    outcome["squares"] = jnp.stack(squares)
    if skip:
        return divergence.keep_if_finite(state, new, updates, outcome)
    return new, outcome


def restore_or_init(run: Training) -> tuple[int, TrainState]:
    """Return the last step done and its state, or 0 and a new state."""
    if (found := run.saver.restore(run.abstract)) is not None:
        step, state, damaged = found
        for line in damaged:
            run.log.say(f"warning    passed over: {line}")
        run.log.say(f"resumed    from step {step:,}")
        return step, state
    with jax.set_mesh(run.mesh):
        state = run.init(jax.random.key(run.config.seed))
    params = initial.fill(run.task, state.params, run.mesh, run.log.say)
    ema = None if state.ema is None else jax.tree.map(jnp.copy, params)
    return 0, state.replace(params=params, ema=ema)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
