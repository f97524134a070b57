"""The Transformer of "Attention Is All You Need", in JAX and Flax.

`load(run_directory)` opens a run written by `python -m transformer_jax.train`;
`fit(config, examples, …)` trains one on examples that your program holds.
"""

import sys

__version__ = "0.1.0"

if sys.platform == "win32":
    raise ImportError(
        "transformer_jax does not run on Windows itself: install it in WSL2"
    )


def load(
    path,
    weights="",
    mesh=None,
    allow_imports=False,
    base=None,
    engine="",
    ensemble=(),
):
    """Open a run directory: `load("runs/quickstart").predict(["…"])`.

    `weights` is average, best, last or ema; the default is the run's. The parameters
    are placed on the mesh, by default one of all devices of this process. A run that
    names modules of other packages is opened only with `allow_imports`, because
    importing them executes their code. A folder of what was trained
    (`convert.bundle --trained`) takes the other parameters from `base`, an open run.
    `engine` is another search engine, such as int8 or ctranslate2:int8. `ensemble`
    lists further runs that answer together with this one.
    """
    from transformer_jax.runs import run

    return run.load(path, weights, mesh, allow_imports, base, engine, ensemble)


def fit(
    config,
    train,
    validation=None,
    test=None,
    *,
    workdir,
    columns=None,
    start_from="",
    options=None,
    hooks=(),
):
    """Train on examples that your program holds: `fit("sst2", frame, workdir="a")`.

    `config` is the name or the file of a config. Each split is a pandas DataFrame, a
    `datasets.Dataset`, a dict of columns, or a list of dicts or of tuples; without
    validation data, every twentieth example is held out. `columns` names those of the
    fields, such as {"text": "review"}; `options` are those of the command line, such as
    {"train.steps": 300}. `hooks` are classes of yours that are called at each entry of
    the log and at each checkpoint (`transformer_jax.training.hooks.Hook`). The same
    call continues a run that was stopped. Return the run, open.
    """
    from transformer_jax import train as training

    splits = {"train": train, "validation": validation, "test": test}
    return training.fit(config, splits, workdir, columns, start_from, options, hooks)
