"""Coordinates to colour: an MLP paints a picture, from x and y or from waves of them.

    python -m transformer_jax.train --config configs/coordinates.py --workdir runs/waves
    echo "0.25 0.5" | python -m transformer_jax.predict --workdir runs/waves
    python -m transformer_jax.visualize painting runs/waves --output painting.png

Variants: gaussian (random Fourier features), sinusoid (the paper's positions, of column
and row) and raw (x and y as they are). The picture is drawn by code; to use another
one, pass --config.data.source=file --config.data.picture=PATH. Three quarters of its
pixels are for training, the others for scoring.
Measured: gaussian 26.0, sinusoid 31.1, raw 16.1 dB PSNR; see
results/coordinates_*.json.
"""

from transformer_jax.base.errors import UserError
from transformer_jax.config import base

VARIANTS = ("gaussian", "sinusoid", "raw")


def get_config(variant="gaussian"):
    config = base(task="coordinates", model="coordinate_mlp")
    if variant not in VARIANTS:
        raise UserError(
            f"coordinates.py has no variant {variant!r}: gaussian, sinusoid or raw"
        )
    config.model.features = variant
    config.data.batch_tokens = 4096
    config.eval.batch_rows = 4096
    config.train.steps = 1000
    config.optim.schedule = "constant"
    config.optim.constant = 0.001
    config.optim.warmup_steps = 1
    config.log.every = 25
    config.eval.every = 50
    config.checkpoint.every = 50
    return config
