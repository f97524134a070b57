"""The description of an architecture of Hugging Face, and helpers that they share."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from transformer_jax.base.errors import UserError
from transformer_jax.convert.huggingface.links import Link, Vocabulary

Given = Mapping[str, Any]  # a config.json of theirs
Options = dict[str, Any]  # of a config here, by dotted name

ACTIVATIONS = {  # their names → ours
    "relu": "relu",
    "gelu": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
# Files of a folder that are kept under their names in what is read of its config.json.
PROCESSOR, GENERATION = "preprocessor_config.json", "generation_config.json"
APART = "has_lm_head"  # not theirs: whether the folder has a matrix for the logits
NEUTRAL = {  # of an imported model: nothing is dropped or smoothed until it is set
    "model.dropout_embedding": 0.0,
    "model.dropout_residual": 0.0,
}


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One kind of model: its task and options here, and the places of its tensors."""

    task: str
    options: Callable[[Given], Options]
    link: Callable[[Given, Vocabulary], list[Link]]
    describe: Callable[[Given], dict[str, Any]]  # our options → their config.json
    # The fields of their config, or the names of their special tokens, that are our
    # pad, unk, start and end; none of a model of images.
    special: tuple[str, ...] = ()
    prefix: str = ""  # a special token that begins every text
    ignored: tuple[str, ...] = ()  # beginnings of tensors that have no counterpart
    base: str = ""  # begins all names in files that also have the head of the model
    model: str = "transformer"  # here, of `config.model.name`
    beside: tuple[str, ...] = ()  # other files that it needs, if they are there


def activation(name: str) -> str:
    """Translate the name of an activation, or refuse it."""
    if name not in ACTIVATIONS:
        raise UserError(
            f"the activation {name!r} is not known: {', '.join(ACTIVATIONS)} are"
        )
    return ACTIVATIONS[name]


def their_activation(name: str) -> str:
    """Translate the name of an activation back."""
    for theirs, ours in ACTIVATIONS.items():
        if ours == name:
            return theirs
    raise UserError(f"model.activation = {name!r} has no name there")


def refuse(given: Given, **wanted: Any) -> None:
    """Refuse a config in which a field has another value than the one supported."""
    for name, value in wanted.items():
        if given.get(name, value) not in (value, None):
            raise UserError(
                f"{name} = {given[name]!r} is not supported, only {value!r}"
            )
