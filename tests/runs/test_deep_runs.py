"""A run whose layers share parameters: trained, answered, shown and exported."""

import numpy as np
import pytest

import transformer_jax
from transformer_jax.base.errors import UserError
from transformer_jax.convert import ctranslate2
from transformer_jax.visualize import capture

pytestmark = pytest.mark.system

PAIR = "O gato dorme.", "The cat sleeps."


@pytest.fixture(scope="module")
def run(tiny_run_of):
    deep = {
        "model.norm": "deepnorm", "model.shared_layers": "universal",
        "model.encoder_layers": "3", "model.decoder_layers": "2",
        "model.dropout_layers": "0.2", "train.steps": "6", "eval.every": "6",
    }  # fmt: skip
    return transformer_jax.load(tiny_run_of("quickstart", **deep))


def test_a_run_of_shared_layers_answers(run):
    assert set(run.params["encoder"]) == set(run.params["decoder"]) == {"layer_0"}
    assert len(run.replies(["O gato dorme.", "A casa."])) == 2
    assert run.attention(*PAIR)["encoder"].shape[0] == 3


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_each_round_of_a_shared_layer_can_be_followed(run, kind):
    maps = run.attention(*PAIR)
    for layer in (0, 1):
        found = capture.follow_head(run, *PAIR, kind, layer, 1)
        np.testing.assert_allclose(found.weights, maps[kind][layer, 1], atol=1e-6)
    _, steps = capture.follow_layer(run, *PAIR, "encoder", 2)
    names = [step.name for step in steps]
    assert names[0] == "input of the layer" and names[-1] == "output of the layer"
    assert len(names) == len(set(names))


def test_what_ctranslate2_would_misread_is_refused(run, tmp_path):
    pytest.importorskip("ctranslate2")
    with pytest.raises(UserError, match="model.norm = 'deepnorm' is not exported"):
        ctranslate2.export(run, tmp_path / "out")
