"""All figures in one module: each is a function from arrays to a matplotlib `Figure`.

The values come from the package's own functions, or are passed in. A notebook displays
a returned figure automatically; `figure.savefig(path)` writes it. Each docstring says
what to look for, and `python -m transformer_jax.visualize` draws the figures from a
run.
"""

from transformer_jax.visualize.figures.attention import (
    alignment_errors,
    arcs,
    attention,
    entropy_and_distance,
    heads,
    patches,
    rollout,
    word_links,
)
from transformer_jax.visualize.figures.beams import beam_tree
from transformer_jax.visualize.figures.computation import computation
from transformer_jax.visualize.figures.masks import mask, masking, padding
from transformer_jax.visualize.figures.positions import (
    dot_products,
    patch_similarity,
    positional_encoding,
    positional_slices,
    similarity,
    waves,
)
from transformer_jax.visualize.figures.structure import neighbours, reach, shapes
from transformer_jax.visualize.figures.training import (
    curves,
    schedules,
    smoothed_target,
)

__all__ = [
    "alignment_errors",
    "arcs",
    "attention",
    "beam_tree",
    "computation",
    "curves",
    "dot_products",
    "entropy_and_distance",
    "heads",
    "mask",
    "masking",
    "neighbours",
    "padding",
    "patch_similarity",
    "patches",
    "positional_encoding",
    "positional_slices",
    "reach",
    "rollout",
    "schedules",
    "shapes",
    "similarity",
    "smoothed_target",
    "waves",
    "word_links",
]
