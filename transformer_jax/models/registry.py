"""Find models by name: their sizes, their modules and the checks of their configs.

A model is a module that defines a record `MODEL`, and an entry point that names it
(`transformer_jax/base/entry_points.py`), or the full name of its module, such as
"mypackage.averaging". A task names the interface of the module that it needs, such as
"seq2seq", and can be trained with every model that lists a module under this name. The
interfaces are no fixed list: a package may bring a task and a model with one of its
own. A task may also bring modules itself, for the sizes of a model that knows nothing
of the task.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
from ml_collections import ConfigDict

from transformer_jax import sharding
from transformer_jax.base import entry_points, extensions
from transformer_jax.base.errors import UserError, nearest
from transformer_jax.base.schema import option

Modules = Mapping[str, Callable[..., nn.Module]]

_others: list[str] = []  # models found so far by the full names of their modules


@dataclasses.dataclass(frozen=True)
class NameOptions:
    """The choice of the model: the first option of `config.model`."""

    name: str = option(
        "transformer",
        "The model, such as transformer or recurrent.",
        choices=lambda: names(),
    )


@dataclasses.dataclass(frozen=True)
class Longest:
    """The length of the longest example of a run, and of its longest answer."""

    pieces: int  # including the example's ends
    positions: int  # that the example and its longest answer take
    options: str  # the options of the config that set it


@dataclasses.dataclass(frozen=True)
class Model:
    """A model as the config, its checks and the tasks need to know it.

    A module is constructed from an instance of `config` and the arguments that the task
    adds. It has the methods that the task calls (see `decoding/` for `start` and
    `extend`).
    """

    config: type  # the dataclass of its options and sizes, all with defaults
    modules: Modules  # by the name of the interface
    find_problems: Callable[[ConfigDict, Longest], list[str]]
    rules: tuple[sharding.Rule, ...] = ()  # for parameters that sharding.RULES lacks


@functools.cache
def find(name: str) -> Model:
    """Load the record of the model that `config.model.name` names."""
    model = entry_points.find("models", name)
    if model is None and "." in name:
        model = getattr(extensions.load(name, "the model"), "MODEL", None)
        if not isinstance(model, Model):
            raise UserError(f"{name} has no MODEL = Model(...): see models/registry.py")
        _others.append(name)
    if model is None:
        raise UserError(f"unknown model {name!r}.{nearest(name, names())}")
    sharding.add_rules(model.rules)
    return model


def names() -> tuple[str, ...]:
    """List all models, including the imported ones of other packages."""
    return (*entry_points.names("models"), *_others)


def names_for(interface: str, own: Modules = {}) -> tuple[str, ...]:  # noqa: B006
    """List the models with a module for an interface; `own` are those of a task."""
    return tuple(n for n in names() if n in own or interface in find(n).modules)


def build(
    config: ConfigDict,
    interface: str,
    own: Modules = {},  # noqa: B006  (never changed)
    *,
    vocab_size: int = 0,
    source_vocab_size: int = 0,
    absent: tuple[int, ...] = (),
    **arguments: Any,
) -> nn.Module:
    """Make the config's module for an interface, with vocabularies of these sizes.

    `own` are the modules of the task, by the name of the model whose sizes they take.
    `absent` lists the ids that the tokenizer never gives. `arguments` are the other
    arguments of a module.
    """
    name = config.model.name
    module = own.get(name) or find(name).modules.get(interface)
    if module is None:
        raise UserError(
            f"the model {name!r} has no module for {interface!r}: use one of "
            f"{', '.join(names_for(interface, own))}"
        )
    sizes = make_sizes(config, vocab_size, source_vocab_size, absent)
    return module(sizes, **arguments)


def make_sizes(
    config: ConfigDict,
    vocab_size: int = 0,
    source_vocab_size: int = 0,
    absent: tuple[int, ...] = (),
) -> Any:
    """Make the sizes of the config's model, with padded rows of embedding tables.

    A task without an encoder or a decoder has no option for its layers, so their number
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
        "absent": absent,
        "source_vocab_size": source_vocab_size,
        "source_vocab_rows": -(-source_vocab_size // multiple) * multiple,
    }
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in known})
