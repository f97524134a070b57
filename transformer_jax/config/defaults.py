"""All options of a run, by section, and the config with their defaults.

Options that only one module reads are declared in that module; those that several
modules read are declared here. `declared` returns every option of a config with
its meaning, bounds and choices, against which `checks.py` checks the values.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from transformer_jax import cli, optim, sharding, tasks
from transformer_jax.base import entry_points, schema
from transformer_jax.base.errors import UserError, nearest
from transformer_jax.base.schema import SEEDS, option
from transformer_jax.data import batches
from transformer_jax.data.reading import filters
from transformer_jax.data.text import tokenizer, vectors
from transformer_jax.models import registry
from transformer_jax.models.layers import adapters
from transformer_jax.tasks.protocols import TaskDefinition


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Options outside of all sections."""

    task: str = option(
        "translation", "The task, such as translation or speech.", choices=tasks.names
    )
    seed: int = option(
        0,
        "Seed of initial weights, dropout and the order of examples.",
        least=0,
        most=SEEDS,
    )
    imports: tuple = option(
        (), "Modules to import first, which add to tables such as ACTIVATIONS."
    )
    card: str = option(
        "", "Sentences for the model card: the use, the data, their licence, limits."
    )
    targets: tuple = option(
        ("cpu",), "Hardware that `plan` compiles the training for, such as h200x8."
    )


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """Training: the options of `config.train`."""

    steps: int = option(100_000, "Updates.", least=1, most=10**9)
    accumulation: int = option(1, "Micro-batches per batch, to save memory.", least=1)
    label_smoothing: float = option(
        0.1,
        "Probability moved from the true token to all others (5.4).",
        least=0,
        below=1,
    )
    initial: str = option(
        "", "A run whose parameters this one begins with; empty means none."
    )
    teacher: str = option(
        "", "A run whose predictions this one learns, too (distillation); empty: none."
    )
    teacher_weight: float = option(
        0.5,
        "Share of the divergence from train.teacher in the loss; the rest is that of "
        "the true tokens.",
        above=0,
        most=1,
    )
    teacher_temperature: float = option(
        1.0, "Divisor of both logits in this divergence.", above=0
    )
    consistency: float = option(
        0.0,
        "Weight of the divergence between two passes over each batch that drop other "
        "units (R-Drop); 0 means one pass.",
        least=0,
    )
    on_divergence: str = option(
        "stop",
        "If the loss or a gradient is not finite: stop; skip the batch; or go back to "
        "the last checkpoint and continue at half the learning rate.",
        choices=("stop", "skip", "back"),
    )
    divergences: int = option(
        5, "Divergences before stopping; skip: in sequence, back: in total.", least=1
    )
    patience: int = option(
        0, "Evaluations without improvement before stopping; 0 means never.", least=0
    )
    smoke: bool = option(
        False, "Marks a run that only tried its config; set by --smoke."
    )


@dataclasses.dataclass(frozen=True)
class EvalOptions:
    """Evaluation during and after training: the options of `config.eval`."""

    every: int = option(
        5000,
        "Updates between evaluations of the validation split.",
        least=1,
        most=10**9,
    )
    max_length: int = option(
        1024, "Most pieces of an example; longer ones are refused.", least=1
    )
    answers: int = option(
        0,
        "Validation examples to answer, evenly spaced; 0 means all.",
        least=0,
        most=10**9,
    )
    samples: int = option(3, "Answers to show in the log, evenly spaced.", least=0)
    splits: tuple = option(("test",), "Splits to score after training.")
    weights: str = option(
        "auto",
        "Weights that answer; auto: the average, the last or ema, by validation.",
        choices=cli.WEIGHTS,
    )
    batch_rows: int = option(128, "Sentences decoded together.", least=1)


@dataclasses.dataclass(frozen=True)
class CheckpointOptions:
    """Saving and averaging: the options of `config.checkpoint`."""

    every: int = option(1000, "Updates between checkpoints.", least=1, most=10**9)
    minutes: float = option(
        0.0,
        "Also save after this time, to lose less in a crash; 0 means never.",
        least=0,
    )
    keep_last: int = option(5, "Newest checkpoints to keep.", least=1)
    keep_best: int = option(1, "Checkpoints to keep by validation score.", least=0)
    best: str = option(
        "loss", "Score that ranks checkpoints.", choices=("loss", "accuracy")
    )
    average: int = option(5, "Number of last checkpoints to average (6.1).", least=1)


@dataclasses.dataclass(frozen=True)
class TimeoutOptions:
    """Seconds after which a hanging process ends: `config.timeout`; 0 means never."""

    start: int = option(300, "Until all processes of a run have started.", least=1)
    compile: int = option(3600, "To compile a step and run it once.", least=0)
    step: int = option(
        600, "For a step, or 20 × the slowest step so far if that is longer.", least=0
    )
    evaluate: int = option(3600, "To score a batch, or until the next answer.", least=0)
    save: int = option(1800, "To restore or save a checkpoint.", least=0)
    preemption: int = option(120, "From SIGTERM until the state is saved.", least=0)


@dataclasses.dataclass(frozen=True)
class LogOptions:
    """Logging: the options of `config.log`."""

    every: int = option(50, "Updates per log line.", least=1, most=10**9)


def base(task: str = "translation", model: str = "") -> ConfigDict:
    """Make the complete config of a task and a model, locked.

    The default model is the one that the task names: for most, the Transformer.
    """
    kind = tasks.find(task)
    model = model or kind.model
    known = "." in model or model in registry.names()
    suits = known and kind.interface in registry.find(model).modules
    if model not in kind.modules and not suits:
        models = registry.names_for(kind.interface, kind.modules)
        raise UserError(
            f"unknown model {model!r} of the task {task!r}.{nearest(model, models)} "
            f"Choose {', '.join(models)}"
        )
    config = ConfigDict()
    for name, field in _fields(kind, model).items():
        section, _, last = name.rpartition(".")
        config.update(
            {section: {last: field.default}} if section else {last: field.default}
        )
    config.update_from_flattened_dict(dict(kind.defaults))
    config.task, config.model.name = task, model
    return config.lock()


def declared(task: str, model: str) -> dict[str, dataclasses.Field]:
    """Return every option of a base config, by dotted name.

    The default is the one that the task sets, and the choices are those that the task
    allows.
    """
    kind = tasks.find(task)
    choices = {"checkpoint.best": ("loss", "accuracy", *kind.metrics), **kind.choices}
    known = _fields(kind, model)
    return {
        name: schema.narrow(known[name], value, choices.get(name))
        for name, value in items(base(task, model))
    }


def items(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all (dotted option, value) pairs."""
    for name, value in config.items():
        if isinstance(value, ConfigDict):
            yield from items(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def dtype_of(config: ConfigDict) -> str:
    """Return the type of numbers that a model computes in; float32 if it has no say."""
    return config.model.get("dtype", "float32")


def _options_of_hooks() -> list[type]:
    names = entry_points.names("hooks")
    return [entry_points.require("hooks", name).options for name in names]


def _fields(task: TaskDefinition, model: str) -> dict[str, dataclasses.Field]:
    """Return the options of a task and a model by dotted name, in order of a config.

    A section or an option that is of a part is there if the task has the part.
    """
    sections: dict[str, tuple[str, list[type]]] = {  # with the part, if any
        "": ("", [RunOptions]),
        "data": ("", [batches.BatchOptions]),
        "filter": ("filter", [filters.FilterOptions]),
        "tokenizer": ("text", [tokenizer.TokenizerOptions]),
        "model": ("", [registry.NameOptions, registry.find(model).config]),
        "train": ("", [TrainOptions]),
        "optim": ("", optim.option_classes()),
        "lora": ("", [adapters.LoraOptions]),
        "eval": ("", [EvalOptions]),
        "decode": ("search", [task.search]),
        "checkpoint": ("", [CheckpointOptions]),
        "mesh": ("", [sharding.MeshOptions]),
        "timeout": ("", [TimeoutOptions]),
        "log": ("", [LogOptions, *_options_of_hooks()]),
    }
    if "text" in task.parts:
        sections["model"][1].append(vectors.VectorOptions)
    has = {"", *task.parts}
    return {
        f"{section}.{field.name}".lstrip("."): field
        for section, (part, classes) in sections.items()
        if part in has
        for cls in [*classes, *task.options.get(section, ())]
        for field in schema.fields(cls)
        if field.metadata["of"] in has
    }
