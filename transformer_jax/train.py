"""The training loop, from a config to a run directory that answers.

    python -m transformer_jax.train --config quickstart --workdir runs/quickstart

"Step k" means k updates applied, in every log line, checkpoint and evaluation. A batch
and its dropout are functions of (seed, step) alone, so a run that is stopped and
continued by the same command is bit-identical to one that is not. Exit codes: 0 done;
2 user error; 75 preempted, or another process was lost; 124 hung.
"""

import collections
import contextlib
import functools
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from absl import flags
from jax.sharding import Mesh
from ml_collections import ConfigDict

from transformer_jax import cli, hosts, losses, optim, sharding, tasks
from transformer_jax import config as configs
from transformer_jax.base import entry_points
from transformer_jax.base.errors import UserError
from transformer_jax.base.programs import Program
from transformer_jax.losses import LossFn
from transformer_jax.models.layers import adapters
from transformer_jax.runs import environment, lock, resuming, shared
from transformer_jax.runs import run as runs
from transformer_jax.runs.checkpoint import NotFinite, TrainState
from transformer_jax.runs.folder import Folder
from transformer_jax.tasks.protocols import Task
from transformer_jax.training import hooks, report, scoring
from transformer_jax.training.checkpointing import Saver
from transformer_jax.training.evaluator import Evaluator
from transformer_jax.training.log import RunLog, console, stopped_early
from transformer_jax.training.parts import StepOutcome, Training
from transformer_jax.training.preemption import Preempted, Preemption
from transformer_jax.training.prepare import Prepared, make_plan, prepare_together
from transformer_jax.training.steps import divergence
from transformer_jax.training.steps.compiled_steps import CompiledSteps
from transformer_jax.training.steps.feed import Feed
from transformer_jax.training.steps.profile import Profile
from transformer_jax.training.steps.rehearsal import rehearse
from transformer_jax.training.steps.window import DispatchedStep, LogWindow
from transformer_jax.training.watchdog import Watchdog

IN_FLIGHT = 2  # dispatched steps that are not yet read; more of them can deadlock


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_string("config", "", "A config file: path.py[:variant], or a name.")
    flags.DEFINE_string("workdir", "", "The run directory, to create or to continue.")
    flags.DEFINE_string("profile", "", "Steps to trace with jax.profiler: 10:20.")
    flags.DEFINE_string(
        "start_from",
        "",
        "A run, a bundle or a folder of Hugging Face: take over the options of its "
        "model, its tokenizer and its parameters.",
    )
    flags.DEFINE_list(
        "seeds",
        [],
        "Train with each of these seeds in turn: 1,2,3 in WORKDIR/seed_1, …",
    )
    flags.DEFINE_bool("accept_changes", False, "Continue a run with another config.")
    flags.DEFINE_bool("smoke", False, "Try the config: 20 small steps, shallow model.")
    flags.DEFINE_bool("plots", False, "Draw curves.png into the run directory.")


def main(overrides: dict[str, str]) -> int:
    """Train as the command line says; return the exit code."""
    args = flags.FLAGS
    cli.require("config", args.config, "a config file, such as configs/quickstart.py")
    cli.require("workdir", args.workdir, "the run directory, such as runs/quickstart")
    trainings = []
    for workdir, changes in _read_seeds(args.seeds, args.workdir, overrides).items():
        config = read_config(args.config, changes, workdir, args.start_from, args.smoke)
        trainings.append((workdir, config))
    environment.use_large_pages()
    with hosts.end_together():
        if args.seeds:  # the last is not refused after the others have been trained
            hosts.connect(trainings[0][1].timeout.start, console.info)
            for workdir, config in trainings:
                check(config, workdir, args.accept_changes)
        for workdir, config in trainings:
            if args.seeds and jax.process_index() == 0:
                console.info(f"seed       {config.seed}")
            with contextlib.ExitStack() as stack:
                if args.plots:
                    plots = entry_points.require("plots", "curves")
                    stack.enter_context(plots(workdir))
                code = train(config, workdir, args.accept_changes, args.profile)
            if code:
                return code
    if args.seeds and jax.process_index() == 0:
        command = f"python -m transformer_jax.report {args.workdir}"
        console.info(f"mean and spread of the seeds: {command}")
    return 0


def _read_seeds(
    seeds: Sequence[str], workdir: str, overrides: dict[str, str]
) -> dict[str, dict[str, str]]:
    """Return the options of each run by its folder; without --seeds it is one."""
    if not seeds:
        return {workdir: overrides}
    if "seed" in overrides:
        cli.fail("--seeds and --config.seed: give one of them")
    wrong = [seed for seed in seeds if not seed.isdecimal()]
    if wrong or len(set(map(int, seeds))) < len(seeds):
        cli.fail(f"--seeds={','.join(seeds)}: give different whole numbers, as 1,2,3")
    if (pathlib.Path(workdir) / "config.json").exists():
        cli.fail(
            f"--workdir={workdir} is a run: --seeds needs a folder for several runs"
        )
    return {
        os.path.join(workdir, f"seed_{int(seed)}"): {**overrides, "seed": seed}
        for seed in seeds
    }


def read_config(
    spec: str,
    overrides: dict[str, str],
    workdir: str,
    start_from: str = "",
    smoke: bool = False,
    data: bool = True,
) -> ConfigDict:
    """Load the config of a training, with the settings taken from another run."""
    change = None
    if start_from:
        from transformer_jax.training.warm_start import adopt

        change = functools.partial(adopt, path=start_from, workdir=workdir)
    return configs.load(spec, overrides, smoke, data, change)


def check(
    config: ConfigDict, workdir: str | os.PathLike, accept_changes: bool = False
) -> bool:
    """Check that a run can be begun or continued here; return whether it is done.

    Nothing is written. A program that trains several runs calls this for all of them,
    so that the last is not refused after the others have taken a night.
    """
    folder = Folder(workdir)
    folder.check_place()
    config = resuming.resolve(config, folder.stored_config, platform="")
    result = folder.read_result()
    done = result is not None and is_done(config, folder, result["step"])
    if not done:
        folder.check_writable()
    folder.adopt(config, accept_changes, write=False)
    return done


def train(
    config: ConfigDict,
    workdir: str | os.PathLike,
    accept_changes: bool = False,
    profiled: str = "",
    more_hooks: Sequence[Callable[[ConfigDict, pathlib.Path], hooks.Hook]] = (),
) -> int:
    """Train a run, or continue it, or report that it is done; return the exit code.

    The steps `profiled`, such as "10:20", are traced into the run directory.
    `more_hooks` are called beside those that the config switches on.
    """
    folder = Folder(workdir)
    profile = Profile(profiled, folder.path)
    folder.check_place()
    mesh = open_mesh(config)
    shared.prove(folder.place)
    config = resuming.resolve(
        config, folder.stored_config, mesh.devices.flat[0].platform
    )
    result = hosts.decide_in_first(lambda: folder.read_result())
    if result is not None and is_done(config, folder, result["step"]):
        hosts.decide_in_first(lambda: folder.adopt(config, accept_changes, False))
        report.print_result(result, folder, True, config.train.smoke)
        return 0
    folder.check_writable()
    with lock.alone(folder.place), contextlib.ExitStack() as stack:
        stack.callback(folder.push, everything=True)
        first = jax.process_index() == 0
        hosts.decide_in_first(lambda: folder.adopt(config, accept_changes))
        log = RunLog(folder, first, hooks.make(config, folder.path, more_hooks))
        stack.callback(log.close)
        if result is not None:
            log.say(f"continues  the run that had ended at step {result['step']:,}")
        prepared = prepare_together(config, folder, log)
        with Preemption(config.timeout.preemption) as preemption:
            stack.callback(profile.close)
            result = None
            while result is None:  # runs again only after a divergence
                with contextlib.closing(
                    build(config, folder, mesh, prepared, log)
                ) as training:
                    try:
                        train_steps(training, preemption, profile)
                        result = scoring.finish(
                            training, preemption.requested_meanwhile
                        )
                    except Preempted as stopped:
                        with training.watchdog.phase("saving", config.timeout.save):
                            training.saver.wait()
                        log.say(f"preempted  {stopped}; the same command continues")
                        return cli.PREEMPTED
                    except NotFinite as error:
                        config = divergence.go_back(training, error)
    report.print_result(result, folder, smoke=config.train.smoke)
    return 0


def fit(
    spec: str,
    splits: Mapping[str, Any],
    workdir: str | os.PathLike,
    columns: Mapping[str, str] | None = None,
    start_from: str = "",
    options: Mapping[str, Any] | None = None,
    more_hooks: Sequence[Callable[[ConfigDict, pathlib.Path], hooks.Hook]] = (),
) -> runs.Run:
    """Train a config on examples that a program holds, and open the run.

    `splits` has train, and perhaps validation and test. The examples are kept in the
    run directory, and the same call continues a run that was stopped.
    """
    from transformer_jax.data.reading import given
    from transformer_jax.training.warm_start import adopt

    folder = pathlib.Path(workdir).absolute()
    Folder(folder).check_place()

    def change(config: ConfigDict) -> None:
        if start_from:
            adopt(config, start_from, str(folder))
        fields = getattr(tasks.find(config.task).source(config), "fields", ())
        if not fields:
            raise UserError(f"the task {config.task!r} does not read texts or labels")
        place = folder / "data"
        given.provide(config, splits, columns or {}, place, console.info, fields)

    texts = {name: str(value) for name, value in (options or {}).items()}
    config = configs.load(spec, texts, change=change)
    if train(config, folder, more_hooks=more_hooks):
        raise UserError(f"the training was stopped: the same call continues {folder}")
    return runs.load(folder)


def open_mesh(config: ConfigDict) -> Mesh:
    """Join the other processes, and make the mesh of the config."""
    hosts.connect(config.timeout.start, console.info)
    _refuse_differences(config)
    environment.use_compile_cache()
    mesh = sharding.make_mesh(config.mesh, config.mesh.platform)
    rows, devices = config.data.row_multiple, sharding.row_devices(mesh)
    parts = devices * config.train.accumulation
    if rows % parts and jax.process_index() == 0:
        console.info(
            f"note       data.row_multiple {rows} does not divide over {devices} "
            "devices (mesh data × fsdp): batches are filled up with empty rows"
        )
    return mesh


def _refuse_differences(config: ConfigDict) -> None:
    """Refuse processes of one run that have different configs or code."""
    if jax.process_count() == 1:
        return
    settings = {k: v for k, v in configs.items(config) if k != "data.folder"}
    hosts.refuse_differences({**settings, **environment.code()}, hosts.name_of)


def is_done(config: ConfigDict, folder: Folder, step: int) -> bool:
    """Return whether a run that ended at a step would also end there by this config."""
    return step >= config.train.steps or stopped_early(
        config, folder.path / "metrics.jsonl", step
    )


def build(
    config: ConfigDict,
    folder: Folder,
    mesh: Mesh,
    prepared: Prepared,
    log: RunLog,
) -> Training:
    """Build a training run from its config; nothing is computed or compiled yet."""
    task = prepared.task
    planned = make_plan(config, task, prepared.train)
    lent = {}
    if config.train.teacher:
        from transformer_jax.training import teacher

        lent = teacher.load(config, prepared.train.store, folder, mesh, log.say)
    feed = Feed(task, prepared.train.store, planned, mesh, lent)
    functions = make_update(config, task, mesh)
    update, abstract = functions.update, functions.abstract
    # The largest shape first, the others in the order in which they are needed.
    shapes = [feed.plan.largest, *(b.shape for b in feed.plan.epoch(0))]
    return Training(
        config=config,
        folder=folder,
        mesh=mesh,
        prepared=prepared,
        task=task,
        feed=feed,
        planned=planned,
        schedule=optim.make_schedule(config),
        init=functions.init,
        update=update,
        abstract=abstract,
        compiled=CompiledSteps(
            update, abstract, feed.abstract, shapes, mesh, log.progress
        ),
        saver=Saver(config, folder),
        validation=Evaluator(task, prepared.held_out["validation"], mesh),
        log=log,
        watchdog=Watchdog(),
    )


class StateFunctions(NamedTuple):
    """The programs that make and update a state."""

    init: Program  # key → TrainState on the mesh
    abstract: TrainState  # the shapes and shardings of a state
    update: Program  # (state, batch) → (state, StepOutcome)


def make_update(config: ConfigDict, task: Task, mesh: Mesh) -> StateFunctions:
    """Make the functions that draw a new state and that apply one training step."""
    optimizer = optim.make_optimizer(config)

    def init(key: jax.Array) -> TrainState:
        params_key, root_key = jax.random.split(key)
        params = adapters.add(task.objective.init(params_key), config, params_key)
        return TrainState(
            step=jnp.int32(0),
            params=params,
            opt_state=optimizer.init(params),
            key=root_key,
            ema=params if config.optim.ema else None,
        )

    key = jax.random.key(config.seed)
    abstract = sharding.abstract(jax.eval_shape(init, key), mesh)
    if problems := optim.find_unmatched(config, abstract.params):
        raise UserError(*problems)
    shardings = jax.tree.map(lambda x: x.sharding, abstract)
    step = functools.partial(
        train_step,
        loss=make_loss(config, task),
        optimizer=optimizer,
        micro_batches=config.train.accumulation,
        ema_decay=config.optim.ema,
        skip=config.train.on_divergence == "skip",
    )
    program = functools.partial(Program, made_from=task.made_from)
    return StateFunctions(
        program(init, out_shardings=shardings),
        abstract,
        program(
            functools.update_wrapper(step, train_step),
            donate_argnums=0,
            out_shardings=(shardings, sharding.replicated(mesh)),
        ),
    )


def make_loss(config: ConfigDict, task: Task) -> LossFn:
    """Return the task's loss with added terms, adapters and frozen parameters."""
    loss = task.objective.loss
    if config.train.teacher or config.train.consistency:
        from transformer_jax.training import teacher

        loss = teacher.add_to_loss(task)
    return _without_frozen(adapters.adapt(loss, config), config)


def _without_frozen(loss: LossFn, config: ConfigDict) -> LossFn:
    """Return a loss whose gradients by frozen parameters are 0, and not computed."""
    if not optim.freezes(config):
        return loss

    def stopped(params, batch, key=None):
        factors = optim.rate_factors(config, params)
        held = jax.tree.map(
            lambda p, factor: p if factor else jax.lax.stop_gradient(p), params, factors
        )
        return loss(held, batch, key)

    return stopped


def train_steps(training: Training, preemption: Preemption, profile: Profile) -> None:
    """Train to the last step or an early stop; raise `Preempted` on request."""
    config, log = training.config, training.log
    saver, compiled = training.saver, training.compiled

    # The header describes the run before hours are spent on it.
    for line in report.header(training):
        log.say(line)

    # The rehearsal runs the programs that need the most memory once, on a state that is
    # discarded. A run that does not fit in memory fails here and not at hour nine.
    largest = training.feed.plan.largest
    limits, watchdog = config.timeout, training.watchdog
    with watchdog.phase("compiling", limits.compile):
        with jax.set_mesh(training.mesh):
            shapes = training.abstract, training.feed.abstract(largest)
            traced = None
            if not training.update.is_kept(*shapes):
                # This traces train_step, and so the model.
                traced = training.update.jitted.lower(*shapes)
            compiled.start(traced)
        rehearse(training, runs.decode_options(config))
    compiled.pop_wait_seconds()

    # The state comes from the newest valid checkpoint, or is new.
    with watchdog.phase("restoring", limits.save):
        begin, state = restore_or_init(training)
    if log.active:
        training.folder.note_start(config)
    log.cut_back(begin)
    if scoring.lacks_validation(training, begin):
        scoring.validate(training, begin, state, preemption.requested_meanwhile)
    if stopped_early(config, log.path, begin):
        return

    # The steps.
    last, window = config.train.steps, LogWindow(training)
    in_flight: collections.deque[DispatchedStep] = collections.deque()
    for step, batch in watchdog.steps(training.feed.batches(begin, last), limits.step):
        with watchdog.phase(f"compiling for step {step}", limits.compile):
            update = compiled.get(batch.shape)
        profile.reach(step)
        with jax.set_mesh(training.mesh), jax.transfer_guard("disallow"):
            state, outcome = update(state, batch.arrays)
        window.leave_out(compiled.pop_wait_seconds())
        saver.check()
        in_flight.append(
            DispatchedStep(step, batch.shape, batch.samples_too_long, outcome)
        )
        if profile.ends_with(step):
            jax.block_until_ready(state)
            log.say(f"profile    {profile.close()}")
        save, stop = saver.saves_at(step), preemption.requested(step)
        save_between = not save and not stop and saver.too_long_since_save(step)
        # The step before is read while this one runs. Before a save all steps are read,
        # because non-finite numbers must never reach a checkpoint.
        allowed = 0 if save or stop or save_between else IN_FLIGHT - 1
        while len(in_flight) > allowed:
            window.add(in_flight.popleft())
            if window.last_step % config.log.every == 0 or window.last_step == last:
                window.write(log)
        log.progress(step, last, window.text)
        if save:
            with watchdog.phase(f"saving step {step}", limits.save):
                saver.save(step, state)
                for hook in log.hooks:
                    hook.save(step, state)
            if scoring.validates_at(training, step) and not stop:
                scoring.validate(training, step, state, preemption.requested_meanwhile)
            window.restart_clock()
            if stopped_early(config, log.path, step):
                break
        if save_between:
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
    batch: dict[str, jax.Array],
    *,
    loss: LossFn,
    optimizer: optax.GradientTransformation,
    micro_batches: int,
    ema_decay: float = 0.0,
    skip: bool = False,
) -> tuple[TrainState, StepOutcome]:
    """Apply one update from one planned batch, processed in `micro_batches` parts.

    With `skip`, a non-finite update leaves the parameters as they are.
    """
    key = jax.random.fold_in(state.key, state.step)
    gradient = losses.make_gradient(loss, micro_batches)
    grads, sums = gradient(state.params, batch, key)
    weight = jnp.maximum(sums.weight, 1.0)
    grads = jax.tree.map(lambda g: g / weight, grads)  # the only division
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    ema = state.ema
    if ema is not None:  # at first the decay is smaller, to forget the initial values
        decay = jnp.minimum(ema_decay, (1 + state.step) / (10 + state.step))
        ema = optax.incremental_update(params, ema, 1 - decay)
    new = TrainState(
        step=state.step + 1,
        params=params,
        opt_state=opt_state,
        key=state.key,
        ema=ema,
    )
    # The norm is computed from these, which tell where it is not finite.
    squares = [optax.tree.norm(g, squared=True) for g in jax.tree.leaves(grads)]
    outcome = StepOutcome(
        grad_norm=optax.tree.norm(grads), squares=jnp.stack(squares), sums=sums
    )
    if skip:
        return divergence.keep_if_finite(state, new, updates, outcome)
    return new, outcome


def restore_or_init(training: Training) -> tuple[int, TrainState]:
    """Return the last completed step and its state, or 0 and a new state."""
    log = training.log
    if (found := training.saver.restore(training.abstract)) is not None:
        step, state, damaged = found
        for line in damaged:
            log.say(f"warning    passed over: {line}")
        log.say(f"resumed    from step {step:,}")
        return step, state
    with jax.set_mesh(training.mesh):
        state = training.init(jax.random.key(training.config.seed))
    config = training.config
    if config.train.initial or config.model.get("word_vectors", ""):
        from transformer_jax.training import warm_start

        params = warm_start.fill(training.task, state.params, training.mesh, log.say)
        ema = None if state.ema is None else jax.tree.map(jnp.copy, params)
        state = state.replace(params=params, ema=ema)
    return 0, state


if __name__ == "__main__":
    define_flags()
    cli.run(main)
