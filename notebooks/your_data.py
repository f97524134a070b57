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
# # Your own data: from two files to a translator
#
# This notebook takes a file of sentence pairs with typical mistakes. It finds the
# mistakes, writes a config, trains, and scores the result. To use your own file,
# replace the first cell, which writes the file; the rest stays the same.
#
# The pairs here are Portuguese and English sentences from the package's grammar,
# because a notebook should not need a download. Training takes about two minutes on a
# CPU. Such a small model, trained on 4 000 sentences from a grammar, learns only that
# grammar and no other Portuguese.

# %% tags=["install"]
# In the notebook, first_cell.py stands here.

# %% [markdown]
# ## 1. The file
#
# There is one pair per line, with a tab between the sides. We add typical mistakes of
# real files: some lines were never translated, some appear twice, and some went through
# the wrong encoding.

# %%
import os
import pathlib

from transformer_jax import config as configs
from transformer_jax.tasks import translation

is_small = bool(os.environ.get("TRANSFORMER_JAX_NOTEBOOK_SMALL"))
sizes = {"train": 300 if is_small else 4000, "validation": 40, "test": 40}
grammar = configs.load(
    "quickstart", {f"data.{split}_size": str(n) for split, n in sizes.items()}
)
folder = pathlib.Path("my_data")
folder.mkdir(exist_ok=True)


def write(split, lines):
    (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


pairs = {
    split: [
        f"{r['source']}\t{r['target']}" for r in translation.source(grammar).read(split)
    ]
    for split in sizes
}
spoilt = list(pairs["train"])
for i in range(0, len(spoilt), 40):
    source, target = spoilt[i].split("\t")
    spoilt[i] = f"{source}\t{source}"  # never translated
for i in range(7, len(spoilt), 50):
    spoilt[i] = spoilt[i - 1]  # twice
for i in range(11, len(spoilt), 60):
    spoilt[i] = spoilt[i].encode().decode("latin-1")  # read in the wrong encoding
write("train", spoilt)
write("validation", pairs["validation"])
write("test", pairs["test"])
print(*spoilt[5:13], sep="\n")

# %% [markdown]
# ## 2. A config
#
# A config file lists the differences from the defaults. These lines would be the
# complete `mine.py`:
#
# ```python
# from transformer_jax import config
#
# def get_config():
#     c = config.base()
#     c.data.source = "tsv"
#     c.data.folder = "my_data"
#     c.data.train_files = "train.tsv"
#     ...
#     return c
# ```
#
# Here the same options are set on top of a small model's config. Every option, its
# default and its meaning are listed by `python -m transformer_jax keys quickstart`.

# %%
keys = {
    "data.source": "tsv",
    "data.folder": str(folder),
    "data.train_files": "train.tsv",
    "data.validation_files": "validation.tsv",
    "data.test_files": "test.tsv",
    "tokenizer.vocab_size": "600",
    "model.encoder_layers": "1",
    "model.decoder_layers": "1",
    "train.steps": "20" if is_small else "600",
    "optim.warmup_steps": "10" if is_small else "200",
    "eval.every": "20" if is_small else "200",
    "eval.splits": "test",
    "eval.samples": "2",
    "checkpoint.every": "20" if is_small else "200",
    "checkpoint.average": "1",
}
if is_small:
    keys |= {"model.d_model": "32", "model.d_ff": "64", "data.shapes": "1"}
    keys |= {"decode.beams": "1", "decode.extra_length": "4"}
config = configs.load("quickstart", keys)

# %% [markdown]
# ## 3. Look before you train
#
# `inspect_data` reads the text once and reports common problems. It exits with 1 if a
# problem is serious. On the command line it is
#
# ```
# python -m transformer_jax.inspect_data --config mine.py
# ```

# %%
import subprocess
import sys


def run_command(module, *options):
    command = [sys.executable, "-m", f"transformer_jax.{module}", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stdout + done.stderr)
    return done.returncode


flags = [f"--config.{key}={value}" for key, value in keys.items()]
exit_code = run_command("inspect_data", "--config=quickstart", *flags)

# %% [markdown]
# All three mistakes are reported, with their share and an example. The package can
# handle some of them: `filter.identical` drops pairs with equal sides, and
# `filter.duplicates` drops all but the first of several equal pairs. You must fix an
# encoding in the file, because only you know what it was.
#
# Odd data are only reported. Data that cannot be read are an error, which names the
# file and the line, before any time is spent:

# %%
write("train", [*spoilt[:20], "a line without a tab", *spoilt[20:]])
assert run_command("inspect_data", "--config=quickstart", *flags) == 2

# %%
mended = [
    line.encode("latin-1").decode() if "Ã" in line else line  # what was done, undone
    for line in spoilt
]
write("train", mended)
keys |= {"filter.identical": "true", "filter.duplicates": "true"}
config = configs.load("quickstart", keys)

# %% [markdown]
# ## 4. Train
#
# The header counts the pairs that are left out, by reason. The run directory contains
# everything that the model needs: its config, tokenizer and parameters.

# %%
from transformer_jax.train import train

workdir = "runs/my_data_small" if is_small else "runs/my_data"
assert train(config, workdir) == 0

# %%
import json

ledger = json.loads((pathlib.Path(workdir) / "ledger.json").read_text())
for reason, about in ledger["train"]["left_out"].items():
    print(f"{about['count']} {reason}, such as {about['examples'][0]['where']}")

# %% [markdown]
# ## 5. Use it
#
# Judge the model by the test split and by your own sentences. `result.json` contains
# BLEU, with the signature that others need to reproduce it.

# %%
import transformer_jax

run = transformer_jax.load(workdir)
sentences = ["O gato dorme.", "A menina lê um livro.", "A inflação subiu em março."]
for sentence, answer in zip(sentences, run.predict(sentences), strict=True):
    print(f"{sentence}\n    {answer}")

result = json.loads((pathlib.Path(workdir) / "result.json").read_text())
scores = result["scores"]["test"]
print(f"BLEU {scores['bleu']:.2f}  ({scores['bleu_signature']})")

# %% [markdown]
# The last sentence is not from the grammar: a model trained on 4 000 sentences does not
# know its words, but answers anyway. Look at such answers before anyone relies on them.
# The scores of each answer, its alignment and its attention help: `run.replies`,
# `predict --alignment`, and the notebook *attention*.
#
# To share the model, make a bundle: a folder without checkpoints, which contains no
# program and is checked when it is opened.

# %%
run_command("convert.bundle", f"--workdir={workdir}", "--output=my_bundle")
transformer_jax.load("my_bundle").predict(["O gato dorme."])

# %% [markdown]
# ## What to change next
#
# - Put your own file into `my_data/`, and set `data.source_column` and
#   `data.target_column` if it has more than two columns.
# - JSON lines, two plain text files, and TensorFlow Datasets are read as well:
#   `data.source` is `jsonl`, `text` or `tfds`.
# - Several directions in one model: `data.train_tags`.
# - More data need a larger vocabulary (8 000 to 32 000), more layers and more steps:
#   start from `configs/multi30k.py` (29 000 pairs) or `configs/ted.py`.
# - Start from an existing model: `train.initial`.
