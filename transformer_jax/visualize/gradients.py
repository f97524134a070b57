"""Measure how far back the gradients of a model reach."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax import config as configs
from transformer_jax.base.ids import EOS
from transformer_jax.decoding.engine import pad_length
from transformer_jax.models import registry
from transformer_jax.runs.run import Run
from transformer_jax.tasks.parts.text import segments, shift_right

ENOUGH = 30  # least number of token pairs for a mean
FRESH = {  # untrained models with the same number of parameters
    "attention": "quickstart",
    "RNN": "recurrent:rnn",
    "LSTM": "recurrent:lstm",
    "GRU": "recurrent:gru",
}


def reach(run: Run, records: Sequence[Any]) -> list[float]:
    """Return the mean gradient norm 1, 2, … tokens back, while pairs suffice."""
    data: Any = run.task.data
    sides = (data.source_tokenizer, "source"), (data.target_tokenizer, "target")
    pairs = [[[*t.encode(r[side]), EOS] for t, side in sides] for r in records]
    return mean_norms(run.task.objective.module, run.params, pairs)


def reach_untrained(
    length: int = 40, pairs: int = 8, models: Sequence[str] = tuple(FRESH)
) -> dict[str, list[float]]:
    """Return the same for untrained models that read random tokens, by name."""
    random, vocabulary = np.random.default_rng(0), 200
    tokens = random.integers(4, vocabulary, (pairs, 2, length)).tolist()
    found = {}
    for name in models:
        config = configs.load(FRESH[name])
        module = registry.build(
            config, "seq2seq", vocab_size=vocabulary, source_vocab_size=vocabulary
        )
        ones = jnp.ones((1, 1), jnp.int32)
        params = module.init(jax.random.key(0), ones, ones, ones, ones)["params"]
        found[name] = mean_norms(module, params, tokens)
    return found


def mean_norms(
    module: nn.Module, params: Any, pairs: Sequence[Sequence[Sequence[int]]]
) -> list[float]:
    """Return the mean gradient norm 1, 2, … tokens back over (source, target) pairs.

    Between token s of a source of S tokens and token t of the output, S - s + t tokens
    are read. This is the number of recurrent steps between them in a unidirectional
    model without attention.
    """
    measure = gradient_norms(module)
    found: dict[int, list[float]] = {}
    for source, target in pairs:
        norms = measure(params, *(_pad(tokens) for tokens in (source, target)))
        for t, by_source in enumerate(np.asarray(norms)[: len(target), : len(source)]):
            for s, norm in enumerate(by_source):
                found.setdefault(len(source) - s + t, []).append(norm)
    enough = [found[n] for n in sorted(found) if len(found[n]) >= ENOUGH]
    return [float(np.mean(norms)) for norms in enough]


def gradient_norms(module: Any) -> Callable:
    """Return params, source, target → |∂ log p(target_t) / ∂ embedding_s| [T, S]."""

    def log_probs(nudge, params, source, target):
        def embed(method, args, kwargs, context):
            found = method(*args, **kwargs)
            return found + nudge if context.method_name == "embed_source" else found

        with nn.intercept_methods(embed):
            logits = module.apply(
                {"params": params},
                source,
                shift_right(target),
                segments(source),
                segments(target),
            ).logits
        chosen = jnp.take_along_axis(
            jax.nn.log_softmax(logits), target[..., None], axis=-1
        )
        return chosen[0, :, 0]

    def norms(params, source, target):
        nudge = jnp.zeros((source.shape[1], module.config.d_model))
        jacobian = jax.jacrev(log_probs)(nudge, params, source, target)
        return jnp.linalg.norm(jacobian, axis=-1)

    return jax.jit(norms)


def _pad(tokens: Sequence[int]) -> jax.Array:
    """Pad tokens to one of a few lengths, as a batch of one row."""
    row = np.zeros((1, pad_length(len(tokens))), np.int32)
    row[0, : len(tokens)] = tokens
    return jnp.asarray(row)
