"""A PyTorch decoder with the same sizes as a language model here, for comparison.

    python benchmarks/torch_decoder.py --help

Pre-norm, rotary positions, GELU, tied embeddings; attention is torch's own fused SDPA.
`accelerator.py` times it.
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Self-attention and a feed-forward layer, each after a norm."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mixed = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)

    def forward(self, x, cosine, sine):
        rows, length, width = x.shape
        query, key, value = (
            part.view(rows, length, self.heads, -1).transpose(1, 2)
            for part in self.mixed(self.norms[0](x)).chunk(3, dim=-1)
        )
        query, key = (_turn(part, cosine, sine) for part in (query, key))
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(rows, length, width))
        return x + self.outer(F.gelu(self.inner(self.norms[1](x))))


class Decoder(nn.Module):
    """A decoder that maps tokens and their successors to the mean cross-entropy."""

    def __init__(self, vocabulary: int, layers: int, width: int, heads: int):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.table.weight, std=width**-0.5)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.size = width // heads

    def forward(self, tokens, following):
        place = torch.arange(tokens.shape[1], device=tokens.device)
        speed = 1e4 ** -(torch.arange(0, self.size, 2, device=place.device) / self.size)
        angle = place[:, None] * speed
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x, angle.cos().to(x.dtype), angle.sin().to(x.dtype))
        logits = F.linear(self.norm(x), self.table.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), following.flatten())


def _turn(x, cosine, sine):
    one, two = x.chunk(2, dim=-1)
    return torch.cat([one * cosine - two * sine, two * cosine + one * sine], dim=-1)


if __name__ == "__main__":
    print(__doc__ if "--help" in sys.argv else "see accelerator.py --parts torch")
