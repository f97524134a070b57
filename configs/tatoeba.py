"""Tatoeba: 165,000 short sentence pairs for a translator of everyday language.

    python -m transformer_jax.train --config configs/tatoeba.py:de_en \\
        --config.data.folder=PATH --workdir runs/tatoeba

Variants de_en and en_de. PATH contains train.tsv.gz and dev.tsv.gz with English and
German in two columns (manythings.org/anki has such files). For en_de, many sources of
dev have several references: `evaluate --split validation` scores each source once,
against all of them.
Measured: de_en 51.02 BLEU on dev (sacreBLEU, cased, beam 4); see
results/tatoeba_de_en.json. The translators of the package were trained with
--config.train.steps=2500 --config.checkpoint.every=125, and their matrices rounded to 8
bits: de_en (dafa6db) 47.99, rounded 47.94; en_de (0559d25) 38.35, rounded 38.23, and
42.34 with each source scored once, against all its references.
"""

from transformer_jax.base.errors import UserError
from transformer_jax.config import base

VARIANTS = ("de_en", "en_de")


def get_config(direction="de_en"):
    config = base(task="translation", model="transformer")
    columns = {"en": "1", "de": "2"}
    if direction not in VARIANTS:
        raise UserError(f"tatoeba.py has no variant {direction!r}: de_en or en_de")
    source, target = direction.split("_")
    config.card = (
        "Translates short sentences of everyday language. The sentences are those of "
        "Tatoeba (tatoeba.org, CC BY 2.0 FR, from manythings.org/anki), written by "
        "many volunteers; what they say is not checked. News, technical or long texts "
        "are unlike anything that the model has read, and names are often wrong."
    )
    config.data.source = "tsv"
    config.data.train_files = "train.tsv.gz"
    config.data.validation_files = "dev.tsv.gz"
    config.data.source_column = columns[source]
    config.data.target_column = columns[target]
    config.data.target_language = target
    config.data.batch_tokens = 4096
    config.data.max_length = 64
    config.data.shapes = 8
    config.tokenizer.vocab_size = 8000

    config.model.encoder_layers = 3
    config.model.decoder_layers = 3
    config.model.d_model = 256
    config.model.d_ff = 1024
    config.model.num_heads = 4
    config.model.norm = "pre"
    config.model.dropout_embedding = 0.1
    config.model.dropout_residual = 0.1

    config.train.steps = 5000
    config.optim.schedule = "linear"
    config.optim.constant = 0.002
    config.optim.warmup_steps = 500
    config.eval.every = 1000
    config.eval.weights = "average"  # as in docs/results.md
    config.eval.answers = 200
    config.eval.splits = ("validation",)
    config.checkpoint.every = 250
    return config
