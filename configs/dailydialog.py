"""DailyDialog: replies in everyday English, learned from 11,118 dialogues.

    python -m transformer_jax.train --config configs/dailydialog.py \\
        --config.data.folder=PATH --workdir runs/dailydialog
    python -m transformer_jax.predict --workdir runs/dailydialog --sample --top_p=0.9

PATH contains train.txt.gz and validation.txt.gz, with one dialogue per line and __eou__
at the end of each turn. Dialogues that occur twice, or also in the validation text, are
read once.
Measured: perplexity 26.25 per piece of the validation replies; see
results/dailydialog.json.
"""

from transformer_jax.config import base


def get_config():
    config = base(task="conversation", model="transformer")
    config.data.source = "dialogues"
    config.data.train_files = "train.txt.gz"
    config.data.validation_files = "validation.txt.gz"
    config.data.turns = 3
    config.data.batch_tokens = 4096
    config.data.max_length = 160
    config.data.batching = "packed"
    config.data.pack_length = 352  # on the longer side, that of the dialogue so far
    config.tokenizer.vocab_size = 8000

    config.model.encoder_layers = 3
    config.model.decoder_layers = 3
    config.model.d_model = 256
    config.model.d_ff = 1024
    config.model.num_heads = 4
    config.model.norm = "pre"
    # The replies are read 1.7 times, too seldom to be memorised.
    config.model.dropout_embedding = 0.0
    config.model.dropout_residual = 0.0

    config.train.steps = 2000
    config.optim.name = "muon"
    config.optim.schedule = "linear"
    config.optim.constant = 0.01
    config.optim.warmup_steps = 100
    config.eval.every = 500
    config.eval.weights = "last"  # as in docs/results.md
    config.eval.answers = 200
    config.eval.splits = ("validation",)
    config.checkpoint.every = 250
    return config
