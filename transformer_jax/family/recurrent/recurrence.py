"""A recurrence along the positions: its cells, and how they are run.

    h_t = f(x_t W + b, h_{t-1} U)                            f: tanh, an LSTM or a GRU

`x W` is one product for all positions; only the part that depends on the previous step
is scanned.
Pitfall: padding must leave the state unchanged, or an answer depends on its batch.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.models.layers import dense


class Cell(NamedTuple):
    """A recurrent cell: how it computes the next state, and the sizes of its parts."""

    step: Callable[[Array, Array, tuple], tuple]  # (x W + b, h U, state) → next state
    parts: int  # number of arrays of a state; the first is the output
    bias: tuple[float, ...]  # initial bias of each gate


def _rnn(given, own, state):
    return (jnp.tanh(given + own),)


def _lstm(given, own, state):
    """Return the next output and cell state, both [R, H].

    `given` is x W + b and `own` is h U, both [R, 4 H]: the input, forget, new and
    output gates. `state` has the previous output and cell state.
    """
    enter, keep, new, show = jnp.split(given + own, 4, axis=-1)
    inside = nn.sigmoid(keep) * state[1] + nn.sigmoid(enter) * jnp.tanh(new)
    return nn.sigmoid(show) * jnp.tanh(inside), inside


def _gru(given, own, state):
    """Apply the reset gate after the product (cuDNN's form), which needs only one."""
    x_reset, x_keep, x_new = jnp.split(given, 3, axis=-1)
    h_reset, h_keep, h_new = jnp.split(own, 3, axis=-1)
    keep = nn.sigmoid(x_keep + h_keep)
    new = jnp.tanh(x_new + nn.sigmoid(x_reset + h_reset) * h_new)
    return (keep * state[0] + (1 - keep) * new,)


CELLS = {
    "rnn": Cell(_rnn, parts=1, bias=(0.0,)),
    "lstm": Cell(_lstm, parts=2, bias=(0.0, 1.0, 0.0, 0.0)),  # begins by remembering
    "gru": Cell(_gru, parts=1, bias=(0.0, 0.0, 0.0)),
}


class Recurrence(nn.Module):
    """One cell along the positions, from first to last or (`reverse`) last to first.

    States are float32 for every `dtype`, because they accumulate over all steps.
    """

    cell: str
    size: int
    reverse: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "R T D"],
        real: Bool[Array, "R T"],
        state: tuple[Float[Array, "R H"], ...] | None = None,
    ) -> tuple[Float[Array, "R T H"], tuple[Float[Array, "R H"], ...]]:
        """Return the output at each position and the last state."""
        cell = CELLS[self.cell]
        width = len(cell.bias) * self.size
        inputs = dense(width, self.dtype).copy(
            name="input",
            bias_init=lambda *_: jnp.repeat(jnp.array(cell.bias), self.size),
        )
        kernel = self.param("recurrent", _orthogonal, (self.size, width))
        kernel = kernel.astype(self.dtype)
        if state is None:
            state = (jnp.zeros((len(x), self.size), jnp.float32),) * cell.parts

        def advance(state, at_position):
            given, real = at_position
            own = jnp.matmul(
                state[0].astype(self.dtype), kernel, preferred_element_type=jnp.float32
            )
            new = cell.step(given.astype(jnp.float32), own, state)
            state = tuple(
                jnp.where(real[:, None], after, before)
                for after, before in zip(new, state, strict=True)
            )
            return state, state[0].astype(self.dtype)

        along = inputs(x).swapaxes(0, 1), real.swapaxes(0, 1)
        state, outputs = jax.lax.scan(advance, state, along, reverse=self.reverse)
        return outputs.swapaxes(0, 1), state


def _orthogonal(key: Array, shape: tuple[int, int]) -> Float[Array, "H G"]:
    """Draw one orthogonal matrix per gate, so that a state keeps its norm."""
    size, width = shape
    rotation = nn.initializers.orthogonal()
    keys = jax.random.split(key, width // size)
    return jnp.concatenate([rotation(k, (size, size)) for k in keys], axis=1)
