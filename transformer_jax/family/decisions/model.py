"""A decision transformer: act for the return that is asked for (Chen et al. 2021).

    action₀ return₁ state₁   action₁ return₂ state₂   …   →   action₁   action₂   …

A step is three tokens: the action before it, the return that is still to come, and the
state; its action is predicted where the state is read. A causal stack reads the steps
of a window. Without returns this is behaviour cloning.
Pitfall: returns-to-go and states are brought near 1 first, or they drown the rest.
"""

import dataclasses

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax import sharding
from transformer_jax.base.schema import option
from transformer_jax.models.attention import look_ahead_mask
from transformer_jax.models.cache import KVCache
from transformer_jax.models.layers import Dropout, dense
from transformer_jax.models.outputs import Outputs
from transformer_jax.models.positions import PositionEncoding
from transformer_jax.models.stack import Stack
from transformer_jax.models.transformer_config import TransformerConfig


@dataclasses.dataclass(frozen=True)
class ReturnOptions:
    """Choose the parts of a step that are read: options of `config.model`."""

    returns: bool = option(
        True, "Read the return that is asked for; False: behaviour cloning."
    )


@dataclasses.dataclass(frozen=True)
class DecisionSizes:
    """Size the steps that a model reads."""

    features: int  # numbers of a state
    actions: int
    window: int  # steps
    returns: bool = True

    @property
    def tokens(self) -> int:
        """Count the tokens of a step."""
        return 3 if self.returns else 2


class Steps(flax.struct.PyTreeNode):
    """Hold steps as the model reads them; leading axes are rows, then steps."""

    before: Int[Array, "... T"]  # the action before each; -1: none is known
    returns: Float[Array, "... T"]
    states: Float[Array, "... T F"]


class DecisionTransformer(nn.Module):
    """Predict the action of each step of a window. Vocabularies are not used."""

    config: TransformerConfig
    sizes: DecisionSizes

    def setup(self):
        """Make a linear map for each kind of token, the stack and the head."""
        c = self.config
        self.action = dense(c.d_model, c.dtype)
        self.state = dense(c.d_model, c.dtype)
        if self.sizes.returns:
            self.goal = dense(c.d_model, c.dtype)
        longest = self.sizes.window * self.sizes.tokens
        self.positions = PositionEncoding(c.positions, c.d_model, longest)
        self.decoder = Stack(c, c.decoder_layers, causal=True)
        self.head = dense(self.sizes.actions, jnp.float32)
        self.drop = Dropout(c.dropout_embedding)

    def __call__(
        self, steps: Steps, real: Int[Array, "B T"], train: bool = False
    ) -> Outputs:
        """Predict the action of each step; `real` is 1, or 0 for padding at the end."""
        places = self._places(jnp.arange(real.shape[1])[None])
        segments = jnp.repeat(real, self.sizes.tokens, axis=1)
        x, _, weights, _ = self.decoder(
            self._embed(steps, places, train),
            places,
            look_ahead_mask(places, segments, whole=True),
            train=train,
        )
        return Outputs(self._logits(x), weights, hidden=x)

    def start(self, batch: dict, length: int) -> tuple[dict, KVCache]:
        """Begin to play: an empty cache for so many steps of `batch["rows"]` rows."""
        c = self.config
        sizes, slots = (c.kv_heads or c.num_heads, c.d_k, c.d_v), length
        rows = len(batch["rows"])
        slots *= self.sizes.tokens
        return {}, KVCache.empty(c.decoder_layers, rows, 1, slots, sizes, c.dtype)

    def extend(
        self,
        steps: Steps,
        positions: Int[Array, "B K T"],
        static: dict,
        state: KVCache,
    ) -> tuple[Float[Array, "B K T A"], KVCache]:
        """Read steps at their places in a window; return the logits of their actions.

        At position -1 there is no step.
        """
        rows, beams, length = positions.shape
        flat = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), steps)
        places = self._places(positions.reshape(-1, length))
        by_row = places.reshape(rows, beams, -1)
        state = state.begin_step(by_row)
        x, layers, _, _ = self.decoder(
            self._embed(flat, places, False), places, state.mask(by_row), cache=state
        )
        logits = self._logits(x).reshape(rows, beams, length, -1)
        return logits, state.end_step(layers, None, by_row)

    def _places(self, positions: Int[Array, "#R T"]) -> Int[Array, "#R P"]:
        """Return the places of the tokens of steps; where there is no step, -1."""
        count = self.sizes.tokens
        places = positions[..., None] * count + jnp.arange(count)
        places = jnp.where(positions[..., None] < 0, -1, places)
        return places.reshape(len(positions), -1)

    def _embed(self, steps, places, train):
        c, kinds = self.config, self.sizes.actions + 1
        before = jnp.where(steps.before < 0, kinds - 1, steps.before)
        parts = [self.action(jax.nn.one_hot(before, kinds, dtype=c.dtype))]
        if self.sizes.returns:
            parts.append(self.goal(steps.returns[..., None]))
        parts.append(self.state(steps.states))
        x = jnp.stack(parts, axis=-2)  # [R, T, tokens, D]
        x = x.reshape(len(x), -1, c.d_model) + self.positions(places)
        return sharding.constrain(self.drop(x.astype(c.dtype), train))

    def _logits(self, x):
        """Read the head off the last token of each step, its state."""
        count = self.sizes.tokens
        return self.head(x[:, count - 1 :: count]).astype(jnp.float32)
