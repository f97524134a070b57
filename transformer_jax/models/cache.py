"""Keep the keys and values that the hypotheses of a search have read.

They are written once and never moved: a beam that goes on from another one takes over
who wrote each slot (`writer`), which is a small array, instead of copying its keys.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


@flax.struct.dataclass
class KeysValues:
    """Projected keys and values of one layer, of whatever is attended to."""

    key: Any  # Float [B, G, K, S]
    value: Any  # Float [B, G, S, H]


@flax.struct.dataclass
class KVCache:
    """What the hypotheses of each row have read: written once, and never moved.

    A step writes into slot `filled`, beside each other for all hypotheses. One that
    follows another takes over what that one has read by `writer`: which hypothesis
    wrote what stands for it in each slot. So a search reorders small numbers, not keys
    and values.
    """

    layers: tuple[KeysValues, ...]  # of S × beams, those of one slot side by side
    writer: Any  # Int [B, beams, S]
    positions: Any  # Int [B, S]; -1: nobody sees what stands there
    filled: Any  # Int []: slots written so far
    attended: Any = None  # Float [B, beams, S of the source]: if it is watched
    source_segments: Any = None  # Int [B, S of the source]

    @classmethod
    def empty(cls, layers: int, rows: int, beams: int, slots: int, sizes, dtype):
        """`sizes` are (heads of keys, size of a head's keys, of its values)."""
        heads, d_k, d_v = sizes
        width = slots * beams
        one = KeysValues(
            jnp.zeros((rows, heads, d_k, width), dtype),
            jnp.zeros((rows, heads, width, d_v), dtype),
        )
        own = jnp.arange(beams, dtype=jnp.int32)[None, :, None]
        return cls(
            (one,) * layers,
            jnp.broadcast_to(own, (rows, beams, slots)),
            jnp.full((rows, slots), -1, jnp.int32),
            jnp.int32(0),
        )

    def reorder(self, parents: Int[Array, "B beams"]) -> "KVCache":
        """The cache of hypotheses that each go on from a parent."""
        row = jnp.arange(parents.shape[0])[:, None]
        slots = jnp.arange(self.positions.shape[1])
        # What is not yet written will be written by each for itself.
        writer = jnp.where(slots < self.filled, self.writer[row, parents], self.writer)
        attended = self.attended
        if attended is not None:
            attended = attended[row, parents]
        return self.replace(writer=writer, attended=attended)

    def tile(self, beams: int) -> "KVCache":
        """For several hypotheses that all go on from the one that has read so far."""

        def widen(array, axis):
            wide = jnp.expand_dims(array, axis + 1)
            edges = [(0, 0)] * wide.ndim
            edges[axis + 1] = (0, beams - 1)
            shape = list(array.shape)
            shape[axis] *= beams
            return jnp.pad(wide, edges).reshape(shape)

        rows, _, slots = self.writer.shape
        own = jnp.arange(beams, dtype=jnp.int32)[:, None]
        writer = jnp.where(jnp.arange(slots) < self.filled, 0, own)
        attended = self.attended
        if attended is not None:
            attended = jnp.repeat(attended, beams, axis=1)
        return self.replace(
            layers=tuple(
                KeysValues(widen(one.key, 3), widen(one.value, 2))
                for one in self.layers
            ),
            writer=jnp.broadcast_to(writer, (rows, beams, slots)),
            attended=attended,
        )

    def resize(self, slots: int) -> "KVCache":
        """With another number of slots; those that are cut off must be unwritten."""
        rows, beams, had = self.writer.shape
        more = max(slots - had, 0)

        def fit(array, axis, each, value=0):
            edges = [(0, 0)] * array.ndim
            edges[axis] = (0, more * each)
            longer = jnp.pad(array, edges, constant_values=value)
            return jax.lax.slice_in_dim(longer, 0, slots * each, axis=axis)

        own = jnp.arange(beams, dtype=jnp.int32)[None, :, None]
        own = jnp.broadcast_to(own, (rows, beams, more))
        writer = jnp.concatenate([self.writer, own], axis=2)[..., :slots]
        layers = tuple(
            KeysValues(fit(one.key, 3, beams), fit(one.value, 2, beams))
            for one in self.layers
        )
        positions = fit(self.positions, 1, 1, value=-1)
        return self.replace(layers=layers, writer=writer, positions=positions)

    def track_attention(self, source_segments: Int[Array, "B S"]) -> "KVCache":
        """From now on it adds up how much each word of the source is attended to."""
        rows, beams, _ = self.writer.shape
        return self.replace(
            attended=jnp.zeros((rows, beams, source_segments.shape[1])),
            source_segments=source_segments,
        )

    def uncovered(self) -> Float[Array, "B beams"]:
        """Σ log min(attention, 1) over the source: 0 if every word had its share."""
        return coverage_penalty(self.attended, self.source_segments[:, None] != 0)

    def begin_step(self, positions: Int[Array, "B beams T"]) -> "KVCache":
        """Before a step: its tokens stand at these positions (-1: padding)."""
        return self.replace(
            positions=jax.lax.dynamic_update_slice(
                self.positions, positions[:, 0], (0, self.filled)
            )
        )

    def end_step(self, layers: tuple, cross_weights: Any, positions: Any) -> "KVCache":
        """After a step: what each layer wrote; what the last one saw of the source."""
        rows, beams, length = positions.shape
        attended = self.attended
        if attended is not None:
            seen = cross_weights.mean(axis=1).reshape(rows, beams, length, -1)
            attended = attended + jnp.where(positions[..., None] < 0, 0, seen).sum(2)
        return self.replace(
            layers=layers, filled=self.filled + length, attended=attended
        )

    def places(self, positions: Int[Array, "R T"]) -> tuple[Array, Array]:
        """Where queries and keys stand, [B, Q] and [B, S], as `mask` has them."""
        rows, beams, _ = self.writer.shape
        return positions.reshape(rows, -1), jnp.repeat(self.positions, beams, axis=1)

    def mask(self, positions: Int[Array, "B beams T"]) -> Bool[Array, "B 1 Q S"]:
        """A query sees what its hypothesis has read at its position or before it."""
        rows, beams, length = positions.shape
        slots = self.positions.shape[1]
        keys = self.positions[:, None, None, :]
        before = (keys >= 0) & (keys <= positions[..., None])
        own = self.writer[..., None] == jnp.arange(beams)
        allowed = before[..., None] & own[:, :, None]  # [B, beams, T, S, beams]
        return allowed.reshape(rows, 1, beams * length, slots * beams)

    def write(self, layer: KeysValues, new: KeysValues) -> KeysValues:
        """A layer with the keys and values [B × beams, G, …] of this step.

        Whoever attends reads the same array: of any other form XLA would make a copy.
        """
        rows, beams, _ = self.writer.shape
        place = self.filled * beams

        key = new.key.reshape(rows, beams, *new.key.shape[1:])
        key = key.transpose(0, 2, 3, 4, 1)  # [B, G, K, T, beams]
        key = key.reshape(*key.shape[:3], -1).astype(layer.key.dtype)
        value = new.value.reshape(rows, beams, *new.value.shape[1:])
        value = value.transpose(0, 2, 3, 1, 4)  # [B, G, T, beams, H]
        value = value.reshape(*layer.value.shape[:2], -1, value.shape[-1])
        write = jax.lax.dynamic_update_slice
        return KeysValues(
            write(layer.key, key, (0, 0, 0, place)),
            write(layer.value, value.astype(layer.value.dtype), (0, 0, place, 0)),
        )


def coverage_penalty(
    attended: Float[Array, "B beams S"], real: Bool[Array, "B #beams S"]
) -> Float[Array, "B beams"]:
    shares = jnp.log(jnp.clip(attended, 1e-9, 1.0))
    return jnp.where(real, shares, 0.0).sum(-1)
