"""The recurrent models that the paper replaces, on the quickstart's corpus or Multi30k.

    python -m transformer_jax.train --config configs/recurrent.py:lstm_attention \\
        --workdir runs/lstm_attention
    python -m transformer_jax.train --config configs/recurrent.py:multi30k \\
        --config.data.folder=PATH --workdir runs/multi30k_lstm

Variants rnn, lstm and gru: the decoder gets only the final state of the encoder
(Sutskever et al., 2014). rnn_attention, lstm_attention and gru_attention: it attends to
a bidirectional encoder (Bahdanau et al., 2015). Data, vocabulary, updates and the
number of parameters are about those of configs/quickstart.py. multi30k is a larger
lstm_attention for English to German; PATH is the same as for configs/multi30k.py.
`benchmarks/recurrent.py` compares recurrent models with a Transformer.
Measured: BLEU on the test 99.65 (lstm_attention), 64.34 (lstm), 50.98 (gru) and 11.24
(rnn); see results/recurrent_*.json. The others: not yet measured.
"""

from transformer_jax.base.errors import UserError
from transformer_jax.config import base

WIDTHS = {"rnn": 256, "lstm": 160, "gru": 184}  # about 1.2 million parameters each
VARIANTS = ("multi30k", *(cell + end for cell in WIDTHS for end in ("", "_attention")))


def get_config(variant="lstm_attention"):
    config = base(task="translation", model="recurrent")
    if variant not in VARIANTS:
        raise UserError(
            f"recurrent.py has no variant {variant!r}: choose {', '.join(VARIANTS)}"
        )
    cell, _, attends = variant.partition("_")
    config.tokenizer.vocab_size = 2000
    config.data.train_size = 30_000
    config.data.batch_tokens = 2048
    config.data.max_length = 64
    config.data.shapes = 6
    config.model.dropout_embedding = 0.0
    config.model.dropout_residual = 0.0
    config.train.steps = 1400
    config.optim.warmup_steps = 300
    config.optim.constant = 0.5
    config.optim.clip_norm = 1.0  # a recurrence can make gradients explode
    config.eval.every = 700
    config.eval.weights = "average"  # as in docs/results.md
    config.eval.answers = 200
    config.eval.splits = ("test", "test_combinations")
    config.checkpoint.every = 100

    if variant == "multi30k":
        names = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
        config.data.source = "text"
        for split, name in names.items():
            config.data[f"{split}_source"] = f"{name}.en.gz"
            config.data[f"{split}_target"] = f"{name}.de.gz"
        config.data.target_language = "de"
        config.data.batch_tokens = 4096
        config.data.max_length = 128
        config.data.shapes = 12
        config.tokenizer.kind = "bpe"
        config.tokenizer.vocab_size = 10_000
        config.model.d_model = 256
        config.model.dropout_embedding = 0.3
        config.model.dropout_residual = 0.3
        config.train.steps = 6000
        config.eval.every = 1000
        config.eval.splits = ("test",)
    else:
        config.model.cell = cell
        config.model.d_model = WIDTHS[cell]
        config.model.bidirectional = bool(attends)
        config.model.attention = "additive" if attends else "none"
    return config
