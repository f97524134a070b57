"""Large language models, for GPUs and TPUs: 350 million and 1.3 billion parameters.

    python -m transformer_jax.train --config configs/language_models.py:350m \\
        --config.data.folder=PATH --workdir runs/350m
    python -m transformer_jax.plan --config configs/language_models.py:1_3b \\
        --target v5e-256 --no_data

Variants 350m and 1_3b, with the sizes of GPT-3's models of these names and rotary
positions. There is no dropout, because no text is read twice. PATH contains
train.txt.gz and validation.txt.gz. A window of 8,000 characters is about 2,000 pieces.
Models of these sizes were compiled for v5e-8 and v5e-256 (benchmarks/README.md). A step
of 350m takes 145 ms on an H100 (launch/README.md); trainings are not yet measured.
"""

from transformer_jax.base.errors import UserError
from transformer_jax.config import base

VARIANTS = ("350m", "1_3b")


def get_config(variant="350m"):
    if variant not in VARIANTS:
        raise UserError(
            f"language_models.py has no variant {variant!r}: {' or '.join(VARIANTS)}"
        )
    config = base(task="language", model="transformer")
    config.targets = ("h200x8", "v5e-8")
    config.data.source = "text"
    config.data.train_text = "train.txt.gz"
    config.data.validation_text = "validation.txt.gz"
    config.data.window = 8000
    config.data.batch_tokens = 2**19
    config.data.shapes = 1
    config.data.row_multiple = 64
    config.data.length_multiple = 128
    config.tokenizer.kind = "bpe"
    config.tokenizer.vocab_size = 32_000
    config.eval.splits = ("validation",)
    config.eval.batch_rows = 64

    config.model.decoder_layers = 24
    config.model.d_model = 1024
    config.model.d_ff = 4096
    config.model.num_heads = 16
    config.model.norm = "pre"
    config.model.positions = "rotary"
    config.model.activation = "gelu_tanh"
    config.model.dropout_embedding = 0.0
    config.model.dropout_residual = 0.0
    config.model.dtype = "bfloat16"
    config.model.remat = "full"
    config.model.scan_layers = True

    # Micro-batches would be reduced one by one, with eight times the bytes.
    config.mesh.data = 1
    config.mesh.fsdp = -1

    config.train.steps = 14_000  # 20 pieces per parameter
    config.optim.schedule = "cosine"
    config.optim.constant = 3e-4
    config.optim.warmup_steps = 700
    config.optim.clip_norm = 1.0
    config.eval.every = 1000
    config.checkpoint.every = 500

    if variant == "1_3b":
        config.targets = ("h200x64", "v5e-256")
        config.model.d_model = 2048
        config.model.d_ff = 8192
        # Over 256 devices each has 8 rows of a matrix: too few to scatter on a TPU.
        config.mesh.data = -1
        config.mesh.fsdp = 16
        config.data.batch_tokens = 2**21
        config.data.row_multiple = 256
        config.eval.batch_rows = 256
        config.train.steps = 13_000
        config.optim.constant = 2e-4
    return config
