"""What may be chosen next: rules over the log-probabilities of a step.

They hold for every search: the least and the largest length, and no n-gram twice.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.decoding import NEVER, Options
from transformer_jax.ids import EOS


def allow(
    log_probs: Float[Array, "B K V"],
    tokens: Int[Array, "B K L"],
    step: Int[Array, ""],
    limits: Int[Array, "B"],
    options: Options,
) -> Float[Array, "B K V"]:
    """The log-probabilities with -inf where a rule forbids a token.

    `tokens` holds the `step` tokens that each hypothesis has written.
    """
    is_end, given = jnp.arange(log_probs.shape[-1]) == EOS, log_probs
    if options.min_length:
        early = (step + 1 <= options.min_length) & is_end
        log_probs = jnp.where(early, NEVER, log_probs)
    if options.no_repeat:
        repeats = _completes(tokens, step, options.no_repeat, log_probs.shape[-1])
        # The end of a sentence is no repetition.
        log_probs = jnp.where(repeats & ~is_end, NEVER, log_probs)
    # At its limit a hypothesis ends, whatever else is forbidden or likely.
    must_end = (step + 1 >= limits)[:, None, None]
    return jnp.where(must_end, jnp.where(is_end, given, NEVER), log_probs)


def _completes(tokens, step, n: int, vocab: int):
    """Whether a token would complete an n-gram that was written before [B, K, V]."""
    rows, beams, length = tokens.shape
    starts = jnp.arange(length)
    same = starts + n <= step  # windows that have been written, their last token too
    same = jnp.broadcast_to(same, tokens.shape)
    for i in range(n - 1):
        recent = jnp.take(tokens, step - (n - 1) + i, axis=-1, mode="clip")
        same = same & (jnp.roll(tokens, -i, axis=-1) == recent[..., None])
    last = jnp.where(same, jnp.roll(tokens, -(n - 1), axis=-1), vocab)
    row, beam = jnp.arange(rows)[:, None, None], jnp.arange(beams)[None, :, None]
    banned = jnp.zeros((rows, beams, vocab), bool)
    return banned.at[row, beam, last].set(True, mode="drop")
