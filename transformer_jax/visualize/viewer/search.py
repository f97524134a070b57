"""Describe a traced search: its hypotheses as a tree of nodes, step by step."""

from collections.abc import Sequence
from typing import Any

from transformer_jax.data.text.tokenizer import Tokenizer
from transformer_jax.decoding import Options
from transformer_jax.visualize.viewer.trace import Step


def describe(
    steps: Sequence[Step],
    options: Options,
    tokenizer: Tokenizer,
    prefix: Sequence[int],
    read: Sequence[str],
) -> dict[str, Any]:
    """Return the steps for JSON.

    `nodes` holds [parent, piece, total log-probability]; node 0 is the root. `read`
    lists the tokens that the page shows as read by the decoder. If they belong to the
    best hypothesis, `offset` is the index of the token at which the first step was
    taken.
    """
    nodes = _Nodes(tokenizer)
    described = [
        {
            "living": [
                [
                    nodes.add(one.tokens, one.log_prob),
                    [[nodes.piece(t), round(p, 4)] for t, p in one.candidates],
                ]
                for one in step.living
            ],
            "finished": [
                [nodes.add(one.tokens, one.log_prob), round(one.score, 4)]
                for one in step.finished
            ],
        }
        for step in steps
    ]
    found = steps[-1].finished
    best = found[0].tokens if found else ()
    texts = [tokenizer.decode([*prefix, *one.tokens]) for one in found]
    return {
        "sample": bool(options.sample),
        "beams": 1 if options.sample or options.contrast else options.beams,
        "alpha": options.alpha,
        "prefix": tokenizer.pieces(prefix),
        "pieces": nodes.pieces,
        "nodes": nodes.rows,
        "steps": described,
        "texts": texts[: options.n_best if options.sample else None],
        "offset": _offset(tokenizer.pieces([*prefix, *best]), read, len(prefix)),
    }


class _Nodes:
    """Number hypotheses and pieces; a new hypothesis always has a known parent."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.numbers: dict[tuple[int, ...], int] = {(): 0}
        self.rows: list[list[Any]] = [[-1, -1, 0.0]]
        self.places: dict[int, int] = {}
        self.pieces: list[str] = []

    def add(self, tokens: tuple[int, ...], log_prob: float) -> int:
        """Add a node for a hypothesis unless it has one; return its number."""
        if tokens not in self.numbers:
            self.numbers[tokens] = len(self.rows)
            parent, piece = self.numbers[tokens[:-1]], self.piece(tokens[-1])
            self.rows.append([parent, piece, round(log_prob, 4)])
        return self.numbers[tokens]

    def piece(self, token: int) -> int:
        """Return the index of a token among the pieces."""
        if token not in self.places:
            self.places[token] = len(self.pieces)
            [piece] = self.tokenizer.pieces([token])
            self.pieces.append(piece)
        return self.places[token]


def _offset(written: Sequence[str], read: Sequence[str], given: int) -> int | None:
    """Return the index of the token after which the first token was written."""
    inputs = list(written[:-1])
    return given if inputs and list(read[1:]) == inputs else None
