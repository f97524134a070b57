"""Recurrent encoder-decoders: what the Transformer took the place of (section 1).

    h_t = f(x_t W + b, h_{t-1} U)                            f: tanh, an LSTM or a GRU
    o_t = tanh([Σ_s a_ts m_s; h_t] W_o),  a_t = softmax_s score(h_t, m_s)

`x W` is one product for all positions; only what waits for the step before is scanned.
The decoder begins in the state in which the encoder ended. Both scores are taken behind
the recurrence, as Luong et al. do; Bahdanau et al. fed the sum into the next step.
The trap: padding must leave a state as it is, or an answer depends on its batch.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax import sharding
from transformer_jax.models.attention import MASKED
from transformer_jax.models.cache import coverage_penalty
from transformer_jax.models.embeddings import EmbeddingTables
from transformer_jax.models.layers import Dropout, dense
from transformer_jax.models.transformer import Outputs

ATTENTIONS = ("none", "additive", "dot")


@dataclasses.dataclass(frozen=True)
class RecurrentConfig:
    """Every size of a model. `config.model` has the meaning and unit of each key."""

    vocab_size: int
    vocab_rows: int
    source_vocab_size: int
    source_vocab_rows: int
    d_model: int
    layers: int
    cell: str = "lstm"
    bidirectional: bool = True
    attention: str = "additive"
    tie: str = "all"
    dropout_words: float = 0.0
    dropout_embedding: float = 0.0
    dropout_residual: float = 0.0
    dtype: str = "float32"


class Cell(NamedTuple):
    """How a state goes on from what is given and from the state's own product."""

    step: Callable[[Array, Array, tuple], tuple]
    parts: int  # arrays of a state, the first of which is the output
    bias: tuple[float, ...]  # at the beginning, of each gate


def _rnn(given, own, state):
    return (jnp.tanh(given + own),)


def _lstm(given, own, state):
    enter, keep, new, show = jnp.split(given + own, 4, axis=-1)
    inside = nn.sigmoid(keep) * state[1] + nn.sigmoid(enter) * jnp.tanh(new)
    return nn.sigmoid(show) * jnp.tanh(inside), inside


def _gru(given, own, state):
    """The reset gate acts on the product (cuDNN's form), so there is only one."""
    x_reset, x_keep, x_new = jnp.split(given, 3, axis=-1)
    h_reset, h_keep, h_new = jnp.split(own, 3, axis=-1)
    keep = nn.sigmoid(x_keep + h_keep)
    new = jnp.tanh(x_new + nn.sigmoid(x_reset + h_reset) * h_new)
    return (keep * state[0] + (1 - keep) * new,)


CELLS = {
    "rnn": Cell(_rnn, parts=1, bias=(0.0,)),
    "lstm": Cell(_lstm, parts=2, bias=(0.0, 1.0, 0.0, 0.0)),  # remembers, to begin with
    "gru": Cell(_gru, parts=1, bias=(0.0, 0.0, 0.0)),
}


class Recurrence(nn.Module):
    """One cell along the positions, first to last or (`reverse`) last to first.

    A state is float32 whatever is computed in: it adds up over all steps.
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
        """The output at each position, and the state behind the last real one."""
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
    """A rotation for each gate: what goes round and round keeps its length."""
    size, width = shape
    rotation = nn.initializers.orthogonal()
    keys = jax.random.split(key, width // size)
    return jnp.concatenate([rotation(k, (size, size)) for k in keys], axis=1)


class Layer(nn.Module):
    """A recurrence, or two of half the size that read in both directions."""

    config: RecurrentConfig
    both: bool

    def setup(self):
        c = self.config
        size = c.d_model // 2 if self.both else c.d_model
        self.forward = Recurrence(c.cell, size, dtype=c.dtype)
        if self.both:
            self.backward = Recurrence(c.cell, size, reverse=True, dtype=c.dtype)

    def __call__(self, x, real, state=None):
        x_forward, state = self.forward(x, real, state)
        if not self.both:
            return x_forward, state
        x_backward, first = self.backward(x, real)
        pairs = ((x_forward, x_backward), *zip(state, first, strict=True))
        x, *state = (jnp.concatenate(pair, axis=-1) for pair in pairs)
        return x, tuple(state)


class Stack(nn.Module):
    """Layers one after another: an encoder (it may read both ways), or a decoder."""

    config: RecurrentConfig
    both: bool = False

    def setup(self):
        self.layer = [Layer(self.config, self.both) for _ in range(self.config.layers)]
        self.drop = Dropout(self.config.dropout_residual)

    def __call__(
        self,
        x: Float[Array, "R T D"],
        real: Bool[Array, "R T"],
        states: tuple | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "R T D"], tuple]:
        """The last layer's output, and each layer's state behind the last position."""
        after = []
        for i, layer in enumerate(self.layer):
            x, state = layer(x, real, states[i] if states else None)
            x = sharding.constrain(self.drop(x, train))
            after.append(state)
        return x, tuple(after)


class Attention(nn.Module):
    """One look at the source from each position, by whose side the two are joined."""

    config: RecurrentConfig

    def setup(self):
        c = self.config
        if c.attention == "additive":
            self.query = dense(c.d_model, c.dtype, use_bias=False)
            self.key = dense(c.d_model, c.dtype)
            spread = nn.initializers.normal(c.d_model**-0.5)
            self.score = self.param("score", spread, (c.d_model,))
        self.out = dense(c.d_model, c.dtype)

    def keys(self, memory: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        """What a score compares with: made once for a source."""
        return self.key(memory) if self.config.attention == "additive" else memory

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"],
        keys: Float[Array, "B S D"],
        segments: Int[Array, "B S"],
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T S"]]:
        if self.config.attention == "additive":
            scores = _additive(self.query(x), keys, self.score.astype(x.dtype))
        else:
            query = x * x.shape[-1] ** -0.5
            scores = jnp.einsum(
                "btd,bsd->bts", query, keys, preferred_element_type=jnp.float32
            )
        scores = jnp.where(segments[:, None] != 0, scores, MASKED)
        weights = jax.nn.softmax(scores)
        seen = jnp.einsum("bts,bsd->btd", weights.astype(memory.dtype), memory)
        return jnp.tanh(self.out(jnp.concatenate([seen, x], axis=-1))), weights


def _additive(query, keys, score):
    """v · tanh(q_t + k_s), for one t after the other: all at once leave every cache.

    Of each t, [B, S, D] numbers are made again for the gradient, and not kept.
    """

    @jax.checkpoint
    def at_position(query):
        both = jnp.tanh(query[:, None] + keys)
        return jnp.matmul(both, score, preferred_element_type=jnp.float32)

    return jax.lax.map(at_position, query.swapaxes(0, 1)).swapaxes(0, 1)


@flax.struct.dataclass
class State:
    """What each hypothesis has in mind; leaves are [B, beams, …]."""

    layers: Any  # of each layer a tuple of Float [B, beams, D]
    attended: Any = None  # Float [B, beams, S]: if it is watched
    real: Any = None  # Bool [B, beams, S]

    def track_attention(self, source_segments: Int[Array, "B S"]) -> "State":
        """From now on it adds up how much each word of the source is attended to."""
        real = source_segments[:, None] != 0
        return self.replace(attended=jnp.zeros(real.shape), real=real)

    def uncovered(self) -> Float[Array, "B beams"]:
        """Σ log min(attention, 1) over the source: 0 if every word had its share."""
        return coverage_penalty(self.attended, self.real)

    def end_step(self, layers: tuple, weights: Any, positions: Any) -> "State":
        """After a step: where it has led; what has been seen of the source."""
        attended = self.attended
        if attended is not None:
            seen = weights.reshape(*positions.shape, -1)
            attended += jnp.where(positions[..., None] < 0, 0, seen).sum(axis=2)
        return self.replace(layers=layers, attended=attended)


class Recurrent(EmbeddingTables):
    """A recurrent encoder and decoder, with attention between them or without."""

    config: RecurrentConfig

    def setup(self):
        super().setup()
        c = self.config
        self.encoder = Stack(c, c.bidirectional)
        self.decoder = Stack(c)
        if c.attention != "none":
            self.attention = Attention(c)
        self.drop = Dropout(c.dropout_embedding)

    def __call__(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        source_segments: Int[Array, "B S"],
        target_segments: Int[Array, "B T"],
        source_positions: Int[Array, "#B S"] | None = None,
        target_positions: Int[Array, "#B T"] | None = None,
        train: bool = False,
    ) -> Outputs:
        """Teacher forcing: `target` is what the decoder reads, shifted right.

        Positions are not needed: each sentence begins a row, and order is all.
        """
        memory, states = self.encode(source, source_segments, source_positions, train)
        x = self._drop(self.embed_target(target, train), train)
        x, _ = self.decoder(x, target_segments != 0, states, train)
        x, weights = self._look(x, self._static(memory, source_segments))
        by_head = () if weights is None else (weights[:, None],)
        return Outputs(self.logits(x), cross_attention=by_head, hidden=x)

    def encode(
        self,
        source: Int[Array, "B S"],
        segments: Int[Array, "B S"],
        positions: Int[Array, "#B S"] | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "B S D"], tuple]:
        """The encoder's output, and each layer's state at the end of the sentence."""
        x = self._drop(self.embed_source(source, train), train)
        return self.encoder(x, segments != 0, train=train)

    def start(self, batch: dict, length: int) -> tuple[dict, State]:
        """Encodes a batch: what stays for all steps, and the state to go on from."""
        segments = batch["source_segments"]
        memory, states = self.encode(batch["source"], segments)
        states = jax.tree.map(lambda part: part[:, None], states)
        return self._static(memory, segments), State(states)

    def extend(
        self,
        tokens: Int[Array, "B K T"],
        positions: Int[Array, "B K T"],
        static: dict,
        state: State,
    ) -> tuple[Float[Array, "B K T V"], State]:
        """Reads tokens (at position -1: does not); the logits of what follows each."""
        rows, beams, length = tokens.shape

        def fold(array):
            return array.reshape(rows * beams, *array.shape[2:])

        def unfold(array):
            return array.reshape(rows, beams, *array.shape[1:])

        x, layers = self.decoder(
            self.embed_target(fold(tokens)),
            fold(positions) >= 0,
            jax.tree.map(fold, state.layers),
        )
        # All beams of a source look at it together: it is never copied for each.
        x, weights = self._look(x.reshape(rows, beams * length, -1), static)
        logits = self.logits(x).reshape(rows, beams, length, -1)
        return logits, state.end_step(jax.tree.map(unfold, layers), weights, positions)

    def _drop(self, x, train):
        return sharding.constrain(self.drop(x, train))

    def _static(self, memory, segments):
        if self.config.attention == "none":
            return {"segments": segments}
        keys = self.attention.keys(memory)
        return {"segments": segments, "memory": memory, "keys": keys}

    def _look(self, x, static):
        return self.attention(x, **static) if "memory" in static else (x, None)
