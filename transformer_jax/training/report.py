"""Describe a training run: its header, its validation scores, its last lines."""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from transformer_jax import cli, optim
from transformer_jax import config as configs
from transformer_jax.data import store as stores
from transformer_jax.data.batches import Shape
from transformer_jax.models import kernels, registry
from transformer_jax.models.transformer_config import TransformerConfig, attention_case
from transformer_jax.runs import run as runs
from transformer_jax.runs.folder import Folder
from transformer_jax.training import log
from transformer_jax.training.evaluator import Evaluation, evenly_spaced
from transformer_jax.training.parts import Training

TRIED = 6.25e-3  # the highest rate of a shipped config with Adam and noam


def header(training: Training) -> list[str]:
    """Describe a training run before it begins."""
    config, feed, mesh = training.config, training.feed, training.mesh
    size = sum(x.size for x in jax.tree.leaves(training.abstract.params))
    axes = " × ".join(f"{axis} {n}" for axis, n in mesh.shape.items())
    device = mesh.devices.flat[0].device_kind
    left_out = stores.summary(feed.store.ledger)
    left_out = f" (left out, see ledger.json: {left_out})" if left_out else ""
    shapes = ", ".join(
        f"{s.rows}×{'/'.join(map(str, s.lengths))}" for s in feed.plan.shapes
    )
    return [
        f"run        {training.folder.place}",
        f"devices    {mesh.size} × {device} ({jax.default_backend()}), mesh {axes}",
        f"model      {size:,} parameters, {configs.dtype_of(config)} computation",
        *trained_line(training),
        *attention_line(config, feed.plan.shapes, mesh),
        f"data       {len(feed.store):,} examples{left_out}, "
        f"{feed.plan.steps_per_epoch:,} steps per epoch, "
        f"padding {training.planned.padding:.1%}",
        *mixture_lines(training),
        f"shapes     {len(feed.plan.shapes)} to compile: {shapes}",
        f"training   {config.train.steps:,} steps, highest learning rate "
        f"{optim.peak(config):.2e}",
        *rate_note(config),
    ]


def mixture_lines(training: Training) -> list[str]:
    """Say how often the examples of each corpus are read, if there are several."""
    corpora, steps = training.planned.corpora, training.config.train.steps
    epochs = steps / training.feed.plan.steps_per_epoch
    return [
        f"corpus     {i} of {len(corpora)}: {examples:,} examples, each {times} × per "
        f"epoch, {times * epochs:.1f} × in {steps:,} steps"
        for i, (examples, times) in enumerate(corpora, start=1)
        if len(corpora) > 1
    ]


def trained_line(training: Training) -> list[str]:
    """Say which share of the parameters is trained, unless it is all of them."""
    config, state = training.config, training.abstract
    if not optim.freezes(config):
        return []
    factors = optim.rate_factors(config, state.params)
    sizes = jax.tree.map(lambda p, factor: (p.size, factor), state.params, factors)
    pairs = jax.tree.leaves(sizes, is_leaf=lambda x: isinstance(x, tuple))
    moves = sum(size for size, factor in pairs if factor)
    total = sum(size for size, _ in pairs)
    kept = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.opt_state))
    return [
        f"trained    {moves:,} parameters ({moves / total:.1%}), {total - moves:,} are "
        f"frozen; the optimizer's state has {kept / 1e6:.1f} MB"
    ]


def rate_note(config: ConfigDict) -> list[str]:
    """Warn of a rate of the noam schedule that is higher than any tried one.

    The rate grows as the warmup gets shorter, which is easily overlooked.
    """
    peak, optimizer = optim.peak(config), (config.optim.schedule, config.optim.name)
    chosen = config.train.smoke or config.optim.learning_rate
    if chosen or optimizer != ("noam", "adam") or peak <= TRIED:
        return []
    return [
        f"note       optim.warmup_steps {config.optim.warmup_steps} makes the highest "
        f"learning rate {peak:.2e}; no shipped config has more than {TRIED:.2e}, the "
        "paper 7.0e-04. If the loss rises, lengthen the warmup or set "
        "optim.learning_rate"
    ]


def attention_line(
    config: ConfigDict, shapes: Sequence[Shape], mesh: Mesh
) -> list[str]:
    """Describe which attention kernels the batches of a Transformer use, and why."""
    if not issubclass(registry.find(config.model.name).config, TransformerConfig):
        return []
    platform = mesh.devices.flat[0].platform
    known = {axis: mesh.shape[axis] for axis in ("tensor", "sequence")}
    found = []
    for shape in shapes:
        longest = max(shape.lengths)
        sizes = {"queries": longest, "keys": longest, "packed": shape.packed}
        case = attention_case(config, platform=platform, **known, **sizes)
        choice = kernels.choose(config.model.attention, case)
        found.append(kernels.describe(choice, platform))
    return [f"attention  {', '.join(dict.fromkeys(found))}"]


def validation(step: int, evaluation: Evaluation, samples: int) -> list[str]:
    """Describe the scores of the validation split, and show `samples` answers."""
    task, values = evaluation.task, evaluation.scores
    summary, took = task.scoring.summary(values), cli.duration(values["seconds"])
    words = log.in_words(values, summary)
    lines = [f"validation step {step}  {words}  {summary}  ({took})"]
    lines += group_lines(values)
    for i in evenly_spaced(samples, len(evaluation.answers)):
        record = evaluation.records[i]
        lines.append(f"  source     {task.inference.question(record)}")
        lines.append(f"  reference  {task.scoring.reference(record)}")
        lines.append(f"  answer     {evaluation.answers[i]}")
    return lines


def group_lines(scores: dict[str, Any]) -> list[str]:
    """Describe the scores of groups of examples, if there are any."""
    groups = scores.get("groups", {})
    return [
        f"  {name or 'no tag'}: {found['summary']}  "
        f"({found['examples']:,} example{'s' * (found['examples'] != 1)})"
        for name, found in groups.items()
    ]


def print_result(
    result: dict[str, Any], folder: Folder, already: bool = False, smoke: bool = False
) -> None:
    """Print the last lines of a training run, in the first process only."""
    if jax.process_index():
        return
    if smoke:
        log.console.info(f"smoke      {folder.place} {runs.SMOKE}")
    state = "was already done" if already else "done"
    early = ", stopped early" if result["stopped_early"] else ""
    took = f", trained {cli.duration(result['seconds'])}"
    lines = [f"{state}: {folder.place}, step {result['step']}{early}{took}"]
    for split, scores in result["scores"].items():
        summary = scores["summary"]
        lines.append(
            f"{split}: {summary}  {log.in_words(scores, summary)}  "
            f"({scores['examples']} examples, {result['weights']} parameters)"
        )
        lines += group_lines(scores)
    command = f"python -m transformer_jax.predict --workdir {folder.place}"
    for line in [*lines, f'try it: echo "…" | {command}']:
        log.console.info(line)
