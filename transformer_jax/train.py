"""The training loop, from a config to a run directory that answers.

    python -m transformer_jax.train --config quickstart --workdir runs/quickstart

Step k means: k updates applied, in every log line, checkpoint and evaluation. A batch
and its dropout are functions of (seed, step) alone, so the same command started again
continues to the same bits. Exit codes: 0 done, 2 the user's mistake, 75 preempted.
"""

import collections
import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import optax
from absl import flags
from ml_collections import ConfigDict

from transformer_jax import cli, losses, optim, sharding
from transformer_jax import config as configs
from transformer_jax.config import checks
from transformer_jax.data import batches
from transformer_jax.data import store as stores
from transformer_jax.errors import UserError
from transformer_jax.runs import checkpoint as checkpoints
from transformer_jax.runs import environment, lock
from transformer_jax.runs import folder as folders
from transformer_jax.runs import run as runs
from transformer_jax.runs.checkpoint import Checkpoints, TrainState
from transformer_jax.training import feed, report
from transformer_jax.training import log as metrics
from transformer_jax.training import warm_start as initial
from transformer_jax.training.compiled_steps import CompiledSteps
from transformer_jax.training.evaluator import Evaluator, evenly_spaced
from transformer_jax.training.preemption import Preemption
from transformer_jax.training.prepare import make_plan, prepare_together

IN_FLIGHT = 2  # steps dispatched and not yet read; free-running dispatch can deadlock


def define_flags() -> None:
    flags.DEFINE_string("config", "", "A config file: path.py[:variant], or a name.")
    flags.DEFINE_string("workdir", "", "The run directory: made, or continued.")
    flags.DEFINE_bool("accept_changes", False, "Continue a run with another config.")


def main(overrides: dict[str, str]) -> int:
    args = flags.FLAGS
    cli.require("config", args.config, "a config file, such as configs/quickstart.py")
    cli.require("workdir", args.workdir, "the run directory, such as runs/quickstart")
    config = configs.load(args.config, overrides)
    return train(config, args.workdir, args.accept_changes)


def train(
    config: ConfigDict, workdir: str | os.PathLike, accept_changes: bool = False
) -> int:
    """Trains, or continues, or reports a run that is done; returns the exit code."""
    folder = folders.Folder(workdir)
    sharding.connect()
    environment.use_compile_cache()
    mesh = sharding.make_mesh(config.mesh, config.mesh.platform)
    row_problems = checks.find_row_problems(
        config, mesh.shape["data"] * mesh.shape["fsdp"]
    )
    if row_problems:
        raise UserError(*row_problems)
    primary = jax.process_index() == 0
    result = folder.read("result.json")
    done = result is not None and (
        result["step"] >= config.train.steps
        or metrics.stopped_early(config, folder.path / "metrics.jsonl", result["step"])
    )
    if not done:
        with lock.alone(folder.path):
            return continue_run(config, folder, accept_changes, mesh)
    folder.adopt(config, accept_changes, write=False)
    if primary:
        report.print_result(result, folder, already=True)
    return 0


def continue_run(
    config: ConfigDict, folder: folders.Folder, accept_changes: bool, mesh: Any
) -> int:
    """Trains from where the run is, to its end; returns the exit code."""
    primary = jax.process_index() == 0
    # Every process compares: if process 0 alone refused, the others would wait for it.
    folder.adopt(config, accept_changes, write=primary)
    writer = metrics.RunLog(folder.path, config.log.tensorboard, primary)
    trainer = None
    try:
        prepared = prepare_together(config, folder, writer)
        with Preemption() as preemption:
            trainer = Trainer(config, prepared, folder, writer, mesh)
            if not trainer.fit(preemption):
                return cli.PREEMPTED
        result = finish(trainer)
    finally:
        if trainer is not None:
            trainer.close()
        writer.close()
    if primary:
        report.print_result(result, folder)
    return 0


class Trainer:
    """A run in progress: the state, and everything that acts on it."""

    def __init__(self, config, prepared, folder, writer, mesh):
        self.config, self.prepared, self.mesh = config, prepared, mesh
        self.folder, self.writer = folder, writer
        self.task, self.store = prepared.task, prepared.train.store
        self.planned = make_plan(config, self.task, prepared.train)
        self.plan, self.sampler = self.planned.plan, self.planned.sampler
        self.validation = Evaluator(self.task, prepared.held_out["validation"], mesh)
        self.optimizer = optim.make_optimizer(config)
        self.schedule = optim.make_schedule(config)
        kept = config.checkpoint
        self.saved = Checkpoints(
            folder.checkpoints, kept.keep_last, kept.keep_best, writer=True
        )
        self.emergency = Checkpoints(folder.preempted, writer=True)
        self.abstract = sharding.abstract(
            jax.eval_shape(self._init, jax.random.key(config.seed)), mesh
        )
        self.places = jax.tree.map(lambda x: x.sharding, self.abstract)
        self.init = jax.jit(self._init, out_shardings=self.places)
        self.update = jax.jit(
            functools.partial(
                train_step,
                loss=self.task.objective.loss,
                optimizer=self.optimizer,
                micro_batches=config.train.accumulation,
                ema_decay=config.optim.ema,
            ),
            donate_argnums=0,
            out_shardings=(self.places, sharding.replicated(mesh)),
        )
        # The largest first, then in the order in which they are needed.
        shapes = [self.plan.largest, *(b.shape for b in self.plan.epoch(0))]
        self.programs = CompiledSteps(
            self.update, self.abstract, list(dict.fromkeys(shapes)), mesh
        )
        self.state: TrainState | None = None

    def _init(self, key: jax.Array) -> TrainState:
        params_key, root_key = jax.random.split(key)
        params = self.task.objective.init(params_key)
        ema = params if self.config.optim.ema else None
        opt_state = self.optimizer.init(params)
        return TrainState(jnp.int32(0), params, opt_state, root_key, ema)

    def fit(self, preemption: Preemption) -> bool:
        """Trains to the last step, or to an early stop; False if preempted."""
        config, writer = self.config, self.writer
        self._describe()
        self._rehearse()
        step = self._start_or_resume()
        if writer.active:
            self.folder.note_start(config)
        writer.cut_back(step)
        if metrics.stopped_early(config, writer.path, step):
            return True
        window = metrics.LogWindow(self.task, self.schedule, config.train.steps)
        in_flight: collections.deque = collections.deque()
        steps = range(step, config.train.steps)
        for step, (batch, shape, kept) in zip(
            (s + 1 for s in steps),
            batches.prefetch(self._make_batch, steps),
            strict=True,
        ):
            update = self.programs.get(shape)
            with jax.set_mesh(self.mesh), jax.transfer_guard("disallow"):
                self.state, sums = update(self.state, batch)
            window.leave_out(self.programs.pop_wait_seconds())
            in_flight.append((step, shape, {**sums, "kept": kept}))
            due = self._due(step)
            stop = preemption.requested(step)
            # The step before is read while this one runs; before a save, all are: what
            # is not finite must never reach a checkpoint.
            while len(in_flight) >= (1 if due or stop else IN_FLIGHT):
                window.add(*in_flight.popleft())
                done = window.last_step
                if done % config.log.every == 0 or done == steps.stop:
                    self._log(window)
            writer.progress(step, config.train.steps, window.text)
            # Else the newest checkpoint would stay unsigned until the next is saved.
            self.saved.sign_if_whole()
            if due:
                score = self._evaluate(step)
                self.saved.save(step, self.state, score)
                window.restart_clock()
                if metrics.stopped_early(config, writer.path, step):
                    break
            if stop and step < config.train.steps:
                self._save_emergency(step, already=due)
                return False
        self.saved.wait()
        return True

    def close(self) -> None:
        self.programs.close()
        self.saved.close()
        self.emergency.close()

    def _make_batch(self, step: int):
        planned, resample = self.plan.batch(step), {}
        if self.sampler is not None:
            epoch = step // self.plan.steps_per_epoch

            def draw(columns, part):
                room = self.plan.room(part)
                return self.sampler.resample(columns, part, epoch, room)

            resample = {"resample": draw}
        batch, kept = feed.assemble(
            self.task, self.store, planned, self.mesh, **resample
        )
        return batch, planned.shape, kept

    def _due(self, step: int) -> bool:
        return (
            step % self.config.checkpoint.every == 0 or step == self.config.train.steps
        )

    def _describe(self) -> None:
        """The header: what a careful person wants to know before an hour is spent."""
        plan, mesh = self.plan, self.mesh
        size = sum(x.size for x in jax.tree.leaves(self.abstract.params))
        axes = " × ".join(f"{axis} {n}" for axis, n in mesh.shape.items())
        device = mesh.devices.flat[0].device_kind
        left_out = stores.summary(self.store.ledger)
        left_out = f" (left out, see ledger.json: {left_out})" if left_out else ""
        shapes = ", ".join(
            f"{s.rows}×{'/'.join(map(str, s.lengths))}" for s in plan.shapes
        )
        say = self.writer.say
        say(f"run        {self.folder.path}")
        say(f"devices    {mesh.size} × {device} ({jax.default_backend()}), mesh {axes}")
        say(f"model      {size:,} parameters, {self.config.model.dtype} computation")
        say(
            f"data       {len(self.store):,} examples{left_out}, "
            f"{plan.steps_per_epoch:,} steps an epoch, padding "
            f"{self.planned.padding:.1%}"
        )
        say(f"shapes     {len(plan.shapes)} to compile: {shapes}")
        say(f"training   {self.config.train.steps:,} steps")

    def _rehearse(self) -> None:
        """Runs the largest shape once, on a state that is thrown away.

        If it does not fit in memory, the run fails here and not at hour nine.
        """
        self.programs.compile(
            lambda shape: feed.abstract(self.task, self.store, shape, self.mesh)
        )
        shape = self.plan.largest
        empty = batches.nothing(shape)
        update = self.programs.get(shape)
        with jax.set_mesh(self.mesh):
            state = self.init(jax.random.key(self.config.seed))
            batch, _ = feed.assemble(self.task, self.store, empty, self.mesh)
            jax.block_until_ready(update(state, batch))
        self.programs.pop_wait_seconds()

    def _start_or_resume(self) -> int:
        found = checkpoints.restore_newest([self.saved, self.emergency], self.abstract)
        if found is None:
            with jax.set_mesh(self.mesh):
                state = self.init(jax.random.key(self.config.seed))
            params = initial.fill(self.task, state.params, self.mesh, self.writer.say)
            ema = None if state.ema is None else jax.tree.map(jnp.copy, params)
            self.state = state.replace(params=params, ema=ema)
            return 0
        step, self.state, damaged = found
        for line in damaged:
            self.writer.say(f"warning    passed over: {line}")
        self.writer.say(f"resumed    from step {step:,}")
        return step

    def _log(self, window: metrics.LogWindow) -> None:
        values = window.take()
        self.writer.record(window.last_step, "train", values)
        self.writer.say(window.line(values))

    def _evaluate(self, step: int) -> float | None:
        """Validation scores, if this step asks for them; returns what ranks it."""
        config = self.config
        if step % config.eval.every and step != config.train.steps:
            return None
        state = self.state
        params = state.ema if config.eval.weights == "ema" else state.params
        evaluation = self.validation.evaluate(
            params,
            runs.decode_options(config),
            config.eval.answers,
            self.writer.progress,
        )
        values, lines = evaluation.scores, evaluation.answers
        self.writer.record(step, "validation", values)
        summary, took = (
            self.task.scoring.summary(values),
            cli.duration(values["seconds"]),
        )
        words = metrics.in_words(values, summary)
        self.writer.say(f"validation step {step}  {words}  {summary}  ({took})")
        for line in report.group_lines(values):
            self.writer.say(line)
        for i in evenly_spaced(config.eval.samples, len(lines)):
            record = evaluation.records[i]
            self.writer.say(f"  source     {self.task.inference.question(record)}")
            self.writer.say(f"  reference  {self.task.scoring.reference(record)}")
            self.writer.say(f"  answer     {lines[i]}")
        return metrics.rank(config, values)

    def _save_emergency(self, step: int, already: bool) -> None:
        """Counts neither for the average, nor as one of the last, nor as the best."""
        if not already:
            self.emergency.save(step, self.state)
        self.emergency.wait()
        self.saved.wait()
        self.writer.say(f"preempted  saved step {step}; the same command continues")


def train_step(
    state: TrainState,
    batch: dict,
    *,
    loss,
    optimizer,
    micro_batches: int,
    ema_decay: float = 0.0,
) -> tuple[TrainState, dict[str, Any]]:
    """One update from one planned batch, in `micro_batches` parts."""
    key = jax.random.fold_in(state.key, state.step)
    grads, sums = losses.accumulate(loss, state.params, batch, key, micro_batches)
    weight = jnp.maximum(sums.weight, 1.0)  # the one division
    grads = jax.tree.map(lambda g: g / weight, grads)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    ema = state.ema
    if ema is not None:  # of what is there so far, as long as that is little
        decay = jnp.minimum(ema_decay, (1 + state.step) / (10 + state.step))
        ema = optax.incremental_update(params, ema, 1 - decay)
    state = TrainState(state.step + 1, params, opt_state, state.key, ema)
    return state, {"sums": sums, "grad_norm": optax.tree.norm(grads)}


def finish(trainer: Trainer) -> dict[str, Any]:
    """Averages the last checkpoints, scores the test splits, writes the result."""
    config, folder, writer = trainer.config, trainer.folder, trainer.writer
    steps = trainer.saved.steps()
    used = steps[-config.checkpoint.average :]
    averaged = Checkpoints(folder.averaged, writer=True)
    if averaged.steps()[-1:] != used[-1:]:
        params = checkpoints.average(trainer.saved, used, trainer.abstract.params)
        averaged.save_params(used[-1], params)
        averaged.close()
    weights = config.eval.weights
    params, step, words = runs.read_params(folder, trainer.task, trainer.mesh, weights)
    result = {"step": steps[-1], "stopped_early": steps[-1] < config.train.steps}
    result |= {"weights": words, "averaged_steps": used, "scores": {}}
    result["seconds"] = metrics.training_seconds(writer.path)
    result["parameters"] = sum(x.size for x in jax.tree.leaves(params))
    options = runs.decode_options(config)
    held_out = trainer.prepared.held_out
    for split in [s for s in config.eval.splits if s in held_out]:
        writer.say(f"scoring    {split} with the {words} parameters of step {step}")
        evaluator = Evaluator(trainer.task, held_out[split], trainer.mesh)
        evaluation = evaluator.evaluate(params, options, progress=writer.progress)
        scores = evaluation.entry(step, words, options)
        result["scores"][split] = scores
        writer.record(steps[-1], split, scores)
    if writer.active:
        for split, scores in result["scores"].items():
            folder.add_scores(split, scores)
        folder.write("result.json", result)
    return result


if __name__ == "__main__":
    define_flags()
    cli.run(main)
