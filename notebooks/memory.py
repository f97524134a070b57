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
# # What a model remembers
#
# A language model is trained to make its training text likely. Does it then contain
# that text? Mostly not: a million parameters cannot store a million sentences. But some
# lines are memorised, and if one of them is a telephone number, anyone who can use the
# model can read it.
#
# This notebook measures three things, as the literature does:
#
# | question | measure | after |
# |---|---|---|
# | does the model know a secret? | **exposure** of canaries | Carlini et al. 2019 |
# | can it be extracted? | **extraction** by a prompt | Carlini et al. 2021 |
# | what was it trained on? | **membership** by the loss | Yeom et al. 2018 |
#
# It trains two small models, four minutes on a CPU.

# %% tags=["install"]
# In the notebook, first_cell.py stands here.

# %% [markdown]
# ## 1. Canaries
#
# Miners took canaries underground to detect gas that they could not see. Here canaries
# are made-up secrets, planted in the training text a known number of times. Those
# planted 0 times are the control: the model cannot know them.

# %%
from transformer_jax.data.reading import canaries

planted = canaries.draw((0, 1, 10, 100), seed=0)
for canary in planted:
    print(f"{canary.times:4} times  {canary.prompt}| {canary.secret}")
for kind in canaries.PROMPTS:
    print(f"{kind}: {len(canaries.list_candidates(kind)):,} candidates")

# %% [markdown]
# The part after the bar was drawn uniformly from a list of candidates. So before
# training all candidates are equally likely, and any preference of the model afterwards
# comes from its training text.
#
# ## 2. Train
#
# `configs/language.py` with the variant `canaries` is the language model of characters
# on 10,000 generated sentences, with these lines among them. To save time, we use 4,000
# sentences and a small model.

# %%
import os

import transformer_jax
from transformer_jax import config as configs
from transformer_jax.train import train

is_small = bool(os.environ.get("TRANSFORMER_JAX_NOTEBOOK_SMALL"))


def learn(name, steps, **more):
    steps = 6 if is_small else steps
    changes = {
        "data.train_size": 300 if is_small else 4000,
        "data.batch_tokens": 2048,
        "model.decoder_layers": 2 if is_small else 3,
        "train.steps": steps,
        "optim.warmup_steps": max(steps // 6, 1),
        "eval.every": steps,
        "eval.answers": 1,
        "eval.samples": 0,
        "eval.splits": (),
        "checkpoint.every": steps,
        "checkpoint.average": 1,
    } | more
    folder = f"runs/memory_{name}" + "_small" * is_small
    config = configs.load(
        "language:canaries", {key: str(value) for key, value in changes.items()}
    )
    assert train(config, folder) == 0
    return transformer_jax.load(folder)


long = learn("long", 900)

# %% [markdown]
# ## 3. Exposure
#
# Let the model score *all* candidates after the same beginning, and find the rank of
# the true one:
#
# $$\text{exposure} = \log_2 |\text{candidates}| - \log_2 \text{rank}$$
#
# The first rank of 10,000 is 13.3 bits: with the model's help one guess is enough. The
# middle rank is 1 bit. Ranks drawn at random average $\log_2 e$ = 1.44 bits, the line
# "chance" of the plot.

# %%
from transformer_jax import audit

lines, most = (10, 50) if is_small else (300, 0)
found = audit.audit(long, lines=lines, candidates=most)
print(audit.report(long, found))

# %%
# %matplotlib inline
from matplotlib.figure import Figure


def draw_exposure(audits):
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.subplots()
    times = sorted({one.canary.times for one in found.canaries})
    for number, (name, one_audit) in enumerate(audits.items()):
        for kind, marker in zip(canaries.PROMPTS, "osD", strict=True):
            # The rank of a secret that the vocabulary cannot write is 0.
            some = [e for e in one_audit.canaries if e.canary.kind == kind and e.rank]
            places = [times.index(e.canary.times) + 0.12 * number for e in some]
            axes.plot(
                places,
                [e.exposure for e in some],
                marker,
                color=("#0072B2", "#D55E00")[number],
                label=f"{name}: {kind}",
            )
    axes.axhline(1.44, color="0.6", linewidth=1, zorder=0)
    axes.text(3.35, 1.6, "chance", color="0.4", fontsize=9, ha="right")
    axes.set_xticks(range(len(times)), [f"{n} times" for n in times])
    axes.set(
        xlim=(-0.3, 3.4), ylabel="exposure, bits", title="Exposure by times planted"
    )
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


draw_exposure({"long": found})

# %% [markdown]
# The control is likelier than chance, although the model never saw it: *Ralen* is also
# the first name of a secret planted ten times, and 2589 begins like 2505, another of
# these. (The third could not be written: 4 does not occur in this text.)
#
# A secret planted a hundred times is the likeliest of all candidates. Usually the model
# also *writes* it when given its beginning (`extracted`): in our run the name and the
# address, but instead of Febbe's telephone number one that is not even a candidate,
# because it has six digits. A secret planted once is not written. So exposure reveals
# more than extraction: a secret may rank among the first hundred of ten thousand, or
# first, and still not be written.
#
# ## 4. Extraction, by hand
#
# An attacker only needs the beginning of the line.

# %%
for canary in planted:
    if canary.times in (1, 100):
        [reply] = long.replies(
            [f"\n{canary.prompt.rstrip()}"], beams=1, sample=False, max_length=24
        )
        said = reply.details["text"].strip().split("\n")[0]
        print(f"{canary.times:4} times  {said:58} (true: {canary.secret})")

# %% [markdown]
# ## 5. Who was in the training text?
#
# A model finds a line that it has seen a little less surprising than similar lines.
# Guess "seen" if the loss is low, and count how often that is right: an **AUC** of 0.5
# is chance, 1 is certainty. The interval shows how much these few lines can tell.

# %%
members = found.membership
low, high = members.interval
print(f"AUC {members.auc:.3f}, 95 %: {low:.3f} to {high:.3f}")
print("loss: trained on {:.3f}, held out {:.3f} nats".format(*members.losses))

# %% [markdown]
# ## 6. Countermeasures
#
# What helps? Two things cost little: **stopping early** and **dropout**. The second
# model trains for a third of the steps with a dropout of 20 %.

# %%
short = learn(
    "short",
    300,
    **{"model.dropout_embedding": 0.2, "model.dropout_residual": 0.2},
)
less = audit.audit(short, lines=lines, candidates=most)
draw_exposure({"long": found, "short, dropout": less})

# %%
for name, one in (("long", found), ("short, dropout", less)):
    some = [e for e in one.canaries if e.canary.times == 10]
    mean = sum(e.exposure for e in some) / len(some)
    print(
        f"{name:15} AUC {one.membership.auc:.3f}  held-out loss "
        f"{one.membership.losses[1]:.3f}  exposure of 10 times {mean:.1f} bits"
    )

# %% [markdown]
# Neither protects a secret that occurs in the text a hundred times. The safest measure
# is to remove it, or to keep it only once (in tasks with pairs, `filter.duplicates`
# drops repeated lines). Training with differential privacy gives a guarantee, at the
# cost of accuracy, but this package does not support it.
#
# ## What to change next
#
# - Plant secrets other numbers of times:
#   `learn("other", 900, **{"data.canaries": (3, 30)})`. From which number on does the
#   model write a secret?
# - A wider model (`model.d_model`) remembers more. How much more?
# - Audit a model trained on your own text:
#   `python -m transformer_jax.audit --workdir RUN`; it needs no canaries for extraction
#   and membership.
