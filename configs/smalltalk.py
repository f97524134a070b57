"""A simple chatbot: an encoder-decoder that replies to the last turns.

    python -m transformer_jax.train --config configs/smalltalk.py --workdir runs/chat
    echo "Hi how are you" | python -m transformer_jax.predict --workdir runs/chat
    python -m transformer_jax.predict --workdir runs/chat     (an interactive session)

It is trained on a generated grammar of small talk, in which a reply may depend on what
was said up to three turns ago. For your own dialogues see dailydialog.py (one per
line), or use data.source = 'tsv' with the context (turns joined by " __eou__ ") and the
reply in columns 1 and 2.
Variants: few (the default) and many, which has more topics and answers lines from
outside the grammar by saying that it does not know or does not understand. Those lines
are the split test_off_topic; benchmarks/off_grammar.py asks 40 more questions.
Measured, test replies exactly right: few 98.3 %, many 97.9 % (off topic 76.2 %; 38 of
the 40 questions are met with "Sorry, …"); see results/smalltalk.json and
results/smalltalk_many.json.
"""

from transformer_jax.base.errors import UserError
from transformer_jax.config import base

VARIANTS = ("few", "many")


def get_config(variant="few"):
    config = base(task="conversation", model="transformer")
    if variant not in VARIANTS:
        raise UserError(f"smalltalk.py has no variant {variant!r}: few or many")

    config.data.train_size = 40_000
    config.data.validation_size = 500
    config.data.test_size = 1000
    config.data.batch_tokens = 2048
    config.data.max_length = 48
    config.data.shapes = 4
    config.tokenizer.kind = "bpe"
    config.tokenizer.vocab_size = 2000
    config.data.turns = 3

    config.model.encoder_layers = 2
    config.model.decoder_layers = 2
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.num_heads = 4
    config.model.dropout_embedding = 0.0
    config.model.dropout_residual = 0.0

    config.train.steps = 2000
    config.optim.warmup_steps = 300
    config.eval.every = 1000
    config.eval.weights = "average"  # as in docs/results.md
    config.eval.answers = 200
    config.checkpoint.every = 100

    if variant == "many":
        config.data.topics = "many"
        config.eval.splits = ("test", "test_off_topic")
    return config
