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
# # The paper, part by part
#
# [*Attention Is All You Need*](https://arxiv.org/abs/1706.03762) side by side with the
# code. Each section below names the module of `transformer_jax` that implements it,
# states the paper's claim, and checks it with a few lines of code. Nothing is trained,
# and everything runs in a minute on a CPU.
#
# | section | claims | module |
# |---|---|---|
# | 3.1 | stacks of layers; add, then norm | `models/stack.py`, `layers/residual.py` |
# | 3.2 | attention, heads, masks | `models/attention.py` |
# | 3.3 | feed-forward | `models/layers/feed_forward.py` |
# | 3.4 | embeddings, softmax | `models/embeddings.py` |
# | 3.5 | positions | `models/positions.py` |
# | 4 | why self-attention | this notebook |
# | 5.1 | batches | `data/batches.py` |
# | 5.3 | optimizer, learning rate | `optim.py` |
# | 5.4 | dropout, label smoothing | `models/layers/dropout.py`, `losses.py` |
# | 6.1 | averaged checkpoints, beam search | `training/scoring.py`, `decoding/` |
# | 6.2 | sizes (Table 3) | `models/transformer_config.py` |

# %% tags=["install"]
# In the notebook, first_cell.py stands here.

# %% [markdown]
# ## 3.1 Encoder and decoder stacks → `models/stack.py`
#
# *"… a stack of N = 6 identical layers."* An encoder layer has two sublayers,
# self-attention and feed-forward; a decoder layer has a third between them, attention
# to the encoder's output. Here is a diagram of a complete model, made from the model
# itself: $B$ is the batch size, $S$ and $T$ are the lengths of source and target. The
# input and output of every layer have the same shape, so that layers can be stacked.

# %%
# %matplotlib inline
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax import config as configs
from transformer_jax.visualize import figures, modules

small = configs.load(
    "quickstart", {"model.encoder_layers": "1", "model.decoder_layers": "1"}
)
figures.shapes(modules.calls_of(small), "One encoder layer, one decoder layer")

# %% [markdown]
# *"… a residual connection around each of the two sub-layers, followed by layer
# normalization"*: LayerNorm($x$ + Sublayer($x$)). The function `residual` is that
# sentence. With `order="pre"` the norm moves before the sublayer, as in most models
# since then: a direct path of sums then leads from the last layer to the first.

# %%
import inspect

from transformer_jax.models import layers

print(inspect.getsource(layers.residual))

norm = layers.layer_norm(1e-6, jnp.float32)
x = jax.random.normal(jax.random.key(0), (2, 5, 64))
variables = norm.init(jax.random.key(1), x)


def sublayer(y):
    return 3 * y + 2, None


def keep(y):
    return y


for order in ("post", "pre"):
    y, _ = layers.residual(x, sublayer, lambda v: norm.apply(variables, v), keep, order)
    print(f"{order:4}-norm: mean {y.mean():5.2f}, standard deviation {y.std():.2f}")

# %% [markdown]
# ## 3.2 Attention → `models/attention.py`
#
# *"We suspect that for large values of* $d_k$*, the dot products grow large in
# magnitude, pushing the softmax function into regions where it has extremely small
# gradients."* Hence $\mathrm{softmax}(QK^\top / \sqrt{d_k})\,V$. We can test this
# suspicion: here is the size of the gradient of the weights with respect to the scores,
# for random queries and keys. (The notebook `attention` does each step by hand.)

# %%
rng = np.random.default_rng(0)
for d_k in (16, 64, 512):
    queries = jnp.array(rng.normal(size=(500, 1, d_k)))
    keys = jnp.array(rng.normal(size=(500, 10, d_k)))
    scores = (queries * keys).sum(-1)
    row = [f"d_k {d_k:4}"]
    for name, s in (("unscaled", scores), ("scaled", scores / d_k**0.5)):
        jacobian = jax.vmap(jax.jacobian(jax.nn.softmax))(s)
        row.append(f"{name}: gradient {jnp.abs(jacobian).mean():.4f}")
    print("   ".join(row))

# %% [markdown]
# **3.2.2 Multi-head attention.** *"Due to the reduced dimension of each head, the total
# computational cost is similar to that of single-head attention with full
# dimensionality."* The number of parameters is even the same for any number of heads:

# %%
from transformer_jax.models import MultiHeadAttention


def count(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


for heads in (1, 4, 8, 16):
    module = MultiHeadAttention(d_model=64, num_heads=heads)
    variables = module.init(jax.random.key(0), x)
    _, weights = module.apply(variables, x)
    print(f"{heads:2} heads: {count(variables):,} parameters, weights {weights.shape}")

# %% [markdown]
# **3.2.3 Three uses of it.** Encoder and decoder attend to themselves, the decoder also
# to the encoder. *"We need to prevent leftward information flow in the decoder to
# preserve the auto-regressive property."* A claim about dependencies is a claim about
# gradients: the gradients of the outputs with respect to the inputs must form a lower
# triangle. (The paper's word *leftward* refers to its own picture; it means from later
# to earlier.)

# %%
from transformer_jax.models.attention import look_ahead_mask

causal = look_ahead_mask(jnp.arange(5)[None])


def outputs(one_sentence):
    found, _ = module.apply(variables, one_sentence[None], mask=causal)
    return found[0]


reach = jnp.abs(jax.jacobian(outputs)(x[0])).sum((1, 3))  # [output, input]
print(np.asarray(reach > 0).astype(int))
assert (np.triu(reach, 1) == 0).all() and (np.diag(reach) > 0).all()

# %% [markdown]
# ## 3.3 Feed-forward → `FeedForward` in `models/layers/feed_forward.py`
#
# $\max(0, x W_1 + b_1) W_2 + b_2$, *"applied to each position separately and
# identically"*: apply it to one word alone, and the result is the same. Two thirds of a
# layer's parameters are here, not in the attention.

# %%
feed_forward = layers.FeedForward(d_model=64, d_ff=256)
variables_ff = feed_forward.init(jax.random.key(0), x)
whole, alone = (feed_forward.apply(variables_ff, v) for v in (x, x[:, 2:3]))
np.testing.assert_allclose(whole[:, 2:3], alone, atol=1e-6)
print(
    f"attention {count(variables):,}, feed-forward {count(variables_ff):,} parameters"
)

# %% [markdown]
# ## 3.4 Embeddings and softmax → `models/embeddings.py`
#
# *"… we share the same weight matrix between the two embedding layers and the
# pre-softmax linear transformation … In the embedding layers, we multiply those weights
# by* $\sqrt{d_{model}}$*."* One table has two conflicting requirements: as an output
# layer its rows should be short, so that logits start near 1; as an input they should
# be as large as the positions that are added to them.

# %%
from transformer_jax.models.embeddings import TokenEmbedding

embedding = TokenEmbedding(vocab_size=1000, rows=1000, d_model=256)
tokens = jnp.arange(1000)[None]
variables = embedding.init(jax.random.key(0), tokens)
vectors = embedding.apply(variables, tokens)
normed = jax.random.normal(jax.random.key(1), (1, 50, 256))
logits = embedding.apply(variables, normed, method="logits")
print(f"standard deviations: inputs {vectors.std():.2f}, logits {logits.std():.2f}")

# %% [markdown]
# ## 3.5 Positions → `models/positions.py`
#
# *"The wavelengths form a geometric progression from* $2\pi$ *to* $10000 \cdot
# 2\pi$*."* (Almost: the last wave of 512 has $9647 \cdot 2\pi$, as $2i$ ends at 510.)
# *"… we hypothesized it would allow the model to easily learn to attend by relative
# positions"*, as $PE(p + k)$ is a linear function of $PE(p)$. The notebook `positions`
# builds that function; here are the waves over a sentence.

# %%
figures.waves("The animal didn't cross the street because it was too tired".split())

# %% [markdown]
# ## 4 Why self-attention
#
# Table 1 compares layers by their number of operations, for length $n$ and width $d$:
# self-attention has $n^2 d$, a recurrence $n d^2$. *"… self-attention layers are faster
# than recurrent layers when the sequence length n is smaller than the representation
# dimensionality d"*. More important is the third column: a signal from the first word
# to the last passes through $n$ steps of a recurrence, and through one attention.

# %%
d = 512
print("     n      n² d       n d²   steps from end to end: attention, recurrence")
for n in (32, 128, 512, 2048):
    print(f"{n:6} {n * n * d:10.1e} {n * d * d:10.1e} {1:12} {n:11}")

# %% [markdown]
# ## 5.1 Batches → `data/batches.py`
#
# *"Sentence pairs were batched together by approximate sequence length."* The reason: a
# row that is shorter than its batch is filled with padding, which costs as much as
# words do. The package's plan depends only on the lengths. Lengths of real text are
# distributed like these:

# %%
lengths = np.clip(rng.lognormal(2.6, 0.5, size=4096).round(), 1, 64)


def padding(order):
    rows = lengths[order].reshape(-1, 64)  # batches of 64
    return 1 - lengths.sum() / (rows.max(axis=1) * 64).sum()


print(f"in any order:    {padding(rng.permutation(4096)):.0%} of all is padding")
print(f"by their length: {padding(np.argsort(lengths)):.0%}")

# %% [markdown]
# ## 5.3 Optimizer → `optim.py`
#
# Adam with $\beta_2 = 0.98$, and a rate that rises for `warmup_steps` and then falls:
# $d_{model}^{-0.5} \cdot \min(s^{-0.5},\; s \cdot warmup^{-1.5})$. Early gradients are
# large and inconsistent; with a high rate, post-norm layers would diverge and never
# recover.

# %%
from transformer_jax import optim

rates = {}
for warmup in (4000, 8000):
    for d_model in (512, 1024):
        config = configs.base(task="translation", model="transformer")
        config.model.d_model, config.optim.warmup_steps = d_model, warmup
        rates[f"d_model {d_model}, warmup {warmup}"] = optim.make_schedule(config)
peak = float(rates["d_model 512, warmup 4000"](3999))
print(f"the base model's highest rate is {peak:.6f} = {(512 * 4000) ** -0.5:.6f}")
figures.schedules(rates, 20_000)

# %% [markdown]
# ## 5.4 Regularization → `losses.py`
#
# **Dropout** is applied to each sublayer's output, before the sum, and to the sum of
# embeddings and positions. **Label smoothing**, $\epsilon = 0.1$: a tenth of the target
# is shared by all wrong words. *"This hurts perplexity, as the model learns to be more
# unsure, but improves accuracy and BLEU."*

# %%
figures.smoothed_target("the a cat dog sat .".split(), truth=2)

# %% [markdown]
# See its effect on an overconfident model. As its margin grows, the plain loss (`nll`)
# keeps falling towards 0; the smoothed loss has a minimum at a finite margin. (The
# package subtracts the constant, so that this minimum is 0.)

# %%
from transformer_jax import losses

for margin in (0.0, 2.0, 4.0, 6.0, 8.0, 12.0, 20.0):
    logits = jnp.zeros((1, 1, 50)).at[..., 3].set(margin)
    sums = losses.cross_entropy(logits, jnp.array([[3]]), jnp.ones((1, 1)), 0.1, 50)
    print(
        f"margin {margin:4}: nll {sums.metrics['nll']:.4f}   smoothed {sums.loss:.4f}"
    )

# %% [markdown]
# The minimum is where the model's probabilities equal the target, 0.9 for the truth: a
# margin of $\ln(0.9 \cdot 49 / 0.1) = 6.1$.
#
# ## 6.1 Averages and beams → `training/scoring.py`, `decoding/searches/beam.py`
#
# *"For the base models, we used a single model obtained by averaging the last 5
# checkpoints"*, *"beam search with a beam size of 4 and length penalty α = 0.6"*. A
# longer answer has a lower probability, as each token multiplies it by less than 1. The
# penalty divides the log-probability by $((5 + |y|) / 6)^\alpha$, so that long
# answers have a chance. (The notebook `decoding` shows what else searches get wrong.)

# %%
for log_prob, length in ((-3.0, 5), (-3.6, 10)):
    row = [log_prob / ((5 + length) / 6) ** alpha for alpha in (0.0, 0.6, 1.0)]
    print(f"log p {log_prob} of {length:2} tokens: α = 0, 0.6, 1 →", np.round(row, 2))

# %% [markdown]
# Without the penalty the short answer wins; with 0.6 the long one does.
#
# ## 6.2 Sizes (Table 3) → `models/transformer_config.py`
#
# The defaults of `TransformerConfig` are the base model. Shapes can be counted without
# making the arrays. The paper gives 65 million parameters for *base* and 213 for *big*.

# %%
from transformer_jax.models import Seq2Seq, TransformerConfig

sizes = {
    "base": {},
    "(B) d_k = 16": {"d_k": 16},
    "(C) N = 2": {"encoder_layers": 2, "decoder_layers": 2},
    "(C) d_ff = 4096": {"d_ff": 4096},
    "big": {"d_model": 1024, "d_ff": 4096, "num_heads": 16},
}
one = jnp.zeros((1, 1), int)
for name, changes in sizes.items():
    model = Seq2Seq(TransformerConfig(vocab_size=37_000, **changes))
    shapes = jax.eval_shape(model.init, jax.random.key(0), one, one)
    print(f"{name:16} {count(shapes) / 1e6:6.1f} million")

# %% [markdown]
# The paper's vocabulary is *about* 37 000, and its counts are rounded.
# `docs/deviations.md` lists the other deviations from the paper, with reasons.
#
# ## What to change next
#
# - In 3.1, use `order="pre"` ten times in a row: what happens to the standard
#   deviation? That is why a pre-norm stack ends with one more norm.
# - In 3.2.3, remove the mask, and look at the triangle.
# - In 6.2, find rows of Table 3 for which the paper gives different counts. There is
#   also `d_v`.
# - Read on: `models/transformer.py` combines everything in 200 lines.
