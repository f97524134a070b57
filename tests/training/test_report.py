"""The header, the log lines and the last lines of a training."""

import types

import numpy as np
import pytest

from transformer_jax import config as configs
from transformer_jax import optim, sharding
from transformer_jax.base.errors import UserError
from transformer_jax.data.batches import Shape
from transformer_jax.runs.folder import Folder
from transformer_jax.training import report
from transformer_jax.training.steps.window import LogWindow


def line(platform="cpu", shapes=((31, 32),), packed=False, **model):
    config = configs.load("quickstart")
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


def test_a_rate_higher_than_any_tried_one_is_noted_with_its_cause():
    config = configs.load("quickstart")
    assert report.rate_note(config) == []
    with config.unlocked():
        config.optim.warmup_steps = 100
    (note,) = report.rate_note(config)
    assert (
        "optim.warmup_steps 100" in note and "8.84e-03" in note and "6.25e-03" in note
    )
    with config.unlocked():
        config.optim.learning_rate = 9e-3  # asked for: the warmup is not the cause
    assert report.rate_note(config) == []


def shipped_rates():
    for name in configs.shipped():
        for variant in configs.variants(name):
            try:
                config = configs.load(f"{name}:{variant}", data=False)
            except UserError:  # its data or an extra is missing
                continue
            if config.optim.name == "adam" and config.optim.schedule == "noam":
                yield optim.peak(config)


def test_the_highest_tried_rate_is_that_of_a_shipped_config():
    assert max(shipped_rates()) == pytest.approx(report.TRIED)


def test_a_narrow_terminal_shows_a_line_that_fits():
    objective = types.SimpleNamespace(unit="tokens")
    window = types.SimpleNamespace(
        task=types.SimpleNamespace(objective=objective), last_step=1250, metrics=()
    )
    values = {
        "loss": 5.4573, "perplexity": 234.473, "accuracy": 0.1041, "padding": 0.12,
        "learning_rate": 8.5e-4, "grad_norm": 1.655, "tokens_per_second": 128368.0,
        "seconds_left": 282.0,
    }  # fmt: skip
    whole = LogWindow.line(window, values)
    assert whole == (
        "step   1250  loss 5.4573  perplexity 234.473  accuracy 10.41%  lr 8.50e-04  "
        "|grad| 1.655  128,368 tokens/s  padding 12%  left 4 min 42 s"
    )
    assert LogWindow.line(window, values, 200) == whole
    narrow = LogWindow.line(window, values, 80)
    assert len(narrow) <= 80 and narrow.startswith("step   1250  loss 5.4573  accu")
    assert narrow.endswith("128,368 tokens/s  left 4 min 42 s")


def test_the_last_lines_say_that_a_smoke_run_is_no_model(tmp_path, capsys):
    result = {
        "step": 20,
        "stopped_early": False,
        "weights": "last",
        "scores": {},
        "seconds": 2.0,
    }
    report.print_result(result, Folder(tmp_path), smoke=True)
    assert "only tried its config (train --smoke)" in capsys.readouterr().out
