"""Encoder and decoder stacks, and the models made of them (paper, section 3).

`Seq2Seq` is the paper's Transformer, `LanguageModel` its decoder alone. Both offer the
two pure functions that every search in `decoding/` drives: `start` and `extend`.
The trap: cross-attention takes its queries from the decoder and its keys and values
from the encoder; source and target need not be of one length.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax import sharding
from transformer_jax.models.attention import (
    Cache,
    KeysValues,
    Mask,
    MultiHeadAttention,
    look_ahead_mask,
    padding_mask,
)
from transformer_jax.models.embeddings import Tables, TokenEmbedding, project
from transformer_jax.models.layers import (
    Dropout,
    FeedForward,
    dense,
    layer_norm,
    residual,
)
from transformer_jax.models.positions import PositionEncoding


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Every size of a model. `config.model` has the meaning and unit of each key."""

    vocab_size: int
    vocab_rows: int
    source_vocab_size: int
    source_vocab_rows: int
    encoder_layers: int
    decoder_layers: int
    d_model: int
    d_ff: int
    num_heads: int
    d_k: int
    d_v: int
    norm: str = "post"
    norm_epsilon: float = 1e-6
    activation: str = "relu"
    positions: str = "sinusoid"
    max_positions: int = 512
    tie: str = "all"
    dropout_embedding: float = 0.0
    dropout_residual: float = 0.0
    dropout_attention: float = 0.0
    dropout_feed_forward: float = 0.0
    dtype: str = "float32"
    remat: bool = False


@flax.struct.dataclass
class Outputs:
    """What a forward pass gives; each weight is [B, N, T, S], one a layer."""

    logits: Any
    self_attention: tuple[Any, ...] = ()
    cross_attention: tuple[Any, ...] = ()
    encoder_attention: tuple[Any, ...] = ()


class Layer(nn.Module):
    """One layer of a stack: self-attention, cross-attention if asked, feed-forward."""

    config: TransformerConfig
    cross: bool

    def setup(self):
        c = self.config
        self.self_attention = _attention(c)
        self.self_attention_norm = _norm(c)
        if self.cross:
            self.cross_attention = _attention(c)
            self.cross_attention_norm = _norm(c)
        self.feed_forward = FeedForward(
            c.d_model, c.d_ff, c.activation, c.dropout_feed_forward, c.dtype
        )
        self.feed_forward_norm = _norm(c)
        self.drop = Dropout(c.dropout_residual)

    def source(self, memory: Float[Array, "B S D"]) -> KeysValues:
        """The cross-attention's keys and values: made once for a source."""
        return self.cross_attention.keys_values(memory)

    def __call__(self, x, mask, source, source_mask, write, train):
        order = self.config.norm

        def drop(y):
            return self.drop(y, train)

        def see_itself(y):
            own = self.self_attention.keys_values(y)
            if write is not None:
                own = write(own)
            y, weights = self.self_attention(y, own, mask, train=train)
            return y, (own, weights)

        def see_source(y):
            return self.cross_attention(y, source, source_mask, train=train)

        def think(y):
            return self.feed_forward(y, train), None

        x, (cached, weights) = residual(
            x, see_itself, self.self_attention_norm, drop, order
        )
        cross_weights = None
        if self.cross:
            x, cross_weights = residual(
                x, see_source, self.cross_attention_norm, drop, order
            )
        x, _ = residual(x, think, self.feed_forward_norm, drop, order)
        return sharding.constrain(x), cached, weights, cross_weights


class Stack(nn.Module):
    """Layers one after another: an encoder, or a decoder with or without a source."""

    config: TransformerConfig
    layers: int
    cross: bool = False

    def setup(self):
        kind = nn.remat(Layer, static_argnums=(6,)) if self.config.remat else Layer
        self.layer = [kind(self.config, self.cross) for _ in range(self.layers)]
        if self.config.norm == "pre":
            self.norm = _norm(self.config)

    def source(self, memory: Float[Array, "B S D"]) -> tuple[KeysValues, ...]:
        return tuple(layer.source(memory) for layer in self.layer)

    def __call__(
        self,
        x: Float[Array, "R T D"],
        mask: Mask | Bool[Array, "..."],
        source: tuple[KeysValues, ...] | None = None,
        source_mask: Mask | None = None,
        cache: Cache | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "R T D"], tuple, tuple, tuple]:
        """The last layer's output, then by layer: keys and values, own and cross
        weights. With a cache, the keys and values are all that it holds."""
        by_layer = []
        for i, layer in enumerate(self.layer):
            x, *rest = layer(
                x,
                mask,
                source[i] if source else None,
                source_mask,
                cache and functools.partial(cache.write, cache.layers[i]),
                train,
            )
            by_layer.append(rest)
        if self.config.norm == "pre":
            x = self.norm(x)
        return x, *zip(*by_layer, strict=True)


class Seq2Seq(Tables):
    """The encoder-decoder Transformer of the paper."""

    config: TransformerConfig

    def setup(self):
        super().setup()
        c = self.config
        if c.positions == "learned":
            self.source_positions = _positions(c)
            self.target_positions = _positions(c)
        else:
            self.positions = _positions(c)
        self.encoder = Stack(c, c.encoder_layers)
        self.decoder = Stack(c, c.decoder_layers, cross=True)
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
        """Teacher forcing: `target` is what the decoder reads, shifted right."""
        memory, encoder_weights = self.encode(
            source, source_segments, source_positions, train
        )
        positions = _count(target) if target_positions is None else target_positions
        x, _, self_weights, cross_weights = self.decoder(
            self._embed_target(target, positions, target.shape[1], train),
            look_ahead_mask(positions, target_segments),
            self.decoder.source(memory),
            Mask(source_segments, target_segments),
            train=train,
        )
        return Outputs(self.logits(x), self_weights, cross_weights, encoder_weights)

    def encode(
        self,
        source: Int[Array, "B S"],
        segments: Int[Array, "B S"],
        positions: Int[Array, "#B S"] | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "B S D"], tuple]:
        """The encoder's output, and its attention weights by layer."""
        c = self.config
        positions = _count(source) if positions is None else positions
        place = self.source_positions if c.positions == "learned" else self.positions
        x = self.embed_source(source) + place(positions, source.shape[1])
        x = sharding.constrain(self.drop(x.astype(c.dtype), train))
        x, _, weights, _ = self.encoder(x, Mask(segments, segments), train=train)
        return x, weights

    def start(self, batch: dict, length: int) -> tuple[dict, Cache]:
        """Encodes a batch: what stays for all steps, and an empty cache to grow."""
        memory, _ = self.encode(batch["source"], batch["source_segments"])
        static = {
            "source": self.decoder.source(memory),
            "segments": batch["source_segments"],
        }
        if self.config.positions == "learned":
            # Refused here, where the length is known, not clamped later.
            self.target_positions(_count(batch["source"][:, :1]), length)
        return static, _empty_cache(self.config, len(batch["source"]), length)

    def extend(
        self,
        tokens: Int[Array, "B K T"],
        positions: Int[Array, "B K T"],
        static: dict,
        state: Cache,
    ) -> tuple[Float[Array, "B K T V"], Cache]:
        """Reads tokens at their positions; the logits of what follows each of them."""
        source = static["source"], padding_mask(static["segments"])
        return _extend(self, self._embed_target, tokens, positions, source, state)

    def _embed_target(self, tokens, positions, length, train):
        c = self.config
        place = self.target_positions if c.positions == "learned" else self.positions
        x = self.embed_target(tokens) + place(positions, length)
        return sharding.constrain(self.drop(x.astype(c.dtype), train))


class LanguageModel(nn.Module):
    """The decoder without a source: each token from those before it."""

    config: TransformerConfig

    def setup(self):
        c = self.config
        self.embedding = TokenEmbedding(c.vocab_size, c.vocab_rows, c.d_model, c.dtype)
        if c.tie == "none":
            self.projection = dense(c.vocab_rows, c.dtype, use_bias=False)
        self.positions = _positions(c)
        self.decoder = Stack(c, c.decoder_layers)
        self.drop = Dropout(c.dropout_embedding)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        segments: Int[Array, "B T"],
        positions: Int[Array, "#B T"] | None = None,
        train: bool = False,
    ) -> Outputs:
        positions = _count(tokens) if positions is None else positions
        x, _, weights, _ = self.decoder(
            self._embed(tokens, positions, tokens.shape[1], train),
            look_ahead_mask(positions, segments),
            train=train,
        )
        return Outputs(self.logits(x), weights)

    def logits(self, x: Float[Array, "R T D"]) -> Float[Array, "R T V"]:
        if self.config.tie == "none":
            return project(self.projection, x, self.config.vocab_size)
        return self.embedding.logits(x)

    def start(self, batch: dict, length: int) -> tuple[dict, Cache]:
        if self.config.positions == "learned":
            self.positions(_count(batch["prompt"][:, :1]), length)
        return {}, _empty_cache(self.config, len(batch["prompt"]), length)

    def extend(
        self,
        tokens: Int[Array, "B K T"],
        positions: Int[Array, "B K T"],
        static: dict,
        state: Cache,
    ) -> tuple[Float[Array, "B K T V"], Cache]:
        return _extend(self, self._embed, tokens, positions, (None, None), state)

    def _embed(self, tokens, positions, length, train):
        x = self.embedding(tokens) + self.positions(positions, length)
        return sharding.constrain(self.drop(x.astype(self.config.dtype), train))


def _attention(c: TransformerConfig) -> MultiHeadAttention:
    return MultiHeadAttention(
        c.d_model, c.num_heads, c.d_k, c.d_v, c.dropout_attention, c.dtype
    )


def _norm(c: TransformerConfig) -> nn.LayerNorm:
    return layer_norm(c.norm_epsilon, c.dtype)


def _positions(c: TransformerConfig) -> PositionEncoding:
    return PositionEncoding(c.positions, c.d_model, c.max_positions)


def _count(tokens: Int[Array, "B T"]) -> Int[Array, "1 T"]:
    return jnp.arange(tokens.shape[1])[None]


def _empty_cache(c: TransformerConfig, rows: int, slots: int) -> Cache:
    sizes = (c.num_heads, c.d_k, c.d_v)
    return Cache.empty(c.decoder_layers, rows, 1, slots, sizes, c.dtype)


def _extend(model, embed, tokens, positions, source, cache):
    """One path for prefill and step: beams are folded into rows, and out again."""
    rows, beams, length = tokens.shape
    flat = tokens.reshape(-1, length), positions.reshape(-1, length)
    cache = cache.read(positions)
    x, layers, _, cross = model.decoder(
        embed(*flat, 1, False), cache.mask(positions), *source, cache=cache
    )
    logits = model.logits(x).reshape(rows, beams, length, -1)
    return logits, cache.done(layers, cross[-1], positions)
