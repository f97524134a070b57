"""Drawings: pictures of coloured figures from captions, patch by patch.

    python -m transformer_jax.train --config configs/drawings.py --workdir runs/drawings
    echo "a red circle left of a blue square" | python -m transformer_jax.predict \\
        --workdir runs/drawings --pictures pictures

`--pictures` needs the extra `images`. A codebook of 4 × 4 pixels is learned from the
training pictures, and an encoder-decoder writes the 64 codes of a picture. `test` has
captions like those of training, and `test_combinations` figures that are never together
in a training picture.
Measured: 96.0 % of test_combinations right (104 captions of 13 pairs) and 98.8 % of
test, whose captions all occur in training; see results/drawings.json.
"""

from transformer_jax.config import base


def get_config():
    config = base(task="drawings", model="transformer")
    config.data.train_size = 20_000
    config.data.batch_tokens = 65 * 32  # 32 pictures
    config.model.encoder_layers = 1
    config.model.decoder_layers = 3
    config.model.d_model = 96
    config.model.d_ff = 384
    config.model.num_heads = 4
    config.model.norm = "pre"
    # What a patch goes on from is near to it: in its row, or in the row above.
    config.model.positions = "sinusoid+rotary"
    config.model.dropout_embedding = 0.0
    config.model.dropout_residual = 0.0
    config.train.steps = 1800
    config.train.label_smoothing = 0.0
    config.optim.name = "muon"
    config.optim.schedule = "linear"
    config.optim.constant = 0.003
    config.optim.warmup_steps = 100
    config.eval.every = 600
    config.checkpoint.every = 100
    # What is much less likely than the best is a slip, such as a figure too many.
    config.decode.min_p = 0.03
    return config
