"""Multi30k: 29,000 image captions, the test bed for small translation models.

    python -m transformer_jax.train --config configs/multi30k.py:en_de \\
        --config.data.folder=PATH --workdir runs/multi30k

Variants en_de, en_de_lower (reads and writes lower case), en_fr, de_en (a larger model,
fewer updates) and both (one model for en_de and de_en: a source begins with the tag of
the language that is wanted). PATH holds train, val and test_2016_flickr, each with an
ending of its language, .gz (github.com/multi30k/dataset, data/task1/raw).

Published for test_2016_flickr: EN→DE 41.02 and EN→FR 61.80, tokenised and lower-cased,
by a model of these sizes, 2.6 million parameters (github.com/LividWo/Revisit-MMT);
DE→EN 36.52, tokenised by spaCy and lower-cased, greedy, with 9 million
(github.com/bentrevett/pytorch-seq2seq). `evaluate` prints a row of that kind.
Measured (commit cebfb54), test_2016_flickr: en_de_lower 41.08 (tokenised, lower-cased,
beam 5; sacreBLEU lower-cased 41.09), 2.6 million parameters, 8,000 updates, 81 minutes
on two CPU cores that did other work besides (49, by its rate before they did).
Measured (commit 4fe56e7): en_de 40.08 (sacreBLEU, cased, beam 5), the same sizes and
updates, 98 minutes on one CPU core; tokenised and lower-cased, 40.45.
Measured (commit 45127cb): en_fr 60.68 (sacreBLEU, cased, beam 5), the same sizes and
updates, 108 minutes on one CPU core shared with other work; tokenised and lower-cased,
61.73.
Measured (commit bf8cbb7): de_en 40.40 (sacreBLEU, cased, beam 4; greedy 39.53; 40.66
and 39.75 by Moses tokens, lower-cased), 7.6 million parameters, 2,000 updates of about
3,450 target tokens, 28 minutes on two CPU cores; of other first weights 40.47 (commit
7893b45). Joey NMT 2.3 with the same sizes takes 2.2 times as long for an update, by
turns on the same two cores (`benchmarks/joeynmt_speed.py`); it gave 35.0 after 2,000
updates on another such machine.
Measured (commit 9fb0d8c): both 40.15 EN→DE and 41.96 DE→EN (sacreBLEU, cased, beam 5;
40.54 and 42.37 by Moses tokens, lower-cased), one model of 2.6 million parameters,
8,000 updates, 95 minutes on one CPU core shared with other work.
"""

from transformer_jax.config import base
from transformer_jax.errors import UserError

DIRECTIONS = {  # variant → the corpora of a split, as source and target
    "en_de": ["en de"],
    "en_de_lower": ["en de"],
    "de_en": ["de en"],
    "en_fr": ["en fr"],
    "both": ["en de", "de en"],
}


def get_config(variant="en_de"):
    config = base(task="translation", model="transformer")
    if variant not in DIRECTIONS:
        raise UserError(
            f"multi30k.py has no variant {variant!r}: choose {', '.join(DIRECTIONS)}"
        )
    pairs = [direction.split() for direction in DIRECTIONS[variant]]
    names = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
    config.data.source = "text"
    for split, name in names.items():
        for side, languages in zip(
            ("source", "target"), zip(*pairs, strict=True), strict=True
        ):
            files = [f"{name}.{language}.gz" for language in languages]
            config.data[f"{split}_{side}"] = ",".join(files)
        if len(pairs) > 1:
            tags = [f"<2{target}>" for _, target in pairs]
            config.data[f"{split}_tags"] = ",".join(tags)
    if len(pairs) == 1:
        config.data.target_language = pairs[0][1]
    config.data.shapes = 12
    config.checkpoint.every = 200
    config.checkpoint.keep_last = 10
    config.checkpoint.average = 10
    config.eval.answers = 200
    if variant == "de_en":
        return _larger(config)

    # So little text: small models, strong dropout (Revisit-MMT's "tiny").
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
    config.decode.beams = 5
    return config


def _larger(config):
    """7.6 million parameters, and a rate that falls to 0 within 2,000 updates."""
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
    config.checkpoint.every = 100
    config.checkpoint.average = 5
    return config
