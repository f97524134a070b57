"""All keys of a run, section by section, and the config that has their defaults.

A section whose keys one module reads is declared there; what several modules read is
declared here, where a reader of a config looks first. `declared` has every key of a
config with its meaning, bounds and choices, which `checks.py` compares with its values.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import FieldReference

from transformer_jax import cli, keys, sharding, tasks
from transformer_jax.data import batches, filters, tokenizer, vectors
from transformer_jax.errors import UserError, nearest
from transformer_jax.keys import SEEDS, key
from transformer_jax.models import registry
from transformer_jax.optim import OptimKeys
from transformer_jax.tasks.protocols import TaskDefinition


@dataclasses.dataclass(frozen=True)
class RunKeys:
    """Say what is done: the keys that stand in no section."""

    task: str = key(
        "translation",
        "What the model is used for: a file of tasks/.",
        choices=tasks.names,
    )
    seed: int = key(
        0, "Of initial weights, dropout and the order of examples.", least=0, most=SEEDS
    )
    imports: tuple = key(
        (), "Modules imported first, which add to tables such as ACTIVATIONS."
    )
    targets: tuple = key(
        ("cpu",), "Hardware that it is for, such as h200x8: what `plan` compiles for."
    )


@dataclasses.dataclass(frozen=True)
class TrainKeys:
    """Train: the keys of `config.train`."""

    steps: int = key(100_000, "Updates.", least=1, most=10**9)
    accumulation: int = key(1, "Micro-batches of a batch, to save memory.", least=1)
    label_smoothing: float = key(
        0.1, "Probability taken from the truth (5.4).", least=0, below=1
    )
    initial: str = key("", "A run whose parameters this one begins with; empty: none.")
    on_divergence: str = key(
        "stop",
        "If the loss or a gradient is not finite. skip: leave the batch out; back: to "
        "the last checkpoint, from there on at half the rate.",
        choices=("stop", "skip", "back"),
    )
    divergences: int = key(
        5, "skip: so many in sequence, back: in all; then it stops.", least=1
    )
    patience: int = key(
        0, "Evaluations without a better one before stopping; 0: never.", least=0
    )


@dataclasses.dataclass(frozen=True)
class EvalKeys:
    """Judge while training and at its end: the keys of `config.eval`."""

    every: int = key(
        5000,
        "Updates between evaluations of the validation split.",
        least=1,
        most=10**9,
    )
    max_length: int = key(1024, "Pieces; a longer example is refused.", least=1)
    answers: int = key(
        0, "Validation examples answered, evenly spaced; 0: all.", least=0, most=10**9
    )
    samples: int = key(3, "Answers shown in the log, evenly spaced, too.", least=0)
    splits: tuple = key(("test",), "Scored when training is done.")
    weights: str = key(
        "auto",
        "Used for answers; auto: the average, the last or ema, by validation.",
        choices=cli.WEIGHTS,
    )
    batch_rows: int = key(128, "Sentences decoded together.", least=1)


@dataclasses.dataclass(frozen=True)
class CheckpointKeys:
    """Save and average: the keys of `config.checkpoint`."""

    every: int = key(1000, "Updates.", least=1, most=10**9)
    minutes: float = key(
        0.0, "Also after so long, to lose less to a crash; 0: never.", least=0
    )
    keep_last: int = key(5, "The newest ones kept.", least=1)
    keep_best: int = key(1, "And those with the best validation score.", least=0)
    best: str = key("loss", "What is best.", choices=("loss", "accuracy"))
    average: int = key(5, "How many of the last are averaged (6.1).", least=1)


@dataclasses.dataclass(frozen=True)
class TimeoutKeys:
    """End a process that hangs: seconds, the keys of `config.timeout`; 0: any time."""

    start: int = key(300, "Until all processes of a run must have come.", least=1)
    compile: int = key(3600, "To compile a step, or to try it out.", least=0)
    step: int = key(600, "A step; more if steps are slow (20 × the slowest).", least=0)
    evaluate: int = key(3600, "To score a batch, or until the next answer.", least=0)
    save: int = key(1800, "To restore or save a checkpoint.", least=0)
    preemption: int = key(120, "From SIGTERM until the state is saved.", least=0)


@dataclasses.dataclass(frozen=True)
class LogKeys:
    """Say how it goes: the keys of `config.log`."""

    every: int = key(50, "Updates a log line.", least=1, most=10**9)
    tensorboard: bool = key(True, "Also write TensorBoard events, if it is installed.")


def base(task: str = "translation", model: str = "") -> ConfigDict:
    """Make the complete config of a task and a model, locked.

    Without a name it is the first model that can be used for the task: a Transformer,
    if there is one.
    """
    kind = tasks.find(task)
    model = model or registry.names_for(kind.role)[0]
    if "." in model:
        registry.find(model)
    models = registry.names_for(kind.role)
    if model not in models:
        raise UserError(
            f"unknown model {model!r} of the task {task!r}.{nearest(model, models)} "
            f"It has: {', '.join(models)}"
        )
    config = ConfigDict()
    for section, classes in _sections(kind, model).items():
        for cls in classes:
            found = _open_to_older(cls)
            config.update({section: found} if section else found)
    config.task, config.model.name = task, model
    kind.configure(config)
    return config.lock()


def renew(task: str, model: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of an older config, by dotted key, as they are written now."""
    known = declared(task, model)
    return {
        name: keys.renew(known[name], value) if name in known else value
        for name, value in values.items()
    }


def declared(task: str, model: str) -> dict[str, dataclasses.Field]:
    """Return every key of a base config with what the task and the model make of it.

    Its default is that of the config, and its choices are those that the task leaves.
    """
    kind = tasks.find(task)
    choices = {"checkpoint.best": ("loss", "accuracy", *kind.metrics), **kind.choices}
    known = {
        f"{section}.{field.name}".lstrip("."): field
        for section, classes in _sections(kind, model).items()
        for cls in classes
        for field in keys.fields(cls)
    }
    return {
        name: keys.narrow(known[name], value, choices.get(name))
        for name, value in items(base(task, model))
    }


def items(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All (dotted key, value) pairs."""
    for name, value in config.items():
        if isinstance(value, ConfigDict):
            yield from items(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _open_to_older(cls: type) -> dict[str, Any]:
    """Return the defaults; a key that once had another type accepts that one, too."""
    fields = {field.name: field for field in keys.fields(cls)}
    return {
        name: FieldReference(value, field_type=object)
        if fields[name].metadata["was"]
        else value
        for name, value in keys.defaults(cls).items()
    }


def _sections(task: TaskDefinition, model: str) -> dict[str, Sequence[type]]:
    """List the classes of keys of each section, in the order of a config."""
    found = {
        "": [RunKeys],
        "data": [batches.BatchKeys],
        "filter": [filters.FilterKeys],
        "tokenizer": [tokenizer.TokenizerKeys],
        "model": [
            registry.NameKeys, registry.find(model).config, vectors.VectorKeys
        ],
        "train": [TrainKeys],
        "optim": [OptimKeys],
        "eval": [EvalKeys],
        "decode": [task.options],
        "checkpoint": [CheckpointKeys],
        "mesh": [sharding.MeshKeys],
        "timeout": [TimeoutKeys],
        "log": [LogKeys],
    }  # fmt: skip
    return {name: [*own, *task.keys.get(name, ())] for name, own in found.items()}
