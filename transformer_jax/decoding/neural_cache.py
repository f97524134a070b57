"""A cache of the text read so far: what followed similar places is expected again.

    p(w) = (1 - λ) p_model(w) + λ Σ_i [w = w_i] a_i / Σ_i a_i,  a_i = exp(θ cos(h, h_i))

h is the hidden state that predicts the next token; h_i are those of the last places,
which w_i followed (Grave et al. 2017, "Improving Neural Language Models with a
Continuous Cache", section 3, which has h · h_i instead of their cosine).

λ and θ are not tuned. The prediction is the mean over several pairs of them, each
weighted by how well it has predicted the text so far. That costs at most ln(pairs)
nats of a whole text more than the best pair, which nobody knows beforehand.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

SHARES = (0.05, 0.1, 0.2, 0.3, 0.4)  # λ
SHARPNESS = (5.0, 10.0, 15.0, 20.0)  # θ
PAIRS = tuple(itertools.product(SHARPNESS, SHARES))
QUERIES = 256  # places that are compared with the cache at a time
NOTHING = -1  # the token of an empty place


class NeuralCache:
    """The hidden states and the tokens of the last `size` places of a text."""

    def __init__(self, size: int):
        self.size = size
        self._states: Array | None = None  # [size, D], of length 1
        self._tokens = np.full(size, NOTHING, np.int32)
        # ln P(text so far) by each pair, and at the end by the model alone.
        self._evidence = np.full(len(PAIRS) + 1, -np.log(len(PAIRS) + 1))

    def read(
        self,
        hidden: Float[np.ndarray, "N D"],
        tokens: Int[np.ndarray, "N"],
        nll: Float[np.ndarray, "N"],
    ) -> Float[np.ndarray, "N"]:
        """Return the negative log-likelihoods of a text's next tokens with the cache.

        `hidden` are the states that predict `tokens`, and `nll` the model's own
        negative log-likelihoods. The places are remembered afterwards.
        """
        if self._states is None:
            self._states = jnp.zeros((self.size, hidden.shape[1]), jnp.float32)
        found = [np.empty(0)]
        for begin in range(0, len(tokens), QUERIES):
            part = slice(begin, begin + QUERIES)
            found.append(self._read_part(hidden[part], tokens[part], nll[part]))
        return np.concatenate(found)

    def _read_part(self, hidden, tokens, nll):
        count = len(tokens)
        filling = QUERIES - count
        states = jnp.asarray(np.pad(hidden, ((0, filling), (0, 0))), jnp.float32)
        known = np.append(self._tokens, np.pad(tokens, (0, filling)))
        recalled, self._states = _recall(self._states, states, known, count)
        self._tokens = known[count : count + self.size]
        own = -np.asarray(nll, np.float64)
        recalled = np.asarray(recalled[:, :count], np.float64)
        recalled = np.where(np.isnan(recalled), own, recalled)  # nothing is cached yet
        by_sharpness = dict(zip(SHARPNESS, recalled, strict=True))
        each = [
            np.logaddexp(
                np.log1p(-share) + own, np.log(share) + by_sharpness[sharpness]
            )
            for sharpness, share in PAIRS
        ]
        evidence = np.cumsum([self._evidence, *np.transpose([*each, own])], axis=0)
        total = np.logaddexp.reduce(evidence, axis=1)
        self._evidence = evidence[-1] - total[-1]
        return total[:-1] - total[1:]


@functools.partial(jax.jit, donate_argnums=0)
def _recall(
    cached: Float[Array, "M D"],
    hidden: Float[Array, "Q D"],
    tokens: Int[Array, "M+Q"],
    count: Int[Array, ""],
) -> tuple[Float[Array, "S Q"], Float[Array, "M D"]]:
    """Return ln p of each query's token by the cache alone, for each sharpness.

    It is NaN while the cache is empty. Only the first `count` queries are real. Also
    return the states of the last places.
    """
    size, queries = len(cached), len(hidden)
    hidden /= jnp.maximum(jnp.linalg.norm(hidden, axis=1, keepdims=True), 1e-12)
    states = jnp.concatenate([cached, hidden])
    likeness = hidden @ states.T
    place, query = jnp.arange(size + queries), jnp.arange(queries)[:, None]
    seen = (query <= place) & (place < query + size) & (tokens != NOTHING)
    right = seen & (tokens == tokens[size:, None])

    def recall(sharpness: float) -> Array:
        weight = jnp.exp(sharpness * (likeness - 1))
        found, total = (jnp.where(x, weight, 0).sum(axis=1) for x in (right, seen))
        return jnp.log(found / total)

    recalled = jnp.stack([recall(sharpness) for sharpness in SHARPNESS])
    return recalled, jax.lax.dynamic_slice_in_dim(states, count, size)
