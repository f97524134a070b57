"""TED talks, Portuguese→English, through TensorFlow Datasets (no TensorFlow needed).

    python -m transformer_jax.train --config configs/ted.py \\
        --config.data.folder=PATH --workdir runs/ted

It needs `pip install 'transformer_jax[tfds]'`. PATH is the TFDS data directory (often
~/tensorflow_datasets) in which ted_hrlr_translate/pt_to_en is prepared as ArrayRecord;
if it is not, the error says how. There are 51,785 pairs, as in TensorFlow's text
tutorial, whose model has these sizes. The tutorial reports no BLEU, only masked
accuracy. Here: not yet measured.
"""

from transformer_jax.config import base


def get_config():
    config = base(task="translation", model="transformer")
    config.data.source = "tfds"
    config.data.tfds_name = "ted_hrlr_translate/pt_to_en"
    config.data.source_column = "pt"
    config.data.target_column = "en"
    config.data.target_language = "en"
    config.data.shapes = 12

    config.model.encoder_layers = 4
    config.model.decoder_layers = 4
    config.model.d_model = 128
    config.model.d_ff = 512
    config.train.steps = 16_000
    config.eval.every = 2000
    config.eval.weights = "average"  # (6.1)
    config.eval.answers = 200
    return config
