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
# # From scratch: the Transformer in one page of JAX
#
# The complete encoder-decoder Transformer of
# [*Attention Is All You Need*](https://arxiv.org/abs/1706.03762), written as functions
# of arrays: no classes, no framework, one cell of code. Then comes the proof that it is
# correct: given the parameters of the package's `Seq2Seq`, it computes the same logits
# and the same gradients. At the end it learns a small task. Everything takes about a
# minute on a CPU.
#
# Read the page first, from bottom to top if you like: `transformer` is the model, and
# everything above it is a part of it.

# %% tags=["install"]
# In the notebook, first_cell.py stands here.

# %% [markdown]
# ## The page
#
# The parameters are a nested dictionary, `p`. Shapes are in the comments: `B`
# sentences, `T` and `S` words of the target and the source, `D` the width of the model,
# `N` heads.

# %%
import jax
import jax.numpy as jnp


def dense(p, x):
    return x @ p["kernel"] + p["bias"]


def layer_norm(p, x):
    x = x - x.mean(-1, keepdims=True)
    x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return x * p["scale"] + p["bias"]


def positions(length, size):  # → [T, D]: sines and cosines in turn (3.5)
    rates = 10_000 ** (-jnp.arange(0, size, 2) / size)
    angles = jnp.arange(length)[:, None] * rates
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(length, size)


def attention(p, x, memory, mask, heads):  # x [B, T, D] looks at memory [B, S, D] (3.2)
    def split(y):  # [B, T, D] → [B, N, T, D / N]
        return y.reshape(*y.shape[:2], heads, -1).swapaxes(1, 2)

    q = split(dense(p["query"], x))
    k, v = split(dense(p["key"], memory)), split(dense(p["value"], memory))
    scores = q @ k.swapaxes(2, 3) / jnp.sqrt(q.shape[-1])  # [B, N, T, S]
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30))
    attended = (weights @ v).swapaxes(1, 2).reshape(x.shape)  # heads side by side
    return dense(p["out"], attended)


def feed_forward(p, x):  # each word by itself (3.3)
    return dense(p["outer"], jax.nn.relu(dense(p["inner"], x)))


def layer(p, x, mask, heads, memory=None, memory_mask=None):
    """Add each sublayer's result to its input, and norm the sum (3.1)."""
    y = attention(p["self_attention"], x, x, mask, heads)
    x = layer_norm(p["self_attention_norm"], x + y)
    if memory is not None:
        y = attention(p["cross_attention"], x, memory, memory_mask, heads)
        x = layer_norm(p["cross_attention_norm"], x + y)
    return layer_norm(p["feed_forward_norm"], x + feed_forward(p["feed_forward"], x))


def embed(table, tokens):  # (3.4)
    size = table.shape[1]
    return table[tokens] * jnp.sqrt(size) + positions(tokens.shape[1], size)


def transformer(p, source, target, heads):
    """Return logits [B, T, V]: what follows each token of the target; 0 is padding."""
    table = p["embedding"]["embedding"]
    seen = (source != 0)[:, None, None, :]  # no one looks at padding
    past = jnp.tril(jnp.ones((target.shape[1],) * 2, bool))  # nor at what follows
    x, y = embed(table, source), embed(table, target)
    for name in sorted(p["encoder"]):
        x = layer(p["encoder"][name], x, seen, heads)
    for name in sorted(p["decoder"]):
        y = layer(p["decoder"][name], y, past, heads, x, seen)
    return y @ table.T  # the table is the output layer, too


# %% [markdown]
# *Not* included are dropout, search, checkpoints, several devices, variants and speed.
# Most of the package deals with these; the model itself is one page.
#
# Three things that such pages often get wrong:
#
# - `layer_norm` is *after* the sum (post-norm, as in the paper), and the variance is
#   the mean of squares, not divided by $D - 1$;
# - queries of the cross-attention come from the decoder, keys and values from the
#   encoder's **last** layer;
# - the embeddings are multiplied by $\sqrt D$ before the positions are added, because
#   the same table, with small numbers, is the output layer.
#
# ## The same parameters, the same logits
#
# `Seq2Seq` makes the parameters; the page uses the same names. The batch has two
# sentences of different lengths, so that the padding mask matters.

# %%
import numpy as np

from transformer_jax.models import Seq2Seq, TransformerConfig

config = TransformerConfig(
    vocab_size=24,
    encoder_layers=2,
    decoder_layers=3,
    d_model=32,
    d_ff=64,
    num_heads=4,
    dropout_embedding=0.0,
    dropout_residual=0.0,
)
package = Seq2Seq(config)
source = jnp.array([[3, 7, 21, 5, 4, 9, 2], [8, 6, 11, 2, 0, 0, 0]])
target = jnp.array([[1, 14, 3, 9, 22], [1, 5, 20, 13, 4]])
segments = (source != 0).astype(int)  # how the package marks padding
params = package.init(jax.random.key(0), source, target)["params"]

theirs = package.apply({"params": params}, source, target, segments).logits
ours = transformer(params, source, target, heads=4)
print("logits", ours.shape, "  largest difference", jnp.abs(ours - theirs).max())
np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)

# %% [markdown]
# Initial parameters are special: norms start with scale 1, biases with 0. So let us
# perturb all of them, and also compare gradients, which depend on every path through
# the model.

# %%
leaves, tree = jax.tree.flatten(params)
keys = jax.random.split(jax.random.key(1), len(leaves))
shaken = jax.tree.unflatten(
    tree,
    [
        x + 0.1 * jax.random.normal(k, x.shape)
        for x, k in zip(leaves, keys, strict=True)
    ],
)
theirs = package.apply({"params": shaken}, source, target, segments).logits
ours = transformer(shaken, source, target, heads=4)
np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def surprise(logits):
    return -jax.nn.log_softmax(logits)[..., 7].mean()


by_page = jax.grad(lambda p: surprise(transformer(p, source, target, 4)))(shaken)
by_package = jax.grad(
    lambda p: surprise(package.apply({"params": p}, source, target, segments).logits)
)(shaken)
jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
    by_page,
    by_package,
)
print(f"logits agree to {jnp.abs(ours - theirs).max():.1e};", end=" ")
print(f"{len(leaves)} gradients agree, too")

# %% [markdown]
# A test that two programs agree is only useful if it can fail. Leave the $\sqrt D$ out,
# and it does:

# %%
smaller = {**shaken, "embedding": {"embedding": shaken["embedding"]["embedding"] / 2}}
wrong = transformer(smaller, source, target, heads=4) * 2
print("largest difference", jnp.abs(wrong - theirs).max())
assert jnp.abs(wrong - theirs).max() > 0.01

# %% [markdown]
# ## It learns
#
# The task is to reverse a sequence. To write the first token, the decoder must look at
# the last one, which only cross-attention can provide. The decoder reads the correct
# answer shifted right by one position after a start token, 1: position $t$ has to
# predict token $t$ and has seen tokens $0 … t - 1$.
#
# Adam takes four lines (5.3): running means of the gradient and of its square, each
# corrected for starting at 0, and their quotient.

# %%
import os

START, LENGTH = 1, 6
is_small = bool(os.environ.get("TRANSFORMER_JAX_NOTEBOOK_SMALL"))
steps = 20 if is_small else 400


def draw(key, rows=64):
    source = jax.random.randint(key, (rows, LENGTH), 2, config.vocab_size)
    return source, source[:, ::-1]


def loss_of(p, source, target):
    read = jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=START)
    log_probs = jax.nn.log_softmax(transformer(p, source, read, heads=4))
    return -jnp.take_along_axis(log_probs, target[..., None], axis=-1).mean()


@jax.jit
def train_step(p, mean, square, step, key):
    loss, grad = jax.value_and_grad(loss_of)(p, *draw(key))
    rate = 2e-3 * jnp.minimum(step / 50, 1)  # warmup: early gradients are wild
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grad)
    square = jax.tree.map(lambda s, g: 0.98 * s + 0.02 * g**2, square, grad)

    def update(w, m, s):
        m, s = m / (1 - 0.9**step), s / (1 - 0.98**step)
        return w - rate * m / (jnp.sqrt(s) + 1e-9)

    return jax.tree.map(update, p, mean, square), mean, square, loss


mean = square = jax.tree.map(jnp.zeros_like, params)
trained, losses = params, []
for step in range(1, steps + 1):
    key = jax.random.fold_in(jax.random.key(2), step)
    trained, mean, square, loss = train_step(trained, mean, square, step, key)
    losses.append(float(loss))
    if step % 50 == 0:
        print(f"step {step:4}  loss {loss:.3f}")

# %% [markdown]
# A uniform guess among 22 tokens has a loss of $\ln 22 = 3.1$. The loss falls below 0.1
# once cross-attention has learned the reversal.

# %%
# %matplotlib inline
from matplotlib.figure import Figure

figure = Figure(figsize=(6, 2.6), layout="constrained")
axes = figure.subplots()
axes.plot(range(1, steps + 1), losses)
axes.axhline(np.log(22), color="0.5", linestyle="--", label="guessing")
axes.set(xlabel="step", ylabel="loss, nats", title="Learning to write backwards")
axes.legend(frameon=False)
figure  # noqa: B018

# %% [markdown]
# ## It writes
#
# Now the model does not get the correct beginning. **Greedy search** reads the tokens
# written so far, appends the likeliest next token, and reads again.


# %%
@jax.jit
def next_tokens(p, source, read):
    return transformer(p, source, read, heads=4).argmax(-1)


def translate(p, source):
    read = jnp.full((len(source), LENGTH + 1), START)
    for place in range(LENGTH):
        found = next_tokens(p, source, read)[:, place]
        read = read.at[:, place + 1].set(found)
    return read[:, 1:]


source, target = draw(jax.random.key(3), rows=200)
written = translate(trained, source)
print("read   ", source[0])
print("written", written[0])
accuracy = float((written == target).mean())
print(f"{accuracy:.1%} of 1200 tokens are right")
assert is_small or accuracy > 0.95

# %% [markdown]
# ## Where it looks
#
# The page and the package agree, so the package can inspect the model that the page has
# trained: `Seq2Seq` returns the weights of every head. Reversal shows as an
# anti-diagonal of cross-attention.

# %%
from transformer_jax.visualize import figures

read = jnp.pad(target[:1, :-1], ((0, 0), (1, 0)), constant_values=START)
outputs = package.apply({"params": trained}, source[:1], read)
weights = np.stack([layer[0] for layer in outputs.cross_attention])
figures.attention(
    weights,
    [f"writes {token}" for token in np.asarray(target[0])],
    [str(token) for token in np.asarray(source[0])],
)

# %% [markdown]
# ## What to change next
#
# - Break the page, and see which check fails: leave the mask `past` out (training gets
#   *better*, writing fails: why?), swap `x` and `memory` in the cross-attention, drop
#   the positions.
# - Make it pre-norm: `x + sublayer(layer_norm(x))`, and one more norm at the end of
#   each stack. The package does that with `TransformerConfig(norm="pre")`; compare
#   again.
# - Another task: sort the tokens; add two numbers digit by digit; longer sequences than
#   it was trained on (it will fail: see the notebook `positions`).
# - `translate` reads everything again for each token: six times the work here, fifty
#   times for a sentence of fifty tokens. `transformer_jax/models/cache.py` avoids this.
