"""Bounds of what a request needs, known before it is computed."""

import pytest

from transformer_jax.base.errors import Refused
from transformer_jax.decoding import DecodeRequest
from transformer_jax.decoding.memory import count_attentions
from transformer_jax.visualize.viewer import collect


@pytest.mark.parametrize(
    "layers, count",
    [
        ({"encoder_layers": 3, "decoder_layers": 2}, 7),
        ({"encoder_layers": 3}, 3),
        ({"decoder_layers": 2}, 2),
        ({}, 1),
    ],
)
def test_a_decoder_attends_twice_if_there_is_an_encoder(layers, count):
    assert count_attentions(layers) == count


def test_a_page_shows_so_many_weights_and_no_more(run, monkeypatch):
    layers = count_attentions(run.config.model)
    monkeypatch.setattr(collect, "MOST", layers * run.config.model.num_heads * 9**2)
    collect.refuse_large(run, DecodeRequest((5,) * 9))
    with pytest.raises(Refused, match=r"10 pieces have [\d,]+ weights .* shorten it"):
        collect.refuse_large(run, DecodeRequest((5,) * 10))
