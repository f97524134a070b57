"""A masked language model: it fills in hidden words of a text from the others.

    python -m transformer_jax.train --config configs/masked.py --workdir runs/masked
    echo "The girl <mask> the red <mask>." \\
        | python -m transformer_jax.predict --workdir runs/masked
    python -m transformer_jax.train --config configs/masked.py:wikitext2 \\
        --config.data.folder=PATH --workdir runs/wikitext2

Variants: phrasebook (generated sentences, the default), wikitext2 (PATH contains
train.txt.gz and valid.txt.gz, as in configs/language.py) and opinions (texts without
labels, from which `configs/opinions.py:pretrained` starts).
Measured, hidden words found: phrasebook 48.0 %, opinions 60.0 %, wikitext2 15.7 %; see
results/masked_*.json.
"""

from transformer_jax.base.errors import UserError
from transformer_jax.config import base

VARIANTS = ("phrasebook", "wikitext2", "opinions")


def get_config(variant="phrasebook"):
    config = base(task="masked", model="transformer")
    if variant not in VARIANTS:
        raise UserError(
            f"masked.py has no variant {variant!r}: phrasebook, wikitext2 or opinions"
        )
    config.data.source = "phrasebook" if variant == "wikitext2" else variant
    config.data.window = 128
    config.data.train_size = 20_000
    config.data.shapes = 3
    config.tokenizer.vocab_size = 2000
    config.model.encoder_layers = 2
    config.model.d_model = 128
    config.model.d_ff = 256
    config.model.num_heads = 4
    config.model.dropout_embedding = 0.0
    config.model.dropout_residual = 0.0
    config.train.steps = 2000
    config.optim.warmup_steps = 200
    config.optim.constant = 0.5
    config.eval.every = 500
    config.eval.weights = "average"  # as in docs/results.md
    config.eval.answers = 100
    config.checkpoint.every = 100

    if variant == "opinions":  # as configs/opinions.py reads them
        config.data.source = "opinions"
        config.data.train_size = 40_000
        config.tokenizer.kind = "word"
        config.model.norm = "pre"
    if variant == "wikitext2":
        config.data.source = "text"
        config.data.train_text = "train.txt.gz"
        config.data.validation_text = "valid.txt.gz"
        config.eval.splits = ("validation",)
        config.data.window = 256  # characters
        config.tokenizer.vocab_size = 4000
        config.model.norm = "pre"  # as configs/tagging.py
        config.optim.schedule = "linear"
        config.optim.constant = 0.002
    return config
