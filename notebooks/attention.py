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
# # Attention, step by step
#
# Attention answers one question: *how much do I take of each thing that I could look
# at?* In this notebook you compute it by hand, with numbers small enough to follow:
#
# 1. a **score** for each pair of a query and a key,
# 2. the **scaling** by $\sqrt{d_k}$, and what happens without it,
# 3. the **softmax** that turns scores into weights,
# 4. the **masks** that hide keys,
# 5. several **heads** side by side,
#
# and at the end ten lines of NumPy give the same numbers as the package's
# `MultiHeadAttention`. Everything runs in seconds on a CPU; nothing is trained.
#
# $$\mathrm{Attention}(Q, K, V) =
# \mathrm{softmax}\left(\frac{QK^\top}{\sqrt{d_k}}\right) V$$

# %% tags=["install"]
# In the notebook, first_cell.py stands here.

# %% [markdown]
# ## 1. A search engine for vectors
#
# Think of a search for a video. The text that you type is the **query**. Each video has
# a **key**, such as its title, which is compared with the query, and a **value**: the
# video itself, which you get. Two vectors are compared by their dot product: the more
# they point in the same direction, the larger it is.
#
# $$[3, 1, 4] \cdot [1, 1, 0] = 3 + 1 + 0 = 4 \qquad
# [3, 1, 4] \cdot [0, 1, 0.5] = 0 + 1 + 2 = 3$$

# %%
import numpy as np

np.set_printoptions(precision=3, suppress=True)

query = np.array([[3.0, 1.0, 4.0]])  # one query
keys = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 0.5]])  # two keys
values = np.array([[1.0, 0.0], [0.0, 1.0]])  # what each key stands for

scores = query @ keys.T
print("scores", scores)

# %% [markdown]
# An ordinary search returns the best match. Attention returns a *mixture* of all
# values, mostly of the best ones. A mixture has a gradient: a small change of a key
# changes the result slightly, so queries, keys and values can be learned.
#
# The shares of the mixture must be positive and add up to 1. The softmax does that:
#
# $$\mathrm{softmax}(s)_j = \frac{e^{s_j}}{\sum_i e^{s_i}}$$
#
# Subtracting the largest score first keeps $e^{s}$ from overflowing. It does not change
# the result, because numerator and denominator are divided by the same number.


# %%
def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


weights = softmax(scores / np.sqrt(query.shape[-1]))
print("weights", weights)
print("result ", weights @ values)

# %% [markdown]
# The first video gets 64 % and the second 36 %: the scores differ by 1, by $0.577$
# after the division by $\sqrt 3$ (section 3 says why), and $e^{0.577} = 1.78$ is the
# ratio of the shares. Had the scores been 31 and 1, the first video would have got all
# of it: the ratio would be $e^{17}$.
#
# ## 2. Every word asks every word
#
# In **self-attention** each word of a sentence has a query, a key and a value. The
# scores form a square table, with one row per query and one column per key. Here is one
# for *Hi how are you*, for queries and keys of size $d_k = 64$. (These numbers are made
# up. In section 6 they come from vectors.)

# %%
words = ["Hi", "how", "are", "you"]
scores = np.array(
    [
        [98.0, 27.0, 10.0, 12.0],
        [27.0, 89.0, 31.0, 67.0],
        [10.0, 31.0, 91.0, 54.0],
        [12.0, 67.0, 54.0, 92.0],
    ]
)
d_k = 64
scaled = scores / np.sqrt(d_k)
weights = softmax(scaled)
print(scaled, "\n")
print(weights, "\n")
print("each row adds up to", weights.sum(axis=-1))

# %% [markdown]
# The same computation as a picture. Follow the row *how*: its score for *you* is 67,
# three quarters of its 89 for itself, and yet *you* gets only 6 % of the weight. The
# softmax works on **differences**: $(89 - 67) / 8 = 2.75$, and $e^{-2.75} = 0.064$.

# %%
# %matplotlib inline
from transformer_jax.visualize import explain, figures

figures.computation(
    explain.from_scores(
        scores, d_k, title='Weights of "Hi how are you"', query_labels=words
    )
)

# %% [markdown]
# A warning: some tutorials print this table of scores with other weights, such as 0.7
# from *Hi* to itself. Those were made up, not computed. The softmax of these scores
# gives *Hi* a weight of 0.9998 for itself, as you can check in the row above.
#
# ## 3. Why divide by $\sqrt{d_k}$?
#
# A dot product is a sum of $d_k$ terms. If the components are independent, with mean 0
# and variance 1, each term has variance 1 and their sum has variance $d_k$. So wide
# heads have large scores only because they are wide. Let us measure that, and apply the
# softmax to 16 such scores.

# %%
rng = np.random.default_rng(0)


def slopes(weights, keys, divisor):
    """Return the length of the gradient of each row's largest weight by its query."""
    top = weights.argmax(axis=-1)
    rows = np.arange(len(top))
    mean = (weights[..., None] * keys).sum(axis=1)
    gradient = weights[rows, top, None] * (keys[rows, top] - mean) / divisor
    return np.linalg.norm(gradient, axis=-1)


print(
    "                 |--------- not divided --------|  |------ divided by √d_k ------|"
)
print(
    "                             gradient by query                  gradient by query"
)
print(
    "  d_k            std  largest   median   mean         std  largest  median   mean"
)
for size in (4, 16, 64, 256, 1024):
    q, k = rng.normal(size=(2000, 1, size)), rng.normal(size=(2000, 16, size))
    raw = (q * k).sum(axis=-1)  # 2000 rows of 16 scores
    row = []
    for divisor in (1, np.sqrt(size)):
        w = softmax(raw / divisor)
        slope = slopes(w, k, divisor)
        row += [(raw / divisor).std(), w.max(axis=-1).mean()]
        row += [np.median(slope), slope.mean()]
    print(
        "{:5} {:14.1f} {:8.2f} {:8.4f} {:6.2f} {:11.1f} {:8.2f} {:7.2f} {:6.2f}".format(
            size, *row
        )
    )

# %% [markdown]
# Without the division, a head of size 1024 gives 96 % of its weight to one key before
# it has learned anything. Half of the queries then have a gradient of practically 0
# (the median), and few have a huge one (the mean grows): most words learn nothing, and
# some learn in jumps. With the division, weights and gradients start out the same in
# heads of any width.
#
# ## 4. Masks: hiding keys
#
# A mask sets scores to $-\infty$ *before* the softmax: $e^{-\infty} = 0$, and the other
# weights of the row grow until they add up to 1 again. Setting *weights* to 0 after the
# softmax would leave rows that add up to less.
#
# **Look-ahead.** A decoder learns to predict the next word at every position at once.
# The word at position $t$ may see only positions $0 … t$: if it saw the next word, it
# would copy it. With equal scores each row is a uniform mixture of the visible words.

# %%
look_ahead = np.tril(np.ones((4, 4), bool))
print(softmax(np.where(look_ahead, np.zeros((4, 4)), -np.inf)))

# %% [markdown]
# The same mask on our scores: *Hi* can now look only at itself, and *how* no longer
# sees *you*.

# %%
masked_weights = softmax(np.where(look_ahead, scaled, -np.inf))
figures.masking(scaled, look_ahead, weights, masked_weights, words, words)

# %% [markdown]
# **Padding.** Sentences of a batch are padded to the same length, and the padding must
# be hidden as a *key* (a column) in every row. If an entire row is hidden, $-\infty$
# everywhere would give $0 / 0$. So the package uses a large negative number,
# $-10^{30}$, instead of $-\infty$: rows stay finite, and everything else is the same to
# the last bit.

# %%
import jax.numpy as jnp

from transformer_jax.models.attention import attend_by_head, padding_mask
from transformer_jax.models.masks import MASKED

with np.errstate(invalid="ignore"):
    print("all -infinite:", softmax(np.full((1, 4), -np.inf)))
print(f"all {MASKED:g}: ", softmax(np.full((1, 4), MASKED)))

padded = padding_mask(jnp.array([[1, 1, 1, 0]])).dense()  # the 4th word is filling
print("the padding mask", np.asarray(padded[0, 0]))
print(softmax(np.where(padded[0, 0], scaled, -np.inf)))

# %% [markdown]
# ## 5. Order does not matter (yet)
#
# Shuffle the words, and the weights are shuffled in the same way: the formula does not
# know the order of the words. *Dog bites man* and *man bites dog* have the same rows.
# That is why the Transformer adds positions (see the notebook `positions`).

# %%
x = rng.normal(size=(4, 8))
order = [2, 0, 3, 1]
attended = softmax(x @ x.T / np.sqrt(8)) @ x
shuffled = softmax(x[order] @ x[order].T / np.sqrt(8)) @ x[order]
print("largest difference", np.abs(attended[order] - shuffled).max())

# %% [markdown]
# ## 6. Learned queries, keys and values, and several heads
#
# A word has one vector $x$ of size $D$. Three learned matrices turn it into a query, a
# key and a value, so a word can *look for* something different from what it *offers*.
# One softmax makes only one mixture, so there are $N$ heads with separate matrices,
# each of size $D / N$; their results are concatenated and mixed by a fourth matrix.
#
# The shapes, for five words of size $D = 32$ and $N = 4$ heads of size 8:
#
# ```
# x [5, 32] ───── query ──→ q [4, 5, 8] ──┐
#                                         ├─ q·kᵀ/√8 ─→ scores [4, 5, 5]
# memory [5, 32] ─ key ───→ k [4, 5, 8] ──┘                   │ mask, softmax
#          │                                                  ↓
#          └───── value ──→ v [4, 5, 8] ─────────── weights [4, 5, 5] · v
#                                                             ↓
#                        result [5, 32] ←─ out ─ side by side [5, 32] ← [4, 5, 8]
# ```
#
# In self-attention the memory is x itself. This is the complete function:


# %%
def multi_head_attention(x, memory, allowed, p, heads):
    """x [T, D] looks at memory [S, D]; allowed [T, S]; p: matrices and biases."""

    def project(name, vectors):  # → [heads, length, D / heads]
        made = vectors @ p[name]["kernel"] + p[name]["bias"]
        return made.reshape(len(vectors), heads, -1).swapaxes(0, 1)

    q, k, v = project("query", x), project("key", memory), project("value", memory)
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])  # [heads, T, S]
    weights = softmax(np.where(allowed, scores, MASKED))
    attended = (weights @ v).swapaxes(0, 1).reshape(len(x), -1)  # side by side again
    return attended @ p["out"]["kernel"] + p["out"]["bias"], weights


# %% [markdown]
# Now the package's module, with the same parameters on the same vectors: a sentence of
# five words, a look-ahead mask, four heads of eight numbers each. Each different word
# has a vector, as in an embedding table; here they are random, as before training.

# %%
import jax

from transformer_jax.models import MultiHeadAttention
from transformer_jax.models.attention import look_ahead_mask

module = MultiHeadAttention(d_model=32, num_heads=4)
sentence = "the girl reads the book".split()
rows = [sorted(set(sentence)).index(word) for word in sentence]
table = jax.random.normal(jax.random.key(0), (4, 32))  # four different words
x = table[jnp.array(rows)][None]
variables = module.init(jax.random.key(1), x)
causal = look_ahead_mask(jnp.arange(5)[None])
theirs, their_weights = module.apply(variables, x, mask=causal)

numbers = jax.tree.map(np.asarray, variables["params"])
ours, our_weights = multi_head_attention(
    np.asarray(x[0]), np.asarray(x[0]), np.tril(np.ones((5, 5), bool)), numbers, 4
)
np.testing.assert_allclose(our_weights, their_weights[0], atol=1e-6)
np.testing.assert_allclose(ours, theirs[0], atol=1e-5)
print("the same, to", np.abs(ours - theirs[0]).max())
for name, part in numbers.items():
    print(f"{name:6}", part["kernel"].shape)

# %% [markdown]
# Four heads look at the same five words in four ways. Before training they differ only
# at random; the notebook `quickstart` shows the heads of a trained model. The two *the*
# have the same vector, so each word gives both the same weight, once it sees both: the
# formula does not know which of them comes first (section 5).

# %%
figures.attention(our_weights[None], sentence, sentence)

# %% [markdown]
# **Cross-attention** is the same function with another memory: queries come from the
# decoder, keys and values from the encoder. The two may have different lengths.

# %%
memory = jax.random.normal(jax.random.key(2), (1, 7, 32))
theirs, _ = module.apply(variables, x, memory)
ours, our_weights = multi_head_attention(
    np.asarray(x[0]), np.asarray(memory[0]), np.ones((5, 7), bool), numbers, 4
)
np.testing.assert_allclose(ours, theirs[0], atol=1e-5)
print("weights [heads, queries, keys]", our_weights.shape)

# %% [markdown]
# Inside, every model of the package calls `attend_by_head` in
# `transformer_jax/models/attention.py`: the same product, scaling, mask and softmax.
# Here it does the video search of section 1 (axes: batch, heads, then queries or keys).

# %%
result, found = attend_by_head(
    jnp.array(query)[None, None], jnp.array(keys)[None, None],
    jnp.array(values)[None, None],
)  # fmt: skip
print(found[0, 0], result[0, 0])

# %% [markdown]
# ## What to change next
#
# - In section 2, set `d_k` to 1 and to 10 000. Which is closer to "take the best", and
#   which to "take the mean"? The number divides the scores like a *temperature*.
# - In section 4, make a mask that lets each word see itself and its two neighbours
#   only.
# - In section 6, give `MultiHeadAttention(32, 4, kv_heads=1)`: one key and value for
#   all heads. Which matrices have become smaller? Change `multi_head_attention` to
#   match.
# - Your own numbers, printed step by step:
#   `python -m transformer_jax.visualize explain --numbers greeting`, or a JSON file.
