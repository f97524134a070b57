"""Nothing but trees: brackets that match, around tokens that are given.

A parser writes the words of its sentence in their order, and between them brackets. So
at every step only these are possible: the next token of the outline; a bracket that
opens, while words are left to go into it; the one that closes the innermost, unless it
is empty or words would stay outside of all; the end, behind a whole tree. A bracket
opens only if the answer's limit leaves room to close it: every answer is a tree.

What is searched is the likeliest tree of given words. So a word is as likely as it is
that any word comes next, not that this one does: it would be put off by brackets.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.decoding import NEG_INF, DecodeInputs
from transformer_jax.ids import EOS

Pairs = tuple[tuple[int, int], ...]  # tokens that open, and those that close them
ROOT = 3  # a tree has these tokens more than its outline, at least: ( ) and the end


def steer(
    logits: Float[Array, "BK V"],
    tokens: Int[Array, "B K L"],
    step: Int[Array, ""],
    question: DecodeInputs,
    pairs: Pairs,
) -> Float[Array, "BK V"]:
    """The logits of what may come next; `tokens` holds `step` of each hypothesis."""
    vocab = logits.shape[-1]
    opened, closed = np.array(pairs).T
    depth_of = np.zeros(vocab, np.int32)
    depth_of[opened], depth_of[closed] = 1, -1
    closer_of = np.zeros(vocab, np.int32)
    closer_of[opened] = closed

    place = jnp.arange(tokens.shape[-1])
    change = jnp.where(place < step, jnp.asarray(depth_of)[tokens], 0)
    depths = change.cumsum(axis=-1)
    depth = depths[..., -1]
    # The innermost that is open: the last that opened to the present depth.
    innermost = jnp.where((change > 0) & (depths == depth[..., None]), place, -1)
    innermost = innermost.max(axis=-1, keepdims=True)
    innermost = jnp.take_along_axis(tokens, jnp.maximum(innermost, 0), axis=-1)[..., 0]
    behind_open = jnp.where(place == step - 1, change, 0).sum(axis=-1) > 0

    outline, begins = question.outline, question.begins
    size = (outline != 0).sum(axis=-1)[:, None]
    written = ((change == 0) & (place < step)).sum(axis=-1)
    at = jnp.minimum(written, outline.shape[1] - 1)
    following = jnp.take_along_axis(outline, at, axis=1)
    left = size - written
    between = (left == 0) | jnp.take_along_axis(begins, at, axis=1)

    room = question.limits[:, None] - step
    root = (depth == 0) & (left > 0)  # is not open yet
    needed = left + depth + 1  # tokens that end the tree from here, without a root's
    may_open = between & (left > 0) & (room >= needed + 2)
    may_write = (left > 0) & ~(root & between)
    may_close = between & (depth > 0) & ~behind_open & ((depth > 1) | (left == 0))
    may_end = (depth == 0) & (left == 0)

    def one(token, where):
        where, token = where.reshape(-1, 1), token.reshape(-1, 1)
        return where & (jnp.arange(vocab) == token)

    word = (depth_of == 0) & (np.arange(vocab) != EOS)
    any_word = jax.nn.logsumexp(logits, axis=-1, keepdims=True, where=word)
    whatever = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    word_logit = jnp.where(between.reshape(-1, 1), any_word, whatever)
    brackets = (
        (jnp.asarray(depth_of > 0) & may_open.reshape(-1, 1))
        | one(jnp.asarray(closer_of)[innermost], may_close)
        | one(jnp.full_like(depth, EOS), may_end)
    )
    logits = jnp.where(brackets, logits, NEG_INF)
    return jnp.where(one(following, may_write), word_logit, logits)
