"""Multi30k: 29,000 image captions, the test bed for small translation models.

    python -m transformer_jax.train --config configs/multi30k.py:en_de \\
        --config.data.folder=PATH --workdir runs/multi30k
    python -m transformer_jax.train --config configs/multi30k.py:fine_tuned_de_en \\
        --start_from runs/both --config.data.folder=PATH --workdir runs/de_en

Variants en_de, en_de_lower (reads and writes lower case), en_fr, de_en (a larger model,
fewer updates), both (one model for en_de and de_en; a source begins with the tag of the
target language), fine_tuned_de_en (goes on from a run of both in one direction) and
muon_de_en (the model of de_en by Muon, in rows that several sentences share).
PATH contains train, val and test_2016_flickr, each with the ending of its language and
.gz (github.com/multi30k/dataset, data/task1/raw).

Measured: BLEU on test_2016_flickr en_de 40.08, en_de_lower 41.08, en_fr 60.68, de_en
40.40, both 40.15 and 41.96, fine_tuned_de_en 42.22 (after 6,000 updates of both),
muon_de_en 41.34 (mean of three seeds); results/multi30k_*.json have the protocols and
published scores.
"""

from transformer_jax.base.errors import UserError
from transformer_jax.config import base

DIRECTIONS = {  # variant → source and target corpora of a split
    "en_de": ["en de"],
    "en_de_lower": ["en de"],
    "de_en": ["de en"],
    "en_fr": ["en fr"],
    "both": ["en de", "de en"],
    "fine_tuned_de_en": ["de en"],
    "muon_de_en": ["de en"],
}
VARIANTS = tuple(DIRECTIONS)


def get_config(variant="en_de"):
    config = base(task="translation", model="transformer")
    if variant not in DIRECTIONS:
        raise UserError(
            f"multi30k.py has no variant {variant!r}: choose {', '.join(DIRECTIONS)}"
        )
    pairs = [direction.split() for direction in DIRECTIONS[variant]]
    names = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
    config.targets = ("cpu", "h200x1")
    config.data.source = "text"
    for split, name in names.items():
        for side, languages in zip(
            ("source", "target"), zip(*pairs, strict=True), strict=True
        ):
            files = [f"{name}.{language}.gz" for language in languages]
            config.data[f"{split}_{side}"] = ",".join(files)
        if variant in ("both", "fine_tuned_de_en"):
            tags = [f"<2{target}>" for _, target in pairs]
            config.data[f"{split}_tags"] = ",".join(tags)
    if len(pairs) == 1:
        config.data.target_language = pairs[0][1]
    config.data.shapes = 12
    config.checkpoint.every = 200
    config.checkpoint.keep_last = 10
    config.checkpoint.average = 10
    config.eval.answers = 200
    if variant in ("de_en", "muon_de_en"):
        _enlarge(config)
        if variant == "muon_de_en":
            _take_muon(config)
        return config

    # For little text: small models with strong dropout (Revisit-MMT's "tiny").
    config.tokenizer.kind = "bpe"
    config.tokenizer.vocab_size = 10_000
    config.tokenizer.lowercase = variant == "en_de_lower"
    config.model.encoder_layers = 4
    config.model.decoder_layers = 4
    config.model.d_model = 128
    config.model.d_ff = 256
    config.model.num_heads = 4
    config.model.norm = "pre"  # learns faster: loss 2.77 at step 750, post-norm 3.08
    config.model.dropout_embedding = 0.3
    config.model.dropout_residual = 0.3

    config.train.steps = 8000
    config.optim.warmup_steps = 2000
    config.optim.constant = 2.53  # a peak of 0.005
    config.eval.every = 1000
    config.eval.weights = "average"  # as in docs/results.md
    config.decode.beams = 5
    if variant == "fine_tuned_de_en":
        config.train.steps = 1500
        config.optim.schedule = "linear"
        config.optim.constant = 0.002
        config.optim.warmup_steps = 100
        config.checkpoint.every = 100
        config.checkpoint.average = 5
        config.eval.every = 500
    return config


def _enlarge(config):
    """Choose 7.6 million parameters, and a rate that falls to 0 in 2,000 updates."""
    config.tokenizer.vocab_size = 8000
    config.model.encoder_layers = 3
    config.model.decoder_layers = 3
    config.model.d_model = 256
    config.model.d_ff = 1024
    config.model.num_heads = 4
    config.model.norm = "pre"
    config.model.dropout_embedding = 0.3
    config.model.dropout_residual = 0.3
    config.train.steps = 2000
    config.optim.schedule = "linear"
    config.optim.constant = 0.002
    config.optim.warmup_steps = 400
    config.eval.every = 500
    config.eval.weights = "average"  # as in docs/results.md
    config.checkpoint.every = 100
    config.checkpoint.average = 5


def _take_muon(config):
    """Take Muon, rows that several sentences share, and less dropout."""
    config.optim.name = "muon"
    config.optim.constant = 0.005
    config.optim.warmup_steps = 100
    config.model.dropout_embedding = 0.2
    config.model.dropout_residual = 0.2
    config.data.batching = "packed"
    config.data.pack_length = 64
    config.data.max_length = 63
    config.train.steps = 1300
    config.eval.every = 1300
    config.eval.weights = "last"
    config.checkpoint.every = 325
