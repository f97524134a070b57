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
# # Scaling laws
#
# How good will a larger model be? Training it is the expensive way to find out. The
# loss of language models falls so regularly with their size and with the text they
# read (Hestness et al. 2017, Kaplan et al. 2020, Hoffmann et al. 2022) that small
# models foretell it:
#
# $$L(N, D) = E + \frac{A}{N^{\alpha}} + \frac{B}{D^{\beta}}$$
#
# $N$ counts the parameters and $D$ the characters that were read. $E$ is what no model
# can do away with: the next character of a text is not certain.
#
# This notebook trains ten small models, fits the law, and then trains an eleventh,
# larger model that the fit has not seen. The text must be real, because generated
# sentences are too regular for a power law, and it must be on every machine: it is the
# source code of Python's standard library.

# %% tags=["install"]
# In the notebook, first_cell.py stands here.

# %% [markdown]
# ## 1. The text
#
# Every twentieth file is kept for validation.

# %%
import contextlib
import io
import json
import os
import pathlib
import sysconfig

import numpy as np
from scipy.optimize import least_squares

from transformer_jax import config as configs
from transformer_jax.train import train

is_small = bool(os.environ.get("TRANSFORMER_JAX_NOTEBOOK_SMALL"))
files = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))
folder = pathlib.Path("runs/scaling_laws" + "_small" * is_small)
folder.mkdir(parents=True, exist_ok=True)
for name, some in {
    "validation": files[::20],
    "train": [file for i, file in enumerate(files) if i % 20],
}.items():
    text = "\n".join(file.read_text(encoding="utf-8") for file in some)
    text = text[:20_000] if is_small else text
    (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    print(f"{name}: {len(some)} files, {len(text):,} characters")

# %% [markdown]
# ## 2. A model of each size
#
# All models have two layers, heads of 16 dimensions and the same text, in the same
# order. Only the width differs, and the number of updates. No text is read twice, so
# that the loss tells how much was learned and not how much was remembered. The rate of
# Muon falls with the root of the width, as `docs/scaling.md` found for larger models.

# %%
LAYERS, CHARACTERS = 2, 4096  # of an update


def learn(width, updates):
    """Return the loss of the validation text, in nats a character."""
    rate = 0.05 * (32 / width) ** 0.5  # a wider model needs a lower one
    if is_small:
        updates = max(updates // 100, 2)
    changes = {
        "data.folder": folder,
        "data.train_text": "train.txt",
        "data.validation_text": "validation.txt",
        "data.stride": 256,
        "data.batch_tokens": CHARACTERS,
        "model.decoder_layers": LAYERS,
        "model.d_model": width,
        "model.d_ff": 4 * width,
        "model.num_heads": width // 16,
        "model.dropout_embedding": 0.0,
        "model.dropout_residual": 0.0,
        "optim.constant": rate,
        "optim.warmup_steps": max(updates // 10, 1),
        "train.steps": updates,
        "eval.every": updates,
        "eval.answers": 1,
        "eval.samples": 0,
        "eval.splits": (),
        "checkpoint.every": updates,
    }
    run = folder / f"width_{width}_updates_{updates}"
    config = configs.load(
        "language:shakespeare", {key: str(value) for key, value in changes.items()}
    )
    with contextlib.redirect_stdout(io.StringIO()):  # eleven logs would be too many
        assert train(config, str(run)) == 0
    lines = (run / "metrics.jsonl").read_text().splitlines()
    scores = [x for x in map(json.loads, lines) if x["kind"] == "validation"]
    return scores[-1]["loss"]


def count(width):
    """Count the parameters of the layers, without the table of characters."""
    return 12 * LAYERS * width**2


points = []  # (parameters, characters, loss)
for width, updates in [
    *((width, 200) for width in (16, 32, 48, 64, 96)),
    *((width, 100) for width in (16, 32, 64)),
    *((width, 50) for width in (32, 64)),
]:
    loss = learn(width, updates)
    points.append((count(width), CHARACTERS * updates, loss))
    print(f"width {width:3}  {updates:3} updates  {loss:.4f} nats a character")

# %% [markdown]
# ## 3. The fit
#
# Five numbers are sought, from ten losses. The differences are taken between
# logarithms, so that all sizes count alike, and as $A$ and $B$ are of the order of
# $N^\alpha$ and $D^\beta$, their logarithms are sought.


# %%
def law(numbers, parameters, characters):
    least, a_log, a, b_log, b = numbers
    return least + np.exp(a_log) * parameters**-a + np.exp(b_log) * characters**-b


def fit(points):
    parameters, characters, losses = np.array(points).T
    found = least_squares(
        lambda n: np.log(law(n, parameters, characters)) - np.log(losses),
        x0=(0.3 * losses.min(), 3.0, 0.4, 5.0, 0.4),
        bounds=((0, -30, 0.01, -30, 0.01), (losses.min(), 60, 3, 60, 3)),
    )
    return found.x


numbers = fit(points)
least, a_log, a, b_log, b = numbers
print(
    f"loss = {least:.3f} + {np.exp(a_log):.3g} / N^{a:.2f} "
    f"+ {np.exp(b_log):.3g} / D^{b:.2f}"
)
for parameters, characters, loss in points:
    print(
        f"{parameters:7,} parameters  {characters:7,} characters  "
        f"{loss:.4f}, by the law {law(numbers, parameters, characters):.4f}"
    )

# %% [markdown]
# ## 4. The forecast
#
# Now a model with more parameters than any of these. First the forecast, then the
# training. The interval comes from fits to nine of the ten points, each of which is
# left out once: if one point can change the forecast much, it is worth little.

# %%
WIDTH, UPDATES = 160, 200
size = count(WIDTH), CHARACTERS * UPDATES
forecast = law(numbers, *size)
others = [law(fit(points[:i] + points[i + 1 :]), *size) for i in range(len(points))]
print(
    f"{size[0]:,} parameters: forecast {forecast:.4f} "
    f"({min(others):.4f} to {max(others):.4f} with a point left out)"
)

# %%
measured = learn(WIDTH, UPDATES)
print(f"measured {measured:.4f}, {measured - forecast:+.4f} from the forecast")

# %%
# %matplotlib inline
from matplotlib.figure import Figure


def draw_law(numbers, points, later):
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    curve = np.geomspace(points[0][0], later[0], 50)
    texts = sorted({characters for _, characters, _ in points}, reverse=True)
    for color, text in zip(("#0072B2", "#D55E00", "#009E73"), texts, strict=True):
        some = [(n, loss) for n, d, loss in points if d == text]
        axes.plot(curve, law(numbers, curve, text), color=color)
        label = f"{text:,} characters"
        axes.plot(*zip(*some, strict=True), "o", color=color, label=label)
    axes.plot(later[0], later[2], "o", color="#0072B2", mfc="white", label="not fitted")
    axes.set_xscale("log")
    axes.set(xlabel="parameters of the layers", ylabel="nats a character")
    axes.legend(frameon=False)
    return figure


draw_law(numbers, points, (*size, measured))

# %% [markdown]
# ## 5. How large, for how long?
#
# A training costs about $6 N D$ operations. For a given cost, the law says which size
# is best: a smaller model would learn too little from each character, and a larger one
# would read too few.

# %%
for cost in (1e11, 1e12, 1e13):
    sizes = np.geomspace(1e3, 1e8, 500)
    losses = law(numbers, sizes, cost / (6 * sizes))
    best = sizes[losses.argmin()]
    print(
        f"{cost:.0e} operations: {best:11,.0f} parameters, "
        f"{cost / (6 * best):12,.0f} characters, {losses.min():.3f} nats"
    )

# %% [markdown]
# These texts are longer than any that was measured, the last one 28 times: a law of
# five numbers from ten points foretells a model a few times larger, and what it says
# beyond that is a guess. The exponents also depend on the text, the optimizer and the
# rates. `docs/scaling.md` has 24 larger models and the interval of each number.
#
# ## What to change next
#
# - Leave the widest model out of `points`. How far off is the forecast then?
# - Train with Adam (`"optim.name": "adam"`). Which numbers of the law change?
# - Use the same rate for all widths. What happens to the curve at its right end?
