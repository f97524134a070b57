"""Decisions: a Transformer that plays CartPole for the return that it is asked for.

    python -m transformer_jax.train --config configs/decisions.py \\
        --workdir runs/cartpole
    echo 500 | python -m transformer_jax.predict --workdir runs/cartpole

Variants: cartpole (a decision transformer, the default), cloning (behaviour cloning:
the same model, which does not read returns) and orchard (apples of a grid world). All
learn from recorded episodes of players of mixed skill, and play none in training.
Measured: cartpole follows the return asked for: with drawn actions it reaches 55.9 if
asked for 50, 304.0 for 300 and 474.9 for 500. cloning reaches 246.3 with drawn actions
and 500.0 with the likeliest (evaluate --greedy), whatever it is asked for. orchard,
asked for 8 apples, picks 4.6 with drawn actions. See results/decisions_*.json.
"""

from transformer_jax.base.errors import UserError
from transformer_jax.config import base

VARIANTS = ("cartpole", "cloning", "orchard")


def get_config(variant="cartpole"):
    config = base(task="decisions", model="transformer")
    if variant not in VARIANTS:
        raise UserError(
            f"decisions.py has no variant {variant!r}: cartpole, cloning or orchard"
        )
    config.model.returns = variant != "cloning"
    config.data.batch_tokens = 20 * 64  # windows of 20 steps
    config.model.decoder_layers = 2
    config.model.d_model = 64
    config.model.d_ff = 256
    config.model.num_heads = 4
    config.train.steps = 1200
    config.optim.schedule = "linear"
    config.optim.constant = 0.001
    config.optim.warmup_steps = 100
    config.eval.every = 600
    config.eval.batch_rows = 600
    config.checkpoint.every = 100
    config.checkpoint.best = "reached"
    if variant == "orchard":
        config.data.source = "orchard"
        config.data.train_size = 4000
        config.data.window = 10
        config.data.asked = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
        config.data.batch_tokens = 10 * 64
    return config
