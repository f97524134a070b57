"""Recurrent encoder-decoders, the predecessors of the Transformer (section 1).

    h_t = f(x_t W + b, h_{t-1} U)                            f: tanh, an LSTM or a GRU
    o_t = tanh([Σ_s a_ts m_s; h_t] W_o),  a_t = softmax_s score(h_t, m_s)

The recurrence f is in `recurrence.py`. The decoder begins in the final state of the
encoder. Attention comes after the recurrence, as in Luong et al.; Bahdanau et al. fed
its result into the next step.
Pitfall: padding must leave the state unchanged, or an answer depends on its batch.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from transformer_jax import sharding
from transformer_jax.base.schema import option
from transformer_jax.family.recurrent.recurrence import CELLS, Recurrence
from transformer_jax.models.attention import MASKED, all_real
from transformer_jax.models.cache import SearchState
from transformer_jax.models.embeddings import TIES, EmbeddingTables, Vocabularies
from transformer_jax.models.layers import DTYPES, Dropout, dense
from transformer_jax.models.outputs import Outputs
from transformer_jax.models.registry import Longest, Model


@dataclasses.dataclass(frozen=True)
class RecurrentConfig(Vocabularies):
    """Every size of a recurrent model."""

    cell: str = option("lstm", "Recurrent cell of a layer.", choices=CELLS)
    layers: int = option(
        2, "Layers of the encoder and of the decoder, each.", least=1, most=1000
    )
    d_model: int = option(
        512, "Width of the embeddings and of a layer's output.", least=1
    )
    bidirectional: bool = option(
        True, "The encoder reads in both directions, with half the width each."
    )
    attention: str = option(
        "additive",
        "Scoring of source words: additive (Bahdanau) or dot (Luong, / √d_model).",
        choices=lambda: ATTENTIONS,
    )
    tie: str = option(
        "all", "Which of source, target and output share a table.", choices=TIES
    )
    dropout_words: float = option(
        0.0,
        "Share of source and target tokens that are read as unknown.",
        least=0,
        below=1,
    )
    dropout_embedding: float = option(
        0.1, "Dropout rate of the embeddings.", least=0, below=1
    )
    dropout_residual: float = option(
        0.1, "Dropout rate of each layer's output.", least=0, below=1
    )
    dtype: str = option(
        "float32", "Type of the computation; weights are float32.", choices=DTYPES
    )


def find_problems(config: ConfigDict, _: Longest) -> list[str]:
    """List the problems in the sizes of a recurrent model."""
    model, problems = config.model, []
    if model.bidirectional and model.d_model % 2:
        problems.append(
            f"model.d_model {model.d_model} is odd, and each direction has half of it: "
            f"use {model.d_model + 1}, or model.bidirectional = False"
        )
    if config.data.batching == "packed":
        problems.append(
            "data.batching = 'packed': a recurrent model would carry its state from "
            "one sentence of a row into the next; use buckets"
        )
    for axis in ("tensor", "sequence"):
        if config.mesh[axis] > 1:
            problems.append(
                f"mesh.{axis} {config.mesh[axis]}: a recurrent model would wait for "
                "the other devices at every position; use mesh.data or mesh.fsdp"
            )
    return problems


class Layer(nn.Module):
    """One recurrence, or two of half the size that read in opposite directions."""

    config: RecurrentConfig
    both: bool

    def setup(self):
        """Make a recurrence for each direction."""
        c = self.config
        size = c.d_model // 2 if self.both else c.d_model
        self.forward = Recurrence(c.cell, size, dtype=c.dtype)
        if self.both:
            self.backward = Recurrence(c.cell, size, reverse=True, dtype=c.dtype)

    def __call__(self, x, real, state=None):
        """Run the layer on `x` [R, T, D]; return its output and its final state."""
        x_forward, state = self.forward(x, real, state)
        if not self.both:
            return x_forward, state
        x_backward, first = self.backward(x, real)
        pairs = ((x_forward, x_backward), *zip(state, first, strict=True))
        x, *state = (jnp.concatenate(pair, axis=-1) for pair in pairs)
        return x, tuple(state)


class Stack(nn.Module):
    """A stack of layers: an encoder (optionally bidirectional) or a decoder."""

    config: RecurrentConfig
    both: bool = False

    def setup(self):
        """Make the layers."""
        self.layer = [Layer(self.config, self.both) for _ in range(self.config.layers)]
        self.drop = Dropout(self.config.dropout_residual)

    def __call__(
        self,
        x: Float[Array, "R T D"],
        real: Bool[Array, "R T"],
        states: tuple | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "R T D"], tuple]:
        """Return the output of the last layer and the final state of each layer."""
        after = []
        for i, layer in enumerate(self.layer):
            x, state = layer(x, real, states[i] if states else None)
            x = sharding.constrain(self.drop(x, train))
            after.append(state)
        return x, tuple(after)


class Attention(nn.Module):
    """Attend from each position to the source, and join the result with the position.

    A kind of attention is a subclass that implements `scores`, and an entry of
    `ATTENTIONS`.
    """

    config: RecurrentConfig

    def setup(self):
        """Make the layer that joins the attended vector with the position's own."""
        self.out = dense(self.config.d_model, self.config.dtype)

    def keys(self, memory: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        """Compute, once per source, the keys that a score compares with."""
        return memory

    def scores(
        self, x: Float[Array, "B T D"], keys: Float[Array, "B S D"]
    ) -> Float[Array, "B T S"]:
        """Score each key for each position, in float32."""
        raise NotImplementedError

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"],
        keys: Float[Array, "B S D"],
        segments: Int[Array, "B S"],
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T S"]]:
        """Join each position with its weighted mean of the source.

        Return the joined vectors and the attention weights.
        """
        scores = jnp.where(segments[:, None] != 0, self.scores(x, keys), MASKED)
        weights = jax.nn.softmax(scores)
        seen = jnp.einsum("bts,bsd->btd", weights.astype(memory.dtype), memory)
        return jnp.tanh(self.out(jnp.concatenate([seen, x], axis=-1))), weights


class DotAttention(Attention):
    """q · k / √D (Luong et al. 2015, scaled)."""

    def scores(self, x, keys):
        """Multiply each position with each key, [B, T, D] and [B, S, D] → [B, T, S]."""
        query = x * x.shape[-1] ** -0.5
        return jnp.einsum(
            "btd,bsd->bts", query, keys, preferred_element_type=jnp.float32
        )


class AdditiveAttention(Attention):
    """v · tanh(q W + k U + b) (Bahdanau et al. 2015)."""

    def setup(self):
        """Make the projections of both sides, and v."""
        super().setup()
        c = self.config
        self.query = dense(c.d_model, c.dtype, use_bias=False)
        self.key = dense(c.d_model, c.dtype)
        spread = nn.initializers.normal(c.d_model**-0.5)
        self.score = self.param("score", spread, (c.d_model,))

    def keys(self, memory):
        """Project the memory [B, S, D]."""
        return self.key(memory)

    def scores(self, x, keys):
        """Score one position at a time, because all at once fit no CPU cache.

        The [B, S, D] numbers of each position are recomputed for the gradient instead
        of being kept.
        """
        score = self.score.astype(x.dtype)

        @jax.checkpoint
        def at_position(query):
            both = jnp.tanh(query[:, None] + keys)
            return jnp.matmul(both, score, preferred_element_type=jnp.float32)

        return jax.lax.map(at_position, self.query(x).swapaxes(0, 1)).swapaxes(0, 1)


ATTENTIONS = {"none": None, "additive": AdditiveAttention, "dot": DotAttention}


class Recurrent(EmbeddingTables):
    """A recurrent encoder and decoder, with or without attention between them."""

    config: RecurrentConfig

    def setup(self):
        """Make embeddings, encoder, decoder and the attention between them."""
        super().setup()
        c = self.config
        self.encoder = Stack(c, c.bidirectional)
        self.decoder = Stack(c)
        if c.attention != "none":
            self.attention = ATTENTIONS[c.attention](c)
        self.drop = Dropout(c.dropout_embedding)

    def __call__(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        source_segments: Int[Array, "B S"] | None = None,
        target_segments: Int[Array, "B T"] | None = None,
        source_positions: Int[Array, "#B S"] | None = None,
        target_positions: Int[Array, "#B T"] | None = None,
        train: bool = False,
    ) -> Outputs:
        """Predict each token of the target from those before it (teacher forcing).

        `target` is the decoder's input, shifted right. Without segments every token is
        real. Positions are ignored: each row is one sentence, read in order.
        """
        source_segments = all_real(source_segments, source)
        target_segments = all_real(target_segments, target)
        memory, states = self.encode(source, source_segments, source_positions, train)
        x = self._drop(self.embed_target(target, train), train)
        x, _ = self.decoder(x, target_segments != 0, states, train)
        x, weights = self._look(x, self._static(memory, source_segments))
        by_head = () if weights is None else (weights[:, None],)
        return Outputs(self.logits(x), cross_attention=by_head, hidden=x)

    def encode(
        self,
        source: Int[Array, "B S"],
        segments: Int[Array, "B S"] | None = None,
        positions: Int[Array, "#B S"] | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "B S D"], tuple]:
        """Return the encoder's output and each layer's final state.

        Positions are ignored: the interface has them.
        """
        segments = all_real(segments, source)
        x = self._drop(self.embed_source(source, train), train)
        return self.encoder(x, segments != 0, train=train)

    def start(self, batch: dict, length: int) -> tuple[dict, SearchState]:
        """Encode a batch; return its static part and the initial state."""
        segments = batch["source_segments"]
        memory, states = self.encode(batch["source"], segments)
        states = jax.tree.map(lambda part: part[:, None], states)
        return self._static(memory, segments), SearchState(states)

    def extend(
        self,
        tokens: Int[Array, "B K T"],
        positions: Int[Array, "B K T"],
        static: dict,
        state: SearchState,
    ) -> tuple[Float[Array, "B K T V"], SearchState]:
        """Read tokens (position -1 is padding); return the logits of the next ones."""
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
        # All beams attend to their source together, so that it is never copied.
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


MODEL = Model(
    RecurrentConfig,
    {"seq2seq": Recurrent},
    find_problems,
    rules=(
        (r"recurrent$", PartitionSpec("fsdp", None)),  # read at every position
        (r"attention/score$", PartitionSpec()),
    ),
)
