"""Who may see whom: a mask in parts, each of which grows with the length alone."""

from typing import Any

import flax.struct
from jaxtyping import Array, Bool

MASKED = -1e30  # a score: exp(MASKED - max) is exactly 0 in float32, yet never NaN


class Mask(flax.struct.PyTreeNode):
    """Say which query may see which key, in parts: only `dense` is quadratic.

    A query sees a key of its own segment (0 is padding, seen by nobody), and, if
    `causal`, only keys at its own position or before it. Kernels that know causality
    by index alone rely on positions that rise within a segment.
    """

    key_segments: Any  # Int [B, S]
    query_segments: Any = None  # Int [B, T]
    query_positions: Any = None  # Int [B, T]
    key_positions: Any = None  # Int [B, S]
    causal: bool = flax.struct.field(pytree_node=False, default=False)
    # A row is one sequence, padded at its end: its length says all.
    whole: bool = flax.struct.field(pytree_node=False, default=False)

    def dense(self) -> Bool[Array, "#B 1 #T S"]:
        """Compare every query with every key: True where it may see it."""
        keys = self.key_segments[:, None, None, :]
        allowed = keys != 0
        if self.query_segments is not None:
            # A padded query sees the padded keys: its row is ignored by the loss, and
            # an empty row would only make every kernel treat a special case.
            allowed = keys == self.query_segments[:, None, :, None]
        if self.causal:
            before = self.key_positions[:, None, :] <= self.query_positions[:, :, None]
            allowed = allowed & before[:, None]
        return allowed
