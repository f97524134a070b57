"""Run the programs that need the most memory before step 1, to fail early or never.

On a CPU this is the training step with the most tokens, while threads compile the
others. On GPUs and TPUs all steps are compiled first, and the one that needs the most
memory is run; then the evaluation's largest batch, and a full batch of answers to the
longest question.
"""

from typing import Any

import jax
from jax.sharding import Mesh

from transformer_jax.data import store as stores
from transformer_jax.data.batches import nothing
from transformer_jax.decoding import Options
from transformer_jax.training.evaluator import Evaluator, answer_all
from transformer_jax.training.parts import Training
from transformer_jax.training.steps.feed import assemble


def rehearse(training: Training, options: Options) -> None:
    """Run the largest programs of a training run once, on a state that is discarded.

    The compilation of its steps must have begun.
    """
    shape, key = training.feed.plan.largest, jax.random.key(training.config.seed)
    everything = has_little_memory(training.mesh)
    if everything:
        shape = training.compiled.needs_most()
    with jax.set_mesh(training.mesh):
        state, _ = training.compiled.get(shape)(
            training.init(key), training.feed.empty(shape)
        )
        jax.block_until_ready(state)
    if everything and len(training.validation.records):
        rehearse_evaluation(training.validation, state.params, options)


def has_little_memory(mesh: Mesh) -> bool:
    """Return whether memory, rather than start-up time, is scarce."""
    return mesh.devices.flat[0].platform != "cpu"


def rehearse_evaluation(evaluator: Evaluator, params: Any, options: Options) -> None:
    """Score an empty batch of the largest shape, and answer the longest question."""
    task, mesh, store = evaluator.task, evaluator.mesh, evaluator.store
    batch = assemble(task, store, nothing(evaluator.plan.largest), mesh)[0]
    with jax.set_mesh(mesh):
        jax.block_until_ready(evaluator.loss(params, batch))
    rows = task.config.eval.batch_rows
    longest = int(task.data.lengths(store)[:, 0].argmax())
    record = evaluator.records[int(store.column(stores.RECORD)[longest])]
    answer_all(task, params, mesh, [record] * rows, options, lambda done, total: None)
