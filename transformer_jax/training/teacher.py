"""Learn from what another run predicts, or another pass of the same model.

A teacher, `train.teacher`, is another run (distillation):

    loss = (1 - w) · loss of the truth + w · τ² · KL(teacher ‖ student)     per token

w is `train.teacher_weight`, τ `train.teacher_temperature` (Hinton et al. 2015). The
teacher's parameters come with each batch, so that no state, checkpoint or optimizer
holds them. It reads what the student reads, but without dropout.

With `train.consistency`, c, each batch is predicted twice, and the model learns to
predict the same whatever units are dropped (R-Drop, Liang et al. 2021):

    loss = (loss₁ + loss₂) / 2 + c / 4 · (KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁))        per token
"""

import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax import losses, tasks
from transformer_jax.base.errors import Refused, UserError
from transformer_jax.data.store import Store
from transformer_jax.losses import LossFn, Sums
from transformer_jax.runs import run as runs
from transformer_jax.runs import signature
from transformer_jax.runs.folder import Folder
from transformer_jax.sharding import Params
from transformer_jax.tasks.protocols import CrossEntropy, Objective, Task
from transformer_jax.training.warm_start import Origin, Say


def open_checks(config: ConfigDict) -> list[Callable[[Task], None]]:
    """Open the teacher; return the checks that refuse an unsuitable task."""
    checks: list[Callable[[Task], None]] = []
    if config.train.teacher:
        checks.append(functools.partial(check, teacher=open_task(config)))
    if config.train.consistency:
        checks.append(check_consistency)
    return checks


def open_task(config: ConfigDict) -> Task:
    """Open the task of the teacher that a config names, without its dropout.

    A teacher of another task is refused.
    """
    origin = Origin(config, "teacher")
    if origin.config.task != config.task:
        raise UserError(
            f"train.teacher = {origin.path!r} was trained for the task "
            f"{origin.config.task!r}, not {config.task!r}: name a run of the same task"
        )
    plain = origin.config.copy_and_resolve_references()
    dropout = {k: 0.0 for k, _ in configs.items(plain) if k.startswith("model.dropout")}
    with plain.unlocked():
        plain.update_from_flattened_dict(dropout)
    return tasks.find(plain.task).open(plain, origin.folder.tokenizer)


def check(task: Task, teacher: Task) -> None:
    """Refuse a teacher of another vocabulary, and a loss that it cannot join."""
    config, objective = task.config, task.objective
    name = f"train.teacher = {config.train.teacher!r}"
    if not _is_cross_entropy(objective):
        raise UserError(
            f"{name}: the loss of the task {config.task!r} is not only a cross-entropy "
            "of tokens or labels, so no teacher can join it: leave train.teacher out"
        )
    for table, own in task.data.vocabularies.items():
        other = teacher.data.vocabularies[table]
        if own.fingerprint != other.fingerprint:
            raise UserError(
                f"{name} predicts pieces of another vocabulary ({table!r}: "
                f"{other.vocab_size:,} pieces) than this run's ({own.vocab_size:,}): "
                "leave out tokenizer.kind = 'file', tokenizer.replace and "
                "train.initial, and a new run takes the teacher's tokenizer"
            )
    if task.data.labels != teacher.data.labels:
        raise UserError(
            f"{name} has the labels {', '.join(teacher.data.labels)}, in this order, "
            f"but this run {', '.join(task.data.labels)}: name a run with the same"
        )


def check_consistency(task: Task) -> None:
    """Refuse to compare two passes whose loss or whose predicted tokens differ."""
    config, objective = task.config, task.objective
    named = f"train.consistency = {config.train.consistency}"
    if not _is_cross_entropy(objective):
        raise UserError(
            f"{named}: the loss of the task {config.task!r} is not only a "
            "cross-entropy of tokens or labels, so two passes cannot join it: leave it "
            "out"
        )
    assert isinstance(objective, CrossEntropy)
    if objective.draws:
        raise UserError(
            f"{named}: the task {config.task!r} draws the tokens that it predicts anew "
            "in each pass, so two passes predict different ones: leave it out"
        )


def _is_cross_entropy(objective: Objective) -> bool:
    """Return whether the loss is only a cross-entropy, unlike that of speech."""
    return getattr(type(objective), "loss", None) is CrossEntropy.loss


def abstract(config: ConfigDict, mesh: Mesh) -> dict[str, Params]:
    """Return the shapes and shardings of the result of `load`, without reading it."""
    return {losses.TEACHER: runs.abstract_params(open_task(config), mesh)}


def load(
    config: ConfigDict, store: Store, folder: Folder, mesh: Mesh, say: Say
) -> dict[str, Params]:
    """Load the parameters of the teacher onto the mesh, as an entry of each batch.

    A run that continues must find those that it began with. The teacher must have
    positions for the examples of the store.
    """
    run = runs.load(config.train.teacher, mesh=mesh)
    try:
        run.task.data.lengths(store)
    except Refused as error:
        raise UserError(f"train.teacher = {config.train.teacher!r}: {error}") from None
    found = sorted(signature.examine(run.params).fingerprints.items())
    about = {
        "place": config.train.teacher,
        "step": run.step,
        "weights": run.weights,
        "parameters": hashlib.sha256(repr(found).encode()).hexdigest(),
    }
    folder.adopt_teacher(about, write=jax.process_index() == 0)
    size = sum(x.size for x in jax.tree.leaves(run.params))
    say(
        f"teacher    {size:,} parameters of {config.train.teacher} ({run.weights}, "
        f"step {run.step:,}): {config.train.teacher_weight:.0%} of the loss"
    )
    return {losses.TEACHER: run.params}


def add_to_loss(task: Task) -> LossFn:
    """Return the loss of a training, with its teacher's or its second pass's part."""
    settings, own = task.config.train, task.objective
    if settings.consistency:
        assert isinstance(own, CrossEntropy)  # see `check_consistency`
        return _twice(own, settings.consistency)
    assert isinstance(own, CrossEntropy)  # see `check`
    other = open_task(task.config).objective
    assert isinstance(other, CrossEntropy)

    def taught(
        params: Params, batch: Mapping[str, Any], key: Array | None = None
    ) -> Sums:
        rows = {name: x for name, x in batch.items() if name != losses.TEACHER}
        mine = own.predictions(params, rows, key)
        # With the same key, the inputs are the same where it draws them, as masks.
        theirs = other.predictions(batch[losses.TEACHER], rows, key)
        weight, temperature = settings.teacher_weight, settings.teacher_temperature
        teacher = losses.Teacher(theirs.hidden, theirs.logits_of, weight, temperature)
        return losses.cross_entropy_of(*mine, teacher)

    return taught


def _twice(own: CrossEntropy, weight: float) -> LossFn:
    """Return a loss of two passes with other units dropped; without a key, of one."""

    def loss(
        params: Params, batch: Mapping[str, Any], key: Array | None = None
    ) -> Sums:
        if key is None:
            return own.loss(params, batch)
        mine, again = (own.predictions(params, batch, k) for k in jax.random.split(key))
        twin = losses.Twin(again.hidden, again.logits_of, weight)
        return losses.cross_entropy_of(*mine, twin)

    return loss
