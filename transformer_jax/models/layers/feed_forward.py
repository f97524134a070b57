"""The feed-forward layer and its activations (section 3.3)."""

import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.models.layers.dense import apply_together, begin_normal, dense
from transformer_jax.models.layers.dropout import Dropout

ACTIVATIONS = {
    "relu": nn.relu,
    "gelu_tanh": nn.gelu,  # tanh approximation, as in the first BERT and GPT-2 code
    "gelu_erf": functools.partial(nn.gelu, approximate=False),  # Hendrycks 2016: x Φ(x)
    "silu": nn.silu,
    "relu2": lambda x: jnp.square(nn.relu(x)),  # So et al. 2021
}
GATES = {  # gated linear units: the activation of the gate (Shazeer 2020)
    "glu": nn.sigmoid,
    "reglu": nn.relu,
    "geglu": nn.gelu,  # tanh approximation
    "swiglu": nn.silu,
}


class FeedForward(nn.Module):
    """max(0, x W₁ + b₁) W₂ + b₂, the same at every position (section 3.3).

    A gated unit has a third matrix: (gate(x W₀ + b₀) · (x W₁ + b₁)) W₂ + b₂. It has as
    many parameters as a plain one if `d_ff` is two thirds as large.
    """

    d_model: int
    d_ff: int
    activation: str = "relu"
    dropout: float = 0.0
    dtype: Any = jnp.float32
    gradient_dtype: str = "same"  # see `dense`
    gain: float = 0.0  # DeepNorm's β; 0 means Glorot's variance
    use_bias: bool = True

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], train: bool = False
    ) -> Float[Array, "B T D"]:
        """Transform each position by itself."""
        types: dict[str, Any] = {
            "dtype": self.dtype,
            "gradient_dtype": self.gradient_dtype,
            "use_bias": self.use_bias,
            **begin_normal(self.gain),
        }
        inner = dense(self.d_ff, **types).copy(name="inner")
        outer = dense(self.d_model, **types).copy(name="outer")
        if self.activation in GATES:
            gate = dense(self.d_ff, **types).copy(name="gate")
            passed, hidden = apply_together([gate, inner], x)
            hidden = GATES[self.activation](passed) * hidden
        else:
            hidden = ACTIVATIONS[self.activation](inner(x))
        return outer(Dropout(self.dropout)(hidden, train))
