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
# # From translation to everything
#
# The Transformer was built to translate. Within three years it wrote texts, classified
# them, parsed them, held conversations and looked at pictures. Little of the model had
# to change: only its inputs, its outputs, and which words may look at which.
#
# | task | reads | writes | which part of the model |
# |---|---|---|---|
# | translation | a sentence | a sentence | encoder and decoder |
# | conversation | the previous turns | the reply | the same |
# | parsing | a sentence | its tree, as brackets | the same |
# | language model | nothing | a text | the decoder alone |
# | classification | a text | a label | the encoder alone, with one linear layer |
# | images | patches for words | a label | the same |
#
# In this package each of these is a *task*: a file in `tasks/` that defines the
# examples, the loss and the scoring of answers. The training loop, the search and
# `predict` know no details of any task. Below, one function trains five small models,
# in about five minutes on a CPU; the quickstart notebook has the sixth.

# %% tags=["install"]
# In the notebook, first_cell.py stands here.

# %% [markdown]
# ## 1. One function for all
#
# A config is one page of differences from `base(task=…)`. The models here are smaller
# than those of the shipped configs and train for a minute or less each, so they make
# more mistakes.

# %%
# %matplotlib inline
import os

import numpy as np

import transformer_jax
from transformer_jax import config as configs
from transformer_jax.train import train
from transformer_jax.visualize import figures

is_small = bool(os.environ.get("TRANSFORMER_JAX_NOTEBOOK_SMALL"))


def learn(name, spec, steps, **more):
    """Train a shipped config for a few steps; return the run."""
    steps = 6 if is_small else steps
    changes = {
        "train.steps": steps,
        "optim.name": "muon",  # gets further than Adam in so few updates
        "optim.schedule": "linear",
        "optim.constant": 0.003,
        "optim.warmup_steps": max(steps // 10, 1),
        "data.validation_size": 50,
        "data.test_size": 100,
        "eval.every": steps,
        "eval.answers": 1 if is_small else 20,
        "eval.samples": 0,
        "checkpoint.every": steps,
        "checkpoint.average": 1,
        "decode.beams": 1,  # greedy answers, which compile faster
        "data.shapes": 1 if is_small else 2,
    } | more
    if is_small:
        changes |= {"data.train_size": 300, "data.test_size": 4, "model.d_model": 32}
        changes |= {"data.validation_size": 4, "decode.extra_length": 4}
    known = dict(configs.items(configs.load(spec, data=False)))
    changes = {key: value for key, value in changes.items() if key in known}
    folder = f"runs/everything_{name}" + "_small" * is_small
    config = configs.load(spec, {key: str(value) for key, value in changes.items()})
    assert train(config, folder) == 0
    return transformer_jax.load(folder)


# %% [markdown]
# ## 2. Conversation is translation
#
# The source is the previous turns, up to three of them; the target is the reply. Not a
# line of the model changes. (Most replies fit because they come from a small grammar;
# outside of it, or after so short a training, the model talks nonsense.)

# %%
chat = learn("chat", "smalltalk", 300, **{"eval.splits": ()})
for line in ("Hi how are you", "What is your name?", "Do you like tea?"):
    print(f"{line:24} → {chat.predict(line)}")

# %% [markdown]
# ## 3. So is parsing
#
# *Grammar as a Foreign Language* (Vinyals et al. 2015; the paper's section 6.3): write
# the tree with brackets, and it becomes a sentence of another language. Here each word
# is the symbol `XX`, and the search is restricted to trees over the given words. So
# every answer is a tree, but after these few updates often not the right one.

# %%
parser = learn(
    "parser",
    "parsing",
    250,
    **{"data.batch_tokens": 2048, "data.train_size": 8000, "eval.splits": ()},
)
for line in ("the old man saw the boat .", "a girl sleeps ."):
    print(f"{line}\n    {parser.predict(line)}")

# %% [markdown]
# ## 4. A decoder alone: the language model
#
# Leave the encoder out, and the decoder predicts each piece of a text from those
# before it. It gets only a beginning. The look-ahead mask that keeps a translator from
# peeking is all that the model needs. It reads generated stories; after so few updates
# it writes their sentences, and forgets whom a story is about.

# %%
writer = learn(
    "writer",
    "language:stories",
    220,
    **{
        "model.decoder_layers": 2,
        "data.batch_tokens": 4480,
        "eval.answers": 4,
        "eval.splits": (),
    },
)
for seed in range(2):
    [reply] = writer.replies(["Once there was a"], seed=seed, max_length=60)
    print(reply.text, end="\n\n")

# %%
maps = writer.attention("The girl wanted to buy a red book for the king.")
figures.attention(maps["decoder"], *maps.tokens["decoder"], layer=1)

# %% [markdown]
# Everything above the diagonal is 0: no piece sees those after it.
#
# ## 5. An encoder alone: the classifier
#
# Leave the decoder out instead. A special token is put before the text, and its final
# state goes through one linear layer. There is no look-ahead mask: every word may look
# at every other, as *"not … bad"* requires.

# %%
judge = learn("judge", "opinions", 500, **{"data.train_size": 20_000})
for line in (
    "the soup was cold and the waiter was rude .",
    "i would not say that the film was boring .",
    "the room is not small , but far from clean .",
):
    print(f"{judge.predict(line):9} {line}")
accuracy = judge.folder.read("result.json")["scores"]["test"]["accuracy"]
print(f"{accuracy:.1%} of the test right")

# %% [markdown]
# ## 6. The same encoder looks at pictures
#
# Cut a picture into patches, multiply each by a matrix, and it is a sentence of vectors
# (Dosovitskiy et al. 2021). The pictures are generated here: rings, crosses and two
# kinds of stripes, shifted and with noise. They are saved in MNIST's file format; your
# own folder of idx files works in the same way.

# %%
import pathlib

KINDS = ("ring", "cross", "lying", "standing")


def draw(count, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count)
    y, x = np.indices((12, 12))
    pictures = np.zeros((count, 12, 12))
    for i, label in enumerate(labels):
        row, column = rng.uniform(4.5, 6.5, 2)
        dy, dx = y - row, x - column
        pictures[i] = (
            abs(np.hypot(dy, dx) - 3.2) < 0.9,
            np.minimum(abs(dy), abs(dx)) < 0.8,
            (y + int(row)) % 4 < 2,
            (x + int(column)) % 4 < 2,
        )[label]
    noisy = 160 * pictures + rng.normal(40, 35, pictures.shape)
    return noisy.clip(0, 255).astype(np.uint8), labels.astype(np.uint8)


def write_idx(path, array):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())


folder = pathlib.Path("my_pictures")
folder.mkdir(exist_ok=True)
for split, count in (("train", 80 if is_small else 1500), ("test", 200)):
    pictures, labels = draw(count, seed=len(split))
    write_idx(folder / f"{split}_images", pictures)
    write_idx(folder / f"{split}_labels", labels)

keys = {
    f"data.{s}_{w}": f"{s}_{w}" for s in ("train", "test") for w in ("images", "labels")
}
eyes = learn(
    "eyes",
    "images",
    200,
    **keys,
    **{
        "data.source": "idx",
        "data.folder": folder,
        "data.validation_size": 20,
        "model.patch": 3,
        "model.encoder_layers": 2,
    },
)
accuracy = eyes.folder.read("result.json")["scores"]["test"]["accuracy"]
print(f"{accuracy:.1%} of the test right, of {', '.join(KINDS)}")

# %% [markdown]
# The attention of the class token over one picture's patches, for each head:

# %%
first = eyes.records("test")[0]["image"]
maps = eyes.attention(first)
figures.patches(maps["encoder"], maps.picture, maps.grid)

# %% [markdown]
# ## What they share
#
# Count the parameters and see where they are. All five use the same modules for the
# layers of encoder and decoder; only the ends differ.

# %%
import jax

for name, run in {
    "conversation": chat,
    "parsing": parser,
    "language": writer,
    "classification": judge,
    "images": eyes,
}.items():
    sizes = {
        part: sum(x.size for x in jax.tree.leaves(tree))
        for part, tree in run.params.items()
    }
    print(f"{name:15}", "  ".join(f"{part} {size:,}" for part, size in sizes.items()))

# %% [markdown]
# ## What to change next
#
# - Train the shipped configs themselves (`python -m transformer_jax configs` lists
#   them): they reach 98 to 99 %, in 2 to 9 minutes each.
# - `masked` (fill in hidden words), `tagging` (one tag per word) and `coordinates` (a
#   picture from x and y) are missing above: call `learn` with them.
# - Ask `chat` something outside its grammar. What does it do, and what should it do?
# - Your own task is one file: the page *Extending* in the documentation has one that
#   reverses words, in eighty lines.
