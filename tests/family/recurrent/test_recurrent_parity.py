"""The same weights in PyTorch's RNN, LSTM and GRU: the same outputs and last states.

PyTorch gets packed sequences, so that it does not see padding either.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.family.recurrent.model import CELLS, RecurrentConfig, Stack

if os.environ.get("REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

B, S, D, LAYERS = 2, 5, 14, 2
LENGTHS = (5, 3)
REAL = np.arange(S) < np.array(LENGTHS)[:, None]
WAYS = (("forward", ""), ("backward", "_reverse"))  # here, and in PyTorch's names


@pytest.mark.parametrize("both", [False, True], ids=["one_way", "both_ways"])
@pytest.mark.parametrize("cell", CELLS)
def test_a_stack_is_that_of_torch_on_packed_sequences(cell, both):
    sizes = dict.fromkeys(("vocab_size", "vocab_rows"), 0)
    sizes |= dict.fromkeys(("source_vocab_size", "source_vocab_rows"), 0)
    stack = Stack(RecurrentConfig(**sizes, d_model=D, layers=LAYERS, cell=cell), both)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(B, S, D)).astype(np.float32)
    shapes = jax.eval_shape(stack.init, jax.random.key(0), x, jnp.asarray(REAL))
    params = jax.tree.map(
        lambda leaf: 0.4 * rng.normal(size=leaf.shape).astype(np.float32),
        shapes["params"],
    )
    outputs, states = stack.apply({"params": params}, jnp.asarray(x), jnp.asarray(REAL))
    expected, last = run_peer(make_peer(cell, both, params), x)
    np.testing.assert_allclose(outputs[REAL], expected[REAL], atol=2e-6)
    for part, of_torch in enumerate(last):  # [layers × ways, B, size]
        by_layer = of_torch.reshape(LAYERS, 1 + both, B, -1)
        for state, ways in zip(states, by_layer, strict=True):
            joined = np.concatenate([*ways], axis=-1)
            np.testing.assert_allclose(state[part], joined, atol=2e-6)


def make_peer(cell, both, params):
    kind, size = getattr(torch.nn, cell.upper()), D // (1 + both)
    peer = kind(D, size, LAYERS, batch_first=True, bidirectional=both)
    named = dict(peer.named_parameters())
    with torch.no_grad():
        for layer in range(LAYERS):
            for way, end in WAYS[: 1 + both]:
                ours, name = params[f"layer_{layer}"][way], f"l{layer}{end}"
                values = {
                    f"weight_ih_{name}": ours["input"]["kernel"].T,
                    f"bias_ih_{name}": ours["input"]["bias"],
                    f"weight_hh_{name}": ours["recurrent"].T,
                    f"bias_hh_{name}": 0 * ours["input"]["bias"],
                }
                for key, value in values.items():
                    named.pop(key).copy_(torch.tensor(value))
    assert not named
    return peer


def run_peer(peer, x):
    packing = torch.nn.utils.rnn
    packed = packing.pack_padded_sequence(torch.tensor(x), LENGTHS, batch_first=True)
    with torch.no_grad():
        outputs, last = peer(packed)
    outputs, _ = packing.pad_packed_sequence(outputs, batch_first=True)
    parts = last if isinstance(last, tuple) else (last,)
    return outputs.numpy(), [part.numpy() for part in parts]
