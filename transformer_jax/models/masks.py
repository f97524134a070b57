"""Attention masks in factored form, whose size is linear in the length."""

from typing import Any

import flax.struct
from jaxtyping import Array, Bool, Int

MASKED = -1e30  # a score: exp(MASKED - max) is exactly 0 in float32, yet never NaN


class Mask(flax.struct.PyTreeNode):
    """The keys that each query sees, in factored form: only `dense` is quadratic.

    A query sees the keys of its own segment (segment 0 is padding, which no real query
    sees) and, if `causal`, only keys at its own position or before it: with a `window`,
    so many of them. Kernels that apply causality by index rely on positions that
    increase by one within a segment.
    """

    key_segments: Any  # Int [B, S]
    query_segments: Any = None  # Int [B, T]
    query_positions: Any = None  # Int [B, T]
    key_positions: Any = None  # Int [B, S]
    causal: bool = flax.struct.field(pytree_node=False, default=False)
    window: int = flax.struct.field(pytree_node=False, default=0)  # 0: no limit
    # Each row is one sequence, padded at its end, so its length describes the mask.
    whole: bool = flax.struct.field(pytree_node=False, default=False)

    def dense(self) -> Bool[Array, "#B 1 #T S"]:
        """Return the mask as an array, True where a query may see a key."""
        keys = self.key_segments[:, None, None, :]
        allowed = keys != 0
        if self.query_segments is not None:
            # A padded query sees the padded keys. The loss ignores its row, and an
            # empty row would be a special case for every kernel.
            allowed = keys == self.query_segments[:, None, :, None]
        if self.causal:
            before = self.key_positions[:, None, :] <= self.query_positions[:, :, None]
            allowed = allowed & before[:, None]
        if self.window:
            near = within(self.window, self.query_positions, self.key_positions)
            allowed = allowed & near
        return allowed


def within(
    window: int, queries: Int[Array, "#B T"], keys: Int[Array, "#B S"]
) -> Bool[Array, "#B 1 T S"]:
    """Return whether a key is less than `window` positions before a query."""
    return (queries[:, :, None] - keys[:, None] < window)[:, None]
