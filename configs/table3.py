"""Table 3 of the paper: the base model with one thing changed in each row.

    python launch/table3.py --workdir runs/table3

trains the `tiny_` rows on the generated corpus, one after the other, and prints the
table next to the paper's figures. They apply the same changes to a model an eighth as
wide and half as deep. If it is killed, the same command continues. The full-size rows
use WMT14 data (see `wmt14.py`, also for PATH):

    python -m transformer_jax.train --config configs/table3.py:a_1 \\
        --config.data.folder=PATH --workdir runs/a_1
    python launch/table3.py --full --workdir runs/full --config.data.folder=PATH

As in the paper, scores are for the development set and the last parameters (no
average). The paper's figures are in ROWS. The full-size rows: not yet measured.

Measured: 93.0 BLEU for tiny_base after 800 updates; the other tiny_ rows and their
discussion are in results/table3_tiny_base.json.
"""

from transformer_jax.base.errors import UserError
from transformer_jax.config import base

# name: the change to the base model; the paper's perplexity, BLEU, and parameters in
# millions if it states them. Widths are for the full-size model.
ROWS = {
    "base": ({}, 4.92, 25.8, 65),
    "a_1": ({"num_heads": 1, "d_k": 512, "d_v": 512}, 5.29, 24.9, None),
    "a_4": ({"num_heads": 4, "d_k": 128, "d_v": 128}, 5.00, 25.5, None),
    "a_16": ({"num_heads": 16, "d_k": 32, "d_v": 32}, 4.91, 25.8, None),
    "a_32": ({"num_heads": 32, "d_k": 16, "d_v": 16}, 5.01, 25.4, None),
    "b_16": ({"d_k": 16}, 5.16, 25.1, 58),
    "b_32": ({"d_k": 32}, 5.01, 25.4, 60),
    "c_layers_2": ({"layers": 2}, 6.11, 23.7, 36),
    "c_layers_4": ({"layers": 4}, 5.19, 25.3, 50),
    "c_layers_8": ({"layers": 8}, 4.88, 25.5, 80),
    "c_width_256": ({"d_model": 256, "d_k": 32, "d_v": 32}, 5.75, 24.5, 28),
    "c_width_1024": ({"d_model": 1024, "d_k": 128, "d_v": 128}, 4.66, 26.0, 168),
    "c_inner_1024": ({"d_ff": 1024}, 5.12, 25.4, 53),
    "c_inner_4096": ({"d_ff": 4096}, 4.75, 26.2, 90),
    "d_dropout_0": ({"dropout": 0.0}, 5.77, 24.6, None),
    "d_dropout_2": ({"dropout": 0.2}, 4.95, 25.5, None),
    "d_smoothing_0": ({"smoothing": 0.0}, 4.67, 25.3, None),
    "d_smoothing_2": ({"smoothing": 0.2}, 5.47, 25.7, None),
    "e_learned": ({"positions": "learned"}, 4.92, 25.7, None),
    "big": (
        {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3, "steps": 3},
        4.33,
        26.4,
        213,
    ),
}
VARIANTS = ("tiny_base", "base", "big")  # that `plan --all` compiles
BASE = {
    "layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8, "d_k": 64, "d_v": 64,
    "dropout": 0.1, "smoothing": 0.1, "positions": "sinusoid", "steps": 1,
}  # fmt: skip


def get_config(variant="tiny_base"):
    row = variant.removeprefix("tiny_")
    if row not in ROWS:
        raise UserError(
            f"table3.py has no variant {variant!r}: {' | '.join(ROWS)}, or the same "
            "with tiny_ before it"
        )
    config = base(task="translation", model="transformer")
    tiny = variant != row
    (_tiny if tiny else _full)(config)
    change = {**BASE, **ROWS[row][0]}
    model, narrower = config.model, 8 if tiny else 1
    for key in ("d_model", "d_ff", "d_k", "d_v"):
        model[key] = change[key] // narrower
    model.encoder_layers = model.decoder_layers = change["layers"] // (1 + tiny)
    model.num_heads = change["num_heads"]
    model.positions = change["positions"]
    model.dropout_embedding = model.dropout_residual = change["dropout"]
    config.train.label_smoothing = change["smoothing"]
    config.train.steps *= change["steps"]
    config.eval.every = config.train.steps
    config.eval.weights = "last"
    config.eval.splits = ("validation",)
    config.checkpoint.average = config.checkpoint.keep_last = 1
    return config


def _full(config):
    config.data.source = "text"
    for split, name in (("train", "train"), ("validation", "newstest2013")):
        config.data[f"{split}_source"] = f"{name}.en"
        config.data[f"{split}_target"] = f"{name}.de"
    config.data.target_language = "de"
    config.targets = ("h200x1",)
    config.model.dtype = "bfloat16"
    config.data.length_multiple = 8
    config.data.batch_tokens = 25_000
    config.data.max_length = 256
    config.data.shapes = 12
    config.tokenizer.kind = "bpe"
    config.tokenizer.vocab_size = 37_000
    config.train.steps = 100_000


def _tiny(config):
    config.data.train_size = 30_000
    config.data.batch_tokens = 2048
    config.data.max_length = 48
    config.data.shapes = 6
    config.tokenizer.vocab_size = 2000
    config.model.max_positions = 192
    config.train.steps = 800
    config.optim.warmup_steps = 400  # with 200, most rows learn little in 600
    config.checkpoint.every = 200
