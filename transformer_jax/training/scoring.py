"""Score a training run: the validation split during it, the others at its end.

The state is saved before it is scored, so a kill loses only the evaluation. On a
request to stop, an evaluation ends between two batches or answers, and the next start
repeats it. The parameters that answer may be the average of the last checkpoints (6.1).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from transformer_jax import hosts
from transformer_jax.base import files
from transformer_jax.base.errors import UserError
from transformer_jax.models.layers import adapters
from transformer_jax.runs import bundle
from transformer_jax.runs import run as runs
from transformer_jax.runs.checkpoint import Checkpoints, Damaged, TrainState
from transformer_jax.runs.folder import Folder
from transformer_jax.sharding import Params
from transformer_jax.training import card, log, report
from transformer_jax.training.evaluator import Evaluation, Evaluator
from transformer_jax.training.parts import Training
from transformer_jax.training.preemption import Preempted


def average_last(
    config: ConfigDict,
    folder: Folder,
    checkpoints: Checkpoints,
    like: Params,
    say: Callable[[str], None],
) -> tuple[int, list[int]]:
    """Write the average of the last valid checkpoints, unless it exists.

    An average of other steps, as `checkpoint.average` was another, is replaced. Return
    the last step and the averaged steps.
    """
    hosts.decide_in_first(folder.check_there)
    steps = hosts.broadcast_from_first(checkpoints.steps())
    wanted = choose_steps(config, steps)
    if len(wanted) < min(config.checkpoint.average, len(steps)):
        say(f"averaging  only {', '.join(map(str, wanted))}: the others are too early")
    identity = folder.identity(config)
    averaged = Checkpoints(folder.averaged, writer=True, identity=identity)
    saved = hosts.broadcast_from_first(averaged.steps())
    earlier, ready = averaged.averaged_steps(saved[-1]) if saved else ([], [])
    if earlier == wanted or not earlier and saved[-1:] == wanted[-1:]:
        try:
            averaged.restore_params(saved[-1], like)
            return steps[-1], ready or wanted
        except Damaged as error:
            say(f"warning    {error}: it is made again")
    params, used, damaged = average(checkpoints, wanted, like)
    for line in damaged:
        say(f"warning    not averaged: {line}")
    if used[-1] in saved:
        averaged.set_aside(used[-1])
    averaged.save_params(used[-1], params, wanted, used)
    averaged.close()
    return steps[-1], used


def average(
    checkpoints: Checkpoints, steps: Sequence[int], like: Any
) -> tuple[Params, list[int], list[str]]:
    """Return the mean of the parameters at several steps (the paper uses 5).

    Damaged checkpoints are left out. Also return the steps that were used and the
    problems of the others.
    """
    add = jax.jit(lambda a, b: jax.tree.map(lambda x, y: x + y, a, b), donate_argnums=0)
    total, used, damaged = None, [], []
    for step in steps:
        try:
            params = checkpoints.restore_params(step, like)
        except Damaged as error:
            damaged.append(str(error))
            continue
        total = params if total is None else add(total, params)
        used.append(step)
    if not used:
        raise UserError(
            "none of the checkpoints to average can be read: start the same command "
            "again, to continue from an earlier one",
            *damaged,
        )
    divide = jax.jit(lambda a: jax.tree.map(lambda x: x / len(used), a))
    return divide(total), used, damaged


def choose_steps(config: ConfigDict, steps: list[int]) -> list[int]:
    """Choose the last checkpoints after the warmup, in the last third of the steps.

    Parameters that still move fast do not scatter around one optimum, so their mean is
    worse than the last of them. A step at which the run ended before `train.steps` was
    raised is left out, because an undisturbed run would not have saved it.
    """
    every = config.checkpoint.every
    steps = [step for step in steps if step % every == 0 or step == steps[-1]]
    late = max(config.optim.warmup_steps, steps[-1] * 2 // 3)
    used = [step for step in steps[-config.checkpoint.average :] if step >= late]
    return used or steps[-1:]


Stop = Callable[[], bool]  # whether to leave an evaluation


def validates_at(training: Training, step: int) -> bool:
    """Return whether the validation split is scored after this step."""
    return step % training.config.eval.every == 0 or step == training.config.train.steps


def lacks_validation(training: Training, step: int) -> bool:
    """Return whether the evaluation after a step is missing."""

    def look() -> bool:
        entries = log.read_entries(training.log.path)
        return not any((e["kind"], e["step"]) == ("validation", step) for e in entries)

    return step > 0 and validates_at(training, step) and hosts.decide_in_first(look)


def validate(
    training: Training, step: int, state: TrainState, stop: Stop = lambda: False
) -> None:
    """Score the validation split, and record the scores.

    The score also ranks the checkpoint of this step.
    """
    config = training.config
    params = state.ema if config.eval.weights == "ema" else state.params
    params = adapters.merge(params, config)
    options = runs.decode_options(config)
    with training.watchdog.phase("the evaluation", config.timeout.evaluate):
        evaluation = training.validation.evaluate(
            params,
            options,
            config.eval.answers,
            make_progress(training, stop, f"step {step} is saved, and will be scored"),
        )
    training.saver.regular.score(step, log.rank(config, evaluation.scores))
    training.log.record(step, "validation", evaluation.scores)
    for line in report.validation(step, evaluation, config.eval.samples):
        training.log.say(line)


def make_progress(
    training: Training, stop: Stop, left: str
) -> Callable[[int, int], None]:
    """Return the function that an evaluation calls after each batch and answer."""

    def progress(done: int, total: int) -> None:
        training.watchdog.beat()
        training.saver.check()
        training.log.progress(done, total)
        if stop():
            raise Preempted(left)

    return progress


def finish(training: Training, stop: Stop = lambda: False) -> dict[str, Any]:
    """Average the last checkpoints, score the test splits, and write the result."""
    config, folder = training.config, training.folder
    with training.watchdog.phase("averaging checkpoints", config.timeout.save):
        last, used = average_last(
            config,
            folder,
            training.saver.regular,
            training.abstract.params,
            training.log.say,
        )
    weights, candidates = config.eval.weights, {}
    if weights == "auto":
        weights, candidates = choose_weights(training, used != [last], stop)
    params, step, label = runs.read_params(
        folder, training.task, training.mesh, weights
    )
    result = {"step": last, "stopped_early": last < config.train.steps}
    result |= {"weights": label, "averaged_steps": used, "scores": {}}
    result |= {"candidates": candidates} if candidates else {}
    if skipped := log.count_skipped(training.log.path):
        result["skipped"] = skipped
    result["seconds"] = log.training_seconds(training.log.path)
    result["parameters"] = sum(x.size for x in jax.tree.leaves(params))
    options = runs.decode_options(config)
    held_out = training.prepared.held_out
    for split in [s for s in config.eval.splits if s in held_out]:
        training.log.say(
            f"scoring    {split} with the {label} parameters of step {step}"
        )
        evaluator = Evaluator(training.task, held_out[split], training.mesh)
        progress = make_progress(training, stop, f"{split} will be scored")
        with training.watchdog.phase("the evaluation", config.timeout.evaluate):
            evaluation = evaluator.evaluate(params, options, progress=progress)
        scores = evaluation.entry(step, label, options)
        result["scores"][split] = scores
        training.log.record(last, split, scores)
    if training.log.active:
        for split, scores in result["scores"].items():
            folder.add_scores(split, scores)
        folder.write("result.json", result)
        notes = [folder.read_note(name) for name in ("ledger.json", "versions.json")]
        files.write(folder.path / bundle.CARD, card.write(config, result, step, *notes))
    return result


def choose_weights(
    training: Training, averaged: bool, stop: Stop
) -> tuple[str, dict[str, Any]]:
    """Choose the parameters that answer (`eval.weights = "auto"`), by validation.

    An average can be worse than the last parameters if these still moved fast. Return
    the name of the best weights, and the scores of each candidate by its name.
    """
    config, options = training.config, runs.decode_options(training.config)
    names = ["average"] * averaged + ["last"] + ["ema"] * bool(config.optim.ema)
    if len(names) == 1 or not len(training.validation.records):
        return names[0], {}
    ranks, entries = {}, {}
    progress = make_progress(training, stop, "the choice of weights will be made")
    for name in names:
        params, step, label = runs.read_params(
            training.folder, training.task, training.mesh, name
        )
        with training.watchdog.phase("the evaluation", config.timeout.evaluate):
            found = training.validation.evaluate(
                params, options, config.eval.answers, progress
            )
        rank = log.rank(config, found.scores)
        ranks[name] = rank if math.isfinite(rank) else -math.inf
        entries[label] = found.entry(step, label, options)
        training.log.say(f"weights    {label}: {in_words(found)}")
    best = max(names, key=lambda name: ranks[name])  # ties go to the first
    training.log.say(
        f"weights    {best}: the best by validation {config.checkpoint.best}"
    )
    return best, entries


def in_words(evaluation: Evaluation) -> str:
    """Format the scores of an evaluation as a line."""
    summary = evaluation.task.scoring.summary(evaluation.scores)
    return f"{log.in_words(evaluation.scores, summary)}  {summary}".strip()
