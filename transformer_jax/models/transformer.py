"""Models made of encoder and decoder stacks (paper, section 3).

`Seq2Seq` is the paper's Transformer, `LanguageModel` its decoder alone. Both implement
the two pure functions that every search in `decoding/` drives: `start` and `extend`.
Pitfall: cross-attention takes its queries from the decoder and its keys and values from
the encoder, so source and target may differ in length.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax import sharding
from transformer_jax.models.attention import (
    Mask,
    all_real,
    look_ahead_mask,
    padding_mask,
)
from transformer_jax.models.cache import KVCache
from transformer_jax.models.embeddings import (
    APART,
    EmbeddingTables,
    OutputBias,
    leave_out,
    make_embedding,
    project,
)
from transformer_jax.models.layers import NORM_KINDS, Dropout, output_layer
from transformer_jax.models.outputs import Outputs
from transformer_jax.models.positions import PositionEncoding
from transformer_jax.models.registry import Model
from transformer_jax.models.stack import Stack
from transformer_jax.models.transformer_config import TransformerConfig, find_problems


class Seq2Seq(EmbeddingTables):
    """The encoder-decoder Transformer of the paper."""

    config: TransformerConfig

    def setup(self):
        """Make embeddings, encoder and decoder."""
        super().setup()
        c = self.config
        self.source_positions = _positions(c, self.source_position_kind)
        self.target_positions = _positions(c, c.positions)
        self.encoder = Stack(c, c.encoder_layers, readers=c.decoder_layers)
        self.decoder = Stack(c, c.decoder_layers, causal=True, cross=True)
        if c.embedding_norm:
            self.source_norm = embedding_norm(c)
            self.target_norm = embedding_norm(c)
        self.drop = Dropout(c.dropout_embedding)

    @property
    def source_position_kind(self) -> str:
        """The kind of positions that are added to the source."""
        return self.config.positions

    def __call__(
        self,
        source: Int[Array, "B S"] | Float[Array, "B S bands"],
        target: Int[Array, "B T"],
        source_segments: Int[Array, "B S"] | None = None,
        target_segments: Int[Array, "B T"] | None = None,
        source_positions: Int[Array, "#B S"] | None = None,
        target_positions: Int[Array, "#B T"] | None = None,
        train: bool = False,
    ) -> Outputs:
        """Predict each token of the target from those before it (teacher forcing).

        `target` is the decoder's input, shifted right. Without segments every token is
        real. Without positions, a row is one sequence from position 0, padded at its
        end; with them, a row may hold several sequences, each its own segment. The
        source is tokens, unless a subclass encodes something else.
        """
        if source_segments is None:
            source_segments = jnp.ones(source.shape[:2], jnp.int32)
        target_segments = all_real(target_segments, target)
        memory, encoder_weights = self.encode(
            source, source_segments, source_positions, train
        )
        positions = _count(target) if target_positions is None else target_positions
        whole = source_positions is None and target_positions is None
        x, _, self_weights, cross_weights = self.decoder(
            self._embed_target(target, positions, train),
            positions,
            look_ahead_mask(positions, target_segments, target_positions is None),
            memory,
            Mask(self.memory_segments(source_segments), target_segments, whole=whole),
            train=train,
        )
        return Outputs(
            logits=self.logits(x),
            self_attention=self_weights,
            cross_attention=cross_weights,
            encoder_attention=encoder_weights,
            hidden=x,
            memory=memory,
        )

    def encode(
        self,
        source: Int[Array, "B S"],
        segments: Int[Array, "B S"] | None = None,
        positions: Int[Array, "#B S"] | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "B S D"], tuple]:
        """Return the encoder's output and its attention weights by layer."""
        segments = all_real(segments, source)
        vectors = self.embed_source(source, train)
        return self.encode_vectors(vectors, segments, positions, train)

    def encode_vectors(
        self,
        x: Float[Array, "B S D"],
        segments: Int[Array, "B S"],
        positions: Int[Array, "#B S"] | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "B S D"], tuple]:
        """Encode vectors, to which positions are still to be added."""
        c = self.config
        mask = Mask(segments, segments, whole=positions is None)
        positions = _count(segments) if positions is None else positions
        x = x + self.source_positions(positions)
        x = self.source_norm(x) if c.embedding_norm else x
        x = sharding.constrain(self.drop(x.astype(c.dtype), train))
        x, _, weights, _ = self.encoder(x, positions, mask, train=train)
        return x, weights

    def memory_segments(self, segments: Int[Array, "B S"]) -> Int[Array, "B M"]:
        """Return the segments of the encoder's output, which are the source's."""
        return segments

    def start(self, batch: dict, length: int) -> tuple[dict, KVCache]:
        """Encode a batch; return its static part and an empty cache."""
        memory, _ = self.encode(batch["source"], batch["source_segments"])
        static = {
            "source_keys_values": self.decoder.cross_keys_values(memory),
            "segments": self.memory_segments(batch["source_segments"]),
        }
        return static, _empty_cache(self.config, batch["source"].shape[0], length)

    def extend(
        self,
        tokens: Int[Array, "B K T"],
        positions: Int[Array, "B K T"],
        static: dict,
        state: KVCache,
    ) -> tuple[Float[Array, "B K T V"], KVCache]:
        """Read tokens at their positions; return the logits of the next ones."""
        source = static["source_keys_values"], padding_mask(static["segments"])
        return _extend(self, self._embed_target, tokens, positions, source, state)

    def _embed_target(self, tokens, positions, train):
        c = self.config
        x = self.embed_target(tokens, train) + self.target_positions(positions)
        x = self.target_norm(x) if c.embedding_norm else x
        return sharding.constrain(self.drop(x.astype(c.dtype), train))


class LanguageModel(nn.Module):
    """The decoder without a source: predict each token from those before it."""

    config: TransformerConfig

    def setup(self):
        """Make the embedding, the decoder and, unless it is tied, the output layer."""
        c = self.config
        self.embedding = make_embedding(c)
        if c.tie in APART:
            self.projection = output_layer(c.vocab_rows, c.dtype, use_bias=False)
        if c.output_bias:
            self.output_bias = OutputBias()
        if c.embedding_norm:
            self.embedding_norm = embedding_norm(c)
        self.positions = _positions(c, c.positions)
        self.decoder = Stack(c, c.decoder_layers, causal=True)
        self.drop = Dropout(c.dropout_embedding)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        segments: Int[Array, "B T"] | None = None,
        positions: Int[Array, "#B T"] | None = None,
        train: bool = False,
    ) -> Outputs:
        """Predict the token after each token; without segments every token is real.

        Without positions, a row is one sequence, padded at its end.
        """
        segments, whole = all_real(segments, tokens), positions is None
        positions = _count(tokens) if positions is None else positions
        x, _, weights, _ = self.decoder(
            self._embed(tokens, positions, train),
            positions,
            look_ahead_mask(positions, segments, whole),
            train=train,
        )
        return Outputs(logits=self.logits(x), self_attention=weights, hidden=x)

    def logits(self, x: Float[Array, "R T D"]) -> Float[Array, "R T V"]:
        """Score every token of the vocabulary."""
        c = self.config
        if c.tie in APART:
            logits = project(self.projection, x, c.vocab_size)
        else:
            logits = self.embedding.logits(x)
        if c.output_bias:
            logits = self.output_bias(logits)
        return leave_out(logits, c.absent)

    def start(self, batch: dict, length: int) -> tuple[dict, KVCache]:
        """Begin a search; return an empty static part and an empty cache."""
        return {}, _empty_cache(self.config, batch["prompt"].shape[0], length)

    def extend(
        self,
        tokens: Int[Array, "B K T"],
        positions: Int[Array, "B K T"],
        static: dict,
        state: KVCache,
    ) -> tuple[Float[Array, "B K T V"], KVCache]:
        """Read tokens at their positions; return the logits of the next ones."""
        return _extend(self, self._embed, tokens, positions, (None, None), state)

    def _embed(self, tokens, positions, train):
        x = self.embedding(tokens, train) + self.positions(positions)
        x = self.embedding_norm(x) if self.config.embedding_norm else x
        return sharding.constrain(self.drop(x.astype(self.config.dtype), train))


def embedding_norm(c: TransformerConfig) -> nn.Module:
    """Make the norm of embedding + position, as in BERT and BART."""
    return NORM_KINDS[c.norm_kind](c.norm_epsilon, c.dtype)


def _positions(c: TransformerConfig, kind: str) -> PositionEncoding:
    return PositionEncoding(kind, c.d_model, c.max_positions)


def _count(tokens: Int[Array, "B T"]) -> Int[Array, "1 T"]:
    return jnp.arange(tokens.shape[1])[None]


def _empty_cache(c: TransformerConfig, rows: int, slots: int) -> KVCache:
    sizes = (c.kv_heads or c.num_heads, c.d_k, c.d_v)
    return KVCache.empty(c.decoder_layers, rows, 1, slots, sizes, c.dtype)


def _extend(model, embed, tokens, positions, source, cache):
    """Read a prompt or one step, with the beams folded into rows."""
    rows, beams, length = tokens.shape
    flat = tokens.reshape(-1, length), positions.reshape(-1, length)
    cache = cache.begin_step(positions)
    x, layers, _, cross = model.decoder(
        embed(*flat, False), flat[1], cache.mask(positions), *source, cache=cache
    )
    logits = model.logits(x).reshape(rows, beams, length, -1)
    return logits, cache.end_step(layers, cross[-1] if cross else None, positions)


MODEL = Model(
    TransformerConfig,
    {
        "seq2seq": Seq2Seq,
        "language_model": LanguageModel,
    },
    find_problems,
)
