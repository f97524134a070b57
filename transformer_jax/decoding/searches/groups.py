"""Search with groups of a beam that differ from each other (diverse beam search).

Each group has an equal part of the beam. In every step one group after the other
chooses its tokens, and a hypothesis loses `diversity` for each hypothesis of earlier
groups that has taken the same token in this step (Vijayakumar et al. 2018). What has
been lost, in all steps, decides which hypotheses stay in the beam; log-probabilities
and scores remain those of the model. A hypothesis that two groups find is an answer
once.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.decoding.searches.rules import Choice
from transformer_jax.decoding.searching import NEG_INF


def choose(
    totals: Float[Array, "B K C"],
    lost: Float[Array, "B K"],
    tokens: Int[Array, "B K C"],
    finished_count: Int[Array, "B G"],
    diversity: Float[Array, "B"],
) -> Choice:
    """Choose the K best extensions of each row, group after group.

    The K likeliest tokens of a hypothesis suffice: those that earlier groups have taken
    and those that this group needs are no more than K.
    """
    rows, beams, few = totals.shape
    size = beams // finished_count.shape[1]
    repeated = jnp.zeros(totals.shape)  # how often earlier groups have taken a token
    chosen = []
    for group in range(finished_count.shape[1]):
        own = slice(group * size, (group + 1) * size)
        losing = lost[:, own, None] + diversity[:, None, None] * repeated[:, own]
        _, best = jax.lax.top_k((totals[:, own] - losing).reshape(rows, -1), size)
        total, token, losing = (
            jnp.take_along_axis(a.reshape(rows, -1), best, axis=1)
            for a in (totals[:, own], tokens[:, own], losing)
        )
        chosen.append((total, best // few + group * size, token, losing))
        # Each finished hypothesis has left a group that is narrower by one.
        width = size - finished_count[:, group, None]
        taken = (jnp.arange(size) < width) & (total > NEG_INF)
        same = (tokens[..., None] == token[:, None, None]) & taken[:, None, None]
        repeated = repeated + same.sum(axis=-1)
    return Choice(
        *(jnp.concatenate(part, axis=1) for part in zip(*chosen, strict=True))
    )


def find_twice(
    written: Int[Array, "B K L"],
    ended: Bool[Array, "B K"],
    finished: Int[Array, "B K L"],
) -> Bool[Array, "B K"]:
    """Return which hypotheses that end have been found by an earlier group."""
    before = (written[:, :, None] == finished[:, None]).all(axis=-1).any(axis=-1)
    now = (written[:, :, None] == written[:, None]).all(axis=-1) & ended[:, None]
    place = jnp.arange(ended.shape[1])
    return before | (now & (place < place[:, None])).any(axis=-1)
