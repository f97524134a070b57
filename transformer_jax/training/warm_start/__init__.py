"""Initialise the parameters of a new run from another run, or from word vectors.

`train.initial` names a run (`origin`), `model.word_vectors` a file with vectors, which
become the rows of the embedding tables for the words of a vocabulary (`word_vectors`).
A run that continues takes parameters from neither again.
"""

from jax.sharding import Mesh

from transformer_jax.sharding import Params
from transformer_jax.tasks.protocols import Task
from transformer_jax.training.warm_start import word_vectors
from transformer_jax.training.warm_start.origin import Origin, Say, adopt

__all__ = ["Origin", "adopt", "fill"]


def fill(task: Task, params: Params, mesh: Mesh, say: Say) -> Params:
    """Replace some of the random parameters by what the task's config names."""
    if task.config.train.initial:
        return Origin(task.config).fill(task, params, mesh, say)
    return word_vectors.place(task.config.model.word_vectors, task, params, say)
