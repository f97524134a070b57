"""Record one search step by step, with the candidates that it did not choose.

A trace runs the engine's own compiled steps, so its last step is bit-identical to the
engine's answer.
"""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from transformer_jax.decoding import DecodeRequest, Options
from transformer_jax.decoding.engine import Engine, Hypothesis
from transformer_jax.decoding.searches.constraints import Constraint
from transformer_jax.decoding.searches.rules import top_next_tokens
from transformer_jax.decoding.searches.sampling import SamplingSearch
from transformer_jax.sharding import Params


@dataclasses.dataclass(frozen=True)
class Living:
    """An unfinished hypothesis and its candidates for the next token."""

    tokens: tuple[int, ...]
    log_prob: float  # of all its tokens
    candidates: tuple[tuple[int, float], ...]  # (token, log-probability), best first


@dataclasses.dataclass(frozen=True)
class Step:
    """The hypotheses of a search after one step."""

    living: tuple[Living, ...]
    finished: tuple[Hypothesis, ...]  # best first


def trace(
    engine: Engine,
    params: Params,
    request: DecodeRequest,
    options: Options,
    candidates: int = 8,
) -> list[Step]:
    """Search the answer to one request, and return every step.

    Candidates have the probabilities of the model. Those that a rule of the search
    forbids are left out, but not those that only `sample` excludes (top_k, top_p).
    """
    steps = []
    for state in engine.states(params, request, options):
        row = _Row(*(a[0] for a in jax.device_get(_written(state, options))))
        expected = _rank(
            state.logits,
            state.tokens,
            state.step,
            state.inputs,
            options=options.without_numbers(),
            constraint=engine.constraint,
            count=candidates,
        )
        gains, tokens = (np.asarray(a[0]) for a in jax.device_get(expected))
        steps.append(_read_step(row, int(state.step[0]), gains, tokens))
    return steps


@dataclasses.dataclass(frozen=True)
class _Row:
    """The hypotheses of one row [K, …], living and finished; -inf marks empty slots."""

    tokens: np.ndarray
    log_probs: np.ndarray
    finished: np.ndarray
    finished_log_probs: np.ndarray
    finished_scores: np.ndarray


def _written(state: Any, options: Options) -> tuple[Any, ...]:
    """Return the fields of `_Row` for all rows of the state of either search."""
    if hasattr(state, "finished"):
        return (
            state.tokens,
            state.log_probs,
            state.finished,
            state.finished_log_probs,
            state.finished_scores,
        )
    # Texts stay in their slots when they end.
    living = np.where(state.done, -np.inf, state.log_probs)
    ended, scores = (
        np.where(state.done, values, -np.inf)
        for values in (state.log_probs, SamplingSearch(options).scores(state))
    )
    return state.tokens, living, state.tokens, ended, scores


@functools.partial(jax.jit, static_argnames=("options", "constraint", "count"))
def _rank(
    logits: Any,
    tokens: Any,
    step: Any,
    inputs: Any,
    options: Options,
    constraint: Constraint | None,
    count: int,
) -> Any:
    """Return the `count` likeliest next tokens of each hypothesis of the first row."""
    first = jax.tree.map(lambda a: a[:1], (logits, tokens, step, inputs))
    logits, tokens, step, inputs = first
    count = min(count, logits.shape[1] // tokens.shape[1])
    return top_next_tokens(logits, tokens, step, inputs, options, constraint, count)


def _read_step(row: _Row, step: int, gains: np.ndarray, tokens: np.ndarray) -> Step:
    living = [
        Living(
            tuple(map(int, row.tokens[k, :step])),
            float(row.log_probs[k]),
            tuple(
                (int(token), float(gain))
                for token, gain in zip(tokens[k], gains[k], strict=True)
                if np.isfinite(gain)
            ),
        )
        for k in np.flatnonzero(np.isfinite(row.log_probs))
    ]
    order = np.argsort(-row.finished_scores, kind="stable")
    finished = [
        Hypothesis(
            tuple(map(int, row.finished[k][row.finished[k] != 0])),
            float(row.finished_log_probs[k]),
            float(row.finished_scores[k]),
        )
        for k in order
        if np.isfinite(row.finished_scores[k])
    ]
    return Step(tuple(living), tuple(finished))
