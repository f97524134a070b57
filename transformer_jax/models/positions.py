"""How a model knows where a token stands: encodings added to the embeddings.

    PE(p, 2i) = sin(p / 10000^(2i/D))    PE(p, 2i+1) = cos(p / 10000^(2i/D))   (3.5)

`sinusoid` interleaves sines and cosines as the paper's formula does; the authors' own
code put all sines first (`sinusoid_concat`). The two are permutations of each other:
equal in power, but weights trained with one are useless with the other.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

POSITIONS = ("sinusoid", "sinusoid_concat", "learned", "none")


def sinusoid(
    positions: Int[Array, "B T"], d_model: int, interleave: bool = True
) -> Float[Array, "B T D"]:
    """The paper's encoding at any position, however far."""
    rates = 10_000.0 ** (-jnp.arange(0, d_model, 2, dtype=jnp.float32) / d_model)
    angles = positions[..., None].astype(jnp.float32) * rates
    waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    if not interleave:
        waves = waves.swapaxes(-1, -2)
    return waves.reshape(*positions.shape, -1)[..., :d_model]


class PositionEncoding(nn.Module):
    """What is added to the scaled embeddings; `learned` is Table 3, row E."""

    kind: str
    d_model: int
    max_positions: int

    @nn.compact
    def __call__(
        self, positions: Int[Array, "B T"], length: int
    ) -> Float[Array, "B T D"] | float:
        """`length` bounds the positions: it is checked against a learned table."""
        if self.kind == "none":
            return 0.0
        if self.kind != "learned":
            return sinusoid(positions, self.d_model, self.kind == "sinusoid")
        if length > self.max_positions:
            # An index past the table would be clamped in silence.
            raise ValueError(
                f"a sequence of {length} positions is longer than the learned table "
                f"of {self.max_positions}: raise model.max_positions and train again, "
                "or use sinusoids"
            )
        table = self.param(
            "table",
            nn.initializers.normal(self.d_model**-0.5),
            (self.max_positions, self.d_model),
        )
        return jnp.take(table, positions, axis=0)
