"""The header of a training says which kernels its attention takes, and why."""

import types

import numpy as np
import pytest

from transformer_jax import config as configs
from transformer_jax import sharding
from transformer_jax.data.batches import Shape
from transformer_jax.training import report


def line(platform="cpu", shapes=((31, 32),), packed=False, name="quickstart", **model):
    config = configs.load(name)
    with config.unlocked():
        config.model.update(model)
    device = types.SimpleNamespace(platform=platform)
    mesh = types.SimpleNamespace(
        devices=np.array([device]), shape=dict.fromkeys(sharding.AXES, 1)
    )
    batches = [Shape(8, lengths, packed) for lengths in shapes]
    return report.attention_line(config, batches, mesh)


@pytest.mark.parametrize(
    "given, words",
    [
        ({}, "einsum (cpu)"),
        ({"shapes": [(2000, 2048), (10, 11)]},
         "blockwise (cpu: 2,048 × 2,048 scores per head), einsum (cpu)"),
        ({"platform": "gpu", "dtype": "bfloat16"}, "cudnn (gpu)"),
        ({"platform": "gpu"},
         "einsum (gpu: model.attention = 'cudnn' takes 16-bit numbers: set "
         "model.dtype to 'bfloat16')"),
        ({"platform": "tpu", "shapes": [(256,)]}, "splash (tpu)"),
        ({"attention": "blockwise"}, "blockwise (cpu)"),
    ],
)  # fmt: skip
def test_the_header_names_the_kernels_and_why_they_are_taken(given, words):
    assert line(**given) == [f"attention  {words}"]


def test_a_recurrent_model_has_no_such_kernels():
    assert line(name="recurrent") == []
