"""Constrain a search to trees: matching brackets around tokens that are given.

A constraint is a function of logits, the tokens written so far, the step, the limits of
the rows and arrays of its own (`DecodeRequest.constraint`); it returns the logits with
-inf where a token may not follow. `rules.allow` applies it in every search.

A parser writes the words of its sentence in their order, and brackets between them. At
every step only these tokens are possible: the next token of the outline; an opening
bracket, while words are left to go into it; the bracket that closes the innermost
phrase, unless that is empty or words would stay outside of all phrases; the end, behind
a whole tree. A bracket opens only if the answer's limit leaves room to close it, so
every answer is a tree.

The search looks for the likeliest tree over given words. So a word scores as much as
all words together, not as this one: otherwise unlikely words would put off brackets.
"""

import dataclasses
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.decoding.searching import NEG_INF
from transformer_jax.ids import EOS

ROOT = 3  # a tree has these tokens more than its outline, at least: ( ) and the end


@runtime_checkable
class Constraint(Protocol):
    """Forbid tokens by what has been written; hashable, because jit compiles for it."""

    def __call__(
        self,
        logits: Float[Array, "BK V"],
        tokens: Int[Array, "B K L"],
        step: Int[Array, ""],
        limits: Int[Array, "B"],
        arrays: Mapping[str, Array],
    ) -> Float[Array, "BK V"]:
        """Return the logits with -inf where a token may not follow."""
        ...


@dataclasses.dataclass(frozen=True)
class TreeConstraint:
    """Allow nothing but trees over the tokens of an outline.

    `arrays` has `outline` [B, W], the tokens between brackets in their order, and
    `begins` [B, W], whether a bracket may stand before each.
    """

    pairs: tuple[tuple[int, int], ...]  # tokens that open, and those that close them

    def __call__(
        self,
        logits: Float[Array, "BK V"],
        tokens: Int[Array, "B K L"],
        step: Int[Array, ""],
        limits: Int[Array, "B"],
        arrays: Mapping[str, Array],
    ) -> Float[Array, "BK V"]:
        """Return the logits of what may come next, -inf for everything else."""
        return _steer(self.pairs, logits, tokens, step, limits, arrays)


def _steer(pairs, logits, tokens, step, limits, arrays):
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

    outline, begins = arrays["outline"], arrays["begins"]
    size = (outline != 0).sum(axis=-1)[:, None]
    written = ((change == 0) & (place < step)).sum(axis=-1)
    at = jnp.minimum(written, outline.shape[1] - 1)
    following = jnp.take_along_axis(outline, at, axis=1)
    left = size - written
    between = (left == 0) | jnp.take_along_axis(begins, at, axis=1)

    room = limits[:, None] - step
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
