"""Find models by name: their sizes, their modules and the checks of their configs.

A model is a file of this folder that defines a record `MODEL` and is listed in `MODELS`
below, or a module of another package that defines one, such as "mypackage.averaging".
A model has one module per role. A task asks for a role, so a task of the role "seq2seq"
can be trained with every model that has a module for it.
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
from transformer_jax.keys import extensions, key

# The name in `config.model.name` is the name of the file.
MODELS = (
    "transformer",
    "recurrent",
    "coordinate_mlp",
    "speech",
)
_others: list[str] = []  # models of other packages that have been found so far

ROLES = (
    "seq2seq", "language_model", "masked_language_model", "text_classifier",
    "token_classifier", "text_embedder", "image_classifier", "coordinates",
    "transcriber", "sound_classifier", "decisions",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class NameKeys:
    """The choice of the model: the first key of `config.model`."""

    name: str = key(
        "transformer", "The model: a file of models/.", choices=lambda: names()
    )


@dataclasses.dataclass(frozen=True)
class Longest:
    """The length of the longest example of a run, and of its longest answer."""

    pieces: int  # including the example's ends
    positions: int  # that the example and its longest answer take
    keys: str  # the config keys that set it


@dataclasses.dataclass(frozen=True)
class Model:
    """A model as the config, its checks and the tasks need to know it.

    A module is constructed from an instance of `config` and the arguments that the task
    adds. It has the methods of its role (see `decoding/` for `start` and `extend`).
    """

    config: type  # the dataclass of its keys and sizes, all with defaults
    modules: Mapping[str, Callable[..., nn.Module]]  # by role
    find_problems: Callable[[ConfigDict, Longest], list[str]]
    rules: tuple[sharding.Rule, ...] = ()  # for parameters that sharding.RULES lacks


@functools.cache
def find(name: str) -> Model:
    """Load the record of the model that `config.model.name` names."""
    if "." in name:
        model = getattr(extensions.load(name, "the model"), "MODEL", None)
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
    """List all models, including the imported ones of other packages."""
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

    `arguments` are the other arguments of a module of this role.
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
    """Make the sizes of the config's model, with padded rows of embedding tables.

    A task without an encoder or a decoder has no key for its layers, so their number
    is 0.
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
