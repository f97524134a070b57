"""A language model: it continues a given text, character by character.

    python -m transformer_jax.train --config configs/language.py --workdir runs/language
    echo "The old woman" | python -m transformer_jax.predict --workdir runs/language
    python -m transformer_jax.train --config configs/language.py:shakespeare \\
        --config.data.folder=PATH --workdir runs/shakespeare

Variants: phrasebook (generated sentences, the default), canaries (the same with made-up
secrets planted, for `python -m transformer_jax.audit`), stories (generated stories of 7
or 8 sentences, in pieces of words), shakespeare (tiny_shakespeare; PATH contains
train.txt.gz and validation.txt.gz) and wikitext2 (pieces of words; PATH contains
train.txt.gz and valid.txt.gz). Each window is read alone: its first character, or word,
is predicted without context (`evaluate --context=N` reads N characters before each
window).
Measured, each window read alone: phrasebook 1.178 bits per character, stories 0.1927
(71.5 % of the sampled stories are consistent), shakespeare 1.421 nats, wikitext2
perplexity 128.0 per word, and 93.0 with `evaluate --cache=2000`; see
results/language_*.json.
"""

from transformer_jax.base.errors import UserError
from transformer_jax.config import base

VARIANTS = ("phrasebook", "stories", "canaries", "shakespeare", "wikitext2")


def get_config(variant="phrasebook"):
    config = base(task="language", model="transformer")
    if variant not in VARIANTS:
        raise UserError(
            f"language.py has no variant {variant!r}: phrasebook, stories, canaries, "
            "shakespeare or wikitext2"
        )
    config.tokenizer.kind = "char"
    config.tokenizer.byte_fallback = False
    config.tokenizer.vocab_size = 300
    config.model.decoder_layers = 4
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.num_heads = 4
    config.model.norm = "pre"
    config.model.dropout_embedding = 0.0
    config.model.dropout_residual = 0.0
    config.data.window = 128
    config.data.batch_tokens = 4096
    config.data.shapes = 1
    config.data.train_size = 10_000
    config.train.steps = 600
    config.optim.warmup_steps = 100
    config.optim.constant = 0.35
    config.eval.every = 200
    config.eval.weights = "average"  # as in docs/results.md
    config.checkpoint.every = 100
    config.decode.max_length = 80
    config.decode.temperature = 0.8

    if variant == "canaries":
        config.data.canaries = (0, 1, 10, 100)

    if variant == "stories":
        config.data.source = "stories"
        config.data.train_size = 20_000
        config.data.window = 560  # characters: about 128 pieces
        config.data.batch_tokens = 4480
        config.tokenizer.kind = "bpe"
        config.tokenizer.vocab_size = 1500
        config.model.positions = "rotary"
        config.train.steps = 1200
        config.optim.name = "muon"
        config.optim.schedule = "linear"
        config.optim.constant = 0.003
        config.eval.every = 600
        config.decode.min_p = 0.05
        config.decode.max_length = 120  # a story is of about 90 pieces
        config.decode.window = 128  # pieces that are read at once

    if variant == "shakespeare":
        config.data.source = "text"
        config.data.train_text = "train.txt.gz"
        config.data.validation_text = "validation.txt.gz"
        config.data.window = 256
        config.data.stride = 64
        config.eval.splits = ("validation",)
        config.model.positions = "rotary"
        config.model.dropout_embedding = 0.1
        config.model.dropout_residual = 0.15
        config.train.steps = 2500
        config.optim.name = "muon"
        config.optim.schedule = "linear"
        config.optim.constant = 0.01
        config.eval.every = 500
        config.eval.weights = "last"
        config.decode.max_length = 190

    if variant == "wikitext2":
        config.data.source = "text"
        config.data.train_text = "train.txt.gz"
        config.data.validation_text = "valid.txt.gz"
        config.data.window = 1000  # characters: about 265 pieces
        config.data.row_multiple = 4
        config.data.stride = 250
        config.data.shapes = 3
        config.tokenizer.kind = "bpe"
        config.tokenizer.vocab_size = 8000
        config.model.positions = "rotary"
        config.model.d_model = 256
        config.model.d_ff = 1024
        config.model.dropout_embedding = 0.1
        config.model.dropout_residual = 0.15
        config.eval.splits = ("validation",)
        config.train.steps = 3000
        config.optim.name = "muon"
        config.optim.schedule = "linear"
        config.optim.constant = 0.01
        config.eval.every = 500
        config.eval.weights = "last"
        config.decode.max_length = 60
    return config
