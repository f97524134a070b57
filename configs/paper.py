"""The models of "Attention Is All You Need" as the paper states them: base and big.

    python -m transformer_jax.train --config configs/paper.py:big --workdir runs/big \\
        --config.data.train_source=train.en --config.data.train_target=train.de \\
        --config.data.validation_source=newstest2013.en \\
        --config.data.validation_target=newstest2013.de \\
        --config.data.test_source=newstest2014.en \\
        --config.data.test_target=newstest2014.de

The paper, on WMT14 EN-DE: base 27.3 BLEU in 12 hours, big 28.4 in 3.5 days, on 8 P100;
its protocol (tokenised, compounds split) reads 1 to 1.5 points above sacreBLEU.
Here: not yet measured.
"""

from transformer_jax.config import base
from transformer_jax.errors import UserError


def get_config(size="base"):
    config = base(task="translation", model="transformer")
    config.data.source = "text"
    config.data.batch_tokens = 25_000  # of each side (5.1)
    config.data.max_length = 256
    config.tokenizer.kind = "bpe"
    config.tokenizer.vocab_size = 37_000
    config.eval.every = 5000
    config.checkpoint.every = 1000

    if size == "base":
        config.train.steps = 100_000
    elif size == "big":
        config.model.d_model = 1024
        config.model.d_ff = 4096
        config.model.num_heads = 16
        config.model.dropout_embedding = 0.3
        config.model.dropout_residual = 0.3
        config.train.steps = 300_000
        config.checkpoint.average = 20
        config.checkpoint.keep_last = 20
    else:
        raise UserError(f"paper.py has no variant {size!r}: choose base or big")
    return config
