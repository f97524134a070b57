"""Every model by its name: its sizes, its modules, and what cannot work in its config.

A model is a file of this folder with a record `MODEL`, and a line in `MODELS` below; or
a module of another package that has one, named with it: "mypackage.averaging".
Its modules are listed by role, which is what a task asks for: a task of the role
"seq2seq" can be trained with every model that has a module for it.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
from ml_collections import ConfigDict

from transformer_jax import sharding
from transformer_jax.errors import UserError, nearest
from transformer_jax.keys import import_extension, key

# The name in `config.model.name` is that of the file.
MODELS = (
    "transformer",
    "recurrent",
    "coordinate_mlp",
)
_others: list[str] = []  # of other packages, since they were named

ROLES = (
    "seq2seq", "language_model", "masked_language_model", "text_classifier",
    "token_classifier", "text_embedder", "image_classifier", "coordinates",
    "decisions",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class NameKeys:
    """Choose the model: the first key of `config.model`."""

    name: str = key("transformer", "A file of models/.", choices=lambda: names())


@dataclasses.dataclass(frozen=True)
class Longest:
    """Hold the length of the longest example of a run, and of its longest answer."""

    pieces: int  # its ends counted
    positions: int  # that it takes with its longest answer
    keys: str  # of the config, that say so


@dataclasses.dataclass(frozen=True)
class Model:
    """Describe a model to those who configure it, check it and build it.

    A module is made of an instance of `config`, and of what else its task gives it; it
    has the methods that its role asks for (see `decoding/` for `start` and `extend`).
    """

    config: type  # the dataclass of its keys and sizes; all have defaults
    modules: Mapping[str, Callable[..., nn.Module]]  # by role
    find_problems: Callable[[ConfigDict, Longest], list[str]]
    rules: tuple[sharding.Rule, ...] = ()  # for parameters that sharding.RULES lacks


@functools.cache
def find(name: str) -> Model:
    """Load a model's record by the name that `config.model.name` has."""
    if "." in name:
        model = getattr(import_extension(name, "the model"), "MODEL", None)
        if not isinstance(model, Model):
            raise UserError(f"{name} has no MODEL = Model(...): see models/registry.py")
        _others.append(name)
    elif name in MODELS:
        model = importlib.import_module(f"transformer_jax.models.{name}").MODEL
    else:
        raise UserError(f"unknown model {name!r}.{nearest(name, MODELS)}")
    sharding.add_rules(model.rules)
    return model


def names() -> tuple[str, ...]:
    """List all models; of other packages, those that were imported."""
    return (*MODELS, *_others)


def names_for(role: str) -> tuple[str, ...]:
    """List the models that have a module for a role."""
    if role not in ROLES:
        raise ValueError(f"unknown role {role!r}.{nearest(role, ROLES)}")
    return tuple(name for name in names() if role in find(name).modules)


def build(
    config: ConfigDict,
    role: str,
    *,
    vocab_size: int = 0,
    source_vocab_size: int = 0,
    **arguments: Any,
) -> nn.Module:
    """Make the config's module for a role, with vocabularies of these sizes.

    `arguments` are those that a module of this role has beside its sizes.
    """
    modules = find(config.model.name).modules
    if role not in modules:
        raise UserError(
            f"the model {config.model.name!r} has no module for {role!r}: use one of "
            f"{', '.join(names_for(role))}"
        )
    return modules[role](make_sizes(config, vocab_size, source_vocab_size), **arguments)


def make_sizes(
    config: ConfigDict, vocab_size: int = 0, source_vocab_size: int = 0
) -> Any:
    """Make the sizes of the config's model; the rows of its tables are padded.

    A task that has no encoder or no decoder has no key for its layers: there are none.
    """
    kind = find(config.model.name).config
    multiple = config.tokenizer.row_multiple if "tokenizer" in config else 1
    values = {
        "encoder_layers": 0,
        "decoder_layers": 0,
        **config.model,
        "vocab_size": vocab_size,
        "vocab_rows": -(-vocab_size // multiple) * multiple,
        "source_vocab_size": source_vocab_size,
        "source_vocab_rows": -(-source_vocab_size // multiple) * multiple,
    }
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in known})
