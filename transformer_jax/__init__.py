"""The Transformer of "Attention Is All You Need", in JAX and Flax.

`load(run_directory)` opens a run written by `python -m transformer_jax.train`.
"""

import sys

__version__ = "0.1.0"

if sys.platform == "win32":
    raise ImportError(
        "transformer_jax does not run on Windows itself: install it in WSL2"
    )


def load(path, weights="", mesh=None, allow_imports=False, base=None):
    """Open a run directory: `load("runs/quickstart").predict(["…"])`.

    `weights` is average, best, last or ema; the default is the run's. The parameters
    are placed on the mesh, by default one of all devices of this process. A run that
    names modules of other packages is opened only with `allow_imports`, because
    importing them executes their code. A folder of what was trained
    (`convert.trained`) takes the other parameters from `base`, an open run.
    """
    from transformer_jax.runs import run

    return run.load(path, weights, mesh, allow_imports, base)
