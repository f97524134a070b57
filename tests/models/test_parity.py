"""The same weights in PyTorch's nn.Transformer: the same outputs, the same gradients.

Only real positions are compared, because padding has no defined result.
"""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import sharding
from transformer_jax.models.transformer import Seq2Seq
from transformer_jax.models.transformer_config import TransformerConfig

if os.environ.get("REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

D, N, F, V = 14, 2, 11, 17
ENCODER, DECODER = 1, 2
SOURCE = np.array([[5, 9, 4, 16, 3], [7, 12, 3, 0, 0], [8, 3, 0, 0, 0]])
TARGET = np.array([[2, 6, 11, 14], [2, 10, 13, 0], [2, 15, 0, 0]])
REAL = TARGET != 0


def build(norm):
    return Seq2Seq(
        TransformerConfig(
            vocab_size=V,
            vocab_rows=V,
            source_vocab_size=V,
            source_vocab_rows=V,
            encoder_layers=ENCODER,
            decoder_layers=DECODER,
            d_model=D,
            d_ff=F,
            num_heads=N,
            d_k=D // N,
            d_v=D // N,
            norm=norm,
            dropout_embedding=0.0,
            dropout_residual=0.0,
        )
    )


def arguments():
    arrays = (SOURCE, TARGET, SOURCE != 0, TARGET != 0)
    return [jnp.asarray(a, jnp.int32) for a in arrays]


def flat(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {sharding.path_name(path): np.asarray(leaf) for path, leaf in leaves}


@functools.cache
def ours(norm):
    """Random parameters, logits, their random weights, and the gradients of the sum."""
    module, inputs = build(norm), arguments()
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)

    def draw(path, leaf):
        values = rng.normal(size=leaf.shape) * D**-0.5
        offset = 1.0 if path[-1].key == "scale" else 0.0
        return jnp.asarray(offset + values, jnp.float32)

    params = jax.tree_util.tree_map_with_path(draw, shapes["params"])
    weigh = rng.normal(size=(*TARGET.shape, V)) * REAL[..., None]

    def run(params):
        logits = module.apply({"params": params}, *inputs).logits
        return (logits * weigh).sum(), logits

    both = jax.jit(jax.value_and_grad(run, has_aux=True))
    (_, logits), gradients = both(params)
    return flat(params), np.asarray(logits), weigh, flat(gradients)


class Peer(torch.nn.Module):
    """nn.Transformer between one embedding table and its transpose."""

    def __init__(self, norm):
        super().__init__()
        nn = torch.nn
        settings = dict(
            dropout=0.0, layer_norm_eps=1e-6, batch_first=True, norm_first=norm == "pre"
        )

        def last():
            # PyTorch would also put a norm after a post-norm stack: wrong there.
            return nn.LayerNorm(D, eps=1e-6) if norm == "pre" else None

        encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(D, N, F, **settings),
            ENCODER,
            last(),
            enable_nested_tensor=False,
        )
        decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(D, N, F, **settings), DECODER, last()
        )
        self.transformer = nn.Transformer(
            D, N, custom_encoder=encoder, custom_decoder=decoder, batch_first=True
        )
        self.embedding = nn.Parameter(torch.zeros(V, D))

    def forward(self, source, target):
        hidden = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=torch.ones(target.shape[1], target.shape[1]).triu(1).bool(),
            src_key_padding_mask=source == 0,
            tgt_key_padding_mask=target == 0,
            memory_key_padding_mask=source == 0,
        )
        return hidden @ self.embedding.T

    def embed(self, tokens):
        encoding = torch.tensor(sinusoid(tokens.shape[1]), dtype=torch.float32)
        return self.embedding[tokens] * D**0.5 + encoding


def sinusoid(length):
    table = np.zeros((length, D))
    for p in range(length):
        for i in range(D // 2):
            table[p, 2 * i] = np.sin(p / 10_000 ** (2 * i / D))
            table[p, 2 * i + 1] = np.cos(p / 10_000 ** (2 * i / D))
    return table


def names(norm):
    """(our path, their name, their rows that correspond to it)."""
    yield "embedding/embedding", "embedding", slice(None)
    for stack, layers in (("encoder", ENCODER), ("decoder", DECODER)):
        for i in range(layers):
            mine, theirs = f"{stack}/layer_{i}", f"transformer.{stack}.layers.{i}"
            yield from layer_names(mine, theirs, stack == "decoder")
        if norm == "pre":
            for end, theirs in (("scale", "weight"), ("bias", "bias")):
                yield f"{stack}/norm/{end}", f"transformer.{stack}.norm.{theirs}", ...


def layer_names(mine, theirs, cross):
    attentions = {"self_attention": "self_attn"}
    norms = {"self_attention": "norm1", "feed_forward": "norm2"}
    if cross:
        attentions["cross_attention"] = "multihead_attn"
        norms |= {"cross_attention": "norm2", "feed_forward": "norm3"}
    for end, ending in (("kernel", "weight"), ("bias", "bias")):
        for a, b in attentions.items():
            for i, part in enumerate(("query", "key", "value")):
                rows = slice(i * D, (i + 1) * D)
                yield f"{mine}/{a}/{part}/{end}", f"{theirs}.{b}.in_proj_{ending}", rows
            yield f"{mine}/{a}/out/{end}", f"{theirs}.{b}.out_proj.{ending}", ...
        for a, b in (("inner", "linear1"), ("outer", "linear2")):
            yield f"{mine}/feed_forward/{a}/{end}", f"{theirs}.{b}.{ending}", ...
    for end, ending in (("scale", "weight"), ("bias", "bias")):
        for a, b in norms.items():
            yield f"{mine}/{a}_norm/{end}", f"{theirs}.{b}.{ending}", ...


def turn(path, array):
    """A kernel maps rows to columns here, columns to rows in PyTorch."""
    return array.T if path.endswith("kernel") else array


@functools.cache
def theirs(norm):
    params, _, weigh, _ = ours(norm)
    peer = Peer(norm).train()  # evaluation would take a fast path without gradients
    parameters = dict(peer.named_parameters())
    mapped = {"ours": set(), "theirs": set()}
    with torch.no_grad():
        for mine, other, rows in names(norm):
            parameters[other][rows] = torch.tensor(turn(mine, params[mine]))
            mapped["ours"].add(mine)
            mapped["theirs"].add(other)
    assert mapped == {"ours": set(params), "theirs": set(parameters)}
    logits = peer(torch.tensor(SOURCE), torch.tensor(TARGET))
    (logits * torch.tensor(weigh)).sum().backward()
    gradients = {n: p.grad.numpy() for n, p in parameters.items()}
    return logits.detach().numpy(), gradients


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_logits_are_pytorchs(norm):
    mine, other = ours(norm)[1], theirs(norm)[0]
    assert mine[REAL].std() > 0.5
    np.testing.assert_allclose(mine[REAL], other[REAL], atol=1e-5)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_every_gradient_is_pytorchs(norm):
    mine, other = ours(norm)[3], theirs(norm)[1]
    for path, name, rows in names(norm):
        expected = turn(path, other[name][rows])
        largest = np.abs(expected).max()
        if path.endswith("key/bias"):
            # A shift of all keys shifts all scores alike: this gradient is 0.
            np.testing.assert_allclose(mine[path], 0, atol=1e-4, err_msg=path)
            continue
        assert largest > 1e-3, path
        np.testing.assert_allclose(
            mine[path] / largest, expected / largest, atol=1e-4, err_msg=path
        )
