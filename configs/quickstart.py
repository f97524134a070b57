"""Portuguese → English on a generated corpus: everything in minutes, on a laptop.

    python -m transformer_jax.train --config configs/quickstart.py \\
        --workdir runs/quickstart

Measured: 99.28 BLEU on the test split (sacreBLEU, cased), 4 minutes of training
on two CPU cores; see results/quickstart.json.
"""

from transformer_jax.config import base


def get_config():
    config = base(task="translation", model="transformer")

    config.targets = ("cpu", "h200x1")
    config.tokenizer.vocab_size = 2000
    config.data.train_size = 30_000
    config.data.batch_tokens = 2048
    config.data.max_length = 64
    config.data.shapes = 6

    config.model.encoder_layers = 2
    config.model.decoder_layers = 2
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.num_heads = 4
    # Five epochs are too few for a small model to memorise the corpus.
    config.model.dropout_embedding = 0.0
    config.model.dropout_residual = 0.0

    config.train.steps = 1400
    config.optim.warmup_steps = 300

    config.eval.every = 700
    config.eval.weights = "average"  # as in docs/results.md
    config.eval.answers = 200
    config.eval.splits = ("test", "test_combinations")
    config.checkpoint.every = 100
    config.log.every = 50
    return config
