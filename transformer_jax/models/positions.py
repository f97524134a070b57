"""Positions of tokens: added to embeddings, rotating queries, or added to scores.

    PE(p, 2i) = sin(p / 10000^(2i/D))    PE(p, 2i+1) = cos(p / 10000^(2i/D))   (3.5)

`sinusoid` interleaves sines and cosines as in the paper's formula; `sinusoid_concat`
puts all sines first, as Marian does. The two are permutations of each other: equally
expressive, but weights trained with one are useless with the other. `sinusoid_t2t` is
that of the authors' own code, tensor2tensor, and of Whisper's encoder: also all sines
first, but 10000^(i/(D/2-1)) for the i-th, so the slowest turns 10000 times slower.
`rotary` rotates queries and keys; `relative` (T5) and
`alibi` change the scores. These three give distances to self-attention and nothing to
cross-attention, which needs positions in the embeddings: `sinusoid+rotary` has both.
"""

import math
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Real

from transformer_jax.base.errors import UserError

SCALINGS = ("none", "linear", "ntk", "llama3", "yarn")


def sinusoid(
    positions: Real[Array, "B T"], d_model: int, interleave: bool = True
) -> Float[Array, "B T D"]:
    """Encode positions like the paper; there is no largest position.

    Angles are float32, so the error of a value is at most 0.001 up to position 10,000,
    and about 0.06 at a million.
    """
    waves = jnp.stack(_waves(positions, _rates(d_model))[::-1], axis=-1)
    if not interleave:
        waves = waves.swapaxes(-1, -2)
    return waves.reshape(*positions.shape, -1)[..., :d_model]


def added_waves(
    kind: str, positions: Real[Array, "B T"], d_model: int
) -> Float[Array, "B T D"]:
    """Encode positions by a kind of sinusoid; any other kind has the paper's."""
    if kind == "sinusoid_t2t":
        return sinusoid_t2t(positions, d_model)
    return sinusoid(positions, d_model, kind != "sinusoid_concat")


def sinusoid_t2t(positions: Real[Array, "B T"], d_model: int) -> Float[Array, "B T D"]:
    """Encode positions like tensor2tensor: the last angle is position / 10000."""
    half = d_model // 2
    # In float64, because an angle is a rate times a position of thousands.
    rates = 10_000.0 ** (-np.arange(half) / max(half - 1, 1))
    cos, sin = _waves(positions, jnp.asarray(rates, jnp.float32))
    return jnp.concatenate([sin, cos], axis=-1)


def _rates(size: int, base: float = 10_000.0) -> Float[Array, " half"]:
    """Return the angles from one position to the next, from the largest on."""
    return base ** (-jnp.arange(0, size, 2, dtype=jnp.float32) / size)


def _waves(positions, rates: Float[Array, " half"]) -> tuple[Array, Array]:
    """Return cos and sin of a position's angles, from the fastest to the slowest."""
    angles = positions[..., None].astype(jnp.float32) * rates
    return jnp.cos(angles), jnp.sin(angles)


def sinusoid_2d(grid: tuple[int, int], d_model: int) -> Float[Array, "1 T D"]:
    """Encode the rows and columns of a grid of patches, by half of the width each.

    The first vector, that of the class token, is 0.
    """
    if d_model % 2:
        raise UserError(
            f"sinusoid_2d needs an even d_model, not {d_model}: use {d_model - 1} or "
            f"{d_model + 1}, or other positions"
        )
    axes = [axis.reshape(1, -1) for axis in jnp.indices(grid)]
    waves = [sinusoid(axis, d_model // 2) for axis in axes]
    return jnp.pad(jnp.concatenate(waves, axis=-1), ((0, 0), (1, 0), (0, 0)))


class PositionEncoding(nn.Module):
    """Vectors that are added to the scaled embeddings; `learned` is Table 3, row E."""

    kind: str
    d_model: int
    max_positions: int

    @nn.compact
    def __call__(self, positions: Int[Array, "B T"]) -> Float[Array, "B T D"] | float:
        """Encode positions; return 0.0 if embeddings contain no positions.

        Positions beyond a learned table read its last row. Only padding may do so: the
        caller checks that the table covers all real tokens.
        """
        if self.kind.startswith("sinusoid"):
            return added_waves(self.kind, positions, self.d_model)
        if self.kind != "learned":
            return 0.0
        table = self.param(
            "table",
            nn.initializers.normal(self.d_model**-0.5),
            (self.max_positions, self.d_model),
        )
        return jnp.take(table, positions, axis=0, mode="clip")


class PositionSignal(flax.struct.PyTreeNode):
    """The effect of positions on self-attention; computed once per stack."""

    turn: Any = None  # (cos, sin), each Float [#R, T, K / 2]
    bias: Any = None  # added to the scores: Float [#B, #N, T, S], or a DistanceBias


class Band(NamedTuple):
    """The angles that `llama3` and `yarn` scale, by turns within training texts.

    Angles with at most `low` turns are divided by the factor, those with at least
    `high` stay as they are, and those between are blended: evenly by their turns, or
    for `yarn` by their number. `gain` multiplies what `yarn` rotates; 0 stands for
    0.1 ln(factor) + 1.
    """

    low: float = 1.0
    high: float = 4.0
    original: int = 8192  # positions of the training before the scaling
    gain: float = 0.0


def rotation(
    positions: Int[Array, "R T"],
    size: int,
    base: float = 10_000.0,
    scaling: str = "none",
    factor: float = 1.0,
    band: Band | None = None,
) -> tuple[Float[Array, "R T half"], Float[Array, "R T half"]]:
    """Compute the angles by which `rotate` rotates heads of `size` (Su et al. 2021).

    Scaling lets a model trained on short texts read texts `factor` times as long.
    `linear` slows down all angles; `ntk` mainly the slow ones, because the fast ones
    tell neighbours apart; `llama3` and `yarn` (Peng et al. 2023) those that turn less
    often than the band says. `yarn` also scales the rotated vectors, since a softmax
    over more keys is flatter.
    """
    if scaling == "linear":
        return _waves(positions / factor, _rates(size, base))
    if scaling == "ntk":
        base = base * factor ** (size / max(size - 2, 1))
    rates = _rates(size, base)
    if scaling == "llama3":
        low, high, original, _ = band or Band()
        turns = original * rates / (2 * math.pi)  # within the texts of the training
        kept = jnp.clip((turns - low) / (high - low), 0, 1)
        rates = kept * rates + (1 - kept) * rates / factor
    if scaling == "yarn":
        band = band or Band(high=32.0)
        first, last = _yarn_ends(band, size, base)
        number = jnp.arange(len(rates), dtype=jnp.float32)
        slowed = jnp.clip((number - first) / max(last - first, 1e-3), 0, 1)
        rates = slowed * rates / factor + (1 - slowed) * rates
        gain = band.gain or 0.1 * math.log(factor) + 1
        cos, sin = _waves(positions, rates)
        return gain * cos, gain * sin
    return _waves(positions, rates)


def _yarn_ends(band: Band, size: int, base: float) -> tuple[int, int]:
    """Return the numbers of the angles that turn as often as the band's ends."""

    def number(turns):
        length = band.original / (2 * math.pi * max(turns, 1e-6))
        return size * math.log(length) / (2 * math.log(max(base, 1.001)))

    first, last = math.floor(number(band.high)), math.ceil(number(band.low))
    return max(first, 0), min(last, size - 1)


def rotate(x: Float[Array, "R T N K"], turn: Any) -> Float[Array, "R T N K"]:
    """Rotate each pair (number i of a head's first half, number i of its second half).

    The product of a query and a key then depends on the distance of their positions.
    """
    cos, sin = (wave[..., None, :] for wave in turn)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = first * cos - second * sin, second * cos + first * sin
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


class DistanceBias(flax.struct.PyTreeNode):
    """The inputs of a bias of the scores, from which any block can be computed."""

    queries: Any  # Int [#B, T]: their positions
    keys: Any  # Int [#B, S]
    table: Any  # Float [buckets, N], if the bias is learned
    kind: str = flax.struct.field(pytree_node=False)
    heads: int = flax.struct.field(pytree_node=False)
    causal: bool = flax.struct.field(pytree_node=False)
    furthest: int = flax.struct.field(pytree_node=False)

    def dense(self) -> Float[Array, "B #N T S"]:
        """Compute the bias of each key for each query."""
        distance = self.keys[:, None, :] - self.queries[:, :, None]
        if self.kind in BIASES:
            return BIASES[self.kind](distance, self.heads)
        sizes = len(self.table), self.furthest
        bucket = relative_buckets(distance, *sizes, self.causal)
        return jnp.moveaxis(jnp.take(self.table, bucket, axis=0), -1, 1)


class PositionBias(nn.Module):
    """A bias, by distance, of the scores of a stack's self-attentions.

    `relative` learns one number per head and bucket of distances (Raffel et al. 2020);
    the other kinds are fixed functions of the distance (`BIASES`).
    """

    kind: str
    num_heads: int
    causal: bool
    buckets: int = 32
    furthest: int = 128

    def setup(self):
        """Make the table, if the bias is learned."""
        self.table = None
        if self.kind not in BIASES:
            init = nn.initializers.normal(0.02)
            self.table = self.param("table", init, (self.buckets, self.num_heads))

    def __call__(
        self, queries: Int[Array, "B T"], keys: Int[Array, "B S"]
    ) -> Float[Array, "B #N T S"]:
        """Compute the bias of each key for each query."""
        return self.between(queries, keys).dense()

    def between(
        self, queries: Int[Array, "B T"], keys: Int[Array, "B S"]
    ) -> DistanceBias:
        """Return the bias in factored form, which is linear in the length."""
        sizes = self.kind, self.num_heads, self.causal, self.furthest
        return DistanceBias(queries, keys, self.table, *sizes)


def relative_buckets(
    distance: Int[Array, "B T S"], buckets: int, furthest: int, causal: bool
) -> Int[Array, "B T S"]:
    """Find the bucket of a distance key - query.

    Half of the buckets hold one near distance each; the others hold ranges that grow
    logarithmically up to `furthest`. Unless causal, half of all buckets are for keys
    after the query.
    """
    offset = 0
    if causal:
        distance = jnp.maximum(-distance, 0)
    else:
        buckets //= 2
        offset = buckets * (distance > 0)
        distance = jnp.abs(distance)
    exact = buckets // 2
    share = jnp.log(jnp.maximum(distance, exact) / exact) / math.log(furthest / exact)
    far = exact + (share * (buckets - exact)).astype(jnp.int32)
    near = jnp.where(distance < exact, distance, jnp.minimum(far, buckets - 1))
    return (offset + near).astype(jnp.int32)


def alibi(distance: Int[Array, "B T S"], heads: int) -> Float[Array, "B N T S"]:
    """Lower scores by the distance times the head's slope (Press et al. 2022)."""
    slopes = jnp.asarray(alibi_slopes(heads), jnp.float32)
    return -slopes[:, None, None] * jnp.abs(distance)[:, None]


def alibi_slopes(heads: int) -> np.ndarray:
    """Make a geometric series down to 2^-8, one slope per head.

    If the number of heads is not a power of 2, the remaining slopes are every other
    number of the next series.
    """
    whole = 1 << (heads.bit_length() - 1)
    slopes = 2.0 ** (-8 * np.arange(1, whole + 1) / whole)
    between = 2.0 ** (-8 * np.arange(1, 2 * whole, 2) / (2 * whole))
    return np.concatenate([slopes, between[: heads - whole]])


# Fixed biases of the scores, by name: (key - query, heads) → Float [#B, #N, T, S].
BIASES = {
    "alibi": alibi,
}

# Added to embeddings.
SINUSOIDS = ("sinusoid", "sinusoid_concat", "sinusoid_t2t", "sinusoid+rotary")
POSITIONS = (
    "sinusoid",
    "sinusoid_concat",
    "sinusoid_t2t",
    "learned",
    "rotary",
    "relative",
    *BIASES,
    "none",
    "sinusoid+rotary",
)
