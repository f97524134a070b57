"""One tag per word: the phrases of a sentence, or the parts of speech of its words.

    python -m transformer_jax.train --config configs/tagging.py --workdir runs/tagging
    echo "The boy who sees this girl gave Ana a book ." \\
        | python -m transformer_jax.predict --workdir runs/tagging

Variants: phrases (the default: B, I and O of the outermost phrases of generated
sentences), pos (their parts of speech) and ptb_sample (parts of speech of
train.trees.gz and dev.trees.gz in --config.data.folder, bracketed trees, one per line:
a tenth of the Penn Treebank). For files in CoNLL's format, with one word per line, its
tag in the last column and an empty line between sentences:

    --config.data.source=conll --config.data.train_files=F

Other columns: `data.text_column`, `data.tags_column`.
Measured: phrases F1 of spans 98.77 (each word's most frequent tag: 61.18), pos 99.81 %
of the words right (95.76), ptb_sample 93.39 % of dev (88.73; two seeds); see
results/tagging_*.json.
"""

from transformer_jax.base.errors import UserError
from transformer_jax.config import base

VARIANTS = ("phrases", "pos", "ptb_sample")


def get_config(variant="phrases"):
    config = base(task="tagging", model="transformer")
    if variant not in VARIANTS:
        raise UserError(
            f"tagging.py has no variant {variant!r}: phrases, pos or ptb_sample"
        )
    config.data.tagset = "phrases" if variant == "phrases" else "pos"
    config.data.train_size = 20_000
    config.data.batch_tokens = 2048
    config.data.max_length = 48
    config.data.shapes = 3
    config.tokenizer.vocab_size = 2000

    config.model.encoder_layers = 2
    config.model.d_model = 128
    config.model.d_ff = 256
    config.model.num_heads = 4
    config.model.norm = "pre"

    config.train.steps = 1000
    config.optim.schedule = "linear"
    config.optim.constant = 0.0015
    config.optim.warmup_steps = 100
    config.eval.every = 200
    config.eval.weights = "average"  # as in docs/results.md
    config.eval.answers = 200
    config.checkpoint.every = 100

    if variant == "ptb_sample":
        config.data.source = "trees"
        config.data.train_files = "train.trees.gz"
        config.data.validation_files = "dev.trees.gz"
        config.data.max_length = 150
        config.data.substitutes = 15
        config.data.shapes = 5
        config.tokenizer.kind = "bpe"
        config.tokenizer.vocab_size = 4000
        config.model.dropout_words = 0.1  # few sentences are soon memorised
        config.model.dropout_embedding = 0.15
        config.model.dropout_residual = 0.15
        config.train.steps = 3000
        config.eval.every = 600
        config.eval.splits = ("validation",)
        config.checkpoint.every = 200
    return config
