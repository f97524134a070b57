"""Constituency parsing as translation: a sentence in, its tree in brackets out.

    python -m transformer_jax.train --config configs/parsing.py --workdir runs/parsing
    echo "the old man saw the boat ." | python -m transformer_jax.predict \\
        --workdir runs/parsing

Variants: treebank (generated, the default), ptb_sample (bracketed trees, one per line,
in train.trees.gz and dev.trees.gz of --config.data.folder: a tenth of the Penn
Treebank), and wsj and semi_supervised, the paper's 4-layer model and its decoding (beam
21, α 0.3, 300 pieces more than the input) for train.trees, dev.trees and test.trees.
Published for section 23 (the paper, table 4): F1 91.3 (wsj), 92.7 (semi_supervised).
Measured: F1 99.72 (treebank), 79.21 (ptb_sample, dev); see results/parsing_*.json. With
all-MiniLM-L6-v2 as the encoder, and without data.substitutes, 71.64
(docs/huggingface.md).
The others: not yet measured.
"""

from transformer_jax.base.errors import UserError
from transformer_jax.config import base

VARIANTS = ("treebank", "ptb_sample", "wsj", "semi_supervised")


def get_config(variant="treebank"):
    config = base(task="parsing", model="transformer")
    if variant == "treebank":
        return _treebank(config)
    if variant not in VARIANTS:
        raise UserError(
            f"parsing.py has no variant {variant!r}: treebank, ptb_sample, wsj or "
            "semi_supervised"
        )
    config.data.source = "trees"
    if variant == "ptb_sample":
        return _ptb_sample(config)
    config.targets = ("h200x1",)
    config.model.dtype = "bfloat16"
    config.data.length_multiple = 8
    config.tokenizer.kind = "word"
    for split, name in (("train", "train"), ("validation", "dev"), ("test", "test")):
        config.data[f"{split}_files"] = f"{name}.trees"
    config.tokenizer.vocab_size = 16_000 if variant == "wsj" else 32_000
    config.data.max_length = 300
    config.data.batch_tokens = 8192
    config.model.encoder_layers = 4
    config.model.decoder_layers = 4
    config.model.d_model = 1024
    config.model.d_ff = 4096
    config.model.num_heads = 16
    config.decode.well_formed = False  # the paper mentions no such rule
    config.decode.beams = 21
    config.decode.alpha = 0.3
    config.decode.extra_length = 300
    config.eval.weights = "average"
    return config


def _ptb_sample(config):
    config.data.train_files = "train.trees.gz"
    config.data.validation_files = "dev.trees.gz"
    # With few trees, copied words guide the brackets; XX symbols would need counting.
    config.data.leaves = "words"
    config.data.substitutes = 15
    config.tokenizer.kind = "bpe"
    config.tokenizer.shared = True
    config.tokenizer.vocab_size = 4000
    config.model.tie = "all"
    config.data.max_length = 320
    config.data.batch_tokens = 4096
    config.model.encoder_layers = 3
    config.model.decoder_layers = 3
    config.model.d_model = 192
    config.model.d_ff = 768
    config.model.num_heads = 4
    config.model.norm = "pre"
    config.model.dropout_embedding = 0.1
    config.model.dropout_residual = 0.15
    config.train.steps = 4000
    config.optim.schedule = "linear"
    config.optim.constant = 0.0015
    config.optim.warmup_steps = 300
    config.decode.beams = 10
    config.decode.extra_length = 200
    config.eval.every = 1000
    config.eval.weights = "average"  # as in docs/results.md
    config.eval.answers = 50
    config.eval.splits = ("validation",)
    config.checkpoint.every = 200
    return config


def _treebank(config):
    config.tokenizer.kind = "word"
    config.tokenizer.vocab_size = 1000
    config.data.train_size = 120_000
    config.data.validation_size = 300
    config.data.test_size = 500
    config.data.batch_tokens = 4096
    config.data.max_length = 96
    config.data.shapes = 4
    config.model.encoder_layers = 2
    config.model.decoder_layers = 2
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.num_heads = 4
    config.model.norm = "pre"  # post-norm needed twice the steps before QKV_SCALE
    config.model.positions = "sinusoid+rotary"  # brackets are paired by distance
    config.model.dropout_embedding = 0.0
    config.model.dropout_residual = 0.0
    config.train.steps = 2000
    config.train.label_smoothing = 0.0  # only one tree is correct
    config.optim.schedule = "linear"
    config.optim.constant = 0.003
    config.optim.warmup_steps = 250
    config.decode.beams = 1
    config.decode.extra_length = 80
    config.eval.every = 500
    config.eval.weights = "average"  # as in docs/results.md
    config.eval.answers = 200
    config.checkpoint.every = 100
    return config
