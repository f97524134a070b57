"""Constrain a search: to trees, or to the tokens that are not suppressed.

A constraint is a function of logits, the tokens written so far, the step, the limits of
the rows and its own arrays (`DecodeRequest.constraint`). It returns the logits with
-inf for every token that may not follow. `rules.allow` applies it in every search.

A parser writes the words of its sentence in order, with brackets between them, which
must match. At every step only these tokens are possible:

- the next token of the outline
- an opening bracket, while there are words left to put into it
- the bracket that closes the innermost phrase, unless the phrase is empty or words
  would be left outside of all phrases
- the end, after a complete tree

A bracket opens only if the answer's limit leaves space to close it, so every answer is
a tree.

The search looks for the likeliest tree over given words. Therefore a word gets the
probability of all words together, so that the choice between brackets and words does
not depend on how unlikely the given word is.
"""

import dataclasses
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.base.ids import EOS, PAD
from transformer_jax.decoding.searching import NEG_INF

ROOT = 3  # a tree has at least this many tokens besides its outline: ( ) and the end


@runtime_checkable
class Constraint(Protocol):
    """Forbid tokens depending on those written; hashable, as jit compiles for it."""

    def __call__(
        self,
        logits: Float[Array, "BK V"],
        tokens: Int[Array, "B K L"],
        step: Int[Array, "B"],
        limits: Int[Array, "B"],
        arrays: Mapping[str, Array],
    ) -> Float[Array, "BK V"]:
        """Return the logits, with -inf for every token that may not follow."""
        ...


@dataclasses.dataclass(frozen=True)
class TreeConstraint:
    """Allow only trees over the tokens of an outline.

    `arrays` holds `outline` [B, W], the tokens between brackets in their order, and
    `begins` [B, W], whether a bracket may precede each of them.
    """

    pairs: tuple[tuple[int, int], ...]  # (opening token, closing token)

    def __call__(
        self,
        logits: Float[Array, "BK V"],
        tokens: Int[Array, "B K L"],
        step: Int[Array, "B"],
        limits: Int[Array, "B"],
        arrays: Mapping[str, Array],
    ) -> Float[Array, "BK V"]:
        """Return the logits, with -inf for every token that may not follow."""
        return _steer(self.pairs, logits, tokens, step, limits, arrays)


@dataclasses.dataclass(frozen=True)
class Suppression:
    """Forbid the tokens `never` [B, W], and `first` [B, W] where an answer begins."""

    def __call__(
        self,
        logits: Float[Array, "BK V"],
        tokens: Int[Array, "B K L"],
        step: Int[Array, "B"],
        limits: Int[Array, "B"],
        arrays: Mapping[str, Array],
    ) -> Float[Array, "BK V"]:
        """Return the logits, with -inf for every token that may not follow."""
        rows, beams, _ = tokens.shape
        # Padding, which no search writes, stands for no token.
        first = jnp.where(step[:, None] == 0, arrays["first"], PAD)
        ids = jnp.concatenate([arrays["never"], first], axis=1)
        banned = jnp.zeros((rows, logits.shape[-1]), bool)
        banned = banned.at[jnp.arange(rows)[:, None], ids].set(True)
        return jnp.where(jnp.repeat(banned, beams, axis=0), NEG_INF, logits)


def _steer(pairs, logits, tokens, step, limits, arrays):
    vocab = logits.shape[-1]
    opened, closed = np.array(pairs).T
    depth_of = np.zeros(vocab, np.int32)
    depth_of[opened], depth_of[closed] = 1, -1
    closer_of = np.zeros(vocab, np.int32)
    closer_of[opened] = closed

    place, step = jnp.arange(tokens.shape[-1]), step[:, None]
    begun = place < step[..., None]  # what has been written
    change = jnp.where(begun, jnp.asarray(depth_of)[tokens], 0)
    depths = change.cumsum(axis=-1)
    depth = depths[..., -1]
    # The innermost open bracket is the last one that led to the current depth.
    innermost = jnp.where((change > 0) & (depths == depth[..., None]), place, -1)
    innermost = innermost.max(axis=-1, keepdims=True)
    innermost = jnp.take_along_axis(tokens, jnp.maximum(innermost, 0), axis=-1)[..., 0]
    latest = place == step[..., None] - 1
    after_open = jnp.where(latest, change, 0).sum(axis=-1) > 0

    outline, begins = arrays["outline"], arrays["begins"]
    size = (outline != 0).sum(axis=-1)[:, None]
    written = ((change == 0) & begun).sum(axis=-1)
    at = jnp.minimum(written, outline.shape[1] - 1)
    following = jnp.take_along_axis(outline, at, axis=1)
    left = size - written
    between = (left == 0) | jnp.take_along_axis(begins, at, axis=1)

    remaining = limits[:, None] - step  # tokens that the answer may still have
    root = (depth == 0) & (left > 0)  # the root is not open yet
    needed = left + depth + 1  # tokens that finish the tree, without those of a root
    may_open = between & (left > 0) & (remaining >= needed + 2)
    may_write = (left > 0) & ~(root & between)
    may_close = between & (depth > 0) & ~after_open & ((depth > 1) | (left == 0))
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
