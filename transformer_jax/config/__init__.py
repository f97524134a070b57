"""Every key of a run, its default and meaning, and the checks before a run.

List the keys of a task and a model with their defaults and meanings:

    python -c "from transformer_jax import config
    for name, key in config.declared('parsing', 'recurrent').items():
        print(f'{name} = {key.default!r}  # {key.metadata[meaning]}')"
"""

from transformer_jax.config.defaults import base, declared, items
from transformer_jax.config.loading import differences, load, shipped, shipped_folder

__all__ = [
    "base",
    "declared",
    "differences",
    "items",
    "load",
    "shipped",
    "shipped_folder",
]
