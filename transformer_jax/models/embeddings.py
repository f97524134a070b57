"""Map tokens to vectors and back (section 3.4).

    x = E[token] · √D        logits = h Eᵀ (+ b)

One table serves source, target and output when tied. Other models leave √D out, or
normalise the sum of embedding and position (`embed`). Tables are padded for the
hardware; the rows beyond the vocabulary get no probability.
Word dropout reads a share of the tokens as unknown in training, so that the model does
not rely on any single token. It leaves ends as they are, and needs no rescaling because
no vector becomes 0.
"""

import dataclasses
import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax import sharding
from transformer_jax.base.ids import EOS, UNK
from transformer_jax.base.schema import derived
from transformer_jax.models.attention import MASKED
from transformer_jax.models.layers import dot_rows, keep_mask, output_layer
from transformer_jax.models.layers.rounded import RoundedMatrix

TIES = ("all", "decoder", "inputs", "none")
APART = ("inputs", "none")  # the output has a matrix of its own
# The logit of an absent id: its probability is 0, and label smoothing stays finite.
ABSENT = -1e3


@dataclasses.dataclass(frozen=True)
class Vocabularies:
    """Sizes of the embedding tables: the first fields of the config of a model.

    A size of 0 is replaced at once by the size that it follows from, so that the config
    always holds the actual sizes.
    """

    vocab_size: int = derived(8000, "Tokens of the target, or of the only vocabulary.")
    vocab_rows: int = derived(0, "Rows of its table; 0 means vocab_size.")
    source_vocab_size: int = derived(0, "0 means vocab_size.")
    source_vocab_rows: int = derived(0, "0 means source_vocab_size.")
    embedding_scale: bool = derived(True, "Multiply embeddings by √d_model.")
    output_bias: bool = derived(False, "Add a bias to the logits.")
    absent: tuple[int, ...] = derived((), "Ids of no token, which are not predicted.")

    def __post_init__(self):
        self.imply(vocab_rows=self.vocab_size, source_vocab_size=self.vocab_size)
        self.imply(source_vocab_rows=self.source_vocab_size)

    def imply(self, **sizes: int) -> None:
        """Set each of these fields that is 0."""
        for name, size in sizes.items():
            if not getattr(self, name):
                object.__setattr__(self, name, size)


class TokenEmbedding(nn.Module):
    """A table of `rows` vectors; the first `vocab_size` belong to tokens."""

    vocab_size: int
    rows: int
    d_model: int
    dtype: Any = jnp.float32
    dropout: float = 0.0  # share of the tokens read as unknown in training
    scaled: bool = True  # multiply the vectors by √D

    def setup(self):
        """Make the table."""
        # σ = D^-½: a tied table is also the output layer, and √D brings the inputs
        # back to unit variance. Without √D, a norm that follows does.
        self.embedding = self.param(
            "embedding",
            nn.initializers.normal(self.d_model**-0.5),
            (self.rows, self.d_model),
        )

    def __call__(
        self, tokens: Int[Array, "B T"], train: bool = False
    ) -> Float[Array, "B T D"]:
        """Look up tokens; in training, read a share of them as unknown."""
        if train and self.dropout:
            key = self.make_rng("dropout")
            keep = keep_mask(key, 1.0 - self.dropout, tokens.shape)
            tokens = jnp.where(keep | (tokens <= EOS), tokens, UNK)
        if isinstance(self.embedding, RoundedMatrix):
            vectors = self.embedding.look_up(tokens)
            return (vectors * self._scale).astype(self.dtype)
        if not sharding.on_one_device():
            return _look_up(self.embedding, tokens, self.dtype, self._scale)
        vectors = jnp.take(self.embedding, tokens, axis=0)
        return (vectors * self._scale).astype(self.dtype)

    @property
    def _scale(self) -> float:
        return self.d_model**0.5 if self.scaled else 1.0

    def logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Score every token by the product of `x` with its row of the table."""
        if isinstance(self.embedding, RoundedMatrix):
            scores = self.embedding.score(x)
        elif sharding.on_one_device():
            table = self.embedding.astype(self.dtype)
            scores = _score_rows(x, table)
        else:
            scores: Any = _score(x, self.embedding, self.dtype)
        return mask_padding_rows(scores, self.vocab_size)


class OutputBias(nn.Module):
    """One number per token, added to its logit."""

    @nn.compact
    def __call__(self, logits: Float[Array, "B T V"]) -> Float[Array, "B T V"]:
        """Add the biases."""
        return logits + self.param("bias", nn.initializers.zeros, logits.shape[-1:])


class EmbeddingTables(nn.Module):
    """Base of the encoder-decoder models: embeddings and output layer.

    `config.tie` selects which of the three share a table.
    """

    config: Any

    def setup(self):
        """Make the tables, and a separate output layer if no table is tied to it."""
        c = self.config
        if c.tie in ("all", "inputs"):
            self.embedding = make_embedding(c)
        else:
            self.source_embedding = make_embedding(c, source=True)
            self.target_embedding = make_embedding(c)
        if c.tie in APART:
            self.projection = output_layer(c.vocab_rows, c.dtype, use_bias=False)
        if c.output_bias:
            self.output_bias = OutputBias()

    def embed_source(
        self, tokens: Int[Array, "R T"], train: bool = False
    ) -> Float[Array, "R T D"]:
        """Look up tokens of the source."""
        tied = self.config.tie in ("all", "inputs")
        return (self.embedding if tied else self.source_embedding)(tokens, train)

    def embed_target(
        self, tokens: Int[Array, "R T"], train: bool = False
    ) -> Float[Array, "R T D"]:
        """Look up tokens of the target."""
        tied = self.config.tie in ("all", "inputs")
        return (self.embedding if tied else self.target_embedding)(tokens, train)

    def logits(self, x: Float[Array, "R T D"]) -> Float[Array, "R T V"]:
        """Score every token of the target's vocabulary."""
        tie = self.config.tie
        if tie in APART:
            logits = project(self.projection, x, self.config.vocab_size)
        else:
            table = self.embedding if tie == "all" else self.target_embedding
            logits = table.logits(x)
        if self.config.output_bias:
            logits = self.output_bias(logits)
        return leave_out(logits, self.config.absent)


def make_embedding(c: Any, source: bool = False) -> TokenEmbedding:
    """Make the table that a model's config describes."""
    return TokenEmbedding(
        vocab_size=c.source_vocab_size if source else c.vocab_size,
        rows=c.source_vocab_rows if source else c.vocab_rows,
        d_model=c.d_model,
        dtype=c.dtype,
        dropout=c.dropout_words,
        scaled=c.embedding_scale,
    )


def project(
    projection: nn.Dense, x: Float[Array, "R T D"], vocab_size: int
) -> Float[Array, "R T V"]:
    """Compute the logits with an output layer that is not an embedding table."""
    logits = sharding.constrain_logits(projection(x))
    return mask_padding_rows(logits, vocab_size)


def _score_rows(
    x: Float[Array, "B T D"], table: Float[Array, "V D"]
) -> Float[Array, "B T V"]:
    """Multiply x @ table.T in float32, on one device."""
    if math.prod(x.shape[:-1]) != 1:
        return dot_rows(x, table.T, preferred_element_type=jnp.float32)
    # XLA on a CPU multiplies a single row by a transposed table very slowly, but a
    # table by a column as fast as it can be read.
    column = jax.lax.dot_general(
        table,
        x.reshape(-1, 1),
        (((1,), (0,)), ((), ())),
        preferred_element_type=jnp.float32,
    )
    return column.reshape(*x.shape[:-1], -1)


def mask_padding_rows(
    logits: Float[Array, "B T V"], vocab_size: int
) -> Float[Array, "B T V"]:
    """Take all probability from the rows beyond the vocabulary."""
    if vocab_size == logits.shape[-1]:
        return logits
    return jnp.where(jnp.arange(logits.shape[-1]) < vocab_size, logits, MASKED)


def leave_out(
    logits: Float[Array, "B T V"], absent: tuple[int, ...]
) -> Float[Array, "B T V"]:
    """Take all probability from ids that are no token of the vocabulary."""
    if not absent:
        return logits
    ids = jnp.arange(logits.shape[-1])
    gone = (ids[:, None] == jnp.asarray(absent)).any(axis=-1)
    return jnp.where(gone, ABSENT, logits)


# The two uses of a table on several devices. Their gathers are equal, so XLA merges
# them, and sums their gradients before reducing them over the devices. This works only
# if nothing comes between, so each use has a custom gradient, in float32 throughout.


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _look_up(table, tokens, dtype, scale):
    rows = sharding.gather(table, table.shape[-1], dtype)
    vectors = sharding.constrain(jnp.take(rows, tokens, axis=0))
    return (vectors.astype(table.dtype) * scale).astype(dtype)


def _look_up_forward(table, tokens, dtype, scale):
    return _look_up(table, tokens, dtype, scale), (table, tokens)


def _look_up_backward(dtype, scale, kept, slope):
    table, tokens = kept
    slope = sharding.constrain(slope).astype(table.dtype) * scale
    own = jnp.zeros_like(table).at[tokens].add(slope)
    return sharding.gather(own, table.shape[-1], table.dtype), None


_look_up.defvjp(_look_up_forward, _look_up_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _score(x, table, dtype):
    rows = sharding.gather(table, table.shape[-1], dtype)
    scores = dot_rows(x, rows.T, preferred_element_type=jnp.float32)
    return sharding.constrain_logits(scores)


def _score_forward(x, table, dtype):
    return _score(x, table, dtype), (x, table)


def _score_backward(dtype, kept, slope):
    x, table = kept
    rows, every = sharding.gather(table, x.shape[-1], dtype), tuple(range(x.ndim - 1))
    back = dot_rows(slope.astype(dtype), rows)
    own = jax.lax.dot_general(
        slope, x, ((every, every), ((), ())), preferred_element_type=table.dtype
    )
    return back.astype(x.dtype), sharding.gather(own, x.shape[-1], table.dtype)


_score.defvjp(_score_forward, _score_backward)
