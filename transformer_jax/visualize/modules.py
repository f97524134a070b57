"""List the module calls of a config's model, with the shapes of their tensors."""

import functools

import jax
from ml_collections import ConfigDict

from transformer_jax.models import kernels
from transformer_jax.planning import workload
from transformer_jax.visualize.figures.structure import AXES, Call, calls, fold


def calls_of(config: ConfigDict, depth: int = 3) -> list[Call]:
    """Build a config's model without parameters, and list the calls of its modules.

    Only the first of several equal layers is expanded. Sizes that depend on the data
    are stand-ins.
    """
    objective = workload.open_empty(config).objective
    inputs = jax.eval_shape(functools.partial(objective.example_inputs, *AXES))
    module = kernels.with_weights(objective.module)
    return fold(calls(module, *inputs, depth=depth))
