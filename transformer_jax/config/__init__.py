"""Every key of a run, its default and meaning, and the checks before a run.

To list the keys of a task and a model with their defaults and meanings:

    python -c "from transformer_jax import config; [
        print(name, '=', repr(key.default), ' #', key.metadata['meaning'])
        for name, key in config.declared('parsing', 'recurrent').items()]"
"""

from transformer_jax.config.defaults import base, declared, items
from transformer_jax.config.loading import (
    differences,
    load,
    shipped,
    shipped_folder,
    variants,
)

__all__ = [
    "base", "declared", "differences", "items", "load", "shipped", "shipped_folder",
    "variants",
]  # fmt: skip
