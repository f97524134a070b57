"""Cache the keys and values of the tokens that a search has read.

They are written once and never moved. A beam that continues another one copies its
`writer`, a small array that says which beam wrote each slot, instead of its keys.

The slots are a ring: all rows write the same slot at each step, and a row whose
sentence has ended is given to another one while the others go on. What a query sees is
decided by positions, never by the order of slots.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class KeysValues(flax.struct.PyTreeNode):
    """The projected keys and values of one layer."""

    key: Any  # Float [B, G, S, K]
    value: Any  # Float [B, G, S, H]


class KVCache(flax.struct.PyTreeNode):
    """The keys and values of all hypotheses of each row, which no step moves.

    A step writes the keys and values of all hypotheses side by side into slot `next`.
    `writer` says whose entry of a slot a hypothesis reads; a hypothesis that continues
    another one copies that one's row of `writer`. So a search reorders small integers
    instead of keys and values; `reorder_by_copying` is the reference form.
    """

    layers: tuple[KeysValues, ...]  # S × beams entries, the beams of a slot together
    writer: Any  # Int [B, beams, S]
    positions: Any  # Int [B, S]; -1 marks a slot that no query sees
    next: Any  # Int []: tokens since the last `resize`; modulo S, the slot to write
    attended: Any = None  # Float [B, beams, S of the source], if attention is tracked
    source_segments: Any = None  # Int [B, S of the source]

    @classmethod
    def empty(cls, layers: int, rows: int, beams: int, slots: int, sizes, dtype):
        """Make an empty cache with this number of slots.

        `sizes` are (number of key heads, size of a head's keys, size of its values).
        """
        heads, d_k, d_v = sizes
        width = slots * beams
        one = KeysValues(
            jnp.zeros((rows, heads, width, d_k), dtype),
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
        """Let each hypothesis continue a parent, that is, read the parent's entries."""
        row = jnp.arange(parents.shape[0])[:, None]
        # Each hypothesis will write its own entries of the slots that are still empty.
        written = self.positions[:, None] >= 0
        writer = jnp.where(written, self.writer[row, parents], self.writer)
        attended = self.attended
        if attended is not None:
            attended = attended[row, parents]
        return self.replace(writer=writer, attended=attended)

    def tile(self, beams: int) -> "KVCache":
        """Let `beams` hypotheses continue the only one so far."""

        def widen(array, axis):
            wide = jnp.expand_dims(array, axis + 1)
            edges = [(0, 0)] * wide.ndim
            edges[axis + 1] = (0, beams - 1)
            shape = list(array.shape)
            shape[axis] *= beams
            return jnp.pad(wide, edges).reshape(shape)

        own = jnp.arange(beams, dtype=jnp.int32)[:, None]
        writer = jnp.where(self.positions[:, None] >= 0, 0, own)
        attended = self.attended
        if attended is not None:
            attended = jnp.repeat(attended, beams, axis=1)
        return self.replace(
            layers=tuple(
                KeysValues(widen(one.key, 2), widen(one.value, 2))
                for one in self.layers
            ),
            writer=writer,
            attended=attended,
        )

    def resize(self, slots: int) -> "KVCache":
        """Change the number of slots; the oldest, if cut off, must be empty.

        The newest become the last, so that new slots and the oldest are next.
        """
        rows, beams, had = self.writer.shape
        more, cut = max(slots - had, 0), max(had - slots, 0)

        def fit(array, axis, each, value=0):
            array = jnp.roll(array, -self.next * each, axis)
            edges = [(0, 0)] * array.ndim
            edges[axis] = (more * each, 0)
            longer = jnp.pad(array, edges, constant_values=value)
            return jax.lax.slice_in_dim(longer, cut * each, None, axis=axis)

        own = jnp.arange(beams, dtype=jnp.int32)[None, :, None]
        positions = fit(self.positions, 1, 1, value=-1)
        writer = jnp.where(positions[:, None] >= 0, fit(self.writer, 2, 1), own)
        layers = tuple(
            KeysValues(fit(one.key, 2, beams), fit(one.value, 2, beams))
            for one in self.layers
        )
        return self.replace(
            layers=layers, writer=writer, positions=positions, next=jnp.int32(0)
        )

    def replace_rows(
        self, fresh: "KVCache", rows: Int[Array, "F"], slots: int | None = None
    ) -> "KVCache":
        """Give rows to other sentences; row i of `fresh` becomes row `rows[i]`.

        `fresh` has as many slots as its prompts are long. They are put before the slot
        to write next. All other slots of a new row are hidden, so they keep what the
        row had. With `slots`, the cache is resized before.
        """
        cache = self if slots is None else self.resize(slots)
        _, beams, width = cache.writer.shape
        prompt = fresh.positions.shape[1]
        chosen = (cache.next - prompt + jnp.arange(prompt)) % width
        entries = (chosen[:, None] * beams + jnp.arange(beams)).reshape(-1)

        def put(old, new):
            # Axes that are indexed apart come first in the result.
            new = new.swapaxes(1, 2)
            return old.at[rows[:, None], :, entries].set(new, mode="drop")

        own = jnp.arange(beams, dtype=jnp.int32)[None, :, None]
        own = jnp.broadcast_to(own, (len(rows), beams, width))
        hidden = jnp.full((len(rows), width), -1, jnp.int32)
        changed = {
            "writer": own.at[:, :, chosen].set(fresh.writer),
            "positions": hidden.at[:, chosen].set(fresh.positions),
            "attended": fresh.attended,
            "source_segments": fresh.source_segments,
        }
        return cache.replace(
            layers=tuple(
                KeysValues(put(old.key, new.key), put(old.value, new.value))
                for old, new in zip(cache.layers, fresh.layers, strict=True)
            ),
            **{
                name: put_rows(getattr(cache, name), new, rows)
                for name, new in changed.items()
                if new is not None
            },
        )

    def track_attention(self, source_segments: Int[Array, "B S"]) -> "KVCache":
        """From now on, sum the attention that each word of the source receives."""
        rows, beams, _ = self.writer.shape
        return self.replace(
            attended=jnp.zeros((rows, beams, source_segments.shape[1])),
            source_segments=source_segments,
        )

    def uncovered(self) -> Float[Array, "B beams"]:
        """Sum log min(attention, 1) over the source; 0 if every word is covered."""
        return coverage_penalty(self.attended, self.source_segments[:, None] != 0)

    def forget(self, count: Int[Array, ""]) -> "KVCache":
        """Take back the newest slots of all rows; the next step writes them again."""
        slots = self.positions.shape[1]
        age = (self.next - 1 - jnp.arange(slots)) % slots  # 0 is the newest
        positions = jnp.where(age < count, -1, self.positions)
        return self.replace(positions=positions, next=self.next - count)

    def slot(self) -> Int[Array, ""]:
        """Return the slot that the next step writes."""
        return self.next % self.positions.shape[1]

    def begin_step(self, positions: Int[Array, "B beams T"]) -> "KVCache":
        """Record the positions of the tokens of the next step (-1 is padding)."""
        return self.replace(
            positions=jax.lax.dynamic_update_slice(
                self.positions, positions[:, 0], (0, self.slot())
            )
        )

    def end_step(self, layers: tuple, cross_weights: Any, positions: Any) -> "KVCache":
        """Store each layer's keys and values, and the last layer's attention."""
        rows, beams, length = positions.shape
        attended = self.attended
        if attended is not None:
            seen = cross_weights.mean(axis=1).reshape(rows, beams, length, -1)
            attended = attended + jnp.where(positions[..., None] < 0, 0, seen).sum(2)
        return self.replace(layers=layers, next=self.next + length, attended=attended)

    def places(self, positions: Int[Array, "R T"]) -> tuple[Array, Array]:
        """Return the positions of queries [B, Q] and keys [B, S], ordered as `mask`."""
        rows, beams, _ = self.writer.shape
        return positions.reshape(rows, -1), jnp.repeat(self.positions, beams, axis=1)

    def mask(self, positions: Int[Array, "B beams T"]) -> Bool[Array, "B 1 Q S"]:
        """Let a query see the tokens of its own hypothesis up to its own position."""
        rows, beams, length = positions.shape
        slots = self.positions.shape[1]
        keys = self.positions[:, None, None, :]
        before = (keys >= 0) & (keys <= positions[..., None])
        own = self.writer[..., None] == jnp.arange(beams)
        allowed = before[..., None] & own[:, :, None]  # [B, beams, T, S, beams]
        return allowed.reshape(rows, 1, beams * length, slots * beams)

    def write(self, layer: KeysValues, new: KeysValues) -> KeysValues:
        """Write the keys and values [B × beams, G, …] of this step into a layer.

        Attention reads the array in the same layout; for any other XLA would copy it.
        """
        rows, beams, _ = self.writer.shape
        place = self.slot() * beams

        def put(old, new):
            new = new.reshape(rows, beams, *new.shape[1:])
            new = new.transpose(0, 2, 3, 1, 4)  # [B, G, T, beams, size]
            new = new.reshape(*old.shape[:2], -1, old.shape[3]).astype(old.dtype)
            return jax.lax.dynamic_update_slice(old, new, (0, 0, place, 0))

        return KeysValues(put(layer.key, new.key), put(layer.value, new.value))


def put_rows(old: Array, new: Array, rows: Int[Array, "F"]) -> Array:
    """Put row i of `new` into row `rows[i]`; it is dropped if that is out of range.

    The shorter ones get zeros at their ends. A number that all rows share stays.
    """
    if not old.ndim:
        return old

    def lengthen(array):
        wide = zip(array.shape[1:], old.shape[1:], new.shape[1:], strict=True)
        return jnp.pad(array, [(0, 0), *((0, max(b, c) - a) for a, b, c in wide)])

    return lengthen(old).at[rows].set(lengthen(new), mode="drop")


def reorder_by_copying(cache: KVCache, parents: Int[Array, "B beams"]) -> KVCache:
    """Let each hypothesis continue a parent by copying the parent's keys and values.

    The reference form of `KVCache.reorder`. Afterwards each hypothesis has its own
    entry in every slot, but the whole cache is moved at every step.
    """
    rows, beams, slots = cache.writer.shape
    followed = cache.reorder(parents)
    source = followed.writer.swapaxes(1, 2)[..., None]  # [B, slots, beams, 1]

    def copy(array, axis):
        array = jnp.moveaxis(array, axis, 1)
        entries = array.reshape(rows, slots, beams, -1)
        copied = jnp.take_along_axis(entries, source, axis=2)
        return jnp.moveaxis(copied.reshape(array.shape), 1, axis)

    own = jnp.arange(beams, dtype=jnp.int32)[:, None]
    return followed.replace(
        layers=tuple(
            KeysValues(copy(one.key, 2), copy(one.value, 2)) for one in cache.layers
        ),
        writer=jnp.broadcast_to(own, (rows, beams, slots)),
    )


def coverage_penalty(
    attended: Float[Array, "B beams S"], real: Bool[Array, "B #beams S"]
) -> Float[Array, "B beams"]:
    """Sum log min(attended, 1) over the real words of the source (Wu et al. 2016)."""
    shares = jnp.log(jnp.clip(attended, 1e-9, 1.0))
    return jnp.where(real, shares, 0.0).sum(-1)


class SearchState(flax.struct.PyTreeNode):
    """The state of each hypothesis of a model without a cache of keys.

    Leaves are [B, beams, …].
    """

    layers: Any  # for each layer a tuple of Float [B, beams, D]
    attended: Any = None  # Float [B, beams, S], if attention is tracked
    real: Any = None  # Bool [B, beams, S]

    def track_attention(self, source_segments: Int[Array, "B S"]) -> "SearchState":
        """From now on, sum the attention that each word of the source receives."""
        real = source_segments[:, None] != 0
        return self.replace(attended=jnp.zeros(real.shape), real=real)

    def uncovered(self) -> Float[Array, "B beams"]:
        """Sum log min(attention, 1) over the source; 0 if every word is covered."""
        return coverage_penalty(self.attended, self.real)

    def end_step(self, layers: tuple, weights: Any, positions: Any) -> "SearchState":
        """Store the states after a step, and the attention that it paid to the source.

        Positions of -1 are padding.
        """
        attended = self.attended
        if attended is not None:
            seen = weights.reshape(*positions.shape, -1)
            attended += jnp.where(positions[..., None] < 0, 0, seen).sum(axis=2)
        return self.replace(layers=layers, attended=attended)
