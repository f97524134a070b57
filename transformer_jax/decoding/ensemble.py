"""Let several models write together: average the probabilities of each next token.

    p(y_t | y_<t, x) = 1/M Σ_m p_m(y_t | y_<t, x)

The models may differ in everything but their tokens. A search drives them as one
model, whose state has a part for each of them.
"""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.sharding import Params


class States(flax.struct.PyTreeNode):
    """The states of the members of an ensemble."""

    parts: tuple[Any, ...]

    def track_attention(self, source_segments: Array) -> "States":
        """From now on, let each member sum its attention to the source."""
        parts = (part.track_attention(source_segments) for part in self.parts)
        return States(tuple(parts))

    def uncovered(self) -> Float[Array, "B beams"]:
        """Return the mean of the members' penalties for words that are not covered."""
        penalties = jnp.stack([part.uncovered() for part in self.parts])
        return penalties.mean(axis=0)


class Ensemble(nn.Module):
    """Several autoregressive models as one, with the two methods of `searching`."""

    members: tuple[nn.Module, ...]

    def start(self, batch: dict, length: int) -> tuple[dict[str, Any], States]:
        """Return the static parts and the initial states of all members."""
        begun = [member.start(batch, length) for member in self.members]
        static: dict[str, Any] = {"members": tuple(one for one, _ in begun)}
        if "segments" in begun[0][0]:
            static["segments"] = begun[0][0]["segments"]
        return static, States(tuple(state for _, state in begun))

    def extend(
        self, tokens: Array, positions: Array, static: dict[str, Any], state: States
    ) -> tuple[Float[Array, "B K T V"], States]:
        """Let each member read tokens; return the logarithm of the mean probability."""
        parts = zip(self.members, static["members"], state.parts, strict=True)
        found = [m.extend(tokens, positions, one, part) for m, one, part in parts]
        logits = jnp.stack([logits.astype(jnp.float32) for logits, _ in found])
        total = jax.nn.logsumexp(jax.nn.log_softmax(logits), axis=0)
        return total - jnp.log(len(found)), States(tuple(state for _, state in found))


def join_params(members: Sequence[Params]) -> Params:
    """Return the parameters of an ensemble of members with these, in their order."""
    return {f"members_{i}": params for i, params in enumerate(members)}
