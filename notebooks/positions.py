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
# # Positions: how a Transformer knows the order of words
#
# Attention compares vectors and mixes them. Shuffle a sentence, and its results are
# shuffled in the same way: *dog bites man* and *man bites dog* are one bag of words. So
# every Transformer is given positions. There are three places to put them:
#
# | where | kinds | what attention then knows |
# |---|---|---|
# | added to the embeddings | `sinusoid`, `learned` | the position of each word |
# | applied to queries and keys | `rotary` | how far apart two words are |
# | added to the scores | `alibi`, `relative` | how far apart two words are |
#
# This notebook draws each of them, and asks the question on which they differ: what
# happens at positions that never occur in training? To find out, it trains five small
# models, in about two minutes on a CPU. It ends with a network that paints, which shows
# why positions are waves.

# %% tags=["install"]
# In the notebook, first_cell.py stands here.

# %% [markdown]
# ## 1. Sinusoids
#
# Section 3.5 of the paper adds to each embedding a vector of waves:
#
# $$PE(p, 2i) = \sin\left(p / 10000^{2i/D}\right) \qquad
# PE(p, 2i+1) = \cos\left(p / 10000^{2i/D}\right)$$
#
# Read it as a clock with many hands. The first hand completes a turn in $2\pi = 6.3$
# positions and distinguishes neighbours; the last one takes almost 63 000 and
# distinguishes the beginning of a book from its end. It is the idea of binary numbers,
# with waves instead of bits.

# %%
# %matplotlib inline
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.models.positions import sinusoid
from transformer_jax.visualize import figures

encoding = np.asarray(sinusoid(jnp.arange(64)[None], d_model=128)[0])
np.testing.assert_allclose(encoding[3, :2], [np.sin(3), np.cos(3)], rtol=1e-5)
figures.positional_encoding(length=64, d_model=128)

# %% [markdown]
# Why sines *and* cosines? Because together they can be **rotated**. A shift by $k$
# positions rotates each pair $(\sin, \cos)$ by an angle that depends on $k$ alone:
#
# $$\begin{pmatrix} \sin(\omega (p+k)) \\ \cos(\omega (p+k)) \end{pmatrix} =
# \begin{pmatrix} \cos \omega k & \sin \omega k \\ -\sin \omega k & \cos \omega k
# \end{pmatrix}
# \begin{pmatrix} \sin \omega p \\ \cos \omega p \end{pmatrix}$$
#
# So "the word 5 before me" is the same linear map at every position, which the matrices
# of queries and keys can learn. Here is that map for $k = 5$.

# %%
k, size = 5, 128
rates = 10_000 ** (-np.arange(0, size, 2) / size)
shift = np.zeros((size, size))
for i, rate in enumerate(rates):
    cos, sin = np.cos(rate * k), np.sin(rate * k)
    shift[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[cos, sin], [-sin, cos]]
error = np.abs(encoding[:-k] @ shift.T - encoding[k:]).max()
print(f"PE(p + 5) from PE(p) by one matrix, for all p: error {error:.1e}")
assert error < 1e-4

# %% [markdown]
# It follows that the dot product of two encodings depends only on their distance. It is
# the same forwards and backwards, and falls with the distance, with ripples that are
# larger if there are fewer waves.

# %%
figures.dot_products(furthest=100)

# %% [markdown]
# ## 2. Learned positions
#
# Alternatively, each position has its own vector, learned like those of words. The
# paper tried this, with "nearly identical results" (Table 3, row E). The drawback is
# that the table ends. Position 512 of a table of 512 rows has no vector, and a position
# that was rare in training has a poor one. Untrained vectors do not resemble each
# other; any similarity is learned.

# %%
table = np.asarray(jax.random.normal(jax.random.key(0), (48, 128)))
figures.similarity(table, "A learned table before training: every row for itself")

# %%
figures.similarity(encoding[:48], "Sinusoids: near positions are alike from the start")

# %% [markdown]
# ## 3. Rotary positions: rotate instead of adding
#
# If a shift is a rotation, we can rotate directly. `rotary` (Su et al. 2021) leaves the
# embeddings unchanged and rotates each pair of numbers of a query or a key by its
# position's angles. The dot product of a vector rotated by $a$ and one rotated by $b$
# depends on $b - a$: positions go in, distances come out.

# %%
from transformer_jax.models.positions import rotate, rotation

rng = np.random.default_rng(0)
q, key = jnp.array(rng.normal(size=(2, 1, 1, 1, 16)))  # [batch, length, heads, size]


def score(query_at, key_at):
    turned = [
        rotate(vector, rotation(jnp.array([[place]]), 16))
        for vector, place in ((q, query_at), (key, key_at))
    ]
    return float((turned[0] * turned[1]).sum())


for pair in ((0, 3), (10, 13), (100, 103), (3, 0), (0, 4)):
    print(f"query at {pair[0]:3}, key at {pair[1]:3}: score {score(*pair):7.4f}")
np.testing.assert_allclose(score(0, 3), score(100, 103), atol=1e-3)

# %% [markdown]
# The first three are the same: the distance is 3. The others differ from them, and the
# fourth shows that rotary positions know *before* from *after*.
#
# ## 4. ALiBi: a penalty for distance
#
# The simplest of all (Press et al. 2022): subtract from each score the distance times a
# slope. Each head has its own slope: heads with steep slopes see their neighbours,
# heads with flat slopes see far. There is nothing to learn.

# %%
from transformer_jax.models.positions import alibi, alibi_slopes

print("slopes of 4 heads:", alibi_slopes(4))
places = jnp.arange(12)
distance = places[None, None, :] - places[None, :, None]  # key - query
bias = alibi(distance, heads=4)  # [1, heads, queries, keys]
look_ahead = np.tril(np.ones((12, 12), bool))
weights = jax.nn.softmax(jnp.where(look_ahead, bias, -jnp.inf))
figures.attention(weights, list(map(str, places)), list(map(str, places)))

# %% [markdown]
# These are the weights of four heads for identical words, so only the distance matters.
# (`relative`, from T5, is the same idea with learned numbers, one per bucket of
# distances.)
#
# ## 5. Longer than in training
#
# Now the test. The task is the simplest that needs positions: at each position of a
# random sequence, **name the token one position earlier**. A language model needs only
# one head for it, which looks back by one. All models train on sequences of 16 tokens,
# and are then tested on 64.
#
# The rule "look at the neighbour" would work at any length. Which models have learned
# the rule, and which only one fact per position?

# %%
import os

import optax

from transformer_jax.models import LanguageModel, TransformerConfig

is_small = bool(os.environ.get("TRANSFORMER_JAX_NOTEBOOK_SMALL"))
KINDS = ("none", "learned", "sinusoid", "rotary", "alibi")
steps, trained_length, long = (3, 16, 64) if is_small else (400, 16, 64)


def draw(key, rows, length):
    tokens = jax.random.randint(key, (rows, length), 0, 16)
    before = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)))
    return tokens, before  # asked for at place t: token t - 1


def train(kind):
    model = LanguageModel(
        TransformerConfig(
            vocab_size=16,
            decoder_layers=2,
            d_model=64,
            d_ff=128,
            num_heads=4,
            positions=kind,
            max_positions=long,
            norm="pre",
            dropout_embedding=0.0,
            dropout_residual=0.0,
        )
    )
    optimizer = optax.adam(2e-3)

    def loss_of(params, tokens, wanted):
        logits = model.apply({"params": params}, tokens).logits[:, 1:]
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, wanted[:, 1:])
        return nll.mean()

    @jax.jit
    def train_step(params, state, key):
        batch = draw(key, 64, trained_length)
        loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, loss

    params = model.init(jax.random.key(1), draw(jax.random.key(0), 2, 16)[0])["params"]
    state = optimizer.init(params)
    for step in range(steps):
        key = jax.random.fold_in(jax.random.key(2), step)
        params, state, loss = train_step(params, state, key)

    tokens, wanted = draw(jax.random.key(3), 200, long)
    logits = jax.jit(model.apply)({"params": params}, tokens).logits
    right = np.asarray((logits.argmax(-1) == wanted).mean(axis=0))
    return float(loss), right  # the share of right answers at each place


accuracy = {}
for kind in KINDS:
    loss, accuracy[kind] = train(kind)
    inside = accuracy[kind][1:trained_length].mean()
    beyond = accuracy[kind][trained_length:].mean()
    print(
        f"{kind:9} loss {loss:.3f}  right: {inside:6.1%} inside, {beyond:6.1%} beyond"
    )

# %%
from matplotlib.figure import Figure

figure = Figure(figsize=(7, 3.4), layout="constrained")
axes = figure.subplots()
styles = (":", "--", "-.", "-", (0, (5, 1, 1, 1, 1, 1)))
for (kind, right), dashes in zip(accuracy.items(), styles, strict=True):
    axes.plot(range(1, long), 100 * right[1:], label=kind, linestyle=dashes)
axes.axvline(trained_length - 0.5, color="0.5", linewidth=1)
axes.text(trained_length, 15, "never seen in training →", color="0.35", fontsize=9)
axes.set(xlabel="position", ylabel="right answers, %", ylim=(0, 103), xlim=(1, long))
axes.set_title("The token before: trained on 16 positions, asked at 64")
axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
figure  # noqa: B018

# %% [markdown]
# Our results (two CPU cores; yours may differ slightly): the share of correct answers
# at positions 16 to 63, after all models except `none` had learned the task perfectly:
#
# | kind | beyond | a likely reason |
# |---|---|---|
# | `learned` | 9 % | its rows from position 16 on were never trained |
# | `sinusoid` | 9 % | the waves continue, but the model cannot read them there |
# | `none` | 40 % | only the look-ahead mask reveals positions, later ones less well |
# | `rotary` | 76 % | good up to twice the length; beyond that the angles are new |
# | `alibi` | 99 % | "the nearest" is the same rule at every position |
#
# The paper hoped that sinusoids *"may allow the model to extrapolate to sequence
# lengths longer than the ones encountered during training"* (3.5). The linear map of
# section 1 exists, but training does not require a model to use it. Distances, in
# contrast, are short in short and in long sequences. ALiBi has a corresponding
# drawback: distant words get little attention even when they matter.
#
# ## 6. Why waves at all? A network that paints
#
# Why is a position not simply given as a number: 0.25, 0.5, 0.75? Because a network
# hardly learns anything that changes *fast* with a slowly changing input. This is
# easiest to see if the position is a point in a picture, and the network has to name
# the colour there (Tancik et al. 2020). The same MLP reads x and y as they are, as the
# paper's sinusoids of column and row, or as **random Fourier features**, waves with
# random directions and lengths:
#
# $$\gamma(p) = [\cos 2\pi B p, \sin 2\pi B p], \qquad B_{ij} \sim
# \mathcal N(0, \sigma^2)$$

# %%
from transformer_jax.family.coordinates import picture as pictures
from transformer_jax.family.coordinates import pixels
from transformer_jax.family.coordinates.model import CoordinateMLP, CoordinateMLPConfig

side, updates = (16, 3) if is_small else (64, 250)
picture = pictures.draw(side).astype(np.float32)
places = jnp.asarray(pixels.places_of((side, side)))
held_out = pixels.hold_out((side, side))  # a quarter of the pixels


def paint(features):
    sizes = CoordinateMLPConfig(features=features, d_model=128, frequencies=64)
    model = CoordinateMLP(sizes, (side, side))
    optimizer = optax.adam(2e-3)
    seen, wanted = places[~held_out], picture[~held_out]

    def loss_of(params):
        return jnp.square(model.apply({"params": params}, seen) - wanted).mean()

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(jax.grad(loss_of)(params), state)
        return optax.apply_updates(params, updates), state

    params = model.init(jax.random.key(0), seen)["params"]
    state = optimizer.init(params)
    for _ in range(updates):
        params, state = step(params, state)
    painted = model.apply({"params": params}, places.reshape(-1, 2))
    return np.asarray(painted).reshape(side, side, 3)


painted = {"the picture": picture}
for features in ("raw", "sinusoid", "gaussian"):
    painted[features] = paint(features)
    error = np.square(painted[features] - picture)[held_out].mean()
    print(f"{features:9} {pixels.psnr(error):.1f} dB on pixels never seen")

# %%
figure = Figure(figsize=(9, 2.6), layout="constrained")
for axes, (name, image) in zip(figure.subplots(1, 4), painted.items(), strict=True):
    axes.imshow(image.clip(0, 1))
    axes.set(title=name)
    axes.set_axis_off()
figure  # noqa: B018

# %% [markdown]
# From x and y alone the network paints only soft blots, and more updates hardly help:
# it learns slow changes first (*spectral bias*). Given waves, slow and fast changes are
# equally easy. They are even too easy for the Gaussian features: between the pixels
# that they were trained on they paint noise, which costs them the PSNR of their sharp
# edges. A Transformer's first layer reads positions as this MLP does. (For the
# full-size version, with PSNR over time, see `configs/coordinates.py`.)
#
# ## What to change next
#
# - Train at length 32 (`trained_length`), and see how far each kind gets then.
# - Another task: *two* positions before, or the **first** token of the sequence. For
#   the latter ALiBi is the wrong bias: why?
# - `positions="relative"` and `"sinusoid+rotary"`, and for rotary
#   `rotary_scaling="linear", rotary_factor=4.0` at test time: four times the length is
#   squeezed into the trained range.
# - On translation: `python -m transformer_jax.train --config quickstart
#   --config.model.positions=rotary --workdir runs/rotary`.
