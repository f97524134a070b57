"""Sentence vectors: sentences with the same meaning are near, whatever their words.

    python -m transformer_jax.train --config configs/similarity.py --workdir runs/near
    echo "Dad purchased a car." | python -m transformer_jax.predict \\
        --workdir runs/near --among lines.txt

Variants: paraphrases (the default: generated pairs of English sentences) and tatoeba
(English and German, train.tsv.gz and dev.tsv.gz in --config.data.folder). Your own
pairs are two columns: --config.data.source=tsv --config.data.train_files=F. The other
pairs of a batch are the negatives, so a larger `data.batch_tokens` makes the task
harder.
Measured: paraphrases recall@1 99.8 % of 500 sentences whose words are nearly all
changed (TF-IDF: 63.6), 100.0 % of those with most of their words (98.6); see
results/similarity_paraphrases.json. tatoeba 79.2 % of dev (5.3); see
results/similarity_tatoeba.json.
"""

from transformer_jax.base.errors import UserError
from transformer_jax.config import base

VARIANTS = ("paraphrases", "tatoeba")


def get_config(variant="paraphrases"):
    config = base(task="similarity", model="transformer")
    if variant not in VARIANTS:
        raise UserError(
            f"similarity.py has no variant {variant!r}: paraphrases or tatoeba"
        )
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

    config.train.steps = 500
    config.optim.schedule = "linear"
    config.optim.constant = 0.0015
    config.optim.warmup_steps = 50
    config.eval.every = 100
    config.eval.weights = "average"  # as in docs/results.md
    config.eval.splits = ("test", "test_reworded")
    config.checkpoint.every = 50

    if variant == "tatoeba":
        config.data.source = "tsv"
        config.data.train_files = "train.tsv.gz"
        config.data.validation_files = "dev.tsv.gz"
        config.data.source_column = "1"
        config.data.target_column = "2"
        config.data.batch_tokens = 3072
        config.tokenizer.vocab_size = 8000
        config.train.steps = 600
        config.optim.constant = 0.002
        config.eval.every = 200
        config.eval.answers = 500
        config.eval.splits = ("validation",)
    return config
