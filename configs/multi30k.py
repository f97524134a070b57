"""Multi30k: 29,000 image captions, the test bed for small translation models.

    python -m transformer_jax.train --config configs/multi30k.py:en_de \\
        --config.data.folder=PATH --workdir runs/multi30k

Variants en_de, de_en, en_fr. PATH holds train, val and test_2016_flickr, each with an
ending of its language, .gz (github.com/multi30k/dataset, data/task1/raw).

Published for test_2016_flickr: EN→DE 41.02 and EN→FR 61.80, tokenised and lower-cased,
by a model of these sizes, 2.6 million parameters (github.com/LividWo/Revisit-MMT);
DE→EN 36.52, tokenised by spaCy and lower-cased, greedy, with 9 million
(github.com/bentrevett/pytorch-seq2seq). `evaluate` prints a row of that kind.
Here: not yet measured.
"""

from transformer_jax.config import base
from transformer_jax.errors import UserError


def get_config(direction="en_de"):
    config = base(task="translation", model="transformer")
    if direction not in ("en_de", "de_en", "en_fr"):
        raise UserError(
            f"multi30k.py has no variant {direction!r}: choose en_de, de_en or en_fr"
        )
    names = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
    config.data.source = "text"
    for split, name in names.items():
        for side, language in zip(
            ("source", "target"), direction.split("_"), strict=True
        ):
            config.data[f"{split}_{side}"] = f"{name}.{language}.gz"
    config.data.target_language = direction[-2:]
    config.tokenizer.kind = "bpe"
    config.tokenizer.vocab_size = 10_000
    config.data.shapes = 12

    # So little text: small models, strong dropout (Revisit-MMT's "tiny").
    config.model.encoder_layers = 4
    config.model.decoder_layers = 4
    config.model.d_model = 128
    config.model.d_ff = 256
    config.model.num_heads = 4
    config.model.dropout_embedding = 0.3
    config.model.dropout_residual = 0.3

    config.train.steps = 8000
    config.optim.warmup_steps = 2000
    config.optim.constant = 2.53  # a peak of 0.005
    config.decode.beams = 5
    config.eval.every = 1000
    config.eval.answers = 200
    config.checkpoint.every = 200
    config.checkpoint.keep_last = 10
    config.checkpoint.average = 10
    return config
