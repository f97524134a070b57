"""WMT14 English→German and English→French: the paper's base and big models.

    python -m transformer_jax.train --config configs/wmt14.py:en_de_base \\
        --config.data.folder=PATH --workdir runs/wmt14

Variants en_de_base, en_de_big, en_fr_base, en_fr_big, each also with the suffix _tpu,
which packs sentences into rows of one shape instead of twelve shapes. They compute in
bfloat16, for GPUs and TPUs; for the paper's float32 pass --config.model.dtype=float32.
PATH contains train.en, train.de (or .fr), newstest2013 and newstest2014 with the same
endings, as raw text (not tokenised): training text from statmt.org/wmt14 (Europarl,
Common Crawl, News Commentary; for French also UN and 10^9), joined by `cat`; the test
sets by `sacrebleu -t wmt14/full -l en-de --echo src` and `--echo ref` (3,003 lines).
TFDS has the same text; with it prepared under PATH, add

        --config.data.source=tfds --config.data.tfds_name=wmt14_translate/de-en \\
        --config.data.source_column=en --config.data.target_column=de

Published by the paper (compounds split, 1 to 1.5 above sacreBLEU): EN-DE 27.3, big
28.4; EN-FR 38.1, big 41.8. By others (sacreBLEU): EN-DE 26.5 to 26.9, big 27.8 to 28.6.
Here: not yet measured.
"""

from transformer_jax.base.errors import UserError
from transformer_jax.config import base

PAIRS = ("en_de_base", "en_de_big", "en_fr_base", "en_fr_big")
VARIANTS = (*PAIRS, *(f"{pair}_tpu" for pair in PAIRS))


def get_config(variant="en_de_base"):
    if variant not in VARIANTS:
        raise UserError(f"wmt14.py has no variant {variant!r}: {' | '.join(VARIANTS)}")
    source, target, size, *tpu = variant.split("_")
    config = base(task="translation", model="transformer")
    names = {"train": "train", "validation": "newstest2013", "test": "newstest2014"}
    config.data.source = "text"
    for split, name in names.items():
        config.data[f"{split}_source"] = f"{name}.{source}"
        config.data[f"{split}_target"] = f"{name}.{target}"
    config.data.target_language = target

    config.data.batch_tokens = 25_000  # of each side (5.1)
    config.data.max_length = 256
    config.data.shapes = 12
    config.targets = ("h200x1", "h200x8")
    config.model.dtype = "bfloat16"
    config.data.length_multiple = 8  # cuDNN's attention needs even lengths
    if tpu:  # compiles slowly, and prefers multiples of 128
        config.targets = ("v5e-8",)
        config.data.batching = "packed"
        config.data.pack_length = 384  # holds the longest pair with its end tokens
        config.data.length_multiple = 128
        config.model.scan_layers = True
    config.tokenizer.kind = "bpe"
    # As in the paper (5.1). Its parameter counts (Table 3) imply other vocabularies:
    # see docs/deviations.md.
    config.tokenizer.vocab_size = 37_000 if target == "de" else 32_000
    config.train.steps = 100_000
    config.eval.every = 5000
    config.eval.weights = "average"  # (6.1)
    config.checkpoint.every = 1000

    if size == "big":
        config.model.d_model = 1024
        config.model.d_ff = 4096
        config.model.num_heads = 16
        dropout = 0.3 if target == "de" else 0.1  # (5.4, 6.1)
        config.model.dropout_embedding = dropout
        config.model.dropout_residual = dropout
        config.train.steps = 300_000
        config.checkpoint.average = 20
        config.checkpoint.keep_last = 20
    return config
