"""Every key of a run, its default and meaning, and the checks before a run."""

from transformer_jax.config.defaults import base, items
from transformer_jax.config.loading import differences, load, shipped, shipped_folder

__all__ = ["base", "differences", "items", "load", "shipped", "shipped_folder"]
