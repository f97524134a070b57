"""The stack of layers that every Transformer is made of (paper, section 3.1).

    encoder layer   self-attention → feed-forward
    decoder layer   masked self-attention → cross-attention → feed-forward

Each sublayer is wrapped by `residual`. Variants of its parts (norms, activations,
shared heads, positions) are fields of `TransformerConfig`.

    parallel sublayers (GPT-J)   x ← x + Σ f(Norm(x)), with one norm for all f
    shared layers (ALBERT)       every layer has the parameters of layer_0
    universal                    and reads x + wave(position) + wave(layer's number)

Pitfall: a pre-norm stack ends with one more norm, a post-norm stack must not.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax import sharding
from transformer_jax.models import scanning
from transformer_jax.models.attention import Mask, MultiHeadAttention
from transformer_jax.models.cache import KeysValues, KVCache
from transformer_jax.models.layers import (
    NORM_FIRST,
    NORM_KINDS,
    DeepNorm,
    Dropout,
    FeedForward,
    deepnorm_for,
    keep_mask,
    keep_products,
    recompute,
    residual,
)
from transformer_jax.models.masks import within
from transformer_jax.models.positions import (
    BIASES,
    SINUSOIDS,
    Band,
    PositionBias,
    PositionSignal,
    added_waves,
    rotation,
)
from transformer_jax.models.transformer_config import TransformerConfig


class Layer(nn.Module):
    """One layer of a stack: self-attention, optional cross-attention, feed-forward."""

    config: TransformerConfig
    cross: bool
    deepnorm: DeepNorm = DeepNorm()

    def setup(self):
        """Make the sublayers and their norms."""
        c = self.config
        self.self_attention = _attention(c, self.deepnorm)
        if self.cross:
            self.cross_attention = _attention(c, self.deepnorm)
        self.feed_forward = FeedForward(
            d_model=c.d_model,
            d_ff=c.d_ff,
            activation=c.activation,
            dropout=c.dropout_feed_forward,
            dtype=c.dtype,
            gradient_dtype=c.gradient_dtype,
            gain=self.deepnorm.beta,
            use_bias=c.bias == "all",
        )
        for name in ("layer",) if c.parallel_sublayers else self._sublayers():
            setattr(self, f"{name}_norm", _norm(c))
            if c.norm == "sandwich":
                setattr(self, f"{name}_output_norm", _norm(c))
        self.drop = Dropout(c.dropout_residual)
        self.skip = Dropout(c.dropout_layers)

    def _sublayers(self) -> tuple[str, ...]:
        """Name the sublayers in their order."""
        cross = ("cross_attention",) if self.cross else ()
        return "self_attention", *cross, "feed_forward"

    def cross_keys_values(self, memory: Float[Array, "B S D"]) -> KeysValues:
        """Compute the keys and values of the cross-attention, once per source."""
        return self.cross_attention.keys_values(memory)

    def __call__(self, x, signal, mask, memory, memory_mask, write, train):
        """Run the sublayers on `x` [R, T, D].

        Return the new `x`, the keys and values of its self-attention, and the weights
        of both attentions. `write` puts the keys and values of this step into a cache
        and returns the whole cache of the layer, to which self-attention then attends.
        """

        def drop(y):
            return self.drop(y, train)

        def attend_to_self(y):
            query, own = self.self_attention.project(y, signal.turn)
            if write is not None:
                own = write(own)
            y, weights = self.self_attention(y, own, mask, signal, train, query=query)
            return y, (own, weights)

        def attend_to_source(y):
            # A search may track how much attention each source word receives.
            searching = write is not None
            return self.cross_attention(
                y, memory, memory_mask, train=train, need_weights=searching
            )

        def feed_forward(y):
            return self.feed_forward(y, train), None

        functions = {
            "self_attention": attend_to_self,
            "cross_attention": attend_to_source,
            "feed_forward": feed_forward,
        }
        run = self._in_parallel if self.config.parallel_sublayers else self._in_turn
        y, made = run(x, {name: functions[name] for name in self._sublayers()}, drop)
        if train and self.config.dropout_layers:
            # One draw for the whole batch: run or skip the layer (Fan et al., 2019).
            keep = keep_mask(self.skip.draw_key(), 1 - self.config.dropout_layers, ())
            y = jnp.where(keep, y, x)
        return (
            sharding.constrain(y),
            *made["self_attention"],
            made.get("cross_attention"),
        )

    def _in_turn(self, x, sublayers, drop):
        """Run the sublayers one after another, adding each output to `x`."""
        made = {}
        for name, sublayer in sublayers.items():
            x, made[name] = self._add(x, sublayer, name, drop)
        return x, made

    def _in_parallel(self, x, sublayers, drop):
        """Run all sublayers on the same input and add their outputs (GPT-J, PaLM)."""

        def run(y):
            made = {name: sublayer(y) for name, sublayer in sublayers.items()}
            total = sum(drop(part) for part, _ in made.values())
            return total, {name: extra for name, (_, extra) in made.items()}

        return self._add(x, run, "layer", lambda y: y)

    def _add(self, x, sublayer, name, drop):
        norm = getattr(self, f"{name}_norm")
        second = getattr(self, f"{name}_output_norm", None)  # only in a sandwich
        alpha = self.deepnorm.alpha
        return residual(x, sublayer, norm, drop, self.config.norm, alpha, second)


class Stack(nn.Module):
    """A stack of layers: an encoder, or a decoder with or without a source."""

    config: TransformerConfig
    layers: int
    causal: bool = False
    cross: bool = False
    readers: int = 0  # layers of the decoder that reads this encoder, if any

    def setup(self):
        """Make the layers, and the last norm and position bias of the whole stack."""
        c = self.config
        own = self.layers if c.shared_layers == "none" else min(self.layers, 1)
        self.layer = [self._make_layer() for _ in range(own)]
        if c.norm in NORM_FIRST:
            self.norm = _norm(c)
        if c.positions in ("relative", *BIASES):
            self.position_bias = PositionBias(
                kind=c.positions,
                num_heads=c.num_heads,
                causal=self.causal,
                buckets=c.relative_buckets,
                furthest=c.relative_distance,
            )

    def _make_layer(self, **options: Any) -> Layer:
        constants = DeepNorm()
        if self.config.norm == "deepnorm":
            constants = deepnorm_for(self.layers, self.cross, self.readers)
        return Layer(self.config, self.cross, constants, **options)

    def cross_keys_values(
        self, memory: Float[Array, "B S D"]
    ) -> tuple[KeysValues, ...]:
        """Compute the keys and values of each layer's cross-attention."""
        made = tuple(layer.cross_keys_values(memory) for layer in self.layer)
        return made if len(made) == self.layers else made * self.layers

    def __call__(
        self,
        x: Float[Array, "R T D"],
        positions: Int[Array, "#R T"],
        mask: Mask | Bool[Array, "..."] | None,
        memory: tuple[KeysValues, ...] | Float[Array, "B S D"] | None = None,
        memory_mask: Mask | None = None,
        cache: KVCache | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "R T D"], tuple, tuple, tuple]:
        """Run the layers; return the output and, by layer, three results.

        These are keys and values (all of the cache's, if there is one), self-attention
        weights and cross-attention weights. If the attention kernel makes no weights,
        both are empty. `memory` is the encoder's output, or the `cross_keys_values`
        that a search computes from it once. A scan over layers returns no keys and
        values, and no weights in training, because they are not read and would be kept
        for all layers.
        """
        c = self.config
        if self.causal and c.attention_window and mask is not None:
            mask = _narrow(mask, c.attention_window, _sides(positions, cache))
        # A scan projects the memory inside the layer that it compiles.
        if memory is not None and not isinstance(memory, tuple) and not c.scan_layers:
            memory = self.cross_keys_values(memory)
        signal = self._position_signal(positions, mask, cache, train)
        scans = c.scan_layers and cache is None and not self.is_initializing()
        if scans and c.shared_layers == "none":
            run = self._scan
        else:
            run = functools.partial(self._unroll, positions)
        x, written, own, cross = run(x, signal, mask, memory, memory_mask, cache, train)
        if c.norm in NORM_FIRST:
            x = self.norm(x)
        return x, written, own, cross

    def _unroll(self, positions, x, signal, mask, memory, memory_mask, cache, train):
        """Run the layers one by one; layers that share parameters are one module."""
        by_layer, run = [], Layer.__call__
        if cache is None:  # a search has no backward pass
            run = recompute(self.config.remat, nn.remat, run, static_argnums=(7,))
        for i in range(self.layers):
            if self.config.shared_layers == "universal":
                x = x + self._round_signal(i, positions).astype(x.dtype)
            x, *rest = run(
                self.layer[min(i, len(self.layer) - 1)],
                x,
                signal,
                mask,
                memory[i] if isinstance(memory, tuple) else memory,
                memory_mask,
                cache and functools.partial(cache.write, cache.layers[i]),
                train,
            )
            by_layer.append(rest)
        written, *weights = zip(*by_layer, strict=True)
        own, cross = (() if w[0] is None else w for w in weights)
        return x, written, own, cross

    def _scan(self, x, signal, mask, memory, memory_mask, cache, train):
        """Scan one layer over the stacked parameters of all; no cache is written."""
        names = [f"layer_{i}" for i in range(self.layers)]
        params = [self.variables["params"][name] for name in names]
        layer = self._make_layer(parent=None)

        def run(params, x):
            rest = signal, mask, memory, memory_mask, None, train
            x, _, *weights = layer.apply({"params": params}, x, *rest)
            return x, (None, None) if train else weights

        def wrap(body):
            options: Any = {"prevent_cse": False}  # not needed inside a loop
            if self.config.remat in ("none", "attention"):
                return jax.checkpoint(body, policy=keep_products, **options)
            return recompute(self.config.remat, jax.checkpoint, body, **options)

        stream = scanning.stream_of(self, names) if train else (None, ())
        x, weights = scanning.scan_layers(run, params, x, stream, wrap)
        own, cross = (() if w is None else tuple(w) for w in weights)
        return x, (), own, cross

    def _round_signal(
        self, number: int, positions: Int[Array, "#R T"]
    ) -> Float[Array, "#R T D"]:
        """Encode round and positions for shared layers (Dehghani et al., eq. 6).

        Rounds count from 1. In the first, the embeddings already contain positions.
        """
        c = self.config
        rounds = jnp.full_like(positions, number + 1)
        signal = added_waves(c.positions, rounds, c.d_model)
        if number == 0 or c.positions not in SINUSOIDS:
            return signal
        return signal + added_waves(c.positions, positions, c.d_model)

    def _position_signal(
        self,
        positions: Int[Array, "#R T"],
        mask: Mask | Bool[Array, "..."] | None,
        cache: KVCache | None,
        train: bool,
    ) -> PositionSignal:
        """Compute the effect of positions on self-attention, once for all layers."""
        c, kind = self.config, self.config.positions
        if kind.endswith("rotary"):
            band = Band(c.rotary_low, c.rotary_high, c.rotary_original, c.rotary_gain)
            scaling = c.rotary_scaling, c.rotary_factor, band
            return PositionSignal(
                turn=rotation(positions, c.d_k, c.rotary_base, *scaling)
            )
        if kind not in ("relative", *BIASES):
            return PositionSignal()
        bias = self.position_bias.between(*_sides(positions, cache))
        length = positions.shape[1]
        attention = self.layer[0].self_attention
        chosen = attention.choose_kernel(length, length, mask, bias, train)
        # All layers share the dense form; a kernel computes it block by block.
        return PositionSignal(bias=bias.dense() if chosen == "einsum" else bias)


def _sides(
    positions: Int[Array, "#R T"], cache: KVCache | None
) -> tuple[Int[Array, "#B Q"], Int[Array, "#B S"]]:
    """Return the positions of queries and keys of self-attention."""
    return (positions, positions) if cache is None else cache.places(positions)


def _narrow(mask: Mask | Bool[Array, "..."], window: int, sides: Any) -> Any:
    """Hide the keys that lie a window or more before their query."""
    if isinstance(mask, Mask):
        return mask.replace(window=window)
    return mask & within(window, *sides)


def _attention(c: TransformerConfig, deepnorm: DeepNorm) -> MultiHeadAttention:
    return MultiHeadAttention(
        d_model=c.d_model,
        num_heads=c.num_heads,
        d_k=c.d_k,
        d_v=c.d_v,
        kv_heads=c.kv_heads,
        qk_norm=c.qk_norm,
        dropout=c.dropout_attention,
        dtype=c.dtype,
        kernel=c.attention,
        gradient_dtype=c.gradient_dtype,
        remat=c.remat == "attention",
        gain=deepnorm.beta,
        bias=c.bias,
    )


def _norm(c: TransformerConfig) -> nn.Module:
    return NORM_KINDS[c.norm_kind](c.norm_epsilon, c.dtype)
