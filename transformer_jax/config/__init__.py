"""All options of a run with their defaults and meanings, and the checks before a run.

`python -m transformer_jax keys CONFIG` lists those of a config.
"""

from transformer_jax.config.defaults import base, declared, dtype_of, items
from transformer_jax.config.loading import (
    find_file,
    load,
    named_files,
    shipped,
    variants,
)

__all__ = [
    "base",
    "declared",
    "dtype_of",
    "find_file",
    "items",
    "load",
    "named_files",
    "shipped",
    "variants",
]
