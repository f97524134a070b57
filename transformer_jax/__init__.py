"""The Transformer of "Attention Is All You Need", in JAX and Flax.

`load(run_directory)` opens what `python -m transformer_jax.train` left.
"""

__version__ = "0.1.0"


def load(path, weights="", mesh=None):
    """Open a run directory: `load("runs/quickstart").predict(["…"])`.

    `weights` is average, best, last or ema; by default what the run's config says. Its
    parameters are put on the mesh, or else on one device.
    """
    from transformer_jax.runs import run

    return run.load(path, weights, mesh)
