"""Greedy search: the likeliest token at each step, all rows of a batch at once.

A row ends with its first end-of-sentence; at its own limit it is made to end, so a
limit of n gives at most n tokens, the end counted, whatever the batch's other rows do.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from transformer_jax.decoding import Hypotheses, Model
from transformer_jax.ids import EOS


def greedy(
    model: Model,
    batch: dict,
    prompt: Int[Array, "B P"],
    prompt_lengths: Int[Array, "B"],
    limits: Int[Array, "B"],
    length: int,
) -> Hypotheses:
    """Continues each prompt by at most `limits[b]` tokens, never more than `length`."""
    rows = prompt.shape[0]
    static, state, logits = prefill(model, batch, prompt, prompt_lengths, 1, length)
    limits = jnp.clip(limits, 1, length)

    def unfinished(carry):
        step, _, _, done, *_ = carry
        return (step < length) & ~done.all()

    def advance(carry):
        step, tokens, log_probs, done, logits, state = carry
        token = jnp.where(step + 1 == limits, EOS, jnp.argmax(logits, axis=-1))
        gain = jnp.take_along_axis(jax.nn.log_softmax(logits), token[:, None], 1)[:, 0]
        tokens = tokens.at[:, step].set(jnp.where(done, 0, token))
        log_probs = jnp.where(done, log_probs, log_probs + gain)
        done = done | (token == EOS)
        logits, state = model.extend(
            token[:, None, None], (prompt_lengths + step)[:, None, None], static, state
        )
        return step + 1, tokens, log_probs, done, logits[:, 0, 0], state

    carry = (
        jnp.int32(0),
        jnp.zeros((rows, length), jnp.int32),
        jnp.zeros((rows,), jnp.float32),
        jnp.zeros((rows,), bool),
        logits[:, 0],
        state,
    )
    _, tokens, log_probs, *_ = jax.lax.while_loop(unfinished, advance, carry)
    lengths = (tokens != 0).sum(-1)
    return Hypotheses(
        tokens[:, None], lengths[:, None], log_probs[:, None], log_probs[:, None]
    )


def prefill(model: Model, batch, prompt, prompt_lengths, beams: int, length: int):
    """Reads the prompts, which may differ in length; the logits of what follows.

    All beams read the same prompt and so start from equal states.
    """
    rows, width = prompt.shape
    static, state = model.start(batch, beams, width + length)
    shape = (rows, beams, width)
    tokens = jnp.broadcast_to(prompt[:, None], shape)
    positions = jnp.broadcast_to(jnp.arange(width), shape)
    logits, state = model.extend(tokens, positions, static, state)
    last = jnp.broadcast_to(
        (prompt_lengths - 1)[:, None, None, None], (rows, beams, 1, 1)
    )
    return static, state, jnp.take_along_axis(logits, last, axis=2)[:, :, 0]
