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
# # Decoding: from probabilities to an answer
#
# A trained Transformer does not write by itself. For any beginning, it gives the
# probability of each next token. A **search** decides what to write, and each kind of
# search goes wrong in its own way:
#
# | search | takes | goes wrong by |
# |---|---|---|
# | greedy | the likeliest next token | taking a good first step in a bad direction |
# | beam | the likeliest answer of the few it keeps | preferring short answers |
# | sampling | a random token | writing things that no one would write |
#
# First a toy with five numbers, then a translator that trains in two minutes on a CPU.

# %% tags=["install"]
# In the notebook, first_cell.py stands here.

# %% [markdown]
# ## 1. A garden path
#
# This model has two steps and three words. Starting with *a* is likelier than starting
# with *the*; but after *a* the model has no preference, and after *the* it is certain.

# %%
import itertools

import numpy as np

WORDS = ("a", "the", "dog")
first = np.array([0.5, 0.4, 0.1])
then = np.array(  # a row for each first word
    [
        [0.3, 0.3, 0.4],
        [0.05, 0.05, 0.9],
        [0.4, 0.4, 0.2],
    ]
)

answers = {
    (i, j): first[i] * then[i, j] for i, j in itertools.product(range(3), repeat=2)
}
for (i, j), chance in sorted(answers.items(), key=lambda item: -item[1])[:4]:
    print(
        f"{WORDS[i]:3} {WORDS[j]:3}  {first[i]:.2f} × {then[i, j]:.2f} = {chance:.3f}"
    )

# %% [markdown]
# **Greedy** search begins with *a*, and cannot go back: it ends at 0.2, but the best
# answer has 0.36. A **beam** of 2 keeps both beginnings for one more step, and finds
# the best answer.


# %%
def search(width):
    kept = sorted(range(3), key=lambda i: -first[i])[:width]
    return max(((i, j) for i in kept for j in range(3)), key=answers.get)


for width in (1, 2, 3):
    i, j = search(width)
    print(f"beam of {width}: {WORDS[i]} {WORDS[j]}, {answers[i, j]:.2f}")

# %% [markdown]
# Here one could try all 3² answers. With 2000 tokens and 20 steps there are $2000^{20}
# = 10^{66}$, so the best answer is unknown, and a beam is a bet that it does not have
# an unlikely beginning.
#
# ## 2. A translator that is not too good
#
# The data are the package's phrasebook, Portuguese to English, and training stops
# early, because a perfect model would hide the effects of the search.

# %%
import os

import transformer_jax
from transformer_jax import config as configs
from transformer_jax.train import train

is_small = bool(os.environ.get("TRANSFORMER_JAX_NOTEBOOK_SMALL"))
steps = "10" if is_small else "450"
changes = {
    "train.steps": steps,
    "optim.warmup_steps": "5" if is_small else "150",
    "eval.every": steps,
    "eval.answers": "100",
    "eval.splits": "test",
    "checkpoint.every": steps,
    "checkpoint.average": "1",
    "data.shapes": "3",
}
if is_small:
    changes |= {
        "data.train_size": "300",
        "data.validation_size": "2",
        "data.test_size": "4",
        "data.shapes": "1",
        "model.d_model": "32",
        "model.d_ff": "64",
        "eval.answers": "1",
        "eval.samples": "1",
        "decode.extra_length": "4",
    }
workdir = "runs/decoding_small" if is_small else "runs/decoding"
exit_code = train(configs.load("quickstart", changes), workdir)
assert exit_code == 0, f"the training ended with exit code {exit_code}"

run = transformer_jax.load(workdir)
limit = 4 if is_small else 50

# %% [markdown]
# ## 3. A beam as a tree
#
# The tree shows everything that the search considered for one sentence, with the
# probability of each token given the tokens before it. Coloured branches were kept;
# dotted branches were discarded at once. If the model is certain (0.99), a beam makes
# no difference; it helps if two continuations are about equally likely.

# %%
# %matplotlib inline
from transformer_jax.visualize import figures
from transformer_jax.visualize.figures import beams

sentence = "A menina não leu o livro vermelho ontem."
tree = beams.search(run, sentence, beams=3, extra_length=limit)
figures.beam_tree(tree, steps=7)

# %% [markdown]
# ## 4. Wider is likelier. Is it better?
#
# Here are 100 test sentences, translated greedily and with a beam, without length
# penalty. The search maximises `log p` (shown as the mean over the sentences), but what
# we want is a high BLEU.

# %%
import sacrebleu

records = [run.records("test")[i] for i in range(4 if is_small else 100)]
sources = [record["source"] for record in records]
references = [record["target"] for record in records]


def judge(name, written):
    log_prob = np.mean(run.score(sources, written))
    words = np.mean([len(text.split()) for text in written])
    bleu = sacrebleu.corpus_bleu(written, [references]).score
    print(f"{name:22} log p {log_prob:7.2f}   words {words:5.2f}   BLEU {bleu:5.1f}")


found = {}
for width in (1, 4):
    found[width] = run.predict(sources, beams=width, alpha=0.0, extra_length=limit)
    judge(f"beam of {width}", found[width])
judge("the references", references)

# %% [markdown]
# In our run (on two CPU cores; yours may differ) the search does its job, but that does
# not help: from greedy to a beam of 4, log p rises from -2.69 to -2.58, while the
# answers lose a fifth of a word and BLEU falls from 88.0 to 86.6. The likeliest answer
# of this model is not its best.
#
# Because the model can also score a translation that it did not find, we can
# distinguish two kinds of mistakes. If the reference is **likelier** than the answer,
# the search missed it. This is a *search error*, and a wider beam helps. If the
# reference is **less** likely, the model prefers a wrong answer. This is a *model
# error*, and no search will help; the model needs more training.

# %%
for width, written in found.items():
    own, given = run.score(sources, written), run.score(sources, references)
    wrong = [i for i, text in enumerate(written) if text != references[i]]
    missed = sum(given[i] > own[i] + 1e-3 for i in wrong)
    print(
        f"beam of {width:2}: {len(wrong):3} of {len(written)} are not the reference,"
        f" {missed} by the search, {len(wrong) - missed} by the model"
    )

# %% [markdown]
# Of our 30 wrong answers of greedy search, one was a search error, and none of the 33
# of the beam of 4, whose answer is always likelier than the reference. All remaining
# errors are model errors.
#
# ## 5. Beams prefer short answers
#
# Each token multiplies the probability by less than 1, so a beam tends to stop early.
# The length penalty divides $\log p$ by $((5 + |y|) / 6)^\alpha$. If it is too strong,
# answers become too long.

# %%
for alpha in (-2.0, 0.6):
    written = run.predict(sources, beams=4, alpha=alpha, extra_length=limit)
    judge(f"alpha {alpha}", written)

# %% [markdown]
# With α = -2 answers lose two more words and 25 points of BLEU; the paper's 0.6 brings
# back most of the lost length. On real text with beams of 100 and no
# penalty, the likeliest "translation" is often the empty one (Stahlberg and Byrne
# 2019).
#
# ## 6. Sampling
#
# Sampling takes each token with its probability. It is right for stories and
# conversations, where the likeliest answer is dull, and wrong for translation, where
# one unlucky draw spoils a sentence. **Temperature** divides the logits: below 1 likely
# tokens become likelier, and towards 0 it becomes greedy search. `top_p` draws only
# from the smallest set of tokens with this share of the probability. It cuts off the
# long tail of thousands of tokens that are unlikely individually but not together.

# %%
options = {"sample": True, "extra_length": limit}
settings = {
    "temperature 0.3": {"temperature": 0.3},
    "temperature 1": {},
    "temperature 1, top_p 0.8": {"top_p": 0.8},
    "temperature 2": {"temperature": 2.0},
}
for name, setting in settings.items():
    drawn = [run.predict(sentence, seed=s, **options, **setting) for s in range(5)]
    print(f"{name}: {len(set(drawn))} different texts of {len(drawn)}")
    for text in sorted(set(drawn), key=drawn.index)[:3]:
        print(f"    {text[:90]}")

# %%
judge("temperature 1", run.predict(sources, **options))
judge("greedy", found[1])

# %% [markdown]
# At temperature 1, our five texts were all different, most with stray words: *The
# esperamos vermelhos cameras did not …*. None of the 2000 tokens is likely to be drawn
# by mistake, but together the wrong ones have a few per cent of the probability at each
# of ten steps. Part of that was learned: label smoothing, 0.1 in this training, asks
# the model to reserve a tenth for the wrong tokens. `top_p=0.8` cuts the tail off; at
# temperature 2 the tail has nearly all of the probability.
#
# ## What to change next
#
# - `"train.steps": "1400"` and another `workdir`: the full quickstart. Which
#   differences of section 4 remain?
# - In section 1, find numbers for which a beam of 2 also fails.
# - Sections 4 and 5 with `n_best=3`: `run.replies(sources, n_best=3)` returns the other
#   hypotheses, `.others`, of each reply. How often is the reference among them?
# - `python -m transformer_jax.visualize view --workdir runs/decoding --text "…"
#   --output search.html` makes a page that goes through a search step by step.
