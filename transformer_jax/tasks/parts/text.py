"""Parts of tasks that read one text: its tokenizer, and limits of its length."""

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from ml_collections import ConfigDict

from transformer_jax.base.errors import Refused, UserError
from transformer_jax.base.ids import BOS, PAD
from transformer_jax.data.store import Store
from transformer_jax.data.text import learning
from transformer_jax.data.text.saved import open_saved
from transformer_jax.data.text.tokenizer import Tokenizer
from transformer_jax.decoding.engine import pad_length
from transformer_jax.decoding.memory import check_attention
from transformer_jax.models.outputs import Outputs
from transformer_jax.sharding import Params
from transformer_jax.tasks.protocols import (
    Data,
    DataSource,
    Objective,
    Say,
    Task,
)

TEXT_FILE = "text.model"  # in the tokenizer's folder

# Advice for a text that is too long, which ends the error message.
RAISE_LIMIT = "raise --max_input"
SHORTEN = "shorten it"
SHORTEN_OR_RAISE = f"{SHORTEN}, or {RAISE_LIMIT}"
SHORTEN_ANSWER = "split it, or allow shorter answers (decode.extra_length)"


def learn_tokenizer(
    config: ConfigDict,
    source: DataSource,
    folder: pathlib.Path,
    say: Say,
    fields: Sequence[str] = ("text",),
) -> None:
    """Learn the tokenizer from the training text, unless the folder has it."""
    if not (folder / TEXT_FILE).exists():
        settings, records = config.tokenizer, source.read("train")
        made = learning.make(settings, records, fields, settings.file, [], say)
        folder.mkdir(parents=True, exist_ok=True)
        made.save(folder / TEXT_FILE)


def open_tokenizer(folder: pathlib.Path) -> Tokenizer:
    """Open the tokenizer that a run has learned."""
    return open_saved(folder / TEXT_FILE)


Compose = Callable[[ConfigDict, Tokenizer], Task]


def opener(compose: Compose) -> Callable[[ConfigDict, pathlib.Path], Task]:
    """Return how a run is opened of a task that is composed of a tokenizer."""
    return lambda config, folder: compose(config, open_tokenizer(folder))


def empty_opener(
    compose: Compose, named: Sequence[str] = ()
) -> Callable[[ConfigDict, int], Task]:
    """Return how such a task is opened with a vocabulary of a size, and no data."""
    return lambda config, size: compose(config, EmptyTokenizer(config, size, named))


def check_positions(
    config: ConfigDict, needed: int, what: str, advice: str = SHORTEN
) -> None:
    """Refuse a text that needs more positions than a learned table has."""
    model = config.model
    if model.get("positions") == "learned" and needed > model.max_positions:
        raise Refused(
            f"{what} needs {needed} positions, but there are model.max_positions "
            f"{model.max_positions} of them: {advice}, or train with more"
        )


def check_room(config: ConfigDict, length: int, what: str) -> None:
    """Refuse a text to answer whose attention does not fit into memory."""
    check_attention(config, pad_length(length), what, SHORTEN)


def check_length(
    tokenizer: Tokenizer, text: str, max_length: int, advice: str
) -> list[int]:
    """Return the pieces of a text, or refuse one that has more than `max_length`.

    0 allows any number.
    """
    pieces = tokenizer.encode(text)
    check_count(len(pieces), max_length, advice)
    return pieces


def check_count(pieces: int, max_length: int, advice: str) -> None:
    """Refuse more than `max_length` pieces; 0 allows any number."""
    if max_length and pieces > max_length:
        raise Refused(
            f"{pieces} pieces are more than the {max_length} allowed: {advice}"
        )


class TextData(Data):
    """Base of data parts with one text per record."""

    def __init__(self, config: ConfigDict, tokenizer: Tokenizer):
        self.config, self.tokenizer = config, tokenizer
        self.fingerprint = f"{config.task}-{tokenizer.fingerprint}"
        self.vocabularies = {"embedding": tokenizer}

    def lengths(self, store: Store) -> np.ndarray:
        """Return the lengths [examples, 1] of the texts."""
        lengths = store.lengths("text")[:, None]
        check_positions(self.config, int(lengths.max(initial=0)), "an example")
        return lengths


class TextObjective(Objective):
    """Base of objectives whose model reads one text."""

    def example_inputs(self, rows: int, length: int, target: int) -> tuple[Any, ...]:
        """Return tokens."""
        return (jnp.ones((rows, length), jnp.int32),)

    def outputs(
        self, params: Params, tokens: Array, key: Array | None = None, *inputs: Array
    ) -> Outputs:
        """Apply the model to texts; use dropout only with a key."""
        return apply_to(self.module, params, tokens, key, *inputs)


class EmptyTokenizer(Tokenizer):
    """A vocabulary of a given size, in which only some pieces have a name."""

    vocab_size: int = 0  # pyright: ignore[reportIncompatibleMethodOverride]
    fingerprint: str = ""  # pyright: ignore[reportIncompatibleMethodOverride]
    lowercase: bool = False  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(self, config: ConfigDict, size: int, named: Sequence[str] = ()):
        """Make a vocabulary of `size` pieces; 0 means `tokenizer.vocab_size`.

        The first pieces have the names `named`, the others numbers.
        """
        self.vocab_size = size or config.tokenizer.vocab_size
        self.named = named

    def pieces(self, ids: Any) -> list[str]:
        """Name the pieces: the given names, then numbers."""
        return [*self.named, *map(str, range(len(self.named), len(ids)))]

    def encode(self, text: str) -> list[int]:
        """Return nothing, because there is no text."""
        return []


def project(module: Any, params: Any) -> Callable:
    """Return the model's last layer: a function from hidden states to logits."""
    return functools.partial(module.apply, {"params": params}, method="logits")


def dropout_rngs(key: Array | None) -> dict[str, Any]:
    """Return the arguments of a linen module that control dropout."""
    return {"train": key is not None, "rngs": key if key is None else {"dropout": key}}


def apply_to(
    module: Any, params: Params, tokens: Array, key: Array | None = None, *inputs: Array
) -> Outputs:
    """Apply a model to texts, and to further inputs; use dropout only with a key."""
    arrays = tokens, segments(tokens), *inputs
    return module.apply({"params": params}, *arrays, **dropout_rngs(key))


def segments(tokens: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Return 1 for each token and 0 for padding."""
    return (tokens != PAD).astype(jnp.int32)


def shift_right(
    target: Int[Array, "B T"], positions: Int[Array, "B T"] | None = None
) -> Int[Array, "B T"]:
    """Return the decoder's input: the start token, then the target without its end.

    In a packed row, each example has its own start token at position 0.
    """
    shifted = jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=BOS)
    return shifted if positions is None else jnp.where(positions == 0, BOS, shifted)


def attention_of(weights: Sequence[Array]) -> np.ndarray:
    """Stack the weights of one sentence, [layers, heads, queries, keys]."""
    if not weights:
        raise UserError(
            "this model's model.attention makes no weights to look at: apply "
            "models.kernels.with_weights(module) instead"
        )
    return np.stack([np.asarray(w[0]) for w in jax.device_get(weights)])
