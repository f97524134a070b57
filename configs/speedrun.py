"""Recipes of the speedruns: a fixed score from fixed data in the least time.

    python benchmarks/speedrun.py quickstart
    python -m transformer_jax.train --config configs/speedrun.py:quickstart \\
        --workdir runs/speedrun

Each variant trains the model of another config until its score is reached:
multi30k (German→English, 39.0 BLEU on test_2016), shakespeare (1.47 nats a character),
quickstart (99 BLEU) and sst2 (78 % of dev). What differs from the other config is all
here. docs/speedrun.md has the rules, the records of three seeds and what was tried:
multi30k 18.4 minutes, shakespeare 3.6, quickstart 2.2, sst2 0.9.
"""

from transformer_jax import config as configs
from transformer_jax.base.errors import UserError

ORIGINS = {
    "multi30k": "multi30k:muon_de_en",
    "shakespeare": "language:shakespeare",
    "quickstart": "quickstart",
    "sst2": "sst2",
}
VARIANTS = tuple(ORIGINS)


def get_config(variant="quickstart"):
    if variant not in ORIGINS:
        raise UserError(
            f"speedrun.py has no variant {variant!r}: choose {', '.join(ORIGINS)}"
        )
    config = configs.load(ORIGINS[variant], data=False)
    config.unlock()
    config.targets = ("cpu",)
    if variant == "sst2":
        return config

    # Muon learns from each update more than Adam does, and the rate falls to 0.
    config.optim.name = "muon"
    config.optim.schedule = "linear"
    config.eval.weights = "last"
    config.eval.splits = ("validation",) if variant == "shakespeare" else ("test",)
    if variant == "quickstart":
        config.data.batching = "packed"  # one shape to compile, and little padding
        config.data.pack_length = 68
        config.train.steps = 700
        config.optim.constant = 0.005
        config.optim.warmup_steps = 70
        config.eval.every = 700
        config.checkpoint.every = 350
    if variant == "shakespeare":
        # The text is read 2.4 times, too seldom to be memorised.
        config.model.dropout_embedding = 0.0
        config.model.dropout_residual = 0.0
        config.model.activation = "relu2"
        config.train.steps = 600
        config.eval.every = 600
        config.checkpoint.every = 300
    if variant == "multi30k":
        # Each pair is read 6 times, too seldom to be memorised.
        config.model.dropout_embedding = 0.1
        config.model.dropout_residual = 0.1
        config.train.steps = 700
        config.optim.warmup_steps = 70
        config.eval.every = 700
        config.checkpoint.every = 350
    return config
