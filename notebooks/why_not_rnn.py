# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Why not an RNN?
#
# The paper's first section gives two reasons to replace recurrence by attention. A
# recurrent network must read word by word, so it cannot use parallel hardware well. And
# two words that are far apart are linked by as many steps as there are words between
# them. Section 4 summarises this in a table:
#
# | layer | operations | sequential steps | longest path |
# |---|---|---|---|
# | self-attention | $n^2 \cdot d$ | 1 | 1 |
# | recurrent | $n \cdot d^2$ | $n$ | $n$ |
#
# This notebook measures each column of the table. It trains only two tiny networks on a
# task that needs memory, in about two minutes on a CPU.

# %% tags=["install"]
# In the notebook, first_cell.py stands here.

# %%
# %matplotlib inline
import os
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

is_small = bool(os.environ.get("TRANSFORMER_JAX_NOTEBOOK_SMALL"))

# %% [markdown]
# ## 1. The longest path: how far does a gradient reach?
#
# Learning follows the paths backwards. If little of the gradient of a prediction
# reaches a word that was read long before, the link between them is hard to learn.
# Below are four kinds of models before any training: how large is the gradient that
# reaches a source word, by distance?

# %%
from transformer_jax.visualize import figures, gradients

length = 12 if is_small else 60
curves = gradients.reach_untrained(length)
figures.reach(curves)

# %%
print("of the gradient at distance 1, the farthest source word gets")
for name, norms in curves.items():
    print(f"  {name:12} {norms[-1] / norms[0]:.2g}")

# %% [markdown]
# In a plain RNN the gradient is multiplied by a matrix at every step, and vanishes.
# Gates (GRU, LSTM) keep more of it. Attention has a path of length 1 to every word, and
# its curve is flat.
#
# Gradients are not the whole story, so let two small networks learn something.
#
# ## 2. A task that needs memory
#
# A sequence begins with a number, and random numbers follow. At the end, the network
# has to name the first number. The longer the sequence, the longer the path. Both
# networks have one layer and 32 dimensions, and see the same batches.

# %%
from transformer_jax.models.positions import sinusoid

KINDS = 8  # of numbers


class Reader(nn.Module):
    """Read a sequence, and answer which number came first."""

    kind: str

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(KINDS + 1, 32)(tokens)  # KINDS itself is the question, at the end
        if self.kind == "attention":
            places = jnp.arange(tokens.shape[1])[None]
            x = x + sinusoid(places, d_model=32)
            x = nn.MultiHeadDotProductAttention(num_heads=2)(x[:, -1:], x)
        else:
            cell = {"RNN": nn.SimpleCell, "GRU": nn.GRUCell}[self.kind](32)
            x = nn.RNN(cell)(x)
        return nn.Dense(KINDS)(x[:, -1])


def learn(kind, length, steps, rows=64):
    """Train a reader; return its share of right answers on new sequences."""
    module, rng = Reader(kind), np.random.default_rng(0)

    def draw(rows):
        tokens = rng.integers(KINDS, size=(rows, length))
        tokens[:, -1] = KINDS
        return jnp.array(tokens)

    optimizer = optax.adam(3e-3)
    params = module.init(jax.random.key(0), draw(1))
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, tokens):
        def loss(params):
            logits = module.apply(params, tokens)
            return optax.softmax_cross_entropy_with_integer_labels(
                logits, tokens[:, 0]
            ).mean()

        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    for _ in range(steps):
        params, state = step(params, state, draw(rows))
    tokens = draw(1000)
    return float((module.apply(params, tokens).argmax(-1) == tokens[:, 0]).mean())


lengths = (4, 8) if is_small else (5, 10, 20, 40, 80)
steps = 20 if is_small else 400
kinds = ("RNN", "GRU", "attention")
right = {kind: [learn(kind, length, steps) for length in lengths] for kind in kinds}
print(f"{'length':>10}", *(f"{length:7}" for length in lengths))
for kind, shares in right.items():
    print(f"{kind:>10}", *(f"{100 * share:6.0f}%" for share in shares))


# %%
def draw(right):
    """Draw the shares of right answers by length."""
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    ax = figure.subplots()
    for marker, (kind, shares) in zip("os^", right.items(), strict=True):
        ax.plot(lengths, 100 * np.array(shares), marker=marker, label=kind)
    ax.axhline(100 / KINDS, color="gray", linestyle=":", label="guessing")
    ax.set(xlabel="length of the sequence", ylabel="right answers, %", ylim=(0, 105))
    ax.set_title(f"The first of n numbers, after {steps} steps")
    ax.legend()
    return figure


draw(right)

# %% [markdown]
# Attention finds the first position at all of these lengths. A recurrent network may
# still learn the task with more steps: the picture shows learning within a budget, not
# what can be represented. The GRU can represent everything that the RNN can, and still
# learned later here: its gates start half closed, so at first its gradient fades as
# fast. An LSTM whose forget gate starts open does better; try it below.
#
# ## 3. Sequential steps: time on parallel hardware
#
# One layer reads a sequence, forwards and backwards. The recurrent layer takes $n$
# steps that depend on each other. Attention is a few large matrix products, with $n^2$
# numbers between them.

# %%
WIDTH = 128


class Layer(nn.Module):
    """One layer over a sequence."""

    kind: str

    @nn.compact
    def __call__(self, x):
        if self.kind == "attention":
            return nn.MultiHeadDotProductAttention(num_heads=4)(x)
        return nn.RNN(nn.GRUCell(WIDTH))(x)


def milliseconds(kind, length, repeats=5):
    """Time the gradient of a layer over 8 sequences; return the median."""
    module = Layer(kind)
    x = jax.random.normal(jax.random.key(0), (8, length, WIDTH))
    params = module.init(jax.random.key(1), x)
    run = jax.jit(jax.grad(lambda params: module.apply(params, x).sum()))
    jax.block_until_ready(run(params))  # compiles
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(run(params))
        times.append(1000 * (time.perf_counter() - began))
    return float(np.median(times))


lengths = (16, 32) if is_small else (32, 128, 512, 1024)
timed = {
    kind: [milliseconds(kind, length) for length in lengths]
    for kind in ("GRU", "attention")
}
print(f"{'length':>10}", *(f"{length:8}" for length in lengths))
for kind, found in timed.items():
    print(f"{kind:>10}", *(f"{ms:5.0f} ms" for ms in found))
print(f"on {jax.devices()[0].device_kind}")

# %% [markdown]
# At which length are the two equal? Attention's operations grow with $n^2$, those of
# recurrence with $n$: on a CPU, which has little parallel hardware, attention loses on
# long sequences. On a GPU or a TPU the recurrent layer is slower even on short
# sequences, because most of the hardware waits. Run this cell on one.
#
# ## 4. And translation?
#
# The package has recurrent encoder-decoders with the same data, loop and search, so
# that the comparison is fair: `configs/recurrent.py`. `docs/results.md` compares their
# scores with the Transformer's.
#
# ## What to change next
#
# - Give the recurrent network of section 2 attention over its states: that is what
#   Bahdanau et al. did in 2014, three years before the paper.
# - Add `nn.OptimizedLSTMCell` to the cells of `Reader`, or more steps. Which length
#   does each of them reach?
# - Leave out `sinusoid` in section 2. Why does attention then guess?
# - Train both for yourself: `python -m transformer_jax.train --config
#   configs/recurrent.py:lstm_attention`.
