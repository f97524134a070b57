"""List the module calls of a config's model, with the shapes of their tensors."""

from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from transformer_jax import tasks
from transformer_jax.family.decisions import episodes
from transformer_jax.family.decisions.model import DecisionSizes, Steps
from transformer_jax.models import kernels, registry
from transformer_jax.models.vision import VisionConfig
from transformer_jax.visualize.figures.structure import AXES, Call, calls, fold

ROWS, SOURCE, TARGET = AXES  # sizes that represent B, S and T
IMAGE, LABELS = (8, 8, 1), 10  # stand-ins: the real ones depend on the data


def calls_of(config: ConfigDict, depth: int = 3) -> list[Call]:
    """Build a config's model without parameters, and list the calls of its modules.

    Only the first of several equal layers is expanded.
    """
    role = tasks.find(config.task).role
    size = config.tokenizer.vocab_size if "tokenizer" in config else 0
    sizes: dict[str, Any] = {
        "seq2seq": {"vocab_size": size, "source_vocab_size": size},
        "language_model": {"vocab_size": size},
        "masked_language_model": {"source_vocab_size": size},
        "text_classifier": {"source_vocab_size": size, "outputs": 2},
        "token_classifier": {"source_vocab_size": size, "outputs": 2},
        "text_embedder": {"source_vocab_size": size},
        "image_classifier": {},
        "transcriber": {"vocab_size": size},
        "sound_classifier": {"classes": LABELS},
        "coordinates": {"size": IMAGE[:2]},
        "decisions": {},
    }[role]
    if role == "image_classifier":
        model = config.model
        sizes["vision"] = VisionConfig(*IMAGE, model.patch, LABELS, model.positions)
    if role == "decisions":
        world, window = episodes.WORLDS[config.data.source], config.data.window
        shown = world.FEATURES, world.ACTIONS, window, config.model.returns
        sizes["sizes"] = DecisionSizes(*shown)
    if role == "text_classifier":
        sizes["pooling"] = config.model.pooling
    module = kernels.with_weights(registry.build(config, role, **sizes))
    pack = _pack_steps if role == "decisions" else None
    return fold(calls(module, *_arguments(role, config), depth=depth, pack=pack))


def _pack_steps(before: Any, returns: Any, states: Any, real: Any) -> tuple:
    """Return the arguments of a model of decisions."""
    return Steps(before, returns, states), real


def _arguments(role: str, config: ConfigDict) -> list[jax.ShapeDtypeStruct]:
    bands = config.data.get("bands", 0)
    tokens = jax.ShapeDtypeStruct((ROWS, TARGET), jnp.int32)
    if role == "image_classifier":
        return [jax.ShapeDtypeStruct((ROWS, *IMAGE), jnp.float32)]
    if role == "transcriber":
        return [jax.ShapeDtypeStruct((ROWS, SOURCE, bands), jnp.float32), tokens]
    if role == "sound_classifier":
        return [jax.ShapeDtypeStruct((ROWS, SOURCE, bands), jnp.float32)]
    if role == "coordinates":
        return [jax.ShapeDtypeStruct((ROWS, 2), jnp.float32)]
    if role == "decisions":
        features = episodes.WORLDS[config.data.source].FEATURES
        states = jax.ShapeDtypeStruct((*tokens.shape, features), jnp.float32)
        returns = jax.ShapeDtypeStruct(tokens.shape, jnp.float32)
        return [tokens, returns, states, tokens]
    if role == "seq2seq":
        source = jax.ShapeDtypeStruct((ROWS, SOURCE), jnp.int32)
        return [source, tokens]
    if role == "language_model":
        return [tokens]
    return [jax.ShapeDtypeStruct((ROWS, SOURCE), jnp.int32)]
