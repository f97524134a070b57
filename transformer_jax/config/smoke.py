"""Shrink any config to a training of 20 small steps that shows whether it works.

Widths, types and the mesh are kept, because they may not fit together. Depth, batch and
data shrink, so that the steps are fast. A model that takes over the parameters of
another run keeps its depth, too.
"""

from ml_collections import ConfigDict

from transformer_jax.config.checks import longest_row
from transformer_jax.config.defaults import items

MOST = {  # option → its largest value
    "data.train_size": 500,
    "data.validation_size": 20,
    "data.test_size": 20,
    "data.shapes": 1,
    "tokenizer.lines": 2000,
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "model.layers": 1,
    "train.steps": 20,
    "train.patience": 0,
    "optim.warmup_steps": 5,
    "optim.decay_steps": 15,
    "eval.every": 20,
    "checkpoint.every": 10,
    "checkpoint.keep_last": 2,
    "checkpoint.average": 2,
    "log.every": 5,
}
FIXED = {"eval.answers": 4, "eval.splits": ()}  # 0 answers would mean all


def shrink(config: ConfigDict) -> None:
    """Reduce the options of a config to values that a smoke test can afford."""
    known = dict(items(config))
    smaller = {
        name: min(known[name], most) for name, most in MOST.items() if name in known
    }
    if config.train.initial:
        smaller = {k: v for k, v in smaller.items() if not k.startswith("model.")}
    smaller |= {name: value for name, value in FIXED.items() if name in known}
    config.update_from_flattened_dict(smaller)
    config.train.smoke = True
    needed = longest_row(config) * config.data.row_multiple
    config.data.batch_tokens = min(config.data.batch_tokens, needed)
